"""How stages may be cut: the slowest stage that time and memory allow, for many rows at once.

T* is the least T at which greedy farthest-reaching stages under T and the memory hold all units. A greedy stage that
reaches as far as T and memory allow never hurts later stages, because times and bytes grow with every unit and what
is left only shrinks. T* bounds max_s t_s of every cut, even or not.

Where policies are open a stage of n layers whose saved bytes are limited takes at least, for every price mu of
`optimizer.lines`,

    sum of (least_mu + mu q / held) - mu room / held,    q = state of a layer, room = bytes left beside the layers

(q with what weight gradients still to run keep of it: no policy changes that), so time, memory and each line are limits
of one kind: so much per unit, so much in all. A stage of at most n layers needs on average 1/n of what its layers need
while they run backward.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.once import SomeStage
from meshwright.costmodel.pipeline import peaks, weights
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageCosts
from meshwright.optimizer.bounds import SAFE, per_batch
from meshwright.optimizer.limits import Limits
from meshwright.optimizer.lines import Lines
from meshwright.optimizer.units import Units

Array = NDArray[Any]

_BYTE = 1.0
_LADDER = (1.0, 1.005, 1.02, 1.06, 1.2, 1.6)
_SLOW = 1e6  # times what all layers take at least: any cut that fits the memory is faster
_PIECES = 3  # parts of the range of the slowest stage, in each of which the sum of all is bounded apart


@dataclass(frozen=True)
class Cuts:
    """Rows ready for questions about how stages may be cut.

    Attributes:
        size: units that stages take at a time, [R]; above 1 only where units are alike.
        ends_s, ends_bytes: of each stage beside its units, [R, S].
        held, late: micro-batches in flight, and with weight gradients still to run, at a fullest moment, [R, S].
        lightest: bytes in `ends_bytes` for the heaviest layer of each stage while it runs backward, at least, [R, S]; no
            less than would make it matter beside the loss or a vision tower.
    """

    costs: StageCosts
    units: Units
    lines: Lines
    size: Array
    ends_s: Array
    ends_bytes: Array
    held: Array
    late: Array
    lightest: Array

    @staticmethod
    def of(
        costs: StageCosts,
        units: Units,
        lines: Lines | None = None,
        size: Array | None = None,
        beside: Array | float = 0.0,
    ) -> "Cuts":
        """`beside` are bytes that devices of each stage have beside their memory, [R, S]."""
        stage, lines = np.arange(int(costs.rows.pp.max()))[None, :], lines or Lines.least_of(costs)
        elsewhere = costs.beside(stage) - costs.gathers[:, None]
        working = np.maximum(units.lightest(costs.working, costs.rows.pp, stage.shape[1]), elsewhere)
        ends = costs.ends_s(stage), costs.ends_bytes(stage, working) - beside
        size = np.ones(len(costs.rows)) if size is None else size
        return Cuts(costs, units, lines, size, *ends, *_fullest(costs, lines, stage), working)

    @property
    def rows(self) -> Rows:
        return self.costs.rows

    @cached_property
    def shortest(self) -> Array:
        """Seconds of what stages take at a time, of each sort and at least, [R, sorts]."""
        out: Array = self.lines.least[:, :, 0] @ self.units.sorts.T * self.size[:, None]
        return out

    @property
    def count(self) -> Array:
        """How often stages together take `size` units, [R]."""
        return len(self.units) // self.size

    @cached_property
    def total_s(self) -> Array:
        """Sum of all stage seconds, memory aside, [R]."""
        costs = self.costs
        layers = self.lines.least[:, :, 0] @ self.units.prefix[-1]
        total: Array = layers + costs.first_s + costs.last_s + self.rows.pp * costs.hop_s
        return total

    @property
    def weighted(self) -> tuple[Array, Array, Array]:
        """How often a step counts the slowest stage and all stages, and its seconds beside both, [R] each."""
        costs = self.costs
        return *weights(self.rows), costs.once_s - costs.hidden_s

    @cached_property
    def even_s(self) -> Array:
        """What max_s t_s cannot fall below, memory aside, [R]."""
        rows, shortest = self.rows, self.shortest.min(axis=1)
        even = np.maximum(self.total_s / rows.pp, -(-self.count // rows.pp) * shortest + self.costs.hop_s)
        floor: Array = SAFE * even
        return floor

    def limits(self, slowest: Array, capacity: Array) -> Limits:
        """What limits stages of at most `slowest` seconds and `capacity` bytes, [R] each; `Limits.within` tells less."""
        costs, lines = self.costs, self.lines
        time = slowest[:, None] - self.ends_s
        room = capacity[:, None] - self.ends_bytes
        held = np.maximum(self.held, 1e-9)  # stages beyond the last hold nothing and are never asked
        sorts, size = self.units.sorts, self.size[:, None]
        state, saved = (
            np.einsum("uk,rk->ur", sorts, x)[:, :, None] * size for x in (costs.state, lines.saved)
        )
        if self.rows.splits.any():
            state = state + self.late * (np.einsum("uk,rk->ur", sorts, costs.deferred)[:, :, None] * size)
        if lines.working is not None:
            layers = np.floor(time / lines.least[:, :, 0].min(axis=1)[:, None] * (2.0 - SAFE))
            share = 1.0 / np.clip(layers, 1.0, self.units.prefix[-1].sum())
            needs = np.einsum("uk,rk->ur", sorts, lines.working)[:, :, None]
            more = needs - sorts.sum(axis=1)[:, None, None] * self.lightest
            state = state + share * size * np.maximum(more, 0.0)
            held = np.maximum(held - share, 1e-9)
        least = np.einsum("uk,rkg->ugr", sorts, lines.least)[..., None] * size
        worth = lines.price.T[:, :, None] / held
        unit_bytes = state + held * saved
        per_unit = np.concatenate([unit_bytes[:, None], least + worth * state[:, None]], axis=1)
        total = np.concatenate([room[None], time + worth * room])
        return Limits(per_unit, total)

    def feasible(self, slowest: Array, capacity: Array | float) -> Array:
        """Whether some cut keeps every stage within `slowest` seconds and `capacity` bytes, [R]."""
        capacity = np.broadcast_to(np.asarray(capacity, float) + _BYTE, slowest.shape)
        return self._holds(self.limits(slowest * (2.0 - SAFE), capacity))

    def _holds(self, limits: Limits) -> Array:
        """Whether some cut keeps every stage within its limits, [R]."""
        if self.units.even:  # then there is one cut
            shares, whole = self.units.equal_shares(self.rows.pp, self.count, self.held.shape[1])
            return np.asarray(whole & limits.hold(shares).all(axis=1))
        ways = (
            self._alike if self.units.alike else self._by_runs if len(self.units.runs) < 6 else self._greedy
        )
        return ways(limits)

    def _alike(self, limits: Limits) -> Array:
        """Equal units: each stage holds what its limits allow, at least one; together enough."""
        units, active = self.count[:, None], self.held > 0
        most = np.floor(limits.most(0) * (2.0 - SAFE))
        most = np.where(active, np.minimum(most, units), units)
        enough: Array = (most >= 1).all(axis=1) & ((most * active).sum(axis=1) >= self.count)
        return enough

    @np.errstate(divide="ignore")  # a unit whose state is all on the host takes no bytes
    def _by_runs(self, limits: Limits) -> Array:
        """Units in order: each stage reaches as far as it can, leaving one for every later stage.

        Reach is arithmetic within a run. Rows leave once they fail, and once they reach the last run, which all later
        stages fill as they do in `_alike`.
        """
        last, pp = len(self.units), self.rows.pp
        runs, sort = list(pairwise(self.units.runs)), self.units.sort_of_run

        def most_of(run: int) -> Array:
            most = np.maximum(np.floor(limits.most(sort[run]) * (2.0 - SAFE)), 0.0)
            return np.where(self.held > 0, most, 0.0)

        # The longest run alone must fit already, which is cheap to see; rows still in play are `left`.
        longest = int(np.argmax(np.diff(self.units.runs)))
        in_longest = most_of(longest)
        left = np.flatnonzero(in_longest.sum(axis=1) >= runs[longest][1] - runs[longest][0])
        in_last = in_longest if longest == len(runs) - 1 else most_of(len(runs) - 1)
        after = np.cumsum(in_last[:, ::-1], axis=1)[:, ::-1]
        empty = np.cumsum(((in_last < 1) & (self.held > 0))[:, ::-1], axis=1)[:, ::-1]
        at = np.zeros(len(left))
        done = np.zeros(len(pp), bool)
        for stage in range(self.held.shape[1]):
            room, reach = limits.total[:, left, stage], at.copy()
            for run, (start, stop) in enumerate(runs):
                inside = (reach >= start) & (reach < stop)
                if not inside.any():
                    continue
                each = limits.per_unit[sort[run]][:, left, stage]
                most = np.floor((room / each).min(axis=0) * (2.0 - SAFE))
                step = np.where(inside, np.maximum(np.minimum(most, stop - reach), 0.0), 0.0)
                reach = reach + step
                room = room - step * each
            reach = np.minimum(reach, last - (pp[left] - 1 - stage))
            good = reach > at
            ends = good & (pp[left] - 1 == stage)
            done[left[ends]] = reach[ends] == last
            good &= ~ends
            there = good & (reach >= runs[-1][0])
            if there.any():
                rows, later = left[there], stage + 1
                done[rows] = (empty[rows, later] == 0) & (reach[there] + after[rows, later] >= last)
                good &= ~there
            left, at = left[good], reach[good]
            if not len(left):
                break
        return done

    def _greedy(self, limits: Limits) -> Array:
        """`_by_runs` for many runs."""
        last, pp = len(self.units), self.rows.pp
        done, left, at = np.zeros(len(pp), bool), np.arange(len(pp)), np.zeros(len(pp), np.int64)
        for stage in range(self.held.shape[1]):
            taken = np.einsum("us,slr->lru", self.units.sorts_before, limits.per_unit[:, :, left, stage])
            room = limits.total[:, left, stage] + taken[:, np.arange(len(left)), at]
            reach = (taken <= room[..., None] * (2.0 - SAFE)).all(axis=0).sum(axis=1) - 1
            reach = np.minimum(reach, last - (pp[left] - 1 - stage))
            good = reach > at
            ends = good & (pp[left] - 1 == stage)
            done[left[ends]] = reach[ends] == last
            left, at = left[good & ~ends], reach[good & ~ends]
            if not len(left):
                break
        return done

    def __getitem__(self, index: Any) -> "Cuts":
        names = ("costs", "lines", "size", "ends_s", "ends_bytes", "held", "late", "lightest")
        return replace(self, **{n: getattr(self, n)[index] for n in names})

    def least_slowest(self, capacity: float, tolerance: float = 1e-7) -> Array:
        """T*: a lower bound on max_s t_s, within `tolerance` of the least feasible one; inf where nothing fits."""
        low = self.even_s
        out = low.copy()
        search = np.flatnonzero(~self.feasible(low, capacity))
        if not len(search):
            return out
        part = self if len(search) == len(low) else self[search]
        below, above = low[search], self.total_s[search] * _SLOW
        fits = part.feasible(above, capacity)
        # Most are near an even cut: look there before halving the whole range.
        for near in (2.0 * part.total_s, below * 1.3, below * 1.03):
            above = np.where((near < above) & part.feasible(near, capacity), near, above)
        most, room = above.copy(), np.full(len(above), capacity + _BYTE)
        limits = part.limits(most * (2.0 - SAFE), room) if fits.any() else None
        while limits is not None and np.any(fits & (above - below > tolerance * above)):
            middle = 0.5 * (below + above)
            good = part._holds(limits.within((most - middle) * SAFE))
            below, above = np.where(good, below, middle), np.where(good, middle, above)
        out[search] = np.where(fits, below, np.inf)
        return out

    def stepwise(self, capacity: float) -> Array:
        """`least_slowest` on a ladder of shares above the even one: coarser and cheaper."""
        out = np.full(len(self.rows), np.inf)
        left, below = np.arange(len(out)), 1.0
        for step in (*_LADDER, None):
            part = self if len(left) == len(out) else self[left]
            good = part.feasible(part.total_s * _SLOW if step is None else part.even_s * step, capacity)
            out[left[good]] = part.even_s[good] * below
            left, below = left[~good], step or 0.0
            if not len(left):
                break
        return out

    def least_total(self, slowest: Array, capacity: float) -> Array:
        """Sum of all stage seconds, at least, of cuts whose stages take at most `slowest`, [R].

        Stages take at most what they reach in that time. By convexity giving up a unit saves at most what the last one
        there costs; what all reach together beyond the model is given up where that is most. Units count by what they
        take at least.
        """
        if self.lines.working is None:
            return self.total_s
        limits = self.limits(slowest * (2.0 - SAFE), np.full(len(slowest), capacity + _BYTE))
        stages = self.held.shape[1]
        possible = self.units.possible(self.rows.pp, stages)
        work = np.where(possible.transpose(2, 0, 1)[:, None], limits.per_unit, np.inf)
        each = (work / self.shortest.T[:, None, :, None]).min(axis=0)
        whole = self.lines.least[:, :, 0] @ self.units.prefix[-1]
        with np.errstate(divide="ignore"):  # as in `_by_runs`
            most = np.minimum((limits.total / each).min(axis=0), whole[:, None])
        # Seconds at the farthest reach are the time a line allows less what of it is left.
        time = limits.total[1]
        seconds = each[1:] * most - (limits.total[1:] - time)
        line = seconds.argmax(axis=0)[None]
        slope = np.take_along_axis(each[1:], line, axis=0)[0]
        active = self.held > 0
        reached = np.where(active, seconds.max(axis=0) + self.ends_s, 0.0).sum(axis=1)
        beyond = np.where(active, most, 0.0).sum(axis=1) - whole
        steepest = np.where(active, slope, 0.0).max(axis=1)
        least: Array = np.maximum(self.total_s, (reached - np.maximum(beyond, 0.0) * steepest) * SAFE)
        return least

    def bounds(
        self,
        setting: Setting,
        cutoff_s: float = np.inf,
        tolerance: float = 1e-7,
        coarse: bool = False,
        some: SomeStage | None = None,
    ) -> Array:
        """Least step seconds over all cuts; inf where memory holds none, at least the cutoff where that is passed.

        `coarse` looks for the slowest stage on a few steps only; `some` are stages that every cut has, which may be
        slower or do more once per step than the mean.
        """
        rows, capacity = self.rows, setting.capacity_bytes
        plain, share, beside = self.weighted
        fixed = per_batch(setting, rows, share * self.total_s + beside)
        rounds = per_batch(setting, rows, plain)
        out = np.full(len(rows), cutoff_s)
        near = np.flatnonzero(self._within(cutoff_s, fixed, rounds, capacity))
        if len(near):
            part = self if len(near) == len(rows) else self[near]
            slowest = part.stepwise(capacity) if coarse else part.least_slowest(capacity, tolerance)
            fits = np.isfinite(slowest)
            # One micro-batch in one chunk has no round to wait for, but memory may still forbid it.
            out[near] = np.where(
                fits, SAFE * (rounds[near] * np.where(fits, slowest, 0.0) + fixed[near]), np.inf
            )
            again = np.flatnonzero(fits & (out[near] < cutoff_s))
            if len(again):
                some = None if some is None else some[near[again]]
                best = part[again]._summed(setting, slowest[again], cutoff_s, some, 1 if coarse else _PIECES)
                out[near[again]] = np.maximum(out[near[again]], best)
        return out

    def _summed(
        self, setting: Setting, slowest: Array, cutoff_s: float, some: SomeStage | None, pieces: int
    ) -> Array:
        """Bounds that know of the least slowest stage and of what all take together, given what the slowest may take.

        A plan below the cutoff has its slowest stage in one of some pieces of the range that the cutoff leaves: it waits
        for the least of the piece, and all take what cuts within the most of the piece take.
        """
        rows = self.rows
        plain, share, beside = self.weighted
        spare = cutoff_s / per_batch(setting, rows, np.ones(len(rows))) - share * self.total_s - beside
        most = np.where(plain > 0, spare / np.where(plain > 0, plain, 1.0), np.inf)
        most = np.minimum(np.maximum(most, slowest), self.total_s * _SLOW)
        best = np.full(len(rows), np.inf)
        for piece in range(pieces):
            low, high = (slowest + (most - slowest) * ((piece + i) / pieces) ** 2 for i in (0, 1))
            total = share * self.least_total(high, setting.capacity_bytes) - self.costs.hidden_s
            waits = plain * low + self.costs.once_s
            if some is not None:
                waits = np.maximum(waits, some.least_s(plain, low))
            best = np.minimum(best, waits + total)
        return SAFE * per_batch(setting, rows, best)

    def _within(self, cutoff_s: float, fixed: Array, rounds: Array, capacity: float) -> Array:
        """Whether a cut might stay below the cutoff: one pass at the slowest stage that the cutoff allows."""
        if not np.isfinite(cutoff_s):
            return np.ones(len(fixed), bool)
        spare = cutoff_s - fixed * SAFE
        slowest = np.where(rounds > 0, spare / np.where(rounds > 0, rounds, 1.0), np.inf)
        possible = (spare > 0) & (slowest >= self.even_s * SAFE)
        return possible & self.feasible(np.minimum(slowest, self.total_s * _SLOW), capacity)

    def least_bytes(self, steps: int = 30) -> Array:
        """Least capacity under which some cut fits, [R], from above."""
        low = np.zeros(len(self.rows))
        whole = self.units.prefix[-1]
        layers = self.costs.state @ whole + self.held.max(axis=1) * (self.costs.saved @ whole)
        layers = layers + self.late.max(axis=1) * (self.costs.deferred @ whole)
        high = layers + self.ends_bytes.max(axis=1)
        for _ in range(steps):
            middle = 0.5 * (low + high)
            good = self.feasible(self.total_s * _SLOW, middle)
            high, low = np.where(good, middle, high), np.where(good, low, middle)
        out: Array = high
        return out


def _fullest(costs: StageCosts, lines: Lines, stage: Array) -> tuple[Array, Array]:
    """(micro-batches in flight, with weight gradients still to run) at a moment when stages are full, [R, S] each.

    Of the moments that may be the fullest any gives a bound; layers that save no less than weight gradients keep are the
    fullest where most are in flight. A last chunk that is longer than the others is in flight least.
    """
    (held, late), *others = peaks(costs.rows, stage, costs.longest[:, None])
    saves_more: Array = np.all(lines.saved >= costs.deferred, axis=1, keepdims=True)
    for most, then in others:
        held, late = np.where(saves_more, most, held), np.where(saves_more, then, late)
    return held, late
