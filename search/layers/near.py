"""Labels in windows that widen until the best solution lies in one, or labels overflow."""

from dataclasses import dataclass

import numpy as np

from meshwright.search.layers.instance import SCORE_TICKS, Instance
from meshwright.search.layers.labels import label
from meshwright.search.layers.problem import Ints
from meshwright.search.layers.relax import Relaxed

_FIRST = SCORE_TICKS / 100_000  # ticks over the bound where windows start
_WHOLE = 2.0 * SCORE_TICKS  # no solution is further from the bound
_FEW = 1000  # labels while a first solution is looked for


@dataclass
class Near:
    """The best solution that labels found, and what they proved; in ticks.

    Attributes:
        score: of the best solution known; inf without one. taken: variants [L, P]; None where labels found none.
        proven: over the bound; below it lies no other solution. held: labels at once.
    """

    instance: Instance
    relaxed: Relaxed
    score: float
    taken: Ints | None = None
    proven: float = 0.0
    held: int = 0

    @property
    def floor(self) -> float:
        """No solution is below; inf where there is none at all."""
        if self.proven >= _WHOLE:
            return self.score
        least = max(self.relaxed.floor, int(np.ceil(self.relaxed.bound + self.proven - self.relaxed.error)))
        return min(self.score, least)

    @property
    def closed(self) -> bool:
        return self.floor >= self.score

    def run(self, most: int) -> None:
        """First few labels, until there is a solution to aim at; then up to `most`."""
        window = _FIRST
        while self.score == np.inf and self.proven < _WHOLE and window <= 2 * _WHOLE:
            self._try(window, min(_FEW, most))
            window *= 2
        while not self.closed:
            growth = 2.0 if self.held < most / 100 else 1.5 if self.held < most / 10 else 1.25
            room = self.score - self.relaxed.bound + 2 * self.relaxed.error
            window = min(room, growth * max(self.proven, _FIRST))
            self._try(window, most)
            if self.proven < window:  # labels overflowed
                return

    def _try(self, window: float, most: int) -> None:
        found = label(self.instance, self.relaxed, window, most)
        self.proven = max(self.proven, found.proven)
        self.held = max(self.held, found.most)
        if found.counts is not None and found.score < self.score:
            self.score, self.taken = found.score, self.instance.taken(found.counts)
