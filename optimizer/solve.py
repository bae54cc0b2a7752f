"""The search: bound, prune, prove.

Candidates are refined level by level (`optimizer.space`), always those with the lowest bound first, in batches.
A refinement lists what its candidates leave open, bounds each child, and drops those that cannot enter the list
of plans: their bound passes the cutoff, the value of the k-th best visibly different plan so far, or they could only
repeat a visible kind whose best plan is already as good. Children of the last level are placed plans, whose stages
CP-SAT settles one at a time. The search ends when no open candidate has a bound below the cutoff.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.comm import PlacedComm
from meshwright.costmodel.layout import DIMENSIONS, OFFLOADS, Placement
from meshwright.costmodel.placement import (
    Groups,
    groups_of_splits,
    innermost,
    joint_splits,
    nestings,
    placeable,
    strides_of,
)
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageCosts, StageTable
from meshwright.optimizer.bounds import Cuts, Units, best_comm, frame_bounds, loosest, per_batch, row_bounds
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.program import CutResult, entries_of, host_groups, solve_cut
from meshwright.optimizer.queue import Level
from meshwright.optimizer.settled import Settled, order, visible, visible_columns
from meshwright.optimizer.space import Space, frames, with_experts, with_offload, with_policy, with_sharding

Array = NDArray[Any]

BEATEN = "bound passes the best plans"
TOO_LARGE = "no cut fits the device memory"
TOGETHER = "the degrees fit the network together"
HOSTS = "no cut fits the hosts' memory"
EXPERTS = "expert ranks fill the innermost ranks"
# Refine together what lies this close: a batch costs little more than a single candidate.
_TOGETHER = 1.02
# Every so many steps go down, as long as the bounds leave room for a plan this much better.
_DIVE, _NEAR = 4, 0.99
# Least and most candidates of each level refined at once, by how many children they have.
_FRAMES, _POLICY, _MEMORY = (256, 2048), (512, 8192), (2048, 8192)
_REST = ((128, 1024), (2048, 16384), (16, 256), (32, 128), (1, 1))


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
    """A solved candidate: one row, its placement, the layers of its stages.

    `value_s` and `bound_s` are for the nominal batch; `slack_s` is what rounding in the solver can hide.
    """

    row: Rows
    placement: Placement
    lengths: tuple[int, ...]
    value_s: float
    bound_s: float
    slack_s: float


@dataclass
class Search:
    """State and tally of one search."""

    space: Space
    options: SolveOptions
    funnel: Funnel = field(default_factory=Funnel)
    best: dict[tuple[int, ...], Found] = field(default_factory=dict)
    solved: int = 0
    undecided: list[float] = field(default_factory=list)  # bounds of candidates that the work limit left open
    hosts_hold: dict[tuple[Any, ...], bool] = field(
        default_factory=dict
    )  # by row and stages that share a host
    start: tuple[Array, Rows] | None = (
        None  # frames and their bounds, where an earlier search has listed them
    )

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
            return float("inf")
        values = sorted(f.value_s for f in self.best.values())
        return values[wanted - 1]

    def run(self) -> None:
        """Search to the end."""
        if self.start is None:
            frame = frames(self.space, self.funnel)
            self.start = self._scaled(frame_bounds(self.setting, frame)), frame
        refine = (
            self._shapes,
            *(step for k in self.space.kinds_by_weight for step in (self._policy(k), self._memory)),
            self._rows, self._cuts, self._splits, self._orders,
        )  # fmt: skip
        batches = (_FRAMES, *(_POLICY, _MEMORY) * len(self.setting.model.kinds), *_REST)
        levels = [Level(least, most) for least, most in batches]
        levels[0].push(*self.start)
        cutoff, step = float("inf"), 0
        while True:
            least = [level.least for level in levels]
            # Lowest bound first, the deepest of equals. In between, and as long as there is no cutoff, go down
            # with the best of the deepest level: a good plan early spares most of the rest.
            dive = np.isinf(cutoff) or (step % _DIVE == 0 and min(least) < cutoff * _NEAR)
            depth = max(
                range(len(levels)), key=lambda i: (least[i] < cutoff * _NEAR if dive else -least[i], i)
            )
            step += 1
            if not least[depth] < cutoff:
                break
            bounds, candidates = levels[depth].pop(min(least[depth] * _TOGETHER, cutoff))
            bounds, candidates = self._alive(bounds, candidates)
            if depth == len(refine):
                for i in range(len(candidates)):
                    self._solve(candidates[i : i + 1], float(bounds[i]))
            elif len(candidates):
                for child_bounds, child in refine[depth](candidates):
                    levels[depth + 1].push(*self._alive(child_bounds, child))
            if self.cutoff_s < cutoff:
                cutoff = self.cutoff_s
                for level in levels:
                    self.funnel.remove(BEATEN, level.drop(cutoff))
        for level in levels:
            self.funnel.remove(BEATEN, level.drop(0.0))

    def _scaled(self, bounds: Array) -> Array:
        return bounds * self.options.bound_scale

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

    def _shapes(self, rows: Rows) -> list[tuple[Array, Rows]]:
        sizes = tuple(level.size for level in self.setting.cluster.levels)
        degrees = np.sort(np.stack([rows.dp, rows.tp, rows.cp, rows.pp], axis=1), axis=1)[:, ::-1]
        fits = np.array([placeable(tuple(d for d in row if d > 1), sizes) for row in degrees.tolist()])
        rows = with_experts(self.space, self.funnel.keep(TOGETHER, rows, fits), self.funnel)
        if not len(rows):
            return []
        fits = best_comm(self.setting, rows).placeable("ep")
        rows = with_offload(self.space, self.funnel.keep(EXPERTS, rows, fits))
        return self._open(rows) if len(rows) else []

    def _policy(self, kind: int) -> Callable[[Rows], list[tuple[Array, Rows]]]:
        """Refine by the recompute policy of one layer kind."""

        def refine(rows: Rows) -> list[tuple[Array, Rows]]:
            choices = with_policy(self.space, rows, kind, self.funnel)
            return self._open(choices) if len(choices) else []

        return refine

    def _open(self, rows: Rows) -> list[tuple[Array, Rows]]:
        """Bounds of rows whose data sharding is open."""
        table = StageTable.of(self.setting, rows, best_comm(self.setting, rows))
        return [(self._scaled(row_bounds(table, once=0.0)), rows)]

    def _memory(self, rows: Rows) -> list[tuple[Array, Rows]]:
        """The same with the device memory, at the least any data sharding needs."""
        table = StageTable.of(self.setting, rows, best_comm(self.setting, rows))
        return [(self._cut_bounds(loosest(table), 0.02, coarse=True), rows)]

    @property
    def _limit(self) -> float:
        """Cutoff for bounds that are scaled afterwards."""
        return self.cutoff_s / self.options.bound_scale

    def _rows(self, rows: Rows) -> list[tuple[Array, Settled]]:
        rows = with_sharding(self.space, rows, self.funnel)
        if not len(rows):
            return []
        table = StageTable.of(self.setting, rows, best_comm(self.setting, rows))
        return [(self._scaled(row_bounds(table)), Settled(rows))]

    def _cuts(self, settled: Settled) -> list[tuple[Array, Settled]]:
        table = StageTable.of(self.setting, settled.rows, best_comm(self.setting, settled.rows))
        return [(self._cut_bounds(table.costs, 1e-3, coarse=True), settled)]

    def _splits(self, settled: Settled) -> list[tuple[Array, Settled]]:
        """Rows with every split of their degrees over the levels, as if each were innermost on its axes."""
        sizes, rows = tuple(level.size for level in self.setting.cluster.levels), settled.rows
        degrees = np.stack([getattr(rows, d) for d in DIMENSIONS], axis=1)
        found = [joint_splits(tuple(row), sizes) for row in degrees.tolist()]
        count = np.array([len(factors) for factors in found])
        self.funnel.enter("splits", int(count.sum()))
        self.funnel.remove(TOGETHER, int((count == 0).sum()))
        factors = np.concatenate(found)
        rows = rows[np.repeat(np.arange(len(rows)), count)]
        groups = groups_of_splits(factors, rows.ep, rows.etp)
        fits = groups.ep.size == rows.ep
        self.funnel.remove(EXPERTS, int((~fits).sum()))
        hosted = np.array(
            [f and self._hosts_hold(rows[i : i + 1], factors[i]) for i, f in enumerate(fits)], bool
        )
        self.funnel.remove(HOSTS, int((fits & ~hosted).sum()))
        fits &= hosted
        return [self._placed(Settled(rows[fits], factors[fits]), groups[fits])]

    def _orders(self, settled: Settled) -> list[tuple[Array, Settled]]:
        """Splits with every order on torus axes, bounded on the way.

        First which dimension is innermost on each axis, then the whole order on each; what is open on an axis
        counts with the least strides it can have.
        """
        assert settled.factors is not None
        torus = self.setting.network.torus
        for i in range(len(settled)) if torus else ():
            if np.isinf(self.cutoff_s) and visible(settled.rows[i : i + 1]) not in self.best:
                self._same_order(settled[i : i + 1])
        placed = settled.with_strides(np.ones_like(settled.factors))
        for level in set(range(settled.factors.shape[2])) - set(torus):
            # Inside a tier the order changes no rate: the usual one.
            placed.strides[:, :, level] = [nestings(f[:, level])[0] for f in settled.factors]
        steps = [(axis, innermost) for axis in torus] + [(axis, nestings) for axis in torus]
        for axis, choices in steps:
            of_row, columns = [], []
            for i in range(len(placed)):
                for strides in choices(placed.factors[i, :, axis]):
                    # A later step only completes what an earlier one began.
                    if (strides >= placed.strides[i, :, axis]).all():
                        of_row.append(i)
                        columns.append(strides)
            placed = placed[np.array(of_row)]
            placed.strides[:, :, axis] = np.array(columns)
            bounds, placed = self._alive(*self._placed(placed, placed.groups))
            if not len(placed):
                return []
        if not torus:
            bounds, placed = self._placed(placed, placed.groups)
        self.funnel.enter("plans", len(placed))
        return [(bounds, placed)]

    def _same_order(self, split: Settled) -> None:
        """Solve one split under the best order that is the same on all axes, so that its kind has a value to beat."""
        assert split.factors is not None
        axes = self.setting.network.torus
        strides = []
        for nesting in permutations(range(len(DIMENSIONS))):
            one = np.ones_like(split.factors[0])
            for axis in axes:
                one[:, axis] = strides_of(split.factors[0, :, axis], nesting)
            strides.append(one)
        distinct = np.unique(np.array(strides), axis=0)
        placed = split[np.zeros(len(distinct), np.int64)].with_strides(distinct)
        bounds, placed = self._placed(placed, placed.groups)
        best = int(np.argmin(bounds))
        if bounds[best] < self.cutoff_s:
            self._solve(placed[best : best + 1], float(bounds[best]))

    def _placed(self, settled: Settled, groups: Groups) -> tuple[Array, Settled]:
        table = StageTable.of(self.setting, settled.rows, PlacedComm(self.setting.network, groups))
        return self._cut_bounds(table.costs, 1e-6), settled

    def _cut_bounds(self, costs: StageCosts, tolerance: float, coarse: bool = False) -> Array:
        """Bounds over all cuts, by groups of rows that are cut from the same units and are about as deep.

        Tables are as wide as the deepest pipeline in them.
        """
        rows, bounds = costs.rows, np.zeros(len(costs.rows))
        depth = np.ceil(np.log2(rows.pp) / 2).astype(np.int64)
        groups, of_row = np.unique(rows.vpp * 64 + depth, return_inverse=True)
        for g, group in enumerate(groups):
            part = np.flatnonzero(of_row == g)
            cuts = Cuts.of(costs[part], Units.of(self.setting, int(group // 64)))
            bounds[part] = cuts.bounds(self.setting, self._limit, tolerance, coarse)
        return self._scaled(bounds)

    def _solve(self, plan: Settled, bound_s: float) -> None:
        """Settle the stages of one placed plan."""
        setting, row = self.setting, plan.rows
        key, placement = visible(row), plan.placement
        assert plan.factors is not None
        units = Units.of(setting, int(row.vpp[0]))
        comm = PlacedComm(setting.network, plan.groups)
        table = StageTable.of(setting, row, comm)
        cuts = Cuts.of(table.costs, units)
        scale = float(per_batch(setting, row, np.ones(1))[0])
        result = self._best_cut(table, cuts, plan.factors[0], self.cutoff_s / scale, bound_s)
        self.solved += 1
        self.funnel.enter("solved", 1)
        if result.status == "UNKNOWN":
            self.undecided.append(bound_s)
        if result.status == "FEASIBLE":
            self.undecided.append(result.bound_s * scale)
        if not result.lengths:
            return
        size = setting.model.layers // len(units)
        found = Found(
            row, placement, tuple(n * size for n in result.lengths),
            result.value_s * scale, result.bound_s * scale, result.slack_s * scale,
        )  # fmt: skip
        if key not in self.best or found.value_s < self.best[key].value_s:
            self.best[key] = found

    def _best_cut(
        self, table: StageTable, cuts: Cuts, factors: Array, cutoff_s: float, bound_s: float
    ) -> CutResult:
        """Solve one candidate below the cutoff: first near its bound, since few entries lie there, then further."""
        setting, row = self.setting, table.rows
        capacity, pools = setting.capacity_bytes, self._pools(row, factors)
        most, total = float(cuts.total_s[0]), float(cuts.total_s[0]) / float(row.vpp[0])
        rounds = float(row.micro_batches[0]) - 1.0 / float(row.vpp[0])
        # A bound scaled up by a test is no floor.
        scaled = self.options.bound_scale != 1
        floor = 0.0 if scaled else min(float(cuts.slowest_within(setting, bound_s)[0]), most)
        # No cut takes longer than everything on every stage.
        stages = np.arange(int(row.pp[0]))[None, :]
        everything = np.broadcast_to(cuts.units.prefix[-1], (1, int(row.pp[0]), cuts.units.prefix.shape[1]))
        ceiling = (rounds + 1) * most + float(table.once_s(stages, everything).max())
        cutoff_s = min(cutoff_s, 1.01 * ceiling)
        trial = min(cutoff_s, 1.02 * bound_s)
        while True:
            # A share slower than this is on no plan within the cutoff; the margin is for what rounding hides.
            slowest = most if rounds == 0 else min(most, max((trial - total) / rounds, floor))
            slowest *= 1 + 1e-6
            entries = entries_of(table, cuts, slowest, capacity)
            result = solve_cut(cuts, entries, trial, floor, pools, self.options.work_limit, self.options.seed)
            if result.status != "INFEASIBLE" or trial >= cutoff_s:
                return result
            trial = min(cutoff_s, 1.5 * trial)

    def _hosts_hold(self, row: Rows, factors: Array) -> bool:
        """Whether some cut keeps what is offloaded within the hosts' memory, however slow; once per sharing of hosts."""
        if OFFLOADS[int(row.offload[0])] == "none":
            return True
        pools = self._pools(row, factors)
        key = (
            *(tuple(getattr(row, f.name)[0].ravel().tolist()) for f in fields(row)),
            tuple(map(tuple, (p for p, _ in pools))),
        )
        if key not in self.hosts_hold:
            setting = self.setting
            table = StageTable.of(setting, row, best_comm(setting, row))
            cuts = Cuts.of(table.costs, Units.of(setting, int(row.vpp[0])))
            slowest = float(cuts.total_s[0])
            entries = entries_of(table, cuts, slowest * 2, setting.capacity_bytes)
            # A cutoff that any cut meets: every micro-batch through the slowest stage that there can be.
            most = 2 * slowest * float(row.micro_batches[0] + 1) + 2 * float(entries.once.max(initial=0.0))
            result = solve_cut(cuts, entries, most, 0.0, pools, self.options.work_limit, self.options.seed)
            self.hosts_hold[key] = result.status != "INFEASIBLE"
        return self.hosts_hold[key]

    def _pools(self, row: Rows, factors: Array) -> list[tuple[list[int], float]]:
        """Stages that share a host, and what one device of each may keep there together."""
        cluster = self.setting.cluster
        if OFFLOADS[int(row.offload[0])] == "none" or cluster.host_memory_bytes is None:
            return []
        per_host = cluster.devices_per_host or 1
        sizes = tuple(level.size for level in cluster.levels)
        pp_factors = factors[DIMENSIONS.index("pp")].tolist()
        groups = host_groups(pp_factors, sizes, per_host, int(row.pp[0]))
        return [(stages, cluster.host_memory_bytes * len(stages) / per_host) for stages in groups]
