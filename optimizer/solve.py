"""The search: bound, prune, prove.

Frames are taken in order of bound, in growing blocks. What a block expands to is bounded again at every
refinement and dropped when its bound passes the cutoff; rows that survive are placed, and their cuts solved one
at a time in order of bound. The cutoff is the value of the k-th best visibly different plan so far (plus slack),
so every row that could enter the list is solved. The search ends when the next frame's bound passes the cutoff.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.comm import PlacedComm
from meshwright.costmodel.layout import DIMENSIONS, OFFLOADS, Placement
from meshwright.costmodel.placement import enumerate_placements, groups_of
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.optimizer.bounds import Cuts, Units, best_comm, frame_bounds, per_batch, row_bounds
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.program import CutResult, entries_of, host_groups, solve_cut
from meshwright.optimizer.space import Space, expand, frames, with_choices

Array = NDArray[Any]
_FIRST_BLOCK, _LARGEST_BLOCK = 16, 4096
_CHUNK = 4096  # candidates priced at once, to bound memory


@dataclass(frozen=True)
class SolveOptions:
    """Effort, in solver work rather than seconds: the same options give the same answer on any machine.

    Attributes:
        runner_ups: plans beside the best, each different in what a user sees.
        work_limit: deterministic CP-SAT work for one candidate.
        bound_scale: multiplies every search bound; anything but 1 is a fault injected by a test.
    """

    runner_ups: int = 3
    work_limit: float = 10.0
    seed: int = 0
    bound_scale: float = 1.0


@dataclass(frozen=True)
class Found:
    """A solved candidate: one row, its placement, its stages."""

    row: Rows
    placement: Placement
    lengths: tuple[int, ...]  # layers of each stage
    value_s: float  # for the nominal batch
    bound_s: float
    slack_s: float


@dataclass
class Search:
    """State and tally of one search."""

    space: Space
    options: SolveOptions
    funnel: Funnel = field(default_factory=Funnel)
    best: dict[tuple[Any, ...], Found] = field(default_factory=dict)
    solved: int = 0
    undecided: list[float] = field(default_factory=list)  # bounds of rows that the work limit left open
    devices: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # of every frame, with its bound
    bounds: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def setting(self) -> Setting:
        return self.space.setting

    @property
    def ranked(self) -> list[Found]:
        """Best plan of each visible kind, best first."""
        return sorted(self.best.values(), key=lambda f: (f.value_s, _key(f.row)))

    @property
    def cutoff_s(self) -> float:
        """A candidate whose bound passes this cannot enter the list."""
        wanted = self.options.runner_ups + 1
        if len(self.best) < wanted:
            return float("inf")
        last = self.ranked[wanted - 1]
        return last.value_s + last.slack_s

    def run(self) -> None:
        """Search to the end."""
        frame = frames(self.space, self.funnel)
        if not len(frame):
            return
        bounds = self.scaled(frame_bounds(self.setting, frame))
        self.devices, self.bounds = frame.devices, bounds
        order = np.argsort(bounds, kind="stable")
        at, size = 0, _FIRST_BLOCK
        while at < len(order):
            block = order[at : at + size]
            block = block[bounds[block] <= self.cutoff_s]
            if not len(block):
                break
            self._frames(frame[block])
            at, size = at + len(block), min(2 * size, _LARGEST_BLOCK)
        self.funnel.remove("frame bound passes the best plan", len(order) - at)

    def bound_with_more_devices(self, used: int) -> tuple[int, float] | None:
        """The most devices any frame beyond `used` takes, and the least bound among those; None if there is none."""
        more = self.devices > used
        return (int(self.devices[more].max()), float(self.bounds[more].min())) if more.any() else None

    def scaled(self, bounds: Array) -> Array:
        return bounds * self.options.bound_scale

    def _frames(self, frame: Rows) -> None:
        rows = expand(self.space, frame, self.funnel)
        candidates: list[tuple[float, Rows]] = []
        for at in range(0, len(rows), _CHUNK):
            candidates += self._rows(rows[at : at + _CHUNK])
        candidates.sort(key=lambda c: c[0])
        for bound, row in candidates:
            if bound > self.cutoff_s:
                self.funnel.remove("cut bound passes the best plan", 1)
            else:
                self._place(row)

    def _rows(self, rows: Rows) -> list[tuple[float, Rows]]:
        """Bound rows, then their policies and offload classes; survivors with their bounds."""
        comm = best_comm(self.setting, rows)
        placeable = np.all([comm.placeable(d) for d in ("tp", "cp", "pp", "dp_replicate", "shard", "ep")], axis=0)
        rows = self.funnel.keep("each degree fits the network", rows, placeable)
        if not len(rows):
            return []
        bounds = self.scaled(row_bounds(StageTable.of(self.setting, rows, best_comm(self.setting, rows))))
        rows = self.funnel.keep("row bound passes the best plan", rows, bounds <= self.cutoff_s)
        choices = with_choices(self.space, rows)
        self.funnel.enter("rows with policies and offload", len(choices))
        out: list[tuple[float, Rows]] = []
        for at in range(0, len(choices), _CHUNK):
            for part in by_vpp(choices[at : at + _CHUNK]):
                out += self._choices(part)
        return out

    def _choices(self, rows: Rows) -> list[tuple[float, Rows]]:
        setting = self.setting
        table = StageTable.of(setting, rows, best_comm(setting, rows))
        keep = self.scaled(row_bounds(table)) <= self.cutoff_s
        kept = self.funnel.keep("row bound passes the best plan", rows, keep)
        if not len(kept):
            return []
        cuts = Cuts.of(StageTable.of(setting, kept, best_comm(setting, kept)), Units.of(setting, int(kept.vpp[0])))
        bounds = self.scaled(cuts.bounds(setting.capacity_bytes))
        self.funnel.remove("no cut fits the device memory", int(np.isinf(bounds).sum()))
        late = np.isfinite(bounds) & (bounds > self.cutoff_s)
        self.funnel.remove("cut bound passes the best plan", int(late.sum()))
        good = np.flatnonzero(np.isfinite(bounds) & ~late)
        return [(float(bounds[i]), kept[i : i + 1]) for i in good]

    def _place(self, row: Rows) -> None:
        """Every placement of one row, the dominated ones dropped, then solved in order of bound."""
        setting = self.setting
        degrees = {d: int(getattr(row, d)[0]) for d in DIMENSIONS}
        placements = list(enumerate_placements(degrees, setting.cluster.levels))
        self.funnel.enter("plans", len(placements))
        if not placements:
            self.funnel.remove("no placement holds all degrees", 1)
            return
        rows = row[np.zeros(len(placements), np.int64)]
        groups = groups_of(placements, rows.ep, rows.etp)
        fits = groups.ep.size == rows.ep
        self.funnel.remove("experts do not fit the innermost ranks", int((~fits).sum()))
        at = np.flatnonzero(fits)
        if not len(at):
            return
        table = StageTable.of(setting, rows[at], PlacedComm(setting.network, groups[at]))
        units = Units.of(setting, int(row.vpp[0]))
        cuts = Cuts.of(table, units)
        bounds = self.scaled(cuts.bounds(setting.capacity_bytes))
        keep = _not_dominated(table)
        self.funnel.remove("another placement is no slower in any part", int((~keep).sum()))
        for i in sorted(np.flatnonzero(keep), key=lambda i: (bounds[i], i)):
            if bounds[i] > self.cutoff_s:
                self.funnel.remove("cut bound passes the best plan", 1)
                continue
            self._solve(row, placements[at[i]], groups[at[i : i + 1]], units, float(bounds[i]))

    def _solve(self, row: Rows, placement: Placement, groups: Any, units: Units, bound_s: float) -> None:
        setting = self.setting
        table = StageTable.of(setting, row, PlacedComm(setting.network, groups))
        cuts = Cuts.of(table, units)
        scale = float(per_batch(setting, row, np.ones(1))[0])
        # Without a cutoff any cut will do as a start: twice the bound always holds the best cut of few units.
        cutoff = self.cutoff_s / scale
        result = self._best_cut(cuts, placement, cutoff)
        self.solved += 1
        if result.status == "UNKNOWN":
            self.undecided.append(bound_s)
        if not result.lengths:
            return
        if result.status == "FEASIBLE":
            self.undecided.append(result.bound_s * scale)
        size = int(len(setting.model.pattern) / len(units))
        found = Found(
            row, placement, tuple(n * size for n in result.lengths),
            result.value_s * scale, result.bound_s * scale, result.slack_s * scale,
        )  # fmt: skip
        key = visible(row)
        if key not in self.best or found.value_s < self.best[key].value_s:
            self.best[key] = found

    def _best_cut(self, cuts: Cuts, placement: Placement, cutoff_s: float) -> CutResult:
        """Solve one row below the cutoff; with none, double a trial cutoff until a cut is found."""
        setting, row = self.setting, cuts.table.rows
        pools = self._pools(row, placement)
        floor = float(cuts.least_slowest(setting.capacity_bytes)[0])
        trial = cutoff_s
        if not np.isfinite(trial):
            trial = 1.05 * float(cuts.bounds(setting.capacity_bytes)[0])
        most = float(cuts.total_s[0])
        while True:
            spare = trial - float(cuts.total_s[0]) / float(row.vpp[0])
            rounds = float(row.micro_batches[0]) - 1.0 / float(row.vpp[0])
            slowest = min(most, max(spare / rounds if rounds > 0 else most, floor)) * (1 + 1e-9)
            # The slack that rounding may need on top of the slowest stage.
            slowest *= 1 + 1e-6
            entries = entries_of(cuts, slowest, setting.capacity_bytes)
            result = solve_cut(
                cuts, entries, trial, floor, pools, self.options.work_limit, self.options.seed
            )
            if result.status != "INFEASIBLE" or np.isfinite(cutoff_s) or slowest >= most:
                return result
            trial *= 2.0

    def _pools(self, row: Rows, placement: Placement) -> list[tuple[list[int], float]]:
        """Stages that share a host and what they may keep there per device of a stage."""
        cluster = self.setting.cluster
        if OFFLOADS[int(row.offload[0])] == "none" or cluster.host_memory_bytes is None:
            return []
        per_host = cluster.devices_per_host or 1
        sizes = tuple(level.size for level in cluster.levels)
        groups = host_groups(placement, sizes, per_host, int(row.pp[0]))
        return [(stages, cluster.host_memory_bytes * len(stages) / per_host) for stages in groups]


def visible(row: Rows) -> tuple[Any, ...]:
    """What must differ between two plans of the list."""
    names = ("tp", "cp", "pp", "ep", "dp_shard", "zero", "micro_batch", "vpp")
    return (*(int(getattr(row, n)[0]) for n in names), *row.policies[0].tolist())


def by_vpp(rows: Rows) -> list[Rows]:
    """Rows apart by chunks per stage: their stages are cut from different units."""
    return [rows[rows.vpp == v] for v in np.unique(rows.vpp)]


def _key(row: Rows) -> tuple[Any, ...]:
    """A fixed order for equal values: fewer devices and simpler layouts first."""
    names = ("devices", "pp", "tp", "cp", "ep", "vpp", "zero", "offload", "dp_replicate", "micro_batch", "cp_kind")
    return (*(int(getattr(row, n)[0]) for n in names), *row.policies[0].tolist())


def _not_dominated(table: StageTable) -> NDArray[np.bool_]:
    """Placements of one row for which no other is at most as slow everywhere; the first of equals stays."""
    stage = np.arange(int(table.rows.pp.max()))[None, :]
    counts = np.broadcast_to(
        np.array(table.setting.model.layers_by_kind, float) / table.rows.pp[0],
        (len(table.rows), stage.shape[1], len(table.setting.model.kinds)),
    )
    once = table.once_s(stage, counts)
    # One placement of a row differs from another only in rates, so a reduction that is slower for one stage size
    # is slower for all sizes up to latency; the ends and a mean stage stand for them.
    columns = np.concatenate([table.layer_s, table.ends_s(stage), once], axis=1)
    keep = np.ones(len(columns), bool)
    for i in range(len(columns)):
        others = keep.copy()
        others[i] = False
        no_slower = (columns[others] <= columns[i]).all(axis=1)
        strictly = (columns[others] < columns[i]).any(axis=1)
        first = np.flatnonzero(others) < i
        keep[i] = not (no_slower & (strictly | first)).any()
    return keep


