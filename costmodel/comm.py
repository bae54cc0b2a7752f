"""Collectives of a row, by communicator: placed on the network, or as fast as any placement could be.

Both give loads of shape [R, X]: how long a collective keeps each of X shared resources busy. For a placement
the resources are the network's levels. For the best case they are the communicators themselves, which is a lower
bound: what two of them would queue for each other on a shared level is left out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel import collectives
from meshwright.costmodel.collectives import Network
from meshwright.costmodel.placement import Group, Groups, expert_copies, one_group, splits
from meshwright.costmodel.rows import distinct_values

Array = NDArray[Any]
Bytes = Array | float
GROUPS = ("tp", "cp", "pp", "dp_replicate", "shard", "ep", "edp")
# Loads are added within a class only (tp; cp; ep; shard, edp and dp_replicate) where classes queue for each other.
COMPACT = {"tp": 0, "cp": 0, "pp": 0, "ep": 0, "shard": 0, "edp": 1, "dp_replicate": 2}


# Seconds per byte, and seconds, of a degree that fits the network nowhere: no infinity, which times 0 is no number.
NOWHERE = 1e30


class Comm(ABC):
    """Loads of a collective over the communicator `group` of every row; bytes have shape [R] or [R, S]."""

    def gather(self, group: str, total_bytes: Bytes) -> Array:
        return self._loads(collectives.gather_loads, group, total_bytes)

    def reduce(self, group: str, total_bytes: Bytes) -> Array:
        return self._loads(collectives.reduce_loads, group, total_bytes)

    def all_to_all(self, group: str, sent_bytes: Bytes) -> Array:
        return self._loads(collectives.all_to_all_loads, group, sent_bytes)

    def dispatch(self, group: str, sent_bytes: Bytes, copies: int) -> Array:
        """An all-to-all of tokens of which so many copies go to experts, each domain getting a token once."""
        return self._loads(collectives.dispatch_loads(copies), group, sent_bytes)

    def send(self, group: str, sent_bytes: Bytes) -> Array:
        return self._loads(collectives.send_loads, group, sent_bytes)

    @abstractmethod
    def _loads(self, formula: Callable[..., Array], group: str, sizes: Bytes) -> Array: ...


@dataclass(frozen=True)
class PlacedComm(Comm):
    """Collectives of rows whose placement is known."""

    network: Network
    groups: Groups

    def _loads(self, formula: Callable[..., Array], group: str, sizes: Bytes) -> Array:
        members = getattr(self.groups, group)
        factors, strides = members.factors, members.strides
        sizes = np.asarray(sizes, float)
        if sizes.ndim == 2:  # one size per stage
            factors, strides = factors[:, None, :], strides[:, None, :]
        loads = formula(self.network, sizes, factors, strides)
        # A row that sends nothing pays no latency. Of several stages all take part in what any of them sends,
        # so that a stage's seconds are convex in its layers (a jump at zero would not be).
        sends = np.asarray(sizes > 0 if sizes.ndim < 2 else (sizes > 0).any(axis=1, keepdims=True))
        return loads * sends[..., None]


@dataclass
class BestComm(Comm):
    """Collectives of rows known only by their degrees, each at its fastest split of the network.

    Attributes:
        degrees: size of each communicator, shape [R] each.
        experts: (ep, etp) of every row: copies of an expert (`edp`) lie outside the ranks that hold it, which fill
            the innermost ones. None where no row has experts.
        cache: best rates by formula and degree; tables over the same network may share one.
        columns: resource of each communicator. Two may share a resource only if no one ever adds their loads.
    """

    network: Network
    degrees: dict[str, Array]
    experts: tuple[Array, Array] | None = None
    cache: dict[tuple[str, tuple[int, ...]], tuple[float, float]] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=lambda: {g: i for i, g in enumerate(GROUPS)})
    _codes: dict[str, tuple[list[tuple[int, ...]], Array]] = field(default_factory=dict)

    def placeable(self, group: str) -> Array:
        """Whether the degree of each row fits the network at all."""
        unique, inverse = self._distinct(group)
        return np.array([bool(splits(d[0], self.network.sizes)) for d in unique])[inverse]

    def _distinct(self, group: str) -> tuple[list[tuple[int, ...]], Array]:
        """(distinct degrees, for edp with what lies inside; which of them each row has)."""
        if group not in self._codes:
            columns = [self.degrees[group]]
            if group == "edp" and self.experts is not None:
                columns += self.experts
            values, key = [], np.zeros(len(columns[0]), np.int64)
            for column in columns:
                unique, code = distinct_values(column)
                values.append(unique)
                key = key * len(unique) + code
            found, inverse = distinct_values(key)
            parts = np.unravel_index(found, [len(v) for v in values])
            chosen = [v[p].tolist() for v, p in zip(values, parts, strict=True)]
            self._codes[group] = list(zip(*chosen, strict=True)), inverse
        return self._codes[group]

    def _loads(self, formula: Callable[..., Array], group: str, sizes: Bytes) -> Array:
        unique, inverse = self._distinct(group)
        per_byte, least = np.array([self._best(formula, d) for d in unique]).T
        sizes = np.asarray(sizes, float)
        pick = inverse if sizes.ndim < 2 else inverse[:, None]
        seconds = np.where(sizes > 0, np.maximum(sizes * per_byte[pick], least[pick]), 0.0)
        loads = np.zeros((*seconds.shape, max(self.columns.values()) + 1))
        loads[..., self.columns[group]] = seconds
        return loads

    def _best(self, formula: Callable[..., Array], degree: tuple[int, ...]) -> tuple[float, float]:
        """Least seconds per byte and least latency over all splits of the degree."""
        key = (formula.__name__, degree)
        if key not in self.cache:
            group = one_group(degree[0], self.network.sizes) if len(degree) == 1 else self._copies(degree)
            if not len(group.factors):
                return NOWHERE, NOWHERE
            large = 2.0**60  # so that no latency shows in the seconds per byte
            per_byte = (
                collectives.duration(formula(self.network, large, group.factors, group.strides)) / large
            )
            least = collectives.duration(formula(self.network, 0.0, group.factors, group.strides))
            self.cache[key] = (float(per_byte.min()) * (1 - 1e-9), float(least.min()))
        return self.cache[key]

    def _copies(self, degree: tuple[int, ...]) -> Group:
        copies, ep, etp = degree
        return expert_copies(copies, ep, etp, self.network.sizes)
