"""How a served model is cut over a slice: useful ways of tensor parallelism, where the cache goes, 1D against 2D.

Of one layer and B sequences in decode:

    tensor, throughput   Y < M F / alpha: FLOPs of B rows / Y against a crossing of B rows, whatever B
    tensor, latency      Y < M F / (B beta): weights read / Y against the same crossing, where reads bind
    cache                over kv heads, then over the batch (two all-to-alls a layer), then over the sequence
    2D weights           D over X, F over YZ: a / X + b X / N, least at X = sqrt(a N / b)

alpha = C / W, beta = W_hbm / W, M axes of W bytes/s each. All times come from the planner's `gather_loads`,
`reduce_loads` and `all_to_all_loads`. Source: jax-ml/scaling-book, chapters 7 and 8.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.collectives import Network, duration, gather_loads, reduce_loads
from meshwright.costmodel.exchange.operations import timed_loads
from meshwright.costmodel.exchange.span import group_of
from meshwright.costmodel.flops import BF16
from meshwright.costmodel.inference.work import decode_attention
from meshwright.costmodel.layer import FORWARD_CROSSINGS, tp_blocks
from meshwright.costmodel.limits.thresholds import DISPATCH_AND_COMBINE, Work, gather_s_per_byte, tensor_ways
from meshwright.costmodel.model import LayerKind, ModelSpec
from meshwright.costmodel.placement import Group, joint_splits

Array = NDArray[Any]

ALL_TO_ALLS = 2  # a layer whose cache is cut over the batch: queries go there, attention's output comes back


def reading_work(work: Work, read_bytes: float, hbm_bytes_per_s: float, batch: float) -> Work:
    """A layer whose products take as long as reading its weights once for all sequences; work per sequence, on one
    device that holds all of it. `limits.tensor_ways` of it is the limit for latency, of `work` that for throughput."""
    return replace(work, math_s=read_bytes / hbm_bytes_per_s / batch)


@dataclass(frozen=True)
class CachePlacement:
    """Ways that the cache is cut; their product is all devices."""

    heads: int
    batch: int
    sequence: int

    @property
    def all_to_alls(self) -> int:
        """Per layer and step."""
        return ALL_TO_ALLS if self.batch > 1 else 0


def place_cache(ways: int, kv_heads: int, batch: int) -> CachePlacement:
    """Over as many kv heads as divide, then over sequences of the batch, the rest over positions of each.

    Nothing is replicated.
    """
    heads = gcd(ways, kv_heads)
    over_batch = gcd(ways // heads, batch)
    return CachePlacement(heads, over_batch, ways // heads // over_batch)


def cached_heads(kind: LayerKind) -> int:
    """Heads that the cache can be cut over; a latent vector serves all of them."""
    return kind.attention.kv_heads if kind.attention.latent_width is None else 1


def queries_bytes(kind: LayerKind, batch: float) -> float:
    """Bytes of the queries of all heads in one layer, one token of each sequence."""
    a = decode_attention(kind)
    return BF16 * batch * a.heads * a.qk_head_dim


def outputs_bytes(kind: LayerKind, batch: float) -> float:
    """The same of attention's output."""
    a = decode_attention(kind)
    return BF16 * batch * a.heads * a.v_head_dim


def cache_exchange_s(network: Network, kind: LayerKind, batch: int, placement: CachePlacement) -> float:
    """Seconds per layer of what a cache cut beyond its heads costs, each collective at its fastest part of the slice.

    Over the batch: queries turned from heads to sequences, outputs back. Over positions: queries gathered, partial
    outputs reduced (the sums of exponentials beside them are one number a head).
    """
    seconds = 0.0
    for array in (queries_bytes(kind, batch), outputs_bytes(kind, batch)):
        if placement.batch > 1:
            held = array / placement.heads / placement.sequence
            seconds += fastest_s("all-to-all", network, held, placement.batch)
        if placement.sequence > 1:
            held = array / placement.heads / placement.batch
            seconds += fastest_s("all-gather", network, held, placement.sequence)
    return seconds


def fastest_s(operation: str, network: Network, held_bytes: float, ways: int) -> float:
    """Seconds of a collective, latency included, over `ways` devices at the fastest of their places: neighbours, or
    whole axes. `held_bytes`: of the array that they hold together."""
    groups = places(network, ways)
    return min(float(duration(timed_loads(operation, network, held_bytes, group))) for group in groups)


def places(network: Network, ways: int) -> list[Group]:
    """Where `ways` devices can be next to each other: even parts of the levels, and whole ones."""
    options = joint_splits((ways,), network.sizes)[:, 0, :]
    even = (np.array(network.sizes) % options == 0).all(axis=1)
    return [group_of(row) for row in options[even]]


def widest_tensor(work: Work, network: Network) -> int:
    """Most ways of tensor parallelism that divide the devices and whose crossings FLOPs hide, each at its best place."""
    devices = int(np.prod(network.sizes))

    def hidden(ways: int) -> bool:
        per_byte = (gather_s_per_byte(network, g.factors, exact=False) for g in places(network, ways))
        return float(tensor_ways(work, min(float(duration(s)) for s in per_byte))) >= ways

    return max(d for d in range(1, devices + 1) if devices % d == 0 and (d == 1 or hidden(d)))


