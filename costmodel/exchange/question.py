"""A question about one collective: its seconds per level as asked, and what is refused."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.collectives import Network
from meshwright.costmodel.exchange.operations import (
    OPERATIONS,
    Routing,
    in_switches,
    latency_loads,
    loads_of,
    timed_loads,
    without_latency,
)
from meshwright.costmodel.exchange.place import check_bytes
from meshwright.costmodel.placement import Group
from meshwright.hardware.errors import InputError, LayoutError, UnknownNameError
from meshwright.hardware.network import SwitchTier, TorusAxis

Array = NDArray[Any]
SHARP = ("fabric", "off", "theory")
GATHERING = ("all-gather", "reduce-scatter", "all-reduce")


@dataclass(frozen=True)
class Asked:
    """One question."""

    operation: str
    network: Network
    group: Group
    held_bytes: float
    routing: Routing | None
    sharp: str
    whole: str  # how formulas write the bytes that the group holds

    @property
    def n(self) -> int:
        return int(self.group.size)

    def over(self, exact: bool = True) -> Network:
        """The network with its reductions as asked."""
        if self.sharp == "fabric":
            return self.network
        return in_switches(self.network, self.group, theory=self.sharp == "theory", exact=exact)

    def moving(self, exact: bool = True) -> Array:
        """Seconds per level without latency."""
        still = without_latency(self.over(exact))
        return loads_of(self.operation, still, self.held_bytes, self.group, self.routing, exact=exact)

    def timed(self, exact: bool = True) -> Array:
        """Seconds per level with latency."""
        return timed_loads(
            self.operation, self.over(exact), self.held_bytes, self.group, self.routing, exact=exact
        )

    @property
    def latency(self) -> Array:
        return latency_loads(self.operation, self.over(), self.group)

    @property
    def levels(self) -> list[int]:
        """Indices of the levels that the group spans."""
        return [int(i) for i in np.flatnonzero(self.group.factors > 1)]

    def is_ring(self, index: int) -> bool:
        """Whether the group closes a ring on a level."""
        level = self.network.levels[index]
        span = int(self.group.factors[index] * self.group.strides[index])
        return isinstance(level, TorusAxis) and level.wraps and span == level.size

    @property
    def gains(self) -> dict[str, float]:
        """What reduction in switches is measured to gain, by level."""
        if self.operation != "all-reduce" or self.sharp != "fabric":
            return {}
        levels = (self.network.levels[i] for i in self.levels)
        return {
            f"g_{level.name}": level.all_reduce_speedup
            for level in levels
            if isinstance(level, SwitchTier) and level.all_reduce_speedup != 1.0
        }

    @property
    def on_torus(self) -> bool:
        return bool(set(self.levels) & set(self.network.torus))


def check(
    operation: str, array_bytes: float, group: Group, sharded_ways: int, routing: Routing | None, sharp: str
) -> None:
    if operation not in OPERATIONS:
        raise UnknownNameError("collective", operation, OPERATIONS)
    if sharp not in SHARP:
        raise UnknownNameError("sharp", sharp, SHARP)
    check_bytes(array_bytes)
    if operation == "ragged-all-to-all" and routing is None:
        raise InputError(
            "a ragged-all-to-all needs to know what is sent: give top_k, or a fraction of a full exchange"
        )
    if operation != "ragged-all-to-all" and routing is not None:
        raise InputError(f"routing is for ragged-all-to-all, not for {operation}; drop it, or ask for that")
    if sharded_ways < 1:
        raise LayoutError(f"an array sharded {sharded_ways} ways is none; use 1 or more")
    if int(group.size) < 2:
        raise LayoutError("one device has nothing to exchange; name axes with at least two devices")


def check_changes(operation: str, network: Network, group: Group, sharp: str, one_way: bool) -> None:
    """Raises InputError for an option that would change nothing here: its user believes that it did."""
    asked = Asked(operation, network, group, 1.0, None, sharp, "V")
    names = ", ".join(network.levels[i].name for i in asked.levels)
    if one_way and operation == "permute":
        raise InputError("one_way changes nothing: a permute goes round in one direction; drop it")
    if one_way and not any(asked.is_ring(i) for i in asked.levels):
        raise InputError(f"one_way is for rings, and {names} closes none here; drop it")
    if sharp == "fabric":
        return
    if operation != "all-reduce":
        raise InputError(
            f"sharp={sharp} is for an all-reduce, and {operation} reduces nothing in switches; drop it"
        )
    if not any(isinstance(network.levels[i], SwitchTier) for i in asked.levels):
        raise InputError(f"sharp={sharp} is for switches, and {names} is a torus; drop it")
