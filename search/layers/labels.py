"""All solutions near the bound, group after group, as labels: totals so far, score so far, excess over the bound.

Labels whose totals are equal keep only the best score; in the total with most different values, also of those that
use no less. Where variants are shared by many layers totals meet often, and few labels are left: that closes
instances on which branching does not. Other multipliers than the best bound labels whose totals stray (`_Witnesses`).

A label whose bound passes `window` is on no solution with score <= bound + window. So a run that drops nothing else
finds the best solution in the window, or proves that there is none; one that overflows still proves what lies below
the least bound of what it dropped (`proven`).
"""

from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.search.layers.instance import Instance
from meshwright.search.layers.problem import Floats, Ints
from meshwright.search.layers.relax import Relaxed

Array = NDArray[Any]

# By which shares multipliers are moved, one alone and two together, to bound labels that stray. Measured on 80 layers
# of 50 variants: 8 to 150 times fewer labels than the best multipliers alone.
_ALONE = (0.1, -0.1, 0.3, -0.3, 0.6, -0.6)
_TOGETHER = (0.3, -0.3)


@dataclass(frozen=True)
class Labelled:
    """What labels found.

    Attributes:
        counts: of rows per group, of the best solution found; None without one.
        score: its ticks. proven: ticks over the bound below which no other solution lies; inf where all were seen.
        most: labels held at once.
    """

    counts: tuple[Ints, ...] | None
    score: int
    proven: float
    most: int


@dataclass(frozen=True)
class _Step:
    """One layer's choice in one group: rows by rising excess."""

    group: int
    rows: Ints
    use: Ints
    excess: Floats
    score: Ints


def label(instance: Instance, relaxed: Relaxed, window: float, most: int) -> Labelled:
    """Solutions within `window` ticks of the bound, with at most `most` labels; the least in bound are kept."""
    window += relaxed.error
    steps = _steps(instance, relaxed, window)
    if any(not len(step.rows) for step in steps):
        return Labelled(None, 0, window - relaxed.error, 0)
    least = _tail([step.use.min(0) for step in steps])
    largest = _tail([step.use.max(0) for step in steps])
    witnesses = _Witnesses.of(instance, relaxed, steps)
    excess, score = np.zeros(1), np.zeros(1, dtype=np.int64)
    totals = np.zeros((1, len(instance.room)), dtype=np.int64)
    history: list[tuple[Array, Array]] = []
    held, proven = 1, window
    for i, step in enumerate(steps, start=1):
        parent, row = _pairs(excess, step.excess, window)
        new = totals[parent] + step.use[row]
        fits = (new + least[i] <= instance.room).all(1)
        parent, row, new = parent[fits], row[fits], new[fits]
        # What can no longer pass a limit is as good as what just keeps it: more labels meet.
        raised = np.maximum(new, instance.room - largest[i])
        excess = excess[parent] + step.excess[row] + (raised - new) @ relaxed.lam
        score = score[parent] + step.score[row]
        kept = np.flatnonzero(excess <= window)
        kept = kept[_best_of_equals(raised[kept], score[kept])]
        bound = np.maximum(excess[kept], witnesses.excess(i, raised[kept], score[kept]))
        kept, bound = kept[bound <= window], bound[bound <= window]
        if len(kept) > most:
            order = np.argsort(bound, kind="stable")
            proven = min(proven, float(bound[order[most]]))
            kept = kept[order[:most]]
        kept = kept[np.argsort(excess[kept], kind="stable")]
        excess, totals, score = excess[kept], raised[kept], score[kept]
        history.append((parent[kept].astype(np.int32), step.rows[row[kept]].astype(np.int32)))
        held = max(held, len(kept))
        if not len(kept):
            return Labelled(None, 0, proven - relaxed.error, held)
    best = int(np.argmin(score))
    counts = _counts(instance, steps, history, best)
    return Labelled(counts, int(score[best]), proven - relaxed.error, held)


