"""Open candidates by level of refinement, lowest bound first."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.rows import Rows
from meshwright.optimizer.space import concatenate

Array = NDArray[Any]


@dataclass
class Level:
    """Candidates of one refinement with their bounds, kept sorted.

    Attributes:
        name: what a candidate of this level is.
        batch: candidates refined at once.
    """

    name: str
    batch: int
    _bounds: Array = field(default_factory=lambda: np.zeros(0))
    _rows: Rows | None = None
    _at: int = 0  # candidates before this are gone
    _new: list[tuple[Array, Rows]] = field(default_factory=list)

    def push(self, bounds: Array, rows: Rows) -> None:
        if len(bounds):
            self._new.append((bounds, rows))

    def __len__(self) -> int:
        self._merge()
        return len(self._bounds) - self._at

    @property
    def least(self) -> float:
        """Lowest bound; inf when empty."""
        self._merge()
        return float(self._bounds[self._at]) if self._at < len(self._bounds) else float("inf")

    def pop(self, limit: float) -> tuple[Array, Rows]:
        """The lowest candidates: at least one, at most `batch`, beyond the first none above `limit`."""
        self._merge()
        assert self._rows is not None
        stop = int(np.searchsorted(self._bounds, limit, side="right"))
        stop = max(self._at + 1, min(stop, self._at + self.batch))
        taken = slice(self._at, stop)
        self._at = stop
        return self._bounds[taken], self._rows[taken]

    def clear(self) -> int:
        """Drop everything; how many there were."""
        count = len(self)
        self._bounds, self._rows, self._at, self._new = np.zeros(0), None, 0, []
        return count

    def _merge(self) -> None:
        if not self._new:
            return
        parts = self._new
        if self._rows is not None and self._at < len(self._bounds):
            parts = [(self._bounds[self._at :], self._rows[self._at :]), *parts]
        bounds = np.concatenate([b for b, _ in parts])
        rows = concatenate([r for _, r in parts])
        order = np.argsort(bounds, kind="stable")
        self._bounds, self._rows, self._at, self._new = bounds[order], rows[order], 0, []
