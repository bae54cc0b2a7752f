"""Seconds of one layer of a kind for one micro-batch: compute, repeated compute, and exposed communication.

Of each communication class a share can hide behind compute (`Rates.hideable`): 1 under full overlap, 0 under
none. What cannot hide is exposed; what can hides up to the compute there is:

    exposed = sum_c (1 - share_c) comm_c + max(0, hidden - compute)
    hidden  = sum_c max_l share_c load_cl   where streams queue (shared)
              max_l sum_c share_c load_cl   where they only meet on a level (independent)

Under full overlap a layer takes max(compute, communication), under none their sum.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.collectives import duration
from meshwright.costmodel.comm import Comm
from meshwright.costmodel.layout import CP_KINDS
from meshwright.costmodel.model import LayerKind, Weight
from meshwright.costmodel.operators import BACKWARD, BF16, Shape, embedding_s, forward_s, head_s, tp_ways
from meshwright.costmodel.policies import policies_of, repeated_by_policy, saved_by_policy
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting

Array = NDArray[Any]
RING, ALL_TO_ALL, ALL_GATHER = range(len(CP_KINDS))


@dataclass(frozen=True)
class Seconds:
    """Exposed seconds by part, shape [R] each; they sum to the total.

    Attributes:
        backward_s: compute that runs in backward, behind which a gradient reduction can hide; part of compute.
    """

    parts: dict[str, Array]
    backward_s: Array

    @property
    def total(self) -> Array:
        return sum(self.parts.values(), np.zeros_like(self.backward_s))


def layer_seconds(setting: Setting, kind_index: int, rows: Rows, comm: Comm) -> Seconds:
    """One layer of the kind, forward, backward and what its policy repeats."""
    kind = setting.model.kinds[kind_index]
    shape, policy = Shape.of(rows, setting), rows.policies[:, kind_index]
    forward = forward_s(setting, kind, shape)
    once = sum(forward.values())
    backward = sum(BACKWARD[name] * seconds for name, seconds in forward.items())
    repeated = pick(repeated_by_policy(setting.framework, forward), policy)
    compute = once + backward
    idle = np.maximum(setting.rates.launch_s - compute - repeated, 0.0)
    loads = {
        "tp": _tp_loads(setting, kind, shape, policy, comm),
        "cp": _cp_loads(setting, kind, rows, shape, policy, comm),
        "ep": _ep_loads(setting, kind, rows, shape, policy, comm),
        "fsdp": _fsdp_loads(setting, kind.weights, kind, rows, comm),
    }
    share = {c: np.full(len(rows), setting.rates.hideable[c]) for c in loads}
    # Only the ring overlaps with the attention it feeds; the other kinds stand before or after the kernel.
    share["cp"] = np.where(rows.cp_kind == RING, share["cp"], np.minimum(share["cp"], share["tp"]))
    parts = {"compute": compute, "recompute": repeated, "launch": idle}
    parts |= exposed(setting, compute + repeated, loads, share)
    parts["offload"] = _offload_s(setting, kind_index, rows, shape, sum(parts.values()))
    return Seconds(parts, backward)


def exposed(setting: Setting, window: Array, loads: dict[str, Array], share: dict[str, Array]) -> dict[str, Array]:
    """Exposed seconds of each class when all overlap with `window` seconds of compute."""
    comm = {c: duration(load) for c, load in loads.items()}
    if setting.streams == "shared":
        hidden = sum(share[c] * comm[c] for c in comm)
    else:
        hidden = duration(sum(share[c][..., None] * loads[c] for c in comm))
    want = sum(share[c] * comm[c] for c in comm)
    excess = np.maximum(hidden - window, 0.0)
    spill = np.divide(excess, want, out=np.zeros_like(excess * want), where=want > 0)
    return {c: comm[c] * ((1.0 - share[c]) + share[c] * spill) for c in comm}


def pick(by_policy: Array, policy: Array) -> Array:
    """Row-wise choice out of [policies, R]."""
    return np.take_along_axis(by_policy, policy[None, :], axis=0)[0]


def saved_layer_bytes(setting: Setting, kind_index: int, rows: Rows, shape: Shape) -> Array:
    """Bytes that one layer saves per micro-batch under the row's policy."""
    by_policy = saved_by_policy(setting.framework, setting.model.kinds[kind_index], shape)
    return pick(by_policy, rows.policies[:, kind_index])


def local_params(weights: tuple[Weight, ...], kind: LayerKind | None, rows: Rows) -> tuple[Array, Array]:
    """Parameters of plain and of routed weights on one device before ZeRO, shape [R] each."""
    plain = np.zeros(len(rows))
    routed = np.zeros(len(rows))
    for weight in weights:
        if weight.routed:
            routed += weight.params / (rows.ep * rows.etp)
        else:
            plain += weight.params / tp_ways(weight, kind, rows.tp)
    return plain, routed