def crossings_s(model: ModelSpec, network: Network, group: Group, batch: float) -> float:
    """Seconds of one decode step for gathers and scatters of the residual around every block, over the group."""
    once = duration(gather_loads(network, BF16 * batch * model.hidden, group.factors, group.strides))
    blocks = sum(n * int(tp_blocks(kind)) for n, kind in zip(model.layers_by_kind, model.kinds, strict=True))
    return FORWARD_CROSSINGS * blocks * float(once)


def experts_s(kind: LayerKind, hidden: int, network: Network, batch: float) -> float:
    """Seconds per layer to bring rows to their experts and back: experts over as many devices as divide their number,
    the rest cut each expert, whose rows cross between them as in any feed-forward part."""
    devices = int(np.prod(network.sizes))
    if not kind.ffn.experts or devices == 1:
        return 0.0
    over = gcd(devices, kind.ffn.experts)
    rows = BF16 * batch * kind.ffn.top_k * hidden
    exchanged = DISPATCH_AND_COMBINE * fastest_s("all-to-all", network, rows * over / devices, over)
    within = FORWARD_CROSSINGS * fastest_s("all-gather", network, rows / over, devices // over)
    return exchanged + within


def network_s(model: ModelSpec, network: Network, batch: int) -> float:
    """Seconds that one decode step spends in collectives when everything is cut over all devices, exact."""
    devices = int(np.prod(network.sizes))
    if devices == 1:
        return 0.0
    seconds = crossings_s(model, network, group_of(network.sizes), batch)
    for layers, kind in zip(model.layers_by_kind, model.kinds, strict=True):
        placement = place_cache(devices, cached_heads(kind), batch)
        seconds += layers * cache_exchange_s(network, kind, batch, placement)
        seconds += layers * experts_s(kind, model.hidden, network, batch)
    return seconds


def hops_s(network: Network, group: Group) -> float:
    """Seconds that a collective over the group takes however small it is."""
    return float(duration(gather_loads(network, 0.0, group.factors, group.strides)))


@dataclass(frozen=True)
class TwoD:
    """Weights cut both ways against one way; seconds of one feed-forward part's crossings.

    Attributes:
        one_d_s: rows gathered and scattered over all devices.
        rows_s: the same over YZ were X = 1; falls as 1/X.
        hidden_s: the F-wide rows summed over X were YZ = 1; falls as 1/YZ.
    """

    one_d_s: float
    rows_s: float
    hidden_s: float

    def seconds(self, devices: float, x: Array | float) -> Array | float:
        """At X = x, whatever shapes allow."""
        return self.rows_s / x + self.hidden_s * x / devices

    def best_x(self, devices: float) -> float:
        """X of the least seconds: sqrt(N D / 2F) where YZ has two axes and X one."""
        return sqrt(self.rows_s * devices / self.hidden_s)

    def best_s(self, devices: float) -> float:
        return float(self.seconds(devices, self.best_x(devices)))

    @property
    def crossing(self) -> float:
        """Devices from which on 2D at its best is faster: 18 F/D where 1D has three axes, YZ two, X one."""
        return 4 * self.rows_s * self.hidden_s / self.one_d_s**2


def two_d(
    width: float,
    ffn: float,
    batch: float,
    all_s_per_byte: float,
    x_s_per_byte: float,
    yz_s_per_byte: float,
) -> TwoD:
    """From seconds per byte of a gather over all devices and over YZ, and of an all-reduce over X."""
    rows, hidden = BF16 * batch * width, BF16 * batch * ffn
    return TwoD(
        FORWARD_CROSSINGS * rows * all_s_per_byte,
        FORWARD_CROSSINGS * rows * yz_s_per_byte,
        hidden * x_s_per_byte,
    )


def two_d_s(network: Network, width: int, ffn: int, batch: float, x: Group, yz: Group) -> float:
    """The same as legal groups on a network take it, exact."""
    rows = BF16 * batch * width / float(x.size)
    hidden = BF16 * batch * ffn / float(yz.size)
    crossing = duration(gather_loads(network, rows, yz.factors, yz.strides))
    summed = duration(reduce_loads(network, hidden, x.factors, x.strides))
    return FORWARD_CROSSINGS * float(crossing) + float(summed)


def two_d_groups(network: Network) -> Iterator[tuple[Group, Group]]:
    """Every X and YZ that fill the network together, in both orders on a torus axis; X = 1 is the 1D layout."""
    devices = int(np.prod(network.sizes))
    for x in (d for d in range(1, devices + 1) if devices % d == 0):
        for split in joint_splits((x, devices // x), network.sizes):
            # Two dimensions on one level: either lies inside the other.
            yield group_of(split[0]), group_of(split[1], split[0])
            if ((split[0] > 1) & (split[1] > 1)).any():
                yield group_of(split[0], split[1]), group_of(split[1])
