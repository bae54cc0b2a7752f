"""Where training stops being compute bound: batches and degrees at which communication takes as long as the products.

Of one layer, forward, on one device (backward doubles products and data traffic alike and tensor traffic less):

    data     weights gathered (FSDP) or, as gradients, reduced (DP):   n > V g / (c t)
    tensor   residual gathered and scattered:                          Y < t / (v g)
    mixed    both at the best X x Y of N devices:                      n > V g_X v g_Y / t^2, four times that if added

n tokens per device (batch / devices), t seconds of products per token, V bytes of weights, v bytes of residual that
cross per token, g seconds per byte of a gather over the group, c ways that tensor or pipeline parallelism cuts the
weights. All come from the planner: `operator_flops`, `gather_loads`, `reduce_loads`, `all_to_all_loads`. With the
book's layer (two matrices D x F) and whole torus axes, C/W = alpha, they are its rules alpha/M_X, M_Y F/alpha and
alpha^2/(M_X M_Y F); the book takes (X-1)/X for 1, which is `exact=False`.

Source: jax-ml/scaling-book, chapters 5 and 12.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.collectives import (
    Network,
    all_to_all_loads,
    duration,
    gather_loads,
    reduce_loads,
)
from meshwright.costmodel.exchange.operations import Routing
from meshwright.costmodel.flops import BF16, operator_flops, weight_flops
from meshwright.costmodel.layer import FORWARD_CROSSINGS, tp_blocks
from meshwright.costmodel.model import LayerKind
from meshwright.costmodel.readers.blocks import plain_ffn
from meshwright.costmodel.setting import Setting, Streams
from meshwright.hardware.network import SwitchTier, TorusAxis

Array = NDArray[Any]

_LARGE = 2.0**60  # bytes, so that no latency shows in seconds per byte
PACKAGE = "package"  # the level between devices of one chip
DISPATCH_AND_COMBINE = 2  # exchanges of a mixture, forward


@dataclass(frozen=True)
class Work:
    """What a layer, forward, asks of one device at peak rates. Several layers add up.

    Attributes:
        math_s: seconds of products per token.
        weight_bytes: bytes that every data rank needs, or reduces as gradients, before tensor parallelism cuts them.
        crossing_bytes: bytes per token of the arrays that tensor parallelism gathers and scatters.
    """

    math_s: float
    weight_bytes: float
    crossing_bytes: float

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.math_s + other.math_s,
            self.weight_bytes + other.weight_bytes,
            self.crossing_bytes + other.crossing_bytes,
        )

    def times(self, layers: float) -> "Work":
        """So many equal layers."""
        return Work(self.math_s * layers, self.weight_bytes * layers, self.crossing_bytes * layers)


def block_work(flop_per_s: float, width: int, ffn: int, element_bytes: float = BF16) -> Work:
    """The book's layer: In[B, D] W_in[D, F] W_out[F, D], no gate, no attention.

    Args:
        width, ffn: D and F.
        element_bytes: of weights and activations on the wire.
    """
    weights = plain_ffn(width, ffn, bias=False)
    flops = sum(weight_flops(w) for w in weights)
    return Work(
        math_s=flops / flop_per_s,
        weight_bytes=element_bytes * sum(w.params for w in weights),
        crossing_bytes=FORWARD_CROSSINGS * element_bytes * width,
    )


def layer_work(setting: Setting, kind: LayerKind) -> Work:
    """A layer of a real model: every product, the attention kernel, all experts' weights."""
    rates, flops = setting.rates, operator_flops(kind, setting.training.seq_len)
    core = flops.pop("core")
    return Work(
        math_s=sum(flops.values()) / rates.matmul_flop_per_s + core / rates.attention_flop_per_s,
        weight_bytes=BF16 * kind.params,
        crossing_bytes=FORWARD_CROSSINGS * BF16 * setting.model.hidden * int(tp_blocks(kind)),
    )


def layers_work(setting: Setting) -> Work:
    """All layers of the model together."""
    model = setting.model
    total = Work(0.0, 0.0, 0.0)
    for count, kind in zip(model.layers_by_kind, model.kinds, strict=True):
        total = total + layer_work(setting, kind).times(count)
    return total


def gather_s_per_byte(network: Network, factors: Array, *, exact: bool) -> Array:
    """Seconds that gathering (or scattering) one byte over a group keeps each level busy, latency apart; [levels].

    Args:
        factors: ways of the group on each level, innermost there.
        exact: else (X-1)/X is taken for 1, as the book does; but not of the two devices of one package.
    """
    return _per_byte(gather_loads, network, factors, exact)


def reduce_s_per_byte(network: Network, factors: Array, *, exact: bool) -> Array:
    """The same for an all-reduce, in-network reduction included."""
    return _per_byte(reduce_loads, network, factors, exact)


def _per_byte(formula: Callable[..., Array], network: Network, factors: Array, exact: bool) -> Array:
    loads: Array = formula(network, _LARGE, factors, np.ones_like(factors), exact=exact) / _LARGE
    if not exact and any(level.name == PACKAGE for level in network.levels):
        whole = np.array([level.name == PACKAGE for level in network.levels])
        loads = np.where(whole, _per_byte(formula, network, factors, True), loads)
    return loads


def data_tokens(work: Work, s_per_byte: Array | float, cut: Array | float = 1.0) -> Array | float:
    """Tokens per device above which weights arrive faster than they are used (FSDP; DP with a reduction's half)."""
    return work.weight_bytes * s_per_byte / (work.math_s * cut)


