"""Search bounds: seconds that no plan of a candidate can beat, each cheaper one first.

For `step = (m - 1/v) max_s t_s + (1/v) sum_s t_s + max_s G_s` every bound keeps the exact sum of stage times and
differs in how it bounds the slowest stage T:

    frame  T >= max(sum / pp, ceil(units / pp) * shortest unit): compute and tp communication only, no memory
    row    the same with every collective at its fastest split of the network and G of a mean stage
    cut    T >= T*, the least T at which greedy farthest-reaching stages under T and the memory hold all units

Nothing assumes even stages. A greedy stage that reaches as far as T and memory allow never hurts later stages,
because times and bytes grow with every unit and what is left only shrinks.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.comm import COMPACT, BestComm
from meshwright.costmodel.layout import CP_KINDS
from meshwright.costmodel.legal import pattern_period
from meshwright.costmodel.memory import memory_costs
from meshwright.costmodel.pipeline import in_flight, step_s
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import Shapes, distinct
from meshwright.costmodel.stages import StageCosts, StageTable

Array = NDArray[Any]

# Sums of floats in another order differ by less than this; bounds give it away so that they stay below.
SAFE = 1.0 - 1e-9
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


def best_comm(setting: Setting, rows: Rows) -> BestComm:
    """Every communicator at its fastest split."""
    # One cache per network, kept on the setting: rates of a degree do not depend on the rows that ask.
    cache = setting.__dict__.setdefault("_best_rates", {})
    degrees = {
        "tp": rows.tp, "cp": rows.cp, "pp": rows.pp, "dp_replicate": rows.dp_replicate,
        "shard": rows.shard, "ep": rows.ep, "edp": rows.edp,
    }  # fmt: skip
    if setting.streams == "shared":
        return BestComm(setting.network, degrees, cache, COMPACT)
    return BestComm(setting.network, degrees, cache)


def frame_bounds(setting: Setting, frame: Rows) -> Array:
    """Least step seconds of each frame over everything that is still open, times nominal over real batch."""
    layer, ends = _frame_seconds(setting, frame)
    counts = np.array(setting.model.layers_by_kind, float)
    total = layer @ counts + ends
    slowest = np.maximum(total / frame.pp, _least_units(setting, frame) * layer.min(axis=1))
    return SAFE * per_batch(setting, frame, step_s(frame, slowest, total, np.zeros(len(frame))))


def per_batch(setting: Setting, rows: Rows, seconds: Array) -> Array:
    """Seconds for the batch that was asked for, where the planner moved it."""
    return seconds * (setting.training.sequences / rows.sequences)


def _least_units(setting: Setting, rows: Rows) -> Array:
    """Layers that some stage must hold at least."""
    period = np.where(rows.vpp > 1, pattern_period(setting.model.pattern) * rows.vpp, 1)
    return -(-(setting.model.layers // period) // rows.pp) * period


def _frame_seconds(setting: Setting, frame: Rows) -> tuple[Array, Array]:
    """Least seconds of one layer of each kind [R, K] and of both ends [R], on the few distinct shapes."""
    first, inverse = distinct(frame, ("micro_batch", "cp", "tp", "sp"))
    shapes = frame[first]
    one = np.ones(len(shapes), np.int64)
    # More expert parallelism only fills the expert products better, so all of it is a bound; its exchange is not
    # charged. Nothing is sharded over data, nothing recomputed.
    experts = max(k.ffn.experts for k in setting.model.kinds)
    shapes = shapes.with_columns(
        pp=one,
        vpp=one,
        dp_replicate=one,
        dp_shard=one,
        ep=one * max(experts, 1),
        sequences=shapes.micro_batch,
    )
    layer, ends = np.full((len(shapes), len(setting.model.kinds)), np.inf), np.full(len(shapes), np.inf)
    for etp in (one, shapes.tp) if experts else (one,):
        for cp_kind in range(len(CP_KINDS)):
            rows = shapes.with_columns(etp=etp, cp_kind=one * cp_kind)
            degrees = dict.fromkeys(("pp", "dp_replicate", "shard", "ep", "edp"), one)
            table = StageTable.of(
                setting, rows, BestComm(setting.network, {**degrees, "tp": rows.tp, "cp": rows.cp})
            )
            layer = np.minimum(layer, table.layer_s)
            ends = np.minimum(ends, table.first.total + table.last.total)
    return layer[inverse], ends[inverse]


def row_bounds(table: StageTable, once: Array | float | None = None) -> Array:
    """Least step seconds of rows over cuts and placements, memory aside.

    `once` replaces the seconds of a mean stage once per step: 0 while data sharding is still open.
    """
    setting, rows = table.setting, table.rows
    once = table.once_mean_s() if once is None else np.full(len(rows), once)
    counts = np.array(setting.model.layers_by_kind, float)
    total = table.layer_s @ counts + table.first.total + table.last.total + rows.pp * table.hop_s
    floor = _least_units(setting, rows) * table.layer_s.min(axis=1) + table.hop_s
    slowest = np.maximum(total / rows.pp, floor)
    return SAFE * per_batch(setting, rows, step_s(rows, slowest, total, once))


def loosest(table: StageTable) -> StageCosts:
    """Costs of rows whose data sharding is open: seconds without any, state sharded over all data ranks."""
    rows = table.rows
    sharded = rows.with_columns(
        dp_replicate=np.ones_like(rows.dp), dp_shard=rows.dp, zero=np.full_like(rows.zero, 3)
    )
    least = memory_costs(table.setting, Shapes.of(table.setting, sharded))
    # Without ZeRO-3 nothing is gathered, so the open table's transient bytes are the least.
    return replace(
        table.costs,
        state=least.state_bytes,
        first_bytes=least.first_bytes,
        last_bytes=least.last_bytes,
        once_s=np.zeros(len(rows)),
    )


def hosts_may_hold(setting: Setting, rows: Rows) -> NDArray[np.bool_]:
    """Whether all hosts together might keep what rows offload, were it spread evenly; [R]."""
    room, per_host = setting.cluster.host_memory_bytes, setting.cluster.devices_per_host or 1
    away = rows.offload > 0
    if room is None or not away.any():
        return np.ones(len(rows), bool)
    memory = memory_costs(setting, Shapes.of(setting, rows))
    layers = np.array(setting.model.layers_by_kind, float)
    # Every layer's saved activations are in flight at least once.
    chain = (memory.host_state + memory.host_saved) @ layers + memory.host_first + memory.host_last
    hosts = -(-setting.cluster.devices // per_host)
    held: NDArray[np.bool_] = ~away | (SAFE * chain * rows.stage_devices <= hosts * room)
    return held


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
        """`_greedy` for few runs of equal units: reach is arithmetic within a run. Rows leave once they fail."""
        last, pp = len(self.units), self.rows.pp
        runs = list(pairwise(self.units.runs))
        seconds, state, saved = (
            np.stack([x[:, stop] - x[:, stop - 1] for _, stop in runs])
            for x in (self.seconds, self.state, self.saved)
        )
        # The longest run alone must fit already, which is cheap to see; rows still in play are `left`.
        run = int(np.argmax(np.diff(self.units.runs)))
        each = state[run][:, None] + self.held * saved[run][:, None]
        most = np.minimum(
            (slowest[:, None] - self.ends_s) / seconds[run][:, None],
            (capacity[:, None] - self.ends_bytes) / each,
        )
        most = np.where(self.held > 0, np.maximum(np.floor(most * (2.0 - SAFE)), 0.0), 0.0)
        left = np.flatnonzero(most.sum(axis=1) >= runs[run][1] - runs[run][0])
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
        self, setting: Setting, cutoff_s: float = np.inf, tolerance: float = 1e-7, coarse: bool = False
    ) -> Array:
        """Least step seconds over all cuts; inf where memory holds none, at least the cutoff where that is passed.

        `coarse` looks for the slowest stage on a few steps only.
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
        return out

    def slowest_within(self, setting: Setting, step_s: float) -> Array:
        """Seconds of the slowest stage with which a step takes `step_s` (for the nominal batch), [R]."""
        rows = self.rows
        fixed = per_batch(setting, rows, self.total_s / rows.vpp + self.costs.once_s)
        rounds = per_batch(setting, rows, rows.micro_batches - 1.0 / rows.vpp)
        # One micro-batch in one chunk waits for no other stage: its step says nothing about the slowest.
        return np.where(rounds > 0, (step_s - fixed) / np.where(rounds > 0, rounds, 1.0), 0.0)

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
