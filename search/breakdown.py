"""Where the time of one shape goes, by group of operators; the groups' seconds sum to the whole."""

from collections.abc import Mapping

import numpy as np

from meshwright.costmodel.inference import seconds
from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import LAUNCH, Device
from meshwright.costmodel.inference.work import ATTENTION
from meshwright.search import plas
from meshwright.search.architecture import Ends, stack_of
from meshwright.search.price import Latency
from meshwright.search.shape import Shapes

# Operators by group; shared experts are one dense block, so they count as `ffn`.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "attention": ATTENTION,
    "ffn": ("norm2", "up", "act", "down"),
    "router": ("router",),
    "experts": ("expert_up", "expert_act", "expert_down"),
    "embedding": ("embedding",),
    "head": ("head",),
    "launch": (LAUNCH,),
}
_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}


def breakdown(
    shapes: Shapes, row: int, ends: Ends, device: Device, request: Request, latency: Latency
) -> dict[str, tuple[float, float]]:
    """(prefill, all decode steps) seconds of one row, by group; groups that take none are left out."""
    one = shapes[np.array([row])]
    if latency == "plas":
        return _aggregated(one, device, request)
    stack = stack_of(one, ends)
    prefill = seconds.pass_s(stack, request.prefill, device.prefill)
    decode = seconds.pass_s(stack, request.decode, device.decode)
    found = {group: [0.0, 0.0] for group in GROUPS}
    for phase, (times, runs) in enumerate(((prefill, 1), (decode, request.output))):
        for name, value in times.items():
            found[_GROUP_OF[name]][phase] += runs * float(np.asarray(value).reshape(-1)[0])
    return {group: (a, b) for group, (a, b) in found.items() if a + b}


def _aggregated(one: Shapes, device: Device, request: Request) -> dict[str, tuple[float, float]]:
    """By the addends of PLAS' forms; embedding, head and router are not in them."""
    rho, gqa, layers = float(one.ffn_ratio[0]), float(one.gqa[0]), int(one.layers[0])
    prefill = plas.prefill_flop(one.width, request.batch * request.prompt).terms(rho, gqa)
    decode = plas.decode_bytes(one.width, request.mean_context, request.weight_bytes, request.kv_bytes).terms(
        rho, gqa
    )
    per_flop = layers / float(device.prefill.flop_per_s)
    per_byte = layers * request.output / float(device.decode.bytes_per_s)
    ffn = "ffn" if one.experts[0] == 1 else "experts"
    found = {"attention": (0.0, 0.0), ffn: (0.0, 0.0)}
    for name in prefill:
        group = ffn if name == "feed_forward" else "attention"
        a, b = found[group]
        found[group] = (
            a + per_flop * float(prefill[name].reshape(-1)[0]),
            b + per_byte * float(decode[name].reshape(-1)[0]),
        )
    return found
