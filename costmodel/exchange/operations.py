"""The collectives by name, on one group: seconds per level, with and without latency, exact and in short form.

    all-gather, reduce-scatter   V (1 - 1/N) / W, and V / W for short
    all-reduce                   twice that; in the network's switches V / W
    all-to-all                   what crosses the busiest cut over its links; V / (4 W) on a ring for short
    ragged-all-to-all            each token goes to the places that hold one of its k experts
    permute                      every device passes its shard on to the next

V is the whole array that is gathered, reduced or exchanged. Formulas: collectives.py; source: jax-ml/scaling-book,
chapters 3 and 12.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel import collectives
from meshwright.costmodel.collectives import Network, duration
from meshwright.costmodel.exchange.span import group_of
from meshwright.costmodel.placement import Group
from meshwright.hardware.errors import InputError, LayoutError, UnknownNameError
from meshwright.hardware.network import Level, SwitchTier, TorusAxis
from meshwright.hardware.numbers import check_fields

Array = NDArray[Any]
OPERATIONS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "ragged-all-to-all", "permute")


@dataclass(frozen=True)
class Routing:
    """Which part of a full exchange is sent: tokens that go to `top_k` of some experts, or a plain share.

    Attributes:
        experts: in all, spread evenly over the group; None where the k draws are independent.
        fraction: share of a full exchange, instead of the two above.
    """

    top_k: int | None = None
    experts: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.top_k is not None and self.fraction is not None:
            raise InputError("top_k and fraction both say what is sent; keep one")
        if self.fraction is not None and self.experts is not None:
            raise InputError("a fraction of a full exchange needs no experts; drop one of the two")
        if self.top_k is None and self.fraction is None:
            raise InputError(
                "a ragged all-to-all needs either top_k (of experts) or a fraction of a full exchange"
            )
        if self.top_k is not None and not 1 <= self.top_k <= (self.experts or self.top_k):
            raise InputError(f"top_k={self.top_k} of {self.experts} experts; use 1 to {self.experts}")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise InputError(f"fraction {self.fraction:g} is not a share; use a number above 0 and at most 1")

    def copies(self, places: int, exact: bool = True) -> float:
        """Places of `places` that a token is sent to on average; its own may be one of them.

        Short: min(k, n). Exact: the expected number of distinct places of k independent draws,
        n (1 - (1 - 1/n)^k), or of k different experts where their number is known.
        """
        if self.top_k is None:
            return float(self.fraction or 0.0) * places
        k, n = self.top_k, places
        if not exact:
            return float(min(k, n))
        if self.experts is None:
            return float(n * (1.0 - (1.0 - 1.0 / n) ** k))
        if self.experts % n:
            raise LayoutError(
                f"{self.experts} experts do not spread evenly over {n} devices; use a multiple of {n} experts, or leave "
                f"their number out: draws are then independent"
            )
        return float(n * (1.0 - comb(self.experts - self.experts // n, k) / comb(self.experts, k)))


def loads_of(
    operation: str,
    network: Network,
    array_bytes: float,
    group: Group,
    routing: Routing | None = None,
    *,
    exact: bool = True,
) -> Array:
    """Seconds that each level is busy with `array_bytes` which the group holds together; shape [levels].

    Of a ragged exchange the bytes are those of the tokens, before any is sent.

    Errors: UnknownNameError.
    """
    n = float(group.size)
    formulas: Mapping[str, Any] = {
        "all-gather": lambda v: collectives.gather_loads(network, v, *_of(group), exact=exact),
        "reduce-scatter": lambda v: collectives.gather_loads(network, v, *_of(group), exact=exact),
        "all-reduce": lambda v: collectives.reduce_loads(network, v, *_of(group), exact=exact),
        "all-to-all": lambda v: collectives.all_to_all_loads(network, v / n, *_of(group), exact=exact),
        "permute": lambda v: collectives.send_loads(network, v / n, *_of(group)),
    }
    if operation == "ragged-all-to-all" and routing is not None:
        return _ragged_loads(network, array_bytes, group, routing, exact)
    if operation not in formulas:
        raise UnknownNameError("collective", operation, OPERATIONS)
    loads: Array = formulas[operation](array_bytes)
    return loads


def _of(group: Group) -> tuple[Array, Array]:
    return group.factors, group.strides


def _ragged_loads(network: Network, token_bytes: float, group: Group, routing: Routing, exact: bool) -> Array:
    """A token goes once into each block of devices (node, slice) that has an expert of it, over the network beyond
    the machine, and inside the block to each device that has one."""
    n = int(group.size)
    outside = np.array([network.beyond(i) for i in range(len(network.levels))])
    blocks, inner = np.where(outside, group.factors, 1), np.where(outside, 1, group.factors)
    loads = np.zeros(len(network.levels))
    for factors, places in ((inner, n), (blocks, int(np.prod(blocks)))):
        sent = token_bytes / n * routing.copies(places, exact)
        loads += collectives.all_to_all_loads(network, sent, factors, group.strides, exact=exact)
    return loads


def timed_loads(
    operation: str,
    network: Network,
    array_bytes: float,
    group: Group,
    routing: Routing | None = None,
    *,
    exact: bool = True,
) -> Array:
    """Seconds per level with latency, never less than it takes to reach the farthest member."""
    loads = loads_of(operation, network, array_bytes, group, routing, exact=exact)
    return np.maximum(loads, latency_loads(operation, network, group))


def latency_loads(operation: str, network: Network, group: Group) -> Array:
    """Seconds per level of a collective of no bytes.

    An exchange too must reach its farthest member; the planner leaves that out on a torus, where bytes rule.
    """
    return loads_of("all-gather" if "all-to-all" in operation else operation, network, 0.0, group)


def without_latency(network: Network) -> Network:
    levels = tuple(
        replace(x, hop_s=0.0) if isinstance(x, TorusAxis) else replace(x, latency_s=0.0)
        for x in network.levels
    )
    return replace(network, levels=levels)


def hops(network: Network, group: Group, operation: str = "all-gather") -> float:
    """Hops over links of a torus to the farthest member: the latency where a hop takes one second."""
    levels = tuple(
        replace(x, hop_s=1.0) if isinstance(x, TorusAxis) else replace(x, latency_s=0.0)
        for x in network.levels
    )
    found = latency_loads(operation, replace(network, levels=levels), group)
    return float(duration(found)) / (2.0 if operation == "all-reduce" else 1.0)


def one_direction(network: Network) -> Network:
    """The same network for programs that send round its rings in one direction."""
    levels = tuple(replace(x, one_way=True) if isinstance(x, TorusAxis) else x for x in network.levels)
    return replace(network, levels=levels)


def in_switches(network: Network, group: Group, *, theory: bool, exact: bool = True) -> Network:
    """The network with all-reduces done in its switches as theory has it, or without.

    A device then sends the array once and receives it once, V / W: 2 (1 - 1/F) times faster than two passes round,
    2 times than their short form.
    """
    levels: list[Level] = []
    for index, level in enumerate(network.levels):
        if isinstance(level, SwitchTier):
            ways = group.factors[index:] if network.beyond(index) else group.factors[index : index + 1]
            own = 1.0 / float(np.prod(ways)) if exact else 0.0
            gain = max(2.0 * (1.0 - own), 1.0) if theory else 1.0
            level = replace(level, all_reduce_speedup=gain)
        levels.append(level)
    return replace(network, levels=tuple(levels))


def tree_bandwidth(network: Network, group: Group, operation: str = "all-gather") -> dict[str, float]:
    """Bytes/s of a collective at each level, V over its seconds, were the group to end there.

    The book's tree form, F W_l / (F - 1) with W_l of a whole block; it leaves out that the links of inner blocks also
    carry what comes from farther out.
    """
    network = without_latency(network)
    found = {}
    for index in np.flatnonzero(group.factors > 1):
        inner = np.where(np.arange(len(group.factors)) <= index, group.factors, 1)
        loads = loads_of(operation, network, 1.0, Group(inner, group.strides))
        found[network.levels[index].name] = 1.0 / float(loads[index])
    return found


def tree_seconds(
    operation: str,
    network: Network,
    array_bytes: float,
    group: Group,
    sharded_ways: int,
    *,
    exact: bool = True,
) -> float:
    """Seconds over a switched tree of an array that other devices, inside the group's, shard too.

    max over levels of V (D - 1) / (D max(Y, S) W): S devices of a block, D blocks, W bytes/s of one device into the
    level. D is the level's whole size even where Y takes a part of it; what is true is `loads_of` on the devices that
    do take part. `exact=False` takes D - 1 as D. Source: jax-ml/scaling-book, chapter 12.
    """
    still, seconds, inside = without_latency(network), 0.0, 1
    top = int(np.flatnonzero(group.factors > 1).max(initial=0))
    tree = group_of([level.size if i <= top else 1 for i, level in enumerate(network.levels)])
    for index, level in enumerate(network.levels[: top + 1]):
        alone = group_of([*tree.factors[: index + 1], *[1] * (len(tree.factors) - index - 1)])
        if group.factors[index] > 1:
            load = float(loads_of(operation, still, array_bytes, alone, exact=exact)[index])
            seconds = max(seconds, load / max(1.0, sharded_ways / inside))
        inside *= level.size
    return seconds


def switch_traffic(
    array_bytes: float, devices_per_node: int, nodes: int, operation: str = "all-gather"
) -> Mapping[str, float]:
    """Bytes into and out of the switches of one node, and of the spine that joins the nodes.

    All-gather: a node sends its V/M up, and every device ends with V. All-reduce in the switches of one node: a
    device sends partial sums, then its part of the result, V in all, and receives as much.

    Source: jax-ml/scaling-book, chapter 12, quiz 4.
    """
    if operation == "all-reduce":
        return {
            "node_switch_in": devices_per_node * array_bytes,
            "node_switch_out": devices_per_node * array_bytes,
        }
    own = array_bytes / nodes
    foreign = array_bytes - own
    lacking = devices_per_node * (array_bytes - own / devices_per_node)
    return {
        "node_switch_in": own + foreign,
        "node_switch_out": lacking + own,
        "spine_switch_in": nodes * own,
        "spine_switch_out": nodes * foreign,
    }
