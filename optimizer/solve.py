"""The search: bound, prune, prove.

Candidates are refined level by level (`optimizer.space`), always those with the lowest bound first, in batches.
A refinement lists what its candidates leave open, bounds each child, and drops those that cannot enter the list
of plans: their bound passes the cutoff, the value of the k-th best visibly different plan so far, or they could only
repeat a visible kind whose best plan is already as good. Children of the last level are placed plans, whose stages
CP-SAT settles one at a time. The search ends when no open candidate has a bound below the cutoff.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.layout import DIMENSIONS
from meshwright.costmodel.placement import innermost, nestings, network_keys, strides_of
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.optimizer.bounds import frame_bounds
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.queue import Level, concatenate
from meshwright.optimizer.refine import HOSTS, Refiner
from meshwright.optimizer.settle import Found, Settler, SolveOptions
from meshwright.optimizer.settled import Placed, Settled, order, visible, visible_columns
from meshwright.optimizer.space import Space, frames

Array = NDArray[Any]

__all__ = ["BEATEN", "GIVE_UP", "HOSTS", "TOO_LARGE", "Found", "Search", "SolveOptions", "Watch"]

BEATEN = "bound passes the best plans"
TOO_LARGE = "no cut fits the device memory"
ALIKE = "placements that load the network as another does"
SIZES = "batch sizes that divide less well"
# Frames of several batches listed at once.
_AT_ONCE = 300_000
# Refine together what lies this close: a batch costs little more than a single candidate.
_TOGETHER = 1.02
# While the list is further than `_POOR` times from the lowest bound, refine the deepest within `_AHEAD` times of it.
_POOR, _AHEAD = 2.0, 1.3
# What is placed is looked at at once where it may lower the cutoff to this share of it.
_WORTH = 0.98
# Splits solved at once under a plain order, while there is no cutoff, without finding a plan.
_FIRST = 32
# Candidates left open by the solver's work limit after which looking further tells nothing.
GIVE_UP = 64
# Least and most candidates of each level refined at once, by how many children they have.
_FRAMES, _MEMORY = (1024, 4096), (2048, 8192)
_REST = ((512, 2048), (512, 1024), (8192, 16384), (16, 256), (32, 128), (1, 1))


# Called between refinements with the search, its lowest open bound and what is open; True ends the search.
Watch = Callable[["Search", float, Sequence[Level]], bool]


@dataclass
class Search:
    """State and tally of one search."""

    space: Space
    options: SolveOptions
    funnel: Funnel = field(default_factory=Funnel)
    best: dict[tuple[int, ...], Found] = field(default_factory=dict)
    undecided: list[float] = field(default_factory=list)  # bounds of candidates that the work limit left open
    _met: set[tuple[Any, ...]] = field(default_factory=set)  # placed rows that went on to be solved
    shorts: int = 0  # plans settled whose hosts were short of what is fastest
    fruitless: int = 0  # splits solved at once that held no plan
    least_devices: int = 1  # frames that use fewer are left out
    most_devices: int | None = None  # frames that use more are
    within_s: float = float("inf")  # slower plans are of no use: finding none proves that none is faster
    watch: "Watch | None" = None  # looks on between refinements, and may end the search as a limit does
    stopped: bool = False  # the watch did

    @cached_property
    def refiner(self) -> Refiner:
        return Refiner(self.space, self.funnel)

    @cached_property
    def settler(self) -> Settler:
        return Settler(self.setting, self.options, self.space.menus)

    @property
    def solved(self) -> int:
        """Plans whose stages were settled."""
        return self.funnel.entered.get("solved", 0)

    @property
    def setting(self) -> Setting:
        return self.space.setting

    @property
    def ranked(self) -> list[Found]:
        """Best plan of each visible kind, best first."""
        return sorted(self.best.values(), key=lambda f: (f.value_s, order(f.row)))

    @property
    def cutoff_s(self) -> float:
        """A candidate whose bound passes this cannot enter the list."""
        wanted = self.options.runner_ups + 1
        if len(self.best) < wanted:
            return self.within_s
        values = sorted(f.value_s for f in self.best.values())
        return min(self.within_s, values[wanted - 1])

    def run(self, refinements: int | None = None) -> bool:
        """Search to the end, or for so many refinements of each lot of batches; whether the end was reached."""
        sizes = (_FRAMES, *(_MEMORY,) * (len(self.refiner.steps) - 5), *_REST)
        levels = [Level(least, most) for least, most in sizes]
        limit = self.options.refinements if refinements is None else refinements
        whole = True
        for bounds, frame in self._frames():
            if whole:
                levels[0].push(*self._alive(bounds, frame))
                whole = self._refine(levels, limit) >= 0
            elif len(bounds):
                self.undecided.append(float(bounds.min()))
        return whole

    def _frames(self) -> Iterator[tuple[Array, Rows]]:
        """Frames with their bounds: of the batch asked for, then of the others a tolerance lets in, some at a time.

        Together they would not fit the memory of a large question; a later one meets the cutoff of those before.
        """
        batches = self.space.batches
        self.funnel.remove(SIZES, max(0, len(batches) - self.options.batch_sizes))
        held: list[Rows] = []
        for number, batch in enumerate(batches[: self.options.batch_sizes]):
            frame = frames(self.space, self.funnel, (batch,))
            frame = frame[frame.devices >= self.least_devices] if self.least_devices > 1 else frame
            frame = frame if self.most_devices is None else frame[frame.devices <= self.most_devices]
            held += [frame] if len(frame) else []
            last = number == min(len(batches), self.options.batch_sizes) - 1
            if held and (number == 0 or last or sum(map(len, held)) > _AT_ONCE):
                together = concatenate(held)
                yield frame_bounds(self.setting, together), together
                held = []

    def _refine(self, levels: list[Level], left: int) -> int:
        """Refine until nothing open has a bound below the cutoff; refinements left, -1 if there were too few."""
        refine = self.refiner.steps
        cutoff = self.cutoff_s
        while True:
            least = [level.least for level in levels]
            depth = self._next(least, cutoff)
            if not least[depth] < cutoff:
                break
            self.stopped = self.watch is not None and self.watch(self, min(least), levels)
            if left == 0 or len(self.undecided) >= GIVE_UP or self.stopped:
                self.undecided.append(min(least))
                return -1
            left -= 1
            bounds, candidates = levels[depth].pop(min(least[depth] * _TOGETHER, cutoff))
            bounds, candidates = self._alive(bounds, candidates)
            if depth < len(refine) and len(candidates):
                levels[depth + 1].push(*self._alive(*refine[depth](bounds, candidates, self.cutoff_s)))
            elif depth == len(refine) and len(candidates):
                levels[depth + 1].push(*self._alive(*self._orders(bounds, candidates)))
            else:
                for i in range(len(candidates)):
                    self._solve(candidates[i : i + 1], float(bounds[i]))
            if self.cutoff_s < cutoff:
                cutoff = self.cutoff_s
                for level in levels:
                    self.funnel.remove(BEATEN, level.drop(cutoff))
        for level in levels:
            self.funnel.remove(BEATEN, level.drop(0.0))
        return left

    def _next(self, least: list[float], cutoff: float) -> int:
        """The level to refine: lowest bound first, the deepest of equals; but down from near the lowest bound while
        the list is poor, straight down while there is none, and to the end with what is placed and much better than the
        list: plans found early spare looking closely at much."""
        low = min(least)
        if np.isinf(cutoff):
            return max(i for i, bound in enumerate(least) if bound < cutoff or bound == low)
        if min(least[-2:]) < _WORTH * cutoff:
            return len(least) - (1 if least[-1] < _WORTH * cutoff else 2)
        near = low * _AHEAD if cutoff > low * _POOR else low
        return max(i for i, bound in enumerate(least) if bound <= near)

    def _alive(self, bounds: Array, candidates: Any) -> tuple[Array, Any]:
        """Candidates that may still enter the list of plans or improve their visible kind."""
        keep = bounds < self.cutoff_s
        large = np.isinf(bounds)
        if isinstance(candidates, Settled) and self.best:
            keep &= bounds < self._value_of_kind(candidates.rows)
        self.funnel.remove(TOO_LARGE, int(large.sum()))
        self.funnel.remove(BEATEN, int((~large & ~keep).sum()))
        return (bounds, candidates) if keep.all() else (bounds[keep], candidates[keep])

    def _value_of_kind(self, rows: Rows) -> Array:
        """Value of the best plan of each row's visible kind less its slack; inf where there is none."""
        keys = visible_columns(rows)
        out = np.full(len(rows), np.inf)
        for key, found in self.best.items():
            out[(keys == np.array(key)).all(axis=1)] = found.value_s - found.slack_s
        return out

    def _orders(self, bounds: Array, placed: Placed) -> tuple[Array, Placed]:
        """Splits with every order on torus axes, bounded on the way.

        First which dimension is innermost on each axis, then the whole order on each; what is open on an axis
        counts with the least strides it can have.
        """
        torus = self.setting.network.torus
        for i in range(len(placed)) if torus else ():
            known = visible(placed.rows[i : i + 1]) in self.best
            if self.fruitless < _FIRST and np.isinf(self.cutoff_s) and not known:
                self._same_order(placed[i : i + 1])
        steps = [(axis, innermost) for axis in torus] + [(axis, nestings) for axis in torus]
        for number, (axis, choices) in enumerate(steps, 1):
            of_row, columns = [], []
            for i in range(len(placed)):
                for strides in choices(placed.factors[i, :, axis]):
                    # A later step only completes what an earlier one began.
                    if (strides >= placed.strides[i, :, axis]).all():
                        of_row.append(i)
                        columns.append(strides)
            strides = placed.strides[of_row]
            strides[:, :, axis] = np.array(columns)
            bounds, placed = bounds[of_row], Placed(placed.rows[of_row], placed.factors[of_row], strides)
            exact = self.refiner.placed_bounds(placed, self.cutoff_s, number == len(steps))
            bounds, placed = self._alive(np.maximum(bounds, exact), placed)
            if not len(placed):
                return bounds, placed
        self.funnel.enter("plans", len(placed))
        index = self._unlike(placed)
        self.funnel.remove(ALIKE, len(placed) - len(index))
        return bounds[index], placed[index]

    def _unlike(self, placed: Placed) -> Array:
        """Indices of the first of placed plans of one row that load the network alike and share hosts alike."""
        first = []
        for i, key in enumerate(network_keys(placed.groups, self.setting.cluster.levels)):
            one = placed[i : i + 1]
            row = tuple(getattr(one.rows, f.name).tobytes() for f in fields(one.rows))
            if (full := (key, row, self.settler.hosts(one))) not in self._met:
                self._met.add(full)
                first.append(i)
        return np.array(first, np.int64)

    def _same_order(self, split: Placed) -> None:
        """Solve one split under the best order that is the same on all axes, so that its kind has a value to beat."""
        strides = []
        for nesting in permutations(range(len(DIMENSIONS))):
            one = split.strides[0].copy()
            for axis in self.setting.network.torus:
                one[:, axis] = strides_of(split.factors[0, :, axis], nesting)
            strides.append(one)
        distinct = np.unique(np.array(strides), axis=0)
        same = np.zeros(len(distinct), np.int64)
        placed = Placed(split.rows[same], split.factors[same], distinct)
        bounds = self.refiner.placed_bounds(placed, self.cutoff_s, ordered=True)
        best, before = int(np.argmin(bounds)), len(self.best)
        if bounds[best] < self.cutoff_s:
            self._solve(placed[best : best + 1], float(bounds[best]))
        self.fruitless += len(self.best) == before

    def _solve(self, plan: Placed, bound_s: float) -> None:
        """Settle the stages of one placed plan, and keep it if it is the best of its visible kind."""
        known, useful_s = self.best.get(visible(plan.rows)), self.cutoff_s
        if known is not None:
            useful_s = min(useful_s, known.value_s - known.slack_s)
        if not bound_s < useful_s:
            self.funnel.remove(BEATEN, 1)
            return
        self.settler.host_short = False
        status, found, bound = self.settler.settle(plan, useful_s, bound_s)
        self.funnel.enter("solved", 1)
        self.shorts += self.settler.host_short
        if found is None and self.settler.host_short:
            self.funnel.remove(HOSTS, 1)
        if status in ("UNKNOWN", "FEASIBLE"):
            self.undecided.append(bound)
        if found is not None:
            key = visible(plan.rows)
            if key not in self.best or found.value_s < self.best[key].value_s:
                self.best[key] = found
