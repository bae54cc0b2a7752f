"""Open candidates by level of refinement, lowest bound first."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Columns(Protocol):
    """Candidates as columns: rows, or rows with where they sit."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any) -> Any: ...


@dataclass
class Level:
    """Candidates of one refinement with their bounds.

    Attributes:
        least_batch, most_batch: candidates refined at once: at least so many whatever their bounds, at most so
            many of those that lie close together.
    """

    least_batch: int
    most_batch: int
    _bounds: Array = field(default_factory=lambda: np.zeros(0))
    _columns: Any = None  # unsorted; most candidates of a large level are dropped unseen
    _order: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    _at: int = 0  # candidates before this are gone
    _new: list[tuple[Array, Any]] = field(default_factory=list)
    _least_new: float = float("inf")

    def push(self, bounds: Array, columns: Columns) -> None:
        if len(bounds):
            self._new.append((bounds, columns))
            self._least_new = min(self._least_new, float(bounds.min()))

    @property
    def least(self) -> float:
        """Lowest bound; inf when empty."""
        sorted_ = float(self._bounds[self._at]) if self._at < len(self._bounds) else float("inf")
        return min(sorted_, self._least_new)

    def __len__(self) -> int:
        """Candidates that are open."""
        return len(self._bounds) - self._at + sum(len(bounds) for bounds, _ in self._new)

    def pop(self, limit: float) -> tuple[Array, Any]:
        """The lowest candidates; beyond the least batch none above `limit`."""
        self._merge()
        near = int(np.searchsorted(self._bounds, limit, side="right"))
        stop = min(max(near, self._at + self.least_batch), self._at + self.most_batch, len(self._bounds))
        taken = slice(self._at, stop)
        self._at = stop
        return self._bounds[taken], self._columns[self._order[taken]]

    def drop(self, cutoff: float) -> int:
        """Forget candidates whose bound is not below the cutoff; how many."""
        self._merge()
        stop = max(self._at, int(np.searchsorted(self._bounds, cutoff, side="left")))
        gone = len(self._bounds) - stop
        if gone:
            self._bounds, self._order = self._bounds[:stop], self._order[:stop]
        return gone

    def _merge(self) -> None:
        if not self._new:
            return
        parts = self._new
        if self._at < len(self._bounds):
            parts = [(self._bounds[self._at :], self._columns[self._order[self._at :]]), *parts]
        bounds = np.concatenate([b for b, _ in parts])
        self._columns = concatenate([c for _, c in parts])
        self._order = np.argsort(bounds, kind="stable")
        self._bounds, self._at = bounds[self._order], 0
        self._new, self._least_new = [], float("inf")


def concatenate(parts: Sequence[Any]) -> Any:
    """Columns one below the other; fields may be arrays, columns themselves, or None in all parts."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    if first is None:
        return None
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    names = first.__dataclass_fields__
    return type(first)(**{n: concatenate([getattr(p, n) for p in parts]) for n in names})
