"""Refinements of the search: what each lists, and the bound of every child.

    frame -> shape -> offload, memory (and named policies) -> together -> row -> cut -> split

A child's bound is never below its parent's: both hold for it. Every step takes (bounds, candidates, cutoff) and gives
(bounds, children); a bound of inf says that nothing fits the device memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.comm import PlacedComm
from meshwright.costmodel.layer import least_seconds
from meshwright.costmodel.layout import DIMENSIONS
from meshwright.costmodel.once import Once, SomeStage, reduction_s
from meshwright.costmodel.pipeline import step_s
from meshwright.costmodel.placement import joint_splits, least_strides, placeable
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import distinct
from meshwright.costmodel.stages import StageCosts, StageTable
from meshwright.costmodel.tensors import OPEN
from meshwright.optimizer.bounds import SAFE, best_comm, hosts_may_hold, loosest, per_batch, row_bounds
from meshwright.optimizer.cuts import Cuts, Units
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.menus import least_layer_s
from meshwright.optimizer.settled import Placed, Settled
from meshwright.optimizer.space import (
    Space,
    offloading,
    with_experts,
    with_offload,
    with_policy,
    with_sharding,
)

Array = NDArray[Any]
Step = Callable[[Array, Any, float], tuple[Array, Any]]

# Rows whose policies are looked at one by one while they are open.
_FEW = 64
BEATEN = "bound passes the best plans"
TOO_LARGE = "no cut fits the device memory"
TOGETHER = "the degrees fit the network together"
HOSTS = "no cut fits the hosts' memory"
EXPERTS = "expert ranks fill the innermost ranks"


@dataclass
class Refiner:
    """The refinements of one question, down to splits; counts what rules remove."""

    space: Space
    funnel: Funnel
    # Seconds of gradient reduction by degrees and ZeRO level.
    _reductions: dict[tuple[int, ...], float] = field(default_factory=dict)

    @property
    def setting(self) -> Setting:
        return self.space.setting

    @property
    def steps(self) -> tuple[Step, ...]:
        """In order, from frames on."""
        memory: tuple[Step, ...] = (self.room, self.offload, self.memory)
        if not self.space.menus.by_tensor:  # few policies: rather as rows of their own than open
            memory += tuple(
                step for k in self.space.kinds_by_weight for step in (self.policy(k), self.memory)
            )
        return (self.shapes, *memory, self.together, self.rows, self.cuts, self.splits)

    def shapes(self, bounds: Array, rows: Rows, cutoff_s: float) -> tuple[Array, Rows]:
        """Frames that the network holds, with experts and the kind of context parallelism."""
        sizes = tuple(level.size for level in self.setting.cluster.levels)
        degrees = np.sort(np.stack([rows.dp, rows.tp, rows.cp, rows.pp], axis=1), axis=1)[:, ::-1]
        fits = np.array([placeable(tuple(d for d in row if d > 1), sizes) for row in degrees.tolist()])
        rows = with_experts(self.space, self.funnel.keep(TOGETHER, rows, fits), self.funnel)
        if len(rows):
            rows = self.funnel.keep(EXPERTS, rows, best_comm(self.setting, rows).placeable("ep"))
        return self._open(rows)

    def room(self, bounds: Array, rows: Rows, cutoff_s: float) -> tuple[Array, Rows]:
        """Whether the leanest policies and data sharding fit the device memory, whatever the time.

        It spares a question that nothing fits most of its refinements; once a plan is known it is left to `memory`.
        """
        if np.isfinite(cutoff_s):
            return bounds, rows
        holds = np.zeros(len(rows), bool)
        for offload in self.space.offloads:
            left = np.flatnonzero(~holds)
            if len(left):
                holds[left] = self._holds(loosest(self._table(offloading(rows[left], offload))))
        return np.where(holds, bounds, np.inf), rows

    def offload(self, bounds: Array, rows: Rows, cutoff_s: float) -> tuple[Array, Rows]:
        """Which class of tensors is offloaded."""
        return self._open(with_offload(self.space, rows))

    def policy(self, kind: int) -> Step:
        """Refine by the recompute policy of one layer kind."""

        def refine(bounds: Array, rows: Rows, cutoff_s: float) -> tuple[Array, Rows]:
            return self._open(with_policy(self.space, rows, kind, self.funnel))

        return refine

    def _step_of_layer(self, rows: Rows, kind: int) -> Array:
        """Step seconds, at least, of a second more on every layer of a kind, [R]."""
        total = np.full(len(rows), float(self.setting.model.layers_by_kind[kind]))
        return per_batch(self.setting, rows, step_s(rows, total / rows.pp, total, np.zeros(len(rows))))

    def _table(self, rows: Rows) -> StageTable:
        """Every collective at its fastest split."""
        return StageTable.of(self.setting, rows, best_comm(self.setting, rows))

    def _open(self, rows: Rows) -> tuple[Array, Rows]:
        """Bounds of rows whose data sharding is open."""
        if not len(rows):
            return np.zeros(0), rows
        table = StageTable.of(self.setting, rows, best_comm(self.setting, rows))
        return row_bounds(table, once=0.0), rows

    def memory(self, bounds: Array, rows: Rows, cutoff_s: float) -> tuple[Array, Rows]:
        """The same with the device memory, at the least any data sharding needs."""
        table = self._table(rows)
        return self._in_memory(bounds, table, cutoff_s, 0.02, loosest(table)), rows

    def _in_memory(
        self,
        bounds: Array,
        table: StageTable,
        cutoff_s: float,
        tolerance: float,
        costs: StageCosts | None = None,
        some_stages: Callable[[], SomeStage] | None = None,
    ) -> Array:
        """Bounds over all cuts that fit the memory, and over what policies that are still open may be.

        `costs` are the table's with the state that counts; `some_stages` are stages that every cut has.
        """
        bounds, costs = bounds.copy(), table.costs if costs is None else costs
        near = np.flatnonzero(bounds < cutoff_s)
        if not len(near):
            return bounds
        stages = None if some_stages is None else some_stages()

        def tighten(near: Array, layer_s: Array | None = None) -> Array:
            part = costs[near] if layer_s is None else replace(costs[near], layer_s=layer_s)
            found = self._cut_bounds(
                part, cutoff_s, tolerance, stages is None, None if stages is None else stages[near]
            )
            bounds[near] = np.maximum(bounds[near], found)
            return near[bounds[near] < cutoff_s]

        near = tighten(near)
        if self.space.menus.by_tensor and (table.rows.policies & OPEN).any():
            # Policy by policy only where few rows are left, and before their network multiplies them.
            for coarse in (True, False) if stages is None else (True,):
                if len(near) and (coarse or len(near) <= _FEW):
                    least = least_layer_s(self.space.menus, table, costs, near, self._holds, coarse)
                    fit = np.isfinite(least).all(axis=1)
                    bounds[near[~fit]] = np.inf
                    near = tighten(near[fit], least[fit])
        return bounds

    def _holds(self, costs: StageCosts) -> Array:
        """Whether some cut of each row fits the memory, however slow, [R]."""
        capacity = self.setting.capacity_bytes

        def reachable(cuts: Cuts, part: Array) -> Array:
            return cuts.feasible(2.0 * cuts.total_s, capacity).astype(float)

        return self._by_depth(costs, reachable) > 0

    def together(self, bounds: Array, rows: Rows, cutoff_s: float) -> tuple[Array, Rows]:
        """Bounds with all degrees on the network at once, data parallelism as one degree: its best split."""
        of_row, placed = self._all_splits(rows)
        comm = PlacedComm(self.setting.network, placed.groups)
        best = np.full(len(rows), np.inf)
        np.minimum.at(best, of_row, row_bounds(StageTable.of(self.setting, placed.rows, comm), once=0.0))
        some = np.isfinite(best)
        self.funnel.remove(TOGETHER, int((~some).sum()))
        return np.maximum(bounds, best)[some], rows[some]

    def rows(self, bounds: Array, rows: Rows, cutoff_s: float) -> tuple[Array, Settled]:
        """Every data sharding. What happens once per step comes on top of what the parent's bound counts."""
        of_row, rows = with_sharding(self.space, rows, self.funnel)
        if not len(rows):
            return np.zeros(0), Settled(rows)
        table = StageTable.of(self.setting, rows, best_comm(self.setting, rows))
        once = per_batch(self.setting, rows, table.once_mean_s())
        return np.maximum(bounds[of_row] + once * SAFE, row_bounds(table)), Settled(rows)

    def cuts(self, bounds: Array, settled: Settled, cutoff_s: float) -> tuple[Array, Settled]:
        """The same with the memory of devices and hosts."""
        fits = hosts_may_hold(self.setting, settled.rows)
        self.funnel.remove(HOSTS, int((~fits).sum()))
        bounds, settled = bounds[fits], settled[fits]
        if not len(settled):
            return bounds, settled
        table = self._table(settled.rows)
        once_s = table.once_mean_s(self._reduction_s(table.once))
        self.funnel.remove(TOGETHER, int(np.isinf(once_s).sum()))
        more = per_batch(self.setting, settled.rows, once_s - table.costs.once_s)
        costs = replace(table.costs, once_s=once_s)
        bounds = self._in_memory(bounds + SAFE * more, table, cutoff_s, 1e-3, costs)
        placed = np.isfinite(once_s)
        return bounds[placed], settled[placed]

    def _reduction_s(self, once: Once) -> Array:
        """Seconds of a mean stage's gradient reduction at its best split with all degrees on the network, [R]."""
        names = (*DIMENSIONS, "ep", "etp", "zero")
        first, of_row = distinct(once.rows, names)
        rows = once.rows[first]
        keys = list(zip(*(getattr(rows, n).tolist() for n in names), strict=True))
        new = np.array([i for i, key in enumerate(keys) if key not in self._reductions], np.int64)
        if len(new):
            of_new, placed = self._all_splits(rows[new])
            plain, routed = (x[first[new]][of_new] for x in once.mean_params)
            comm = PlacedComm(self.setting.network, placed.groups)
            best = np.full(len(new), np.inf)
            np.minimum.at(best, of_new, reduction_s(self.setting, placed.rows, comm, plain, routed)[:, 0])
            self._reductions |= zip((keys[i] for i in new), best.tolist(), strict=True)
        return np.array([self._reductions[key] for key in keys])[of_row]

    def splits(self, bounds: Array, settled: Settled, cutoff_s: float) -> tuple[Array, Placed]:
        """Rows with every split of their degrees over the levels, as if each were innermost on its axes."""
        of_row, placed = self._all_splits(settled.rows)
        self.funnel.enter("splits", len(placed))
        held = np.isin(np.arange(len(settled)), of_row)
        self.funnel.remove(TOGETHER, int((~held).sum()))
        return np.maximum(bounds[of_row], self.placed_bounds(placed, cutoff_s)), placed

    def _all_splits(self, rows: Rows) -> tuple[Array, Placed]:
        """(row of each split, splits) in which the expert ranks fill the innermost ranks."""
        sizes = tuple(level.size for level in self.setting.cluster.levels)
        degrees = np.stack([getattr(rows, d) for d in DIMENSIONS], axis=1)
        found = [joint_splits(tuple(row), sizes) for row in degrees.tolist()]
        of_row = np.repeat(np.arange(len(rows)), [len(factors) for factors in found])
        factors = np.concatenate(found)
        placed = Placed(rows[of_row], factors, least_strides(factors, self.setting.network.torus))
        fits = placed.groups.ep.size == placed.rows.ep
        return of_row[fits], placed[fits]

    def placed_bounds(self, placed: Placed, cutoff_s: float) -> Array:
        """Bounds of placed rows: memory aside first, since most pass the cutoff by what their network costs."""
        table = self._placed_table(placed)
        bounds = row_bounds(table)
        return (
            self._in_memory(bounds, table, cutoff_s, 1e-6, some_stages=table.some_stages)
            if len(placed)
            else bounds
        )

    def policies(self, bounds: Array, placed: Placed, cutoff_s: Array) -> tuple[Array, Placed]:
        """Placed rows with every recompute policy of every layer kind that may stay below each one's cutoff."""
        for kind in self.space.kinds_by_weight if len(placed) else ():
            if not (placed.rows.policies[:, kind] & OPEN).any():
                continue
            table, menu = self._placed_table(placed), self.space.menus.of(placed.rows, kind)
            every = np.arange(len(placed))
            least = least_layer_s(self.space.menus, table, table.costs, every, self._holds, coarse=False)
            each = least_seconds(self.setting, table.layers[kind], menu.of_rows())
            with np.errstate(invalid="ignore"):
                spare = (cutoff_s - row_bounds(table, layer_s=least)) / self._step_of_layer(placed.rows, kind)
                more = each * SAFE - least[:, [kind]]
            wanted = (each >= least[:, [kind]] * SAFE) & (more <= spare[:, None])
            wanted &= np.all(np.isfinite(least), axis=1, keepdims=True)
            of_row, rows = menu.chosen_rows(placed.rows, kind, wanted)
            listed = int(menu.exist[menu.of_row].sum())
            self.funnel.enter("choices", listed)
            fits = hosts_may_hold(self.setting, rows)
            self.funnel.remove(HOSTS, int((~fits).sum()))
            self.funnel.remove(BEATEN, listed - len(rows))
            placed, cutoff_s = replace(placed[of_row[fits]], rows=rows[fits]), cutoff_s[of_row[fits]]
            found = self.placed_bounds(placed, float(cutoff_s.max(initial=0.0)))
            bounds = np.maximum(bounds[of_row[fits]], found)
            near = bounds < cutoff_s
            self.funnel.remove(TOO_LARGE, int(np.isinf(bounds).sum()))
            self.funnel.remove(BEATEN, int((~near & np.isfinite(bounds)).sum()))
            bounds, placed, cutoff_s = bounds[near], placed[near], cutoff_s[near]
            if not len(placed):
                break
        return bounds, placed

    def layer_s(self, placed: Placed) -> Array:
        """Seconds of one layer of each kind of placed rows, [R, K]."""
        return self._placed_table(placed).layer_s if len(placed) else np.zeros((0, 0))

    def _placed_table(self, placed: Placed) -> StageTable:
        return StageTable.of(self.setting, placed.rows, PlacedComm(self.setting.network, placed.groups))

    def _cut_bounds(
        self,
        costs: StageCosts,
        cutoff_s: float,
        tolerance: float,
        coarse: bool = False,
        some: SomeStage | None = None,
    ) -> Array:
        """Bounds over all cuts."""

        def bounds(cuts: Cuts, part: Array) -> Array:
            stages = None if some is None else some[part]
            return cuts.bounds(self.setting, cutoff_s, tolerance, coarse, stages)

        return self._by_depth(costs, bounds)

    def _by_depth(self, costs: StageCosts, value: Callable[[Cuts, Array], Array]) -> Array:
        """A value of each row, by groups of rows that are cut from the same units and are about as deep.

        Tables are as wide as the deepest pipeline in them.
        """
        rows, out = costs.rows, np.zeros(len(costs.rows))
        depth = np.ceil(np.log2(rows.pp) / 2).astype(np.int64)
        groups, of_row = np.unique(rows.vpp * 64 + depth, return_inverse=True)
        for g, group in enumerate(groups):
            part = np.flatnonzero(of_row == g)
            out[part] = value(Cuts.of(costs[part], Units.of(self.setting, int(group // 64))), part)
        return out
