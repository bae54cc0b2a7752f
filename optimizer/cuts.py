"""How stages may be cut: the slowest stage that time and memory allow, for many rows at once.

T* is the least T at which greedy farthest-reaching stages under T and the memory hold all units. A greedy stage that
reaches as far as T and memory allow never hurts later stages, because times and bytes grow with every unit and what
is left only shrinks. T* bounds max_s t_s of every cut, even or not.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.legal import pattern_period
from meshwright.costmodel.once import SomeStage
from meshwright.costmodel.pipeline import in_flight
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageCosts
from meshwright.optimizer.bounds import SAFE, per_batch

Array = NDArray[Any]

_BYTE = 1.0
_LADDER = (1.0, 1.005, 1.02, 1.06, 1.2, 1.6)


@dataclass(frozen=True)
class Units:
    """What stages are cut from: layers, or with v chunks a stage v pattern periods at a time.

    Attributes:
        prefix: layers of each kind in the first u units, [units + 1, kinds].
        runs: first unit of every run of equal units, and the end.
    """

    prefix: Array
    runs: tuple[int, ...]

    @property
    def alike(self) -> bool:
        """Every unit holds the same layers."""
        return len(self.runs) == 2

    @staticmethod
    def of(setting: Setting, vpp: int) -> "Units":
        pattern = np.array(setting.model.pattern)
        kinds = len(setting.model.kinds)
        layers = np.eye(kinds)[pattern]
        if vpp > 1:
            period = pattern_period(setting.model.pattern)
            size = period * vpp
            layers = np.repeat(layers[:period].sum(axis=0)[None, :] * vpp, len(pattern) // size, axis=0)
        prefix = np.vstack([np.zeros(kinds), np.cumsum(layers, axis=0)])
        changes = np.flatnonzero((layers[1:] != layers[:-1]).any(axis=1)) + 1
        return Units(prefix, (0, *changes.tolist(), len(layers)))

    def __len__(self) -> int:
        return len(self.prefix) - 1


@dataclass(frozen=True)
class Cuts:
    """Rows of one vpp, ready for questions about how stages may be cut.

    Attributes:
        seconds, state, saved: of the first u units, [R, units + 1].
        ends_s, ends_bytes, held: of each stage beside its units, and micro-batches in flight, [R, S].
    """

    costs: StageCosts
    units: Units
    seconds: Array
    state: Array
    saved: Array
    ends_s: Array
    ends_bytes: Array
    held: Array

    @staticmethod
    def of(costs: StageCosts, units: Units) -> "Cuts":
        stage = np.arange(int(costs.rows.pp.max()))[None, :]
        prefix = units.prefix.T
        return Cuts(
            costs, units, costs.layer_s @ prefix, costs.state @ prefix, costs.saved @ prefix,
            costs.ends_s(stage), costs.ends_bytes(stage), in_flight(costs.rows, stage),
        )  # fmt: skip

    @property
    def rows(self) -> Rows:
        return self.costs.rows

    @cached_property
    def total_s(self) -> Array:
        """Sum of all stage seconds, [R]."""
        costs = self.costs
        return self.seconds[:, -1] + costs.first_s + costs.last_s + self.rows.pp * costs.hop_s

    @cached_property
    def even_s(self) -> Array:
        """What max_s t_s cannot fall below, memory aside, [R]."""
        rows, units = self.rows, len(self.units)
        shortest = np.diff(self.seconds, axis=1).min(axis=1)
        even: Array = np.maximum(self.total_s / rows.pp, -(-units // rows.pp) * shortest + self.costs.hop_s)
        return SAFE * even

    def feasible(self, slowest: Array, capacity: Array | float) -> Array:
        """Whether some cut keeps every stage within `slowest` seconds and `capacity` bytes, [R]."""
        capacity = np.broadcast_to(np.asarray(capacity, float) + _BYTE, slowest.shape)
        ways = (
            self._alike if self.units.alike else self._by_runs if len(self.units.runs) < 6 else self._greedy
        )
        return ways(slowest * (2.0 - SAFE), capacity)

    def _alike(self, slowest: Array, capacity: Array) -> Array:
        """Equal units: each stage holds what time and memory allow, at least one; together enough."""
        units = len(self.units)
        active = self.held > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            in_time = np.floor((slowest[:, None] - self.ends_s) / self.seconds[:, 1, None] * (2.0 - SAFE))
            each = self.state[:, 1, None] + self.held * self.saved[:, 1, None]
            in_memory = np.floor((capacity[:, None] - self.ends_bytes) / each * (2.0 - SAFE))
        most = np.where(active, np.minimum(np.minimum(in_time, in_memory), units), units)
        enough: Array = (most >= 1).all(axis=1) & ((most * active).sum(axis=1) >= units)
        return enough

    def _by_runs(self, slowest: Array, capacity: Array) -> Array:
        """`_greedy` for few runs of equal units: reach is arithmetic within a run. Rows leave once they fail, and
        once they reach the last run, which all later stages fill as they do in `_alike`."""
        last, pp = len(self.units), self.rows.pp
        runs = list(pairwise(self.units.runs))
        seconds, state, saved = (
            np.stack([x[:, stop] - x[:, stop - 1] for _, stop in runs])
            for x in (self.seconds, self.state, self.saved)
        )

        def most_of(run: int) -> Array:
            """Units of one run alone that each stage holds, [R, S]."""
            each = state[run][:, None] + self.held * saved[run][:, None]
            most = np.minimum(
                (slowest[:, None] - self.ends_s) / seconds[run][:, None],
                (capacity[:, None] - self.ends_bytes) / each,
            )
            return np.where(self.held > 0, np.maximum(np.floor(most * (2.0 - SAFE)), 0.0), 0.0)

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
            time_left = slowest[left] - self.ends_s[left, stage]
            room = capacity[left] - self.ends_bytes[left, stage]
            held, reach = self.held[left, stage], at.copy()
            for run, (start, stop) in enumerate(runs):
                inside = (reach >= start) & (reach < stop)
                if not inside.any():
                    continue
                each = state[run, left] + held * saved[run, left]
                most = np.floor(np.minimum(time_left / seconds[run, left], room / each) * (2.0 - SAFE))
                step = np.where(inside, np.maximum(np.minimum(most, stop - reach), 0.0), 0.0)
                reach = reach + step
                time_left, room = time_left - step * seconds[run, left], room - step * each
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

    def _greedy(self, slowest: Array, capacity: Array) -> Array:
        """Units in order: each stage reaches as far as it can, leaving one for every later stage."""
        rows, last = self.rows, len(self.units)
        at = np.zeros(len(rows), np.int64)
        each = np.arange(len(rows))
        ok = np.ones(len(rows), bool)
        for stage in range(self.held.shape[1]):
            active = stage < rows.pp
            bytes_to = self.state + self.held[:, stage, None] * self.saved
            time_left = slowest - self.ends_s[:, stage] + self.seconds[each, at]
            room = capacity - self.ends_bytes[:, stage] + bytes_to[each, at]
            inside = (self.seconds <= time_left[:, None]) & (bytes_to <= room[:, None])
            reach = np.minimum(inside.sum(axis=1) - 1, last - (rows.pp - 1 - stage))
            ok &= ~active | (reach > at)
            at = np.where(active, np.maximum(reach, at), at)
        held: Array = ok & (at == last)
        return held

    def __getitem__(self, index: Any) -> "Cuts":
        names = ("costs", "seconds", "state", "saved", "ends_s", "ends_bytes", "held")
        return replace(self, **{n: getattr(self, n)[index] for n in names})

    def least_slowest(self, capacity: float, tolerance: float = 1e-7) -> Array:
        """T*: a lower bound on max_s t_s, within `tolerance` of the least feasible one; inf where nothing fits."""
        low, high = self.even_s, self.total_s
        out = low.copy()
        search = np.flatnonzero(~self.feasible(low, capacity))
        if not len(search):
            return out
        part = self if len(search) == len(low) else self[search]
        below, above = low[search], high[search]
        fits = part.feasible(above, capacity)
        near = below * 1.03  # most are near an even cut: look there before halving the whole range
        above = np.where((near < above) & part.feasible(near, capacity), near, above)
        while np.any(fits & (above - below > tolerance * above)):
            middle = 0.5 * (below + above)
            good = part.feasible(middle, capacity)
            below, above = np.where(good, below, middle), np.where(good, middle, above)
        out[search] = np.where(fits, below, np.inf)
        return out

    def stepwise(self, capacity: float) -> Array:
        """`least_slowest` on a ladder of shares above the even one: coarser and cheaper."""
        out = np.full(len(self.rows), np.inf)
        left, below = np.arange(len(out)), 1.0
        for step in (*_LADDER, None):
            part = self if len(left) == len(out) else self[left]
            good = part.feasible(part.total_s if step is None else part.even_s * step, capacity)
            out[left[good]] = part.even_s[good] * below
            left, below = left[~good], step or 0.0
            if not len(left):
                break
        return out

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
        fixed = per_batch(setting, rows, self.total_s / rows.vpp + self.costs.once_s)
        rounds = per_batch(setting, rows, rows.micro_batches - 1.0 / rows.vpp)
        out = np.full(len(rows), cutoff_s)
        near = np.flatnonzero(self._within(cutoff_s, fixed, rounds, capacity))
        if len(near):
            part = self if len(near) == len(rows) else self[near]
            slowest = part.stepwise(capacity) if coarse else part.least_slowest(capacity, tolerance)
            # One micro-batch in one chunk has no round to wait for, but memory may still forbid it.
            waiting = np.where(np.isfinite(slowest), rounds[near] * np.minimum(slowest, part.total_s), np.inf)
            out[near] = SAFE * (waiting + fixed[near])
            if some is not None:
                plain = part.rows.micro_batches - 1.0 / part.rows.vpp
                least = some[near].least_s(plain, np.where(np.isfinite(slowest), slowest, 0.0))
                with_some = SAFE * per_batch(setting, part.rows, part.total_s / part.rows.vpp + least)
                out[near] = np.maximum(out[near], with_some)
        return out

    def _within(self, cutoff_s: float, fixed: Array, rounds: Array, capacity: float) -> Array:
        """Whether a cut might stay below the cutoff: one pass at the slowest stage that the cutoff allows."""
        if not np.isfinite(cutoff_s):
            return np.ones(len(fixed), bool)
        spare = cutoff_s - fixed * SAFE
        slowest = np.where(rounds > 0, spare / np.where(rounds > 0, rounds, 1.0), self.total_s)
        possible = (spare > 0) & (slowest >= self.even_s * SAFE)
        return possible & self.feasible(np.minimum(slowest, self.total_s), capacity)

    def least_bytes(self, steps: int = 30) -> Array:
        """Least capacity under which some cut fits, [R], from above."""
        low = np.zeros(len(self.rows))
        high = self.state[:, -1] + self.held.max(axis=1) * self.saved[:, -1] + self.ends_bytes.max(axis=1)
        unhurried = self.total_s * 2.0
        for _ in range(steps):
            middle = 0.5 * (low + high)
            good = self.feasible(unhurried, middle)
            high, low = np.where(good, middle, high), np.where(good, low, middle)
        out: Array = high
        return out
