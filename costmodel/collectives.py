"""Seconds of a collective, level by level of the network.

Every function takes a *group* as two integer arrays of shape [..., levels]: `factors` (how many ways the group
spreads over each level) and `strides` (how many other ranks lie between two neighbours on a torus axis), and
broadcasts over the leading dimensions. The result keeps the level dimension: entry l is how long the collective
keeps level l busy. A collective alone takes `duration(loads)`, the maximum over levels; collectives that share
the network add level by level.

Symbols: V bytes of the whole array that is gathered or reduced, v bytes each device sends, N group size,
F_l factor at level l, P_l product of the factors below l, W_l bytes/s of one device into level l, one way.

- gather or scatter over a tier: V (1 - 1/F) / (P_l W_l). Each block of P_l members must receive what comes through
  this level, over the rates of its members. NICs carry all that lies beyond (F is F_{>=l}); links of the machine
  itself (NVLink, ICI) have ports of their own and carry only what stays inside them (F is F_l).
- torus axes act together: their rates add, a whole wrapped axis counts twice its link rate (ring), a part or a
  line once; a part of stride a shares its links a ways.
- all-to-all over a tier: what leaves the block of P_l for a place reached through this level, v (F - 1) P_l / N
  with F as above, over W_l; over a torus axis v (F_torus P / N) F_l / (4 W_l), the load on the middle cut
  (F_l - 1/F_l where F_l is odd).
- latency: hops on a torus run under the transfer (maximum); a switched tier adds its latency per doubling.
- a ring used in one direction: half the rate and F - 1 hops; all-to-all v (F_torus P / N) (F_l - 1) / (2 W_l).

`exact=False` leaves out that a member need not move what it has, 1 / F (for all-to-all P / N, and F_l / 4 for odd
F_l too): the book's short forms V / W, V / (4 W).

Sources: jax-ml/scaling-book, chapters 3 and 12 (checked against its worked problems).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.hardware.network import SCALE_UP_TIERS, Level, SwitchTier, TorusAxis

Array = NDArray[Any]


@dataclass(frozen=True)
class Network:
    """Levels with the rate a program reaches on each.

    Attributes:
        levels: innermost first; torus axes, if any, are adjacent.
        achieved: share of each level's rate that is reached, in (0, 1].
    """

    levels: tuple[Level, ...]
    achieved: tuple[float, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(level.size for level in self.levels)

    def rate(self, level: int) -> float:
        """Bytes/s of one device into a tier, or of one torus link, one way."""
        spec = self.levels[level]
        peak = spec.bytes_per_s if isinstance(spec, SwitchTier) else spec.link_bytes_per_s
        return peak * self.achieved[level]

    def beyond(self, level: int) -> bool:
        """Whether a level is reached through the NICs, which then carry the traffic of all outer levels too."""
        spec = self.levels[level]
        return isinstance(spec, SwitchTier) and spec.name not in SCALE_UP_TIERS

    @property
    def torus(self) -> tuple[int, ...]:
        """Indices of the torus axes."""
        return tuple(i for i, level in enumerate(self.levels) if isinstance(level, TorusAxis))

    @property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """Indices of levels that act together, innermost first: all torus axes, or one tier."""
        out: list[tuple[int, ...]] = []
        for index, level in enumerate(self.levels):
            if isinstance(level, SwitchTier):
                out.append((index,))
            elif index == self.torus[0]:
                out.append(self.torus)
        return tuple(out)


def axis_rate(network: Network, index: int, factors: Array, strides: Array) -> Array:
    """Bytes/s at which a group moves data along one torus axis; 0 where it does not extend along it."""
    axis = network.levels[index]
    assert isinstance(axis, TorusAxis)
    factor, stride = factors[..., index], strides[..., index]
    ring = axis.wraps & (factor * stride == axis.size)
    links = 1.0 if axis.one_way else 2.0
    return np.where(factor > 1, network.rate(index) * np.where(ring, links, 1.0) / stride, 0.0)


def gather_loads(
    network: Network, total_bytes: Array | float, factors: Array, strides: Array, *, exact: bool = True
) -> Array:
    """All-gather or reduce-scatter of an array of `total_bytes`; seconds per level, shape [..., levels]."""
    own = 1.0 if exact else 0.0
    loads = np.zeros(np.broadcast_shapes(factors.shape, (*np.shape(total_bytes), len(network.levels))))
    inner = np.ones(factors.shape[:-1])
    outward = _product(factors, range(factors.shape[-1]))
    for members in network.stages:
        factor = _product(factors, members)
        ways = outward if network.beyond(members[0]) else factor
        share = np.where(factor > 1, total_bytes * (1.0 - own / np.maximum(ways, 1.0)) / inner, 0.0)
        if members == network.torus:
            seconds = _torus_gather_s(network, share, factors, strides)
            for index in members:
                loads[..., index] = np.where(factors[..., index] > 1, seconds, 0.0)
        else:
            loads[..., members[0]] = share / network.rate(members[0]) + _switch_latency_s(
                network, members[0], factor
            )
        inner = inner * factor
        outward = outward / factor
    return loads


def reduce_loads(
    network: Network, total_bytes: Array | float, factors: Array, strides: Array, *, exact: bool = True
) -> Array:
    """All-reduce: a reduce-scatter and an all-gather, less what in-network reduction saves."""
    speedup = np.array(
        [level.all_reduce_speedup if isinstance(level, SwitchTier) else 1.0 for level in network.levels]
    )
    loads: Array = 2.0 * gather_loads(network, total_bytes, factors, strides, exact=exact) / speedup
    return loads


def all_to_all_loads(
    network: Network,
    sent_bytes: Array | float,
    factors: Array,
    strides: Array,
    *,
    exact: bool = True,
    copies: int | None = None,
) -> Array:
    """Each device sends `sent_bytes` in equal parts to every member; seconds per level.

    `copies` says that they are copies of tokens, so many of each, which a level beyond the scale-up domain carries once to
    a domain whatever number is meant for it, and its links hand on inside: of k copies to N domains N (1 - (1 - 1/N)^k).
    """
    own = 1.0 if exact else 0.0
    loads = np.zeros(np.broadcast_shapes(factors.shape, (*np.shape(sent_bytes), len(network.levels))))
    size = _product(factors, range(factors.shape[-1]))
    inner = np.ones(factors.shape[:-1])
    for members in network.stages:
        factor = _product(factors, members)
        if members == network.torus:
            for index in members:
                rate = axis_rate(network, index, factors, strides)
                cut = sent_bytes * (inner * factor / size) * _cut_share(network, index, factors, strides, own)
                loads[..., index] = np.divide(cut, rate, out=np.zeros_like(cut * rate), where=rate > 0)
        else:
            index = members[0]
            reach = 1.0 if network.beyond(index) else inner * factor / size
            met = _met(size / inner, copies) if copies is not None and network.beyond(index) else 1.0
            crossing = np.where(factor > 1, sent_bytes * met * (reach - own * inner / size), 0.0)
            loads[..., index] = crossing / network.rate(index) + _switch_latency_s(network, index, factor)
        inner = inner * factor
    return loads


def _met(domains: Array, copies: int) -> Array:
    """Domains that the copies of a token meet, over the copies, where each goes to any of them."""
    met: Array = domains * (1.0 - (1.0 - 1.0 / domains) ** copies) / copies
    return met


@cache
def dispatch_loads(copies: int) -> Callable[..., Array]:
    """`all_to_all_loads` of so many copies of each token, under a name of its own."""

    def loads(network: Network, sent_bytes: Array | float, factors: Array, strides: Array) -> Array:
        return all_to_all_loads(network, sent_bytes, factors, strides, copies=copies)

    loads.__name__ = f"dispatch_loads_{copies}"
    return loads


def send_loads(network: Network, sent_bytes: Array | float, factors: Array, strides: Array) -> Array:
    """Each member sends to the next one of the group (pipeline hop); the slowest boundary, seconds per level."""
    loads = np.zeros(np.broadcast_shapes(factors.shape, (*np.shape(sent_bytes), len(network.levels))))
    for index, level in enumerate(network.levels):
        apart = factors[..., index] > 1
        stride = strides[..., index] if isinstance(level, TorusAxis) else 1
        latency = level.hop_s * stride if isinstance(level, TorusAxis) else level.latency_s
        loads[..., index] = np.where(apart, sent_bytes * stride / network.rate(index) + latency, 0.0)
    return loads


def _product(factors: Array, members: Iterable[int]) -> Array:
    """Ways over some levels; numpy is slow at reducing a short last axis."""
    out = np.ones(factors.shape[:-1])
    for index in members:
        out = out * factors[..., index]
    return out


def duration(loads: Array) -> Array:
    """Seconds of one collective alone: its slowest level."""
    slowest = loads[..., 0]
    for level in range(1, loads.shape[-1]):  # numpy is slow at reducing a short last axis
        slowest = np.maximum(slowest, loads[..., level])
    return slowest


def _cut_share(network: Network, index: int, factors: Array, strides: Array, own: float) -> Array:
    """Bytes on the busiest link of an axis over what a member sends along it, at the rate of `axis_rate`."""
    axis = network.levels[index]
    assert isinstance(axis, TorusAxis)
    ways = factors[..., index]
    share: Array = (ways - own * (ways % 2) / ways) / 4.0
    if axis.one_way:
        share = np.where(axis.wraps & (ways * strides[..., index] == axis.size), (ways - own) / 2.0, share)
    return share


def _torus_gather_s(network: Network, share: Array, factors: Array, strides: Array) -> Array:
    """Transfer over all axes at once, never less than the hops."""
    rate = sum(axis_rate(network, i, factors, strides) for i in network.torus)
    hops: Array | float = 0.0
    for index in network.torus:
        axis = network.levels[index]
        assert isinstance(axis, TorusAxis)
        factor, stride = factors[..., index], strides[..., index]
        ring = axis.wraps & (factor * stride == axis.size)
        far = np.where(ring & (not axis.one_way), factor / 2.0, factor - 1.0)
        hops = hops + axis.hop_s * stride * far * (factor > 1)
    seconds = np.divide(
        share, rate, out=np.zeros(np.broadcast_shapes(share.shape, np.shape(rate))), where=rate > 0
    )
    return np.maximum(seconds, hops)


def _switch_latency_s(network: Network, index: int, factor: Array) -> Array:
    tier = network.levels[index]
    assert isinstance(tier, SwitchTier)
    return tier.latency_s * np.ceil(np.log2(np.maximum(factor, 1.0)))