def _steps(instance: Instance, relaxed: Relaxed, window: float) -> list[_Step]:
    """Once per layer of a group. The last part first: feed-forward variants differ in one size, so totals meet."""
    steps: list[_Step] = []
    for g, (group, excess) in enumerate(zip(instance.groups, relaxed.excess, strict=True)):
        rows = np.argsort(excess, kind="stable")
        rows = rows[excess[rows] <= window]
        steps += [_Step(g, rows, group.use[rows], excess[rows], group.score[rows])] * group.count
    return sorted(steps, key=lambda step: -instance.groups[step.group].part)


@dataclass(frozen=True)
class _Witnesses:
    """Bounds at other multipliers: [M, S], and what the steps from i on take at least at each, [steps + 1, M]."""

    lam: Floats
    rest: Floats

    @staticmethod
    def of(instance: Instance, relaxed: Relaxed, steps: list[_Step]) -> "_Witnesses":
        active = np.flatnonzero(relaxed.lam > 0).tolist()
        moves: list[dict[int, float]] = [{side: by} for side in active for by in _ALONE]
        for one, other in combinations(active, 2):
            moves += [{one: a, other: b} for a, b in product(_TOGETHER, repeat=2)]
        moved = []
        for move in moves:
            lam = relaxed.lam.copy()
            for side, by in move.items():
                lam[side] *= 1 + by
            moved.append(lam)
        lams = np.array(moved).reshape(len(moved), len(instance.room))
        least = [(step.score[:, None] + step.use @ lams.T).min(0) for step in steps]
        rest = np.concatenate((np.cumsum(np.array(least)[::-1], axis=0)[::-1], np.zeros((1, len(lams)))))
        return _Witnesses(lams, rest - lams @ instance.room - relaxed.bound)

    def excess(self, step: int, totals: Ints, score: Ints) -> Floats:
        """Ticks over the bound that labels come to at least."""
        if not len(self.lam) or not len(totals):
            return np.zeros(len(totals))
        most: Floats = (totals @ self.lam.T + self.rest[step]).max(1) + score
        return most


def _tail(values: list[Ints]) -> Ints:
    """[i]: the sum from step i on; the last is zero."""
    sums = np.cumsum(np.array(values)[::-1], axis=0)[::-1]
    return np.concatenate((sums, np.zeros_like(sums[:1])))


def _pairs(excess: Array, row_excess: Array, window: float) -> tuple[Array, Array]:
    """(label, row) within the window. Both come by rising excess."""
    within = np.searchsorted(excess, window - row_excess, side="right")
    row = np.repeat(np.arange(len(row_excess)), within)
    start = np.cumsum(within) - within
    return np.arange(len(row)) - np.repeat(start, within), row


def _best_of_equals(totals: Array, score: Array) -> Array:
    """Labels that no other, with all totals but one equal and that one no larger, matches in score."""
    if not len(totals) or not totals.shape[1]:
        return np.argsort(score, kind="stable")[:1]
    along = int(np.argmax([len(np.unique(column)) for column in totals.T]))
    others = np.delete(totals, along, axis=1)
    order = np.lexsort((score, totals[:, along], *others.T))
    first = np.ones(len(order), dtype=bool)
    first[1:] = (others[order][1:] != others[order][:-1]).any(1)
    # Runs one after the other, each below the one before, so that one running minimum serves all.
    shifted = score[order] - np.cumsum(first) * (int(score.max()) + 1)
    first[1:] |= shifted[1:] < np.minimum.accumulate(shifted)[:-1]
    best: Array = order[first]
    return best


def _counts(
    instance: Instance, steps: list[_Step], history: list[tuple[Array, Array]], at_label: int
) -> tuple[Ints, ...]:
    counts = tuple(np.zeros(len(group.score), dtype=np.int64) for group in instance.groups)
    for step, (parent, row) in zip(reversed(steps), reversed(history), strict=True):
        counts[step.group][row[at_label]] += 1
        at_label = int(parent[at_label])
    return counts
