"""The least device of a shape, by a staircase over the levels of compute; vectorised over shapes.

For each level of compute, from the most: the least bandwidth that keeps the limits, by bisection above what the level
before needed, up to what could still improve. `best_rank` then names the cheapest device with that much of both.
"""

from dataclasses import dataclass, field

import numpy as np

from meshwright.search.machine.pairs import Pairs
from meshwright.search.shape import Floats, Ints


@dataclass
class Stairs:
    """The devices of `pairs`, in the order of price.

    Attributes:
        best_rank: [C, W, M] best place of the devices with that compute, at least that bandwidth and that memory; rises
            with both.
        settled: shapes whose staircase was walked.
    """

    pairs: Pairs
    best_rank: Ints = field(init=False)
    settled: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        rank = self.pairs.points.rank[:, ::-1, ::-1]
        best = np.minimum.accumulate(np.minimum.accumulate(rank, axis=1), axis=2)
        self.best_rank = best[:, ::-1, ::-1]

    def least_ranks(self, rows: Ints, level: Ints, below: Ints) -> Ints:
        """The best device of each shape among the first `below` by price; the number of devices where there is none."""
        rank = np.full(len(rows), len(self.pairs.points))
        at = self._corner(level, below)
        alive = at[0] >= 0
        alive[alive] = self.pairs.keep(rows[alive], at[0][alive], at[1][alive])
        self.settled += int(alive.sum())
        kept = np.flatnonzero(alive)
        rows, level, below = rows[kept], level[kept], below[kept]
        low = np.zeros(len(rows), dtype=np.int64)  # least bandwidth not known to be too little
        for compute in range(self.best_rank.shape[0] - 1, -1, -1):
            by_bandwidth = self.best_rank[compute][:, level]
            top = (by_bandwidth < below).sum(axis=0) - 1  # most bandwidth that could still improve
            some = np.flatnonzero(low <= top)
            fast = self.pairs.keep(rows[some], np.full(len(some), compute), top[some])
            low[some[~fast]] = top[some[~fast]] + 1  # less compute needs no less
            some = some[fast]
            low[some] = self._bisect(rows[some], compute, low[some], top[some])
            found = by_bandwidth[low[some], some]
            rank[kept[some]] = below[some] = found
        return rank

    def _corner(self, level: Ints, below: Ints) -> tuple[Ints, Ints]:
        """The most compute and the most bandwidth among devices that could improve; -1 where there is none."""
        open_to = self.best_rank < below.max(initial=0)  # [C, W, M]
        places = [np.arange(n) for n in open_to.shape[:2]]
        compute = np.where(open_to.any(axis=1), places[0][:, None], -1).max(axis=0)
        bandwidth = np.where(open_to.any(axis=0), places[1][:, None], -1).max(axis=0)
        return compute[level], bandwidth[level]

    def _bisect(self, rows: Ints, compute: int, low: Ints, high: Ints) -> Ints:
        """The least bandwidth in [low, high] that keeps the limits, where `high` does."""
        low, high = low.copy(), high.copy()
        while len(some := np.flatnonzero(low < high)):
            middle = (low[some] + high[some]) // 2
            fast = self.pairs.keep(rows[some], np.full(len(some), compute), middle)
            high[some[fast]] = middle[fast]
            low[some[~fast]] = middle[~fast] + 1
        return low

    def least_strain(self, level: Ints) -> Floats:
        """The least strain of every shape over all devices that hold it, [R]; inf where none does."""
        strain = np.full(len(level), np.inf)
        for memory in np.unique(level[level < self.best_rank.shape[2]]):
            some = np.flatnonzero(level == memory)
            widest = -1
            for compute in range(self.best_rank.shape[0] - 1, -1, -1):
                top = int((self.best_rank[compute, :, memory] < len(self.pairs.points)).sum()) - 1
                if top > widest:  # no device has more of both
                    widest = top
                    costs = self.pairs.costs(some, np.full(len(some), compute), np.full(len(some), top))
                    strain[some] = np.minimum(strain[some], self.pairs.strain(costs))
        return strain
