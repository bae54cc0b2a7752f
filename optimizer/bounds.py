"""Search bounds: seconds that no plan of a candidate can beat, each cheaper one first.

For `step = (m - 1/v) max_s t_s + (1/v) sum_s t_s + max_s G_s` every bound keeps the exact sum of stage times and
differs in how it bounds the slowest stage T:

    frame  T >= max(sum / pp, ceil(units / pp) * shortest unit): compute and tp communication only, no memory
    row    the same with every collective at its fastest split of the network and G of a mean stage
    cut    T >= T*, the least T at which greedy farthest-reaching stages under T and the memory hold all units

Nothing assumes even stages. A greedy stage that reaches as far as T and memory allow never hurts later stages,
because times and bytes grow with every unit and what is left only shrinks.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.comm import BestComm
from meshwright.costmodel.layout import CP_KINDS
from meshwright.costmodel.legal import pattern_period
from meshwright.costmodel.pipeline import in_flight, step_s
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable

Array = NDArray[Any]

# Sums of floats in another order differ by less than this; bounds give it away so that they stay below.
SAFE = 1.0 - 1e-9
_BYTE = 1.0


@dataclass(frozen=True)
class Units:
    """What stages are cut from: layers, or with v chunks a stage v pattern periods at a time.

    Attributes:
        prefix: layers of each kind in the first u units, [units + 1, kinds].
        alike: every unit holds the same layers.
    """

    prefix: Array
    alike: bool

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
        return Units(prefix, bool((layers == layers[0]).all()))

    def __len__(self) -> int:
        return len(self.prefix) - 1


def best_comm(setting: Setting, rows: Rows) -> BestComm:
    """Every communicator at its fastest split."""
    degrees = {
        "tp": rows.tp, "cp": rows.cp, "pp": rows.pp, "dp_replicate": rows.dp_replicate,
        "shard": rows.shard, "ep": rows.ep, "edp": rows.edp,
    }  # fmt: skip
    return BestComm(setting.network, degrees)


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
    key = np.stack([frame.micro_batch, frame.cp, frame.tp, frame.sp], axis=1)
    distinct, inverse = np.unique(key, axis=0, return_inverse=True)
    inverse = inverse.ravel()
    first_at = np.zeros(len(distinct), np.int64)
    first_at[inverse] = np.arange(len(frame))
    shapes = frame[first_at]
    one = np.ones(len(shapes), np.int64)
    # More expert parallelism only fills the expert products better, so all of it is a bound; its exchange is not
    # charged. Nothing is sharded over data, nothing recomputed.
    experts = max(k.ffn.experts for k in setting.model.kinds)
    shapes = shapes.with_columns(
        pp=one, vpp=one, dp_replicate=one, dp_shard=one, ep=one * max(experts, 1), sequences=shapes.micro_batch
    )
    layer, ends = np.full((len(shapes), len(setting.model.kinds)), np.inf), np.full(len(shapes), np.inf)
    for etp in (one, shapes.tp) if experts else (one,):
        for cp_kind in range(len(CP_KINDS)):
            rows = shapes.with_columns(etp=etp, cp_kind=one * cp_kind)
            degrees = dict.fromkeys(("pp", "dp_replicate", "shard", "ep", "edp"), one)
            table = StageTable.of(setting, rows, BestComm(setting.network, {**degrees, "tp": rows.tp, "cp": rows.cp}))
            layer = np.minimum(layer, table.layer_s)
            ends = np.minimum(ends, table.first.total + table.last.total)
    return layer[inverse], ends[inverse]


def row_bounds(table: StageTable) -> Array:
    """Least step seconds of rows over cuts and placements, memory aside."""
    setting, rows = table.setting, table.rows
    counts = np.array(setting.model.layers_by_kind, float)
    total = table.layer_s @ counts + table.first.total + table.last.total + rows.pp * table.hop_s
    floor = _least_units(setting, rows) * table.layer_s.min(axis=1) + table.hop_s
    slowest = np.maximum(total / rows.pp, floor)
    return SAFE * per_batch(setting, rows, step_s(rows, slowest, total, table.once_mean_s()))


@dataclass(frozen=True)
class Cuts:
    """Rows of one vpp, ready for questions about how stages may be cut. Arrays are [R, units + 1] or [R, S]."""

    table: StageTable
    units: Units
    seconds: Array
    state: Array
    saved: Array
    ends_s: Array
    ends_bytes: Array
    held: Array

    @staticmethod
    def of(table: StageTable, units: Units) -> "Cuts":
        stage = np.arange(int(table.rows.pp.max()))[None, :]
        return Cuts(
            table=table,
            units=units,
            seconds=table.layer_s @ units.prefix.T,
            state=table.state_bytes @ units.prefix.T,
            saved=table.memory.saved @ units.prefix.T,
            ends_s=table.ends_s(stage),
            ends_bytes=table.ends_bytes(stage),
            held=in_flight(table.rows, stage),
        )

    @property
    def total_s(self) -> Array:
        """Sum of all stage seconds, [R]."""
        rows = self.table.rows
        return self.seconds[:, -1] + self.table.first.total + self.table.last.total + rows.pp * self.table.hop_s

    def feasible(self, slowest: Array, capacity: Array | float) -> Array:
        """Whether some cut keeps every stage within `slowest` seconds and `capacity` bytes, [R]."""
        rows, last = self.table.rows, len(self.units)
        at = np.zeros(len(rows), np.int64)
        each = np.arange(len(rows))
        ok = np.ones(len(rows), bool)
        for stage in range(self.held.shape[1]):
            active = stage < rows.pp
            bytes_to = self.state + self.held[:, stage, None] * self.saved
            time_left = (slowest - self.ends_s[:, stage]) * (2.0 - SAFE) + self.seconds[each, at]
            room = capacity - self.ends_bytes[:, stage] + _BYTE + bytes_to[each, at]
            inside = (self.seconds <= time_left[:, None]) & (bytes_to <= room[:, None])
            reach = np.minimum(inside.sum(axis=1) - 1, last - (rows.pp - 1 - stage))
            ok &= ~active | (reach > at)
            at = np.where(active, np.maximum(reach, at), at)
        return ok & (at == last)

    def least_slowest(self, capacity: float, steps: int = 40) -> Array:
        """T*: a lower bound on max_s t_s within (2^-steps) of the least feasible one; inf where nothing fits."""
        rows = self.table.rows
        low = self.total_s / rows.pp * SAFE
        high = self.total_s.copy()
        fits = self.feasible(high, capacity)
        low = np.where(self.feasible(low, capacity), low, low)
        done = self.feasible(low, capacity)
        for _ in range(steps):
            middle = 0.5 * (low + high)
            good = self.feasible(middle, capacity)
            high = np.where(good, middle, high)
            low = np.where(good, low, middle)
            if np.all(high - low <= 1e-9 * high):
                break
        low = np.where(done, self.total_s / rows.pp * SAFE, low)
        return np.where(fits, low, np.inf)

    def bounds(self, capacity: float) -> Array:
        """Least step seconds over all cuts; inf where memory holds none."""
        slowest = self.least_slowest(capacity)
        rows, once = self.table.rows, self.table.once_mean_s()
        with np.errstate(invalid="ignore"):
            seconds = step_s(rows, slowest, self.total_s, once)
        return SAFE * per_batch(self.table.setting, rows, seconds)

    def can_beat(self, cutoff: float, capacity: float) -> Array:
        """Whether a cut might reach `cutoff` seconds (for the nominal batch); one pass, no bisection."""
        rows = self.table.rows
        allowed = cutoff * rows.sequences / self.table.setting.training.sequences
        spare = allowed - self.table.once_mean_s() * SAFE - self.total_s * SAFE / rows.vpp
        rounds = rows.micro_batches - 1.0 / rows.vpp
        with np.errstate(divide="ignore", invalid="ignore"):
            slowest = np.where(rounds > 0, spare / rounds, np.where(spare >= 0, np.inf, -1.0))
        slowest = np.minimum(slowest, self.total_s * (2.0 - SAFE))
        return (spare >= 0) & self.feasible(slowest, capacity)

    def least_bytes(self, steps: int = 30) -> Array:
        """Least capacity under which some cut fits, [R], from above."""
        rows = self.table.rows
        low = np.zeros(len(rows))
        high = self.state[:, -1] + self.held.max(axis=1) * self.saved[:, -1] + self.ends_bytes.max(axis=1)
        unhurried = self.total_s * 2.0
        for _ in range(steps):
            middle = 0.5 * (low + high)
            good = self.feasible(unhurried, middle)
            high, low = np.where(good, middle, high), np.where(good, low, middle)
        return high
