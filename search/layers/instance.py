"""A problem in whole numbers: groups of choices, each side of a limit as `use <= room`.

Scores are rounded to the nearest tick, SCORE_TICKS of them over all that scores can differ. Costs are rounded
towards the safe side: up where a limit is from above, down where it is from below, to a power of two at least
2**-44 of the total; bytes and parameters then are exact. Each side is divided by the common divisor of its uses,
which is exact too and gives small numbers where few variants are shared by all layers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.search.layers.problem import Bools, Floats, Ints, Limit, Problem

SCORE_TICKS = 10_000_000_000
_COST_BITS = 44


@dataclass(frozen=True)
class Group:
    """Layers that choose among the same rows: one part of one layer, or of several that are alike.

    Attributes:
        part: index of the part. layers: indices of the layers.
        variant: [V] index of each row in the part's variants; score: [V] ticks, least is 0; use: [V, S].
    """

    part: int
    layers: Ints
    variant: Ints
    score: Ints
    use: Ints

    @property
    def count(self) -> int:
        return len(self.layers)

    def only(self, rows: Bools) -> "Group":
        """With the rows of a mask."""
        return Group(self.part, self.layers, self.variant[rows], self.score[rows], self.use[rows])


@dataclass(frozen=True)
class Instance:
    """Groups, and the room of each of S sides, [S].

    Attributes:
        tick: score of a tick. offset: score of zero ticks. slack: score that rounding can hide, in all.
    """

    groups: tuple[Group, ...]
    room: Ints
    tick: float
    offset: float
    slack: float

    @property
    def rows(self) -> int:
        return sum(len(group.score) for group in self.groups)

    def taken(self, counts: Sequence[Ints]) -> Ints:
        """Variants [L, P] of counts of rows per group; layers that are alike take them in order."""
        layers = 1 + max(int(group.layers.max()) for group in self.groups)
        out = np.zeros((layers, 1 + max(group.part for group in self.groups)), dtype=np.int64)
        for group, count in zip(self.groups, counts, strict=True):
            out[group.layers, group.part] = np.repeat(group.variant, count)
        return out

    def counts(self, taken: Ints) -> tuple[Ints, ...] | None:
        """The inverse of `taken`; None where a row is not there any more."""
        out = []
        for group in self.groups:
            is_row = taken[group.layers, group.part][:, None] == group.variant
            if not is_row.any(1).all():
                return None
            out.append(is_row.sum(0))
        return tuple(out)

    def weigh(self, taken: Ints) -> tuple[int, bool]:
        """Ticks of variants [L, P], and whether they keep every side; of an instance that lost no rows."""
        counts = self.counts(taken)
        assert counts is not None
        pairs = list(zip(self.groups, counts, strict=True))
        used = np.array([count @ group.use for group, count in pairs]).sum(0)
        return sum(int(count @ group.score) for group, count in pairs), bool((used <= self.room).all())

    def with_groups(self, groups: Iterable[Group]) -> "Instance":
        return replace(self, groups=tuple(groups))

    def differing(self, earlier: Sequence[Ints], layers: int) -> "Instance":
        """With a side for each earlier solution, [L, 1]: at least so many layers take another variant.

        Only for one part and layers that are not joined.
        """
        groups = []
        for group in self.groups:
            same = np.stack([group.variant == taken[group.layers[0], 0] for taken in earlier], -1)
            groups.append(replace(group, use=np.concatenate((group.use, same.astype(np.int64)), axis=1)))
        most = np.full(len(earlier), len(self.groups) - layers)
        return replace(self, groups=tuple(groups), room=np.concatenate((self.room, most)))


def instance_of(problem: Problem, limits: Sequence[Limit], *, alike: bool = True) -> Instance:
    """The whole numbers of a problem under limits; `alike` joins layers whose rows are the same."""
    spread = sum(float((part.score.max(1) - part.score.min(1)).sum()) for part in problem.parts)
    tick = spread / SCORE_TICKS or 1.0
    sides = [side for limit in limits for side in _sides(problem, limit)]
    room = np.array([room for _, room in sides], dtype=np.int64)
    groups: list[Group] = []
    for p, part in enumerate(problem.parts):
        score = np.rint((part.score - part.score.min(1, keepdims=True)) / tick).astype(np.int64)
        use = np.stack([uses[p] for uses, _ in sides], -1) if sides else np.zeros((*score.shape, 0), np.int64)
        variant = np.arange(len(part.variants))
        for layers in _classes(score, use) if alike else [np.array([i]) for i in range(problem.layers)]:
            groups.append(Group(p, layers, variant, score[layers[0]], use[layers[0]]))
    offset = sum(float(part.score.min(1).sum()) for part in problem.parts)
    slack = tick / 2 * problem.layers * len(problem.parts) if spread else 0.0
    return Instance(tuple(groups), room, tick, offset, slack)


def _classes(score: Ints, use: Ints) -> list[Ints]:
    """Layers by their rows, in the order of the first of each."""
    rows = np.concatenate((score, use.reshape(len(use), -1)), axis=1)
    classes: dict[bytes, list[int]] = {}
    for layer, row in enumerate(rows):
        classes.setdefault(row.tobytes(), []).append(layer)
    return [np.array(layers) for layers in classes.values()]


def _sides(problem: Problem, limit: Limit) -> list[tuple[list[Ints], int]]:
    """(use of each part [L, V], room) of each finite side of a limit."""
    columns, constant = problem.column(limit.total)
    return [
        _side(columns, bound - constant, sign)
        for bound, sign in ((limit.most, 1), (limit.least, -1))
        if np.isfinite(bound)
    ]


def _side(columns: list[Floats], bound: float, sign: int) -> tuple[list[Ints], int]:
    total = max(sum(float(np.abs(c).max(1).sum()) for c in columns), abs(bound)) or 1.0
    unit = 2.0 ** (np.ceil(np.log2(total)) - _COST_BITS)
    uses = [(np.ceil(sign * c / unit)).astype(np.int64) for c in columns]
    divisor = max(1, int(np.gcd.reduce([int(np.gcd.reduce(u.ravel())) for u in uses])))
    return [u // divisor for u in uses], int(np.floor(sign * bound / unit)) // divisor