def tensor_ways(work: Work, s_per_byte: Array | float) -> Array | float:
    """Ways of tensor parallelism below which the residual crosses faster than it is used."""
    return work.math_s / (work.crossing_bytes * np.maximum(s_per_byte, 1e-300))


def exact_tensor_ways(work: Work, network: Network, factors: Array) -> Array:
    """The same without taking (Y-1)/Y for 1, by level; inf where a level never binds; [levels].

    The outermost level of the group grows, the inner ones keep their ways. Y times the crossing's seconds is linear
    in Y, so two points settle it.
    """
    outer = int(np.flatnonzero(factors > 1)[-1])
    inner = float(np.prod(factors)) / float(factors[outer])

    def busy(ways: int) -> Array:
        grown = factors.astype(float)
        grown[outer] = ways
        levels = [
            replace(level, size=ways) if i == outer else level for i, level in enumerate(network.levels)
        ]
        one = gather_s_per_byte(Network(tuple(levels), network.achieved), grown, exact=True)
        return work.crossing_bytes * one * inner * ways

    two, three = busy(2), busy(3)
    slope = three - two
    with np.errstate(divide="ignore", invalid="ignore"):
        ways = np.where(slope > 0, (work.math_s - (two - 2 * slope)) / slope, np.inf)
    bound: Array = inner * ways
    return bound


def mixed_tokens(
    work: Work, data_s_per_byte: Array | float, tensor_s_per_byte: Array | float, streams: Streams
) -> Array | float:
    """Tokens per device above which FSDP x TP at its best split is compute bound.

    independent: the two overlap with each other, the larger counts (the book since August 2025);
    shared: they queue, their sum counts, four times the batch (the first edition).
    """
    product = work.weight_bytes * data_s_per_byte * work.crossing_bytes * tensor_s_per_byte
    return product / work.math_s**2 * (4.0 if streams == "shared" else 1.0)


def best_tensor_ways(
    work: Work, data_s_per_byte: float, tensor_s_per_byte: float, tokens_per_device: Array | float
) -> Array | float:
    """Y at which the traffic of FSDP over N/Y and of TP over Y takes equally long: least maximum and least sum."""
    weights, residual = work.weight_bytes * data_s_per_byte, work.crossing_bytes * tensor_s_per_byte
    return np.sqrt(weights / (tokens_per_device * residual))


def data_comm_s(work: Work, s_per_byte: Array | float, cut: Array | float = 1.0) -> Array | float:
    """Seconds of one pass over the weights: gathered forward, or reduced as gradients."""
    return work.weight_bytes / cut * s_per_byte


def tensor_comm_s(work: Work, s_per_byte: Array | float, tokens: Array | float) -> Array | float:
    """Seconds of the forward crossings of `tokens`, those of one tensor group."""
    return work.crossing_bytes * s_per_byte * tokens


def mixed_comm_s(data_s: Array | float, tensor_s: Array | float, streams: Streams) -> Array | float:
    """Seconds of both kinds of traffic together."""
    return data_s + tensor_s if streams == "shared" else np.maximum(data_s, tensor_s)


def expert_width_needed(
    flop_per_s: float, network: Network, factors: Array, top_k: int, *, exact: bool = False
) -> float:
    """F of an expert above which expert parallelism over the group hides its exchanges.

    Forward, tokens sharded over the group: top_k expert blocks of D x F per token against dispatch and combine. On a
    torus a token travels to each device that has an expert of it. Beyond nodes it travels once to each node, and what
    switches inside a node carry is left out, as the book does.

    Args:
        exact: places that a token goes to on average; else min(k, places), as the book counts.
    """
    outer = int(np.flatnonzero(factors > 1)[-1])
    nodes = network.beyond(outer)
    places = float(np.prod(factors)) / (float(np.prod(factors[:outer])) if nodes else 1.0)
    sent = Routing(top_k).copies(round(places), exact) * BF16
    loads = all_to_all_loads(network, sent * _LARGE, factors, np.ones_like(factors)) / _LARGE
    busy = float(loads[outer] if nodes else duration(loads))  # per token and unit of D
    return DISPATCH_AND_COMBINE * busy / (top_k * block_work(flop_per_s, 1, 1).math_s)


def nearest_powers(x: float, devices: int) -> tuple[int, int]:
    """X as the nearest power of two (on a log scale) and the largest power of two Y with X Y <= devices."""
    ways = min(2 ** max(0, round(float(np.log2(x)))), power_below(devices))
    return ways, power_below(devices / ways)


def power_below(x: float) -> int:
    """The largest power of two that is not above x, at least 1."""
    return int(2 ** max(0, int(np.floor(np.log2(x) + 1e-12))))


def torus_network(bidirectional_bytes_per_s: float, axes: int = 3, wraps: bool = True) -> Network:
    """A torus at one rate, for questions that give nothing but rates."""
    link = bidirectional_bytes_per_s / 2
    sizes = tuple(TorusAxis(name, 2, link, wraps, 0.0) for name in "xyzw"[:axes])
    return Network(sizes, (1.0,) * axes)


def switched_network(
    device_bytes_per_s: float, block_bytes_per_s: float, block: int, blocks: int = 2, reduction: float = 1.0
) -> Network:
    """Blocks of devices behind switches, joined by NICs; `reduction` is what the switches beyond gain."""
    tiers = (
        SwitchTier("nvlink", block, device_bytes_per_s, 0.0),
        SwitchTier("nodes", blocks, block_bytes_per_s / block, 0.0, reduction),
    )
    return Network(tiers, (1.0, 1.0))