def _tp_loads(setting: Setting, kind: LayerKind, shape: Shape, policy: Array, comm: Comm) -> Array:
    """Gathers and scatters of the residual over tp.

    Each block (attention, feed-forward) gathers its input and scatters its output, forward and backward, and
    gathers its input again for the weight gradient. A mixture's routed tokens stay where they are; only its
    shared experts are a block.
    """
    has_ffn_block = bool(kind.ffn.width) and not kind.parallel
    blocks = 1 + int(has_ffn_block)
    repeated = np.array([p.tp_scatters for p in policies_of(setting.framework)])[policy]
    count = np.where(shape.tp > 1, 3 * blocks + 2 * blocks + repeated, 0)
    full = BF16 * shape.tokens * setting.model.hidden
    return count[:, None] * comm.gather("tp", np.where(shape.tp > 1, full, 0.0))


def _cp_loads(
    setting: Setting, kind: LayerKind, rows: Rows, shape: Shape, policy: Array, comm: Comm
) -> Array:
    """Keys and values of the other sequence shards: one pass forward, two backward (again, and gradients).

    all_to_all instead turns q, k, v and the output from sequence to head shards and back.
    """
    a = kind.attention
    passes = 3 + np.array([p.cp for p in policies_of(setting.framework)])[policy]
    kv_width = a.kv_heads / np.minimum(shape.tp, a.kv_heads) * (a.qk_head_dim + a.v_head_dim)
    q_width = a.heads / shape.tp * (a.qk_head_dim + a.v_head_dim)
    apart = rows.cp > 1
    everyone = np.where(apart & (rows.cp_kind != ALL_TO_ALL), BF16 * shape.tokens * kv_width * rows.cp, 0.0)
    turned = np.where(apart & (rows.cp_kind == ALL_TO_ALL), BF16 * shape.tokens * (kv_width + q_width), 0.0)
    return passes[:, None] * comm.gather("cp", everyone) + (passes - 1)[:, None] * comm.all_to_all("cp", turned)


def _ep_loads(
    setting: Setting, kind: LayerKind, rows: Rows, shape: Shape, policy: Array, comm: Comm
) -> Array:
    """Dispatch and combine, forward and backward."""
    repeated = np.array([p.ep for p in policies_of(setting.framework)])[policy]
    sent = BF16 * shape.routed_tokens(kind) * setting.model.hidden * shape.imbalance
    exchanges = 2 * (2 + repeated)
    return exchanges[:, None] * comm.all_to_all("ep", np.where(rows.ep > 1, sent, 0.0))


def _fsdp_loads(
    setting: Setting, weights: tuple[Weight, ...], kind: LayerKind | None, rows: Rows, comm: Comm
) -> Array:
    """Weights gathered forward and backward (ZeRO-3), gradients scattered per micro-batch (ZeRO-2 and 3)."""
    plain, routed = local_params(weights, kind, rows)
    gathers, scatters = 2 * (rows.zero == 3), 1 * (rows.zero >= 2)
    wire = setting.framework.reduce_bytes
    loads = np.zeros(1)
    # As so many collectives of their mean size: the sum of best cases of different sizes is no bound, since one
    # may wait for a level's latency and another for another level's rate.
    count = gathers + scatters
    mean = (BF16 * gathers + wire * scatters) / np.maximum(count, 1)
    for group, params in (("shard", plain), ("edp", routed)):
        loads = loads + count[:, None] * comm.gather(group, mean * params)
    return loads


def _offload_s(setting: Setting, kind_index: int, rows: Rows, shape: Shape, busy: Array) -> Array:
    """Exposed wait for saved activations to leave and to come back over the host link."""
    used = rows.offloads_activations
    link = setting.rates.host_bytes_per_s
    if link is None or not used.any():
        return np.zeros(len(rows))
    moved = np.where(used, 2.0 * saved_layer_bytes(setting, kind_index, rows, shape), 0.0) / link
    share = setting.rates.hideable["offload"]
    return (1.0 - share) * moved + np.maximum(share * moved - busy, 0.0)


def ends_seconds(setting: Setting, rows: Rows, comm: Comm) -> tuple[Seconds, Seconds]:
    """Embedding on the first stage, head and loss on the last, for one micro-batch."""
    shape = Shape.of(rows, setting)
    residual = np.where(rows.tp > 1, BF16 * shape.tokens * setting.model.hidden, 0.0)
    tp = comm.gather("tp", residual)
    head_weights = (setting.model.head_matrix,)
    out = []
    for forward, weights, crossings in (
        (embedding_s(setting, shape), setting.model.embedding, 2),
        (head_s(setting, shape), head_weights, 3),
    ):
        compute = 3.0 * forward
        loads = {"tp": crossings * tp, "fsdp": _fsdp_loads(setting, weights, None, rows, comm)}
        share = {c: np.full(len(rows), setting.rates.hideable[c]) for c in loads}
        parts = {"compute": compute} | exposed(setting, compute, loads, share)
        out.append(Seconds(parts, 2.0 * forward))
    return out[0], out[1]


def hop_seconds(setting: Setting, rows: Rows, comm: Comm, window: Array) -> Array:
    """Exposed seconds per micro-batch and stage of sending activations on and gradients back.

    `window` is the mean compute of a stage, behind which the calibrated share can hide.
    """
    shape = Shape.of(rows, setting)
    size = np.where(rows.pp > 1, BF16 * shape.tokens / shape.spread * setting.model.hidden, 0.0)
    once = duration(comm.send("pp", size))
    share, both = setting.rates.hideable["pp"], 2.0 * rows.vpp * once
    return (1.0 - share) * both + np.maximum(share * both - window, 0.0)
