"""What offload puts on the host and sends over its link, by class.

    optimizer    master weights and state live on the host, its CPU updates them; once per step gradients go out and
                 weights come back
    gradients    a layer's gradients leave as soon as they are reduced, in every micro-batch, and are summed on the host
                 (ZeRO-Offload, arXiv 2101.06840)
    parameters   bf16 shards live on the host and come in for every gather of every micro-batch: the ranks of a group
                 each bring their shard over their own link (ZeRO-Infinity, arXiv 2104.07857)
    activations  saved tensors leave after forward and come back for backward

All users share one link: their bytes add up before any of them hides behind compute. Candidates whose data sharding is
still open send and hold the least that any sharding would.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.flops import BF16
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.zero import expert_zero_ways, zero_ways

Array = NDArray[Any]

# Parts of the state that each class moves to the host.
ON_HOST = {
    "optimizer": ("master", "optimizer"),
    "gradients": ("gradients",),
    "parameters": ("parameters",),
    "activations": (),
}
# A tensor on its way to or from the host passes through so many buffers of the device.
BUFFERS = 2.0


def pool_bytes(setting: Setting) -> float:
    """Memory of all hosts together; 0 where none is stated."""
    cluster = setting.cluster
    hosts = -(-cluster.devices // (cluster.devices_per_host or 1))
    return hosts * float(cluster.host_memory_bytes or 0)


def room_when_alike(setting: Setting, rows: Rows) -> Array:
    """Bytes that each device has on its host, at most, if all devices keep the same there; [R]."""
    room: Array = pool_bytes(setting) / rows.devices
    return room


def parts_on_host(offload: str) -> set[str]:
    """Parts of the state on the host under an offload class such as `optimizer+gradients`."""
    return {part for what in offload.split("+") for part in ON_HOST.get(what, ())}


def shards(rows: Rows, plain: Array, routed: Array, what: str) -> Array:
    """Of the parameters of a layer those whose gradients, or whose weights, one device sends to or takes from the
    host at a time, [R]; 0 where the class is not offloaded."""
    index = {"gradients": 1, "parameters": 2}[what]
    reduced = (rows.zero >= 2) | (rows.dp * rows.cp == 1)
    moves = rows.offloads(what) & (reduced if what == "gradients" else rows.zero == 3)
    own = plain / zero_ways(rows)[index] + routed / expert_zero_ways(rows)[index]
    return np.where(moves, own, 0.0)


def state_bytes(
    setting: Setting, rows: Rows, used: tuple[Array, Array], trained: tuple[Array, Array], gathers: int
) -> Array:
    """Bytes of gradients and weights over the host link for one layer (or end of the model) and micro-batch, [R].

    Args:
        used, trained: plain and routed parameters on one device before ZeRO that it computes with, and whose gradients
            it owns; they differ for a head that shares the token table.
        gathers: times that its weights are used apart, if they do not stay between.
    """
    moved: Array = np.zeros(len(rows))
    if rows.offloads("gradients").any():
        moved = moved + setting.framework.reduce_bytes * shards(rows, *trained, "gradients")
    if rows.offloads("parameters").any():
        times = np.where(rows.reshard > 0, gathers, 1)
        moved = moved + BF16 * times * shards(rows, *used, "parameters")
    return moved


def wait_s(setting: Setting, streamed: Array, kept: Array, busy: Array) -> Array | None:
    """Exposed wait for `streamed` bytes of state and for `kept` bytes of activations, which leave and come back; None
    where nothing moves.

    Of the share that can hide, what passes the `busy` seconds; the rest in full.
    """
    link = setting.rates.host_bytes_per_s
    if link is None or not (streamed.any() or kept.any()):
        return None
    seconds, share = (streamed + 2.0 * kept) / link, setting.rates.hideable["offload"]
    wait: Array = (1.0 - share) * seconds + np.maximum(share * seconds - busy, 0.0)
    return wait


def update_s(setting: Setting, rows: Rows, owned: Array, on_device: Array) -> Array:
    """Seconds of the optimizer, [R, S]: on the CPU where its state lives on the host, together with what still crosses
    the link once per step, the longer of the two.

    Args:
        owned: parameters that one device updates, [R, S]; on_device: seconds for them from the device's own memory.
    """
    cluster, link = setting.cluster, setting.rates.host_bytes_per_s
    optimizer, gradients, parameters = (
        rows.offloads(w)[:, None] for w in ("optimizer", "gradients", "parameters")
    )
    if link is None or not (optimizer.any() or parameters.any()):
        return on_device
    # Gradients that left with their micro-batch need not go again; weights go to wherever they live.
    out = np.where(optimizer & ~gradients, setting.framework.reduce_bytes, 0.0)
    crosses = np.where(optimizer != parameters, BF16, 0.0)
    update = on_device
    if cluster.cpu_update_params_per_s is not None:
        on_cpu = owned * (cluster.devices_per_host or 1) / cluster.cpu_update_params_per_s
        update = np.where(optimizer, on_cpu, on_device)
    seconds: Array = np.maximum(update, (out + crosses) * owned / link)
    return seconds
