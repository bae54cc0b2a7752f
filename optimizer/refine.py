"""Refinements of the search: what each lists, and the bound of every child.

    frame -> shape -> offload, memory (and policies where layers do not mix them) -> together -> row -> cut -> split

A child's bound is never below its parent's: both hold for it. Every step takes (bounds, candidates, cutoff) and gives
(bounds, children); a bound of inf says that nothing fits the device memory.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.comm import PlacedComm
from meshwright.costmodel.layout import DIMENSIONS
from meshwright.costmodel.legal import chunk_periods
from meshwright.costmodel.once import Once, SomeStage, reduction_s
from meshwright.costmodel.placement import joint_splits, least_strides, placeable
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import distinct
from meshwright.costmodel.stages import StageCosts, StageTable
from meshwright.optimizer.bounds import SAFE, best_comm, hosts_may_hold, loosest, per_batch, row_bounds
from meshwright.optimizer.cuts import Cuts
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.host_rooms import host_rooms, pooled_bounds, shares_pool, with_host_state
from meshwright.optimizer.lines import lines_of
from meshwright.optimizer.settled import Placed, Settled
from meshwright.optimizer.space import (
    Space,
    offloading,
    with_experts,
    with_offload,
    with_policy,
    with_sharding,
)
from meshwright.optimizer.units import Units

Array = NDArray[Any]
Step = Callable[[Array, Any, float], tuple[Array, Any]]

# Prices of memory by which open policies are bounded, far from a plan and close to one.
_COARSE, _FINE = 3, 14
TOGETHER = "the degrees fit the network together"
HOSTS = "no cut fits the hosts' memory"
EXPERTS = "expert ranks fill the innermost ranks"
RANKS = "the launcher can number the ranks so"


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
        memory: tuple[Step, ...] = (self.offload, self.memory)
        if not self.space.menus.mixes:
            memory += tuple(
                step for k in self.space.kinds_by_weight for step in (self.policy(k), self.memory)
            )
        return (self.shapes, self.room, *memory, self.together, self.rows, self.cuts, self.splits)

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
        capacity, holds = self.setting.capacity_bytes, np.zeros(len(rows), bool)

        def reachable(cuts: Cuts, part: Array) -> Array:
            return cuts.feasible(np.full(len(part), np.inf), capacity).astype(float)

        for offload in self.space.offloads:
            left = np.flatnonzero(~holds)
            if len(left):
                table = self._table(offloading(rows[left], offload))
                every = np.arange(len(left))
                holds[left] = self._by_depth(table, loosest(table), every, reachable) > 0
        return np.where(holds, bounds, np.inf), rows

    def offload(self, bounds: Array, rows: Rows, cutoff_s: float) -> tuple[Array, Rows]:
        """Which class of tensors may be offloaded."""
        return self._open(with_offload(self.space, rows, self.funnel))

    def policy(self, kind: int) -> Step:
        """Refine by the recompute policy of one layer kind."""

        def refine(bounds: Array, rows: Rows, cutoff_s: float) -> tuple[Array, Rows]:
            return self._open(with_policy(self.space, rows, kind, self.funnel))

        return refine

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
        table, near = self._table(rows), np.flatnonzero(bounds < cutoff_s)
        bounds = bounds.copy()
        cut = self._cut_bounds(table, loosest(table), near, cutoff_s, 0.02, coarse=True)
        bounds[near] = np.maximum(bounds[near], cut)
        return bounds, rows

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
        placed = np.isfinite(once_s)
        self.funnel.remove(TOGETHER, int((~placed).sum()))
        more = per_batch(self.setting, settled.rows, once_s - table.costs.once_s)
        bounds = bounds + SAFE * more
        near = np.flatnonzero(placed & (bounds < cutoff_s))
        costs = replace(table.costs, once_s=once_s)
        bounds[near] = np.maximum(
            bounds[near], self._cut_bounds(table, costs, near, cutoff_s, 1e-3, coarse=True)
        )
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
        if self.space.launcher.bounds_placement:
            usual = self.space.launcher.orders(placed.factors)
            self.funnel.remove(RANKS, int((~usual).sum()))
            of_row, placed = of_row[usual], placed[usual]
        ordered = not self.setting.network.torus
        return np.maximum(bounds[of_row], self.placed_bounds(placed, cutoff_s, ordered)), placed

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

    def placed_bounds(self, placed: Placed, cutoff_s: float, ordered: bool) -> Array:
        """Bounds of placed rows: memory aside first, since most pass the cutoff by what their network costs.

        `ordered` where no order on a level is open any more.
        """
        table = StageTable.of(self.setting, placed.rows, PlacedComm(self.setting.network, placed.groups))
        bounds = row_bounds(table)
        near = np.flatnonzero(bounds < cutoff_s)
        if len(near):
            hosts = placed if ordered else None
            exact = self._cut_bounds(
                table, table.costs, near, cutoff_s, 3e-5, some=table.some_stages(), placed=hosts
            )
            bounds[near] = np.maximum(bounds[near], exact)
        return bounds

    def _cut_bounds(
        self,
        table: StageTable,
        costs: StageCosts,
        near: Array,
        cutoff_s: float,
        tolerance: float,
        coarse: bool = False,
        some: SomeStage | None = None,
        placed: Placed | None = None,
    ) -> Array:
        """Bounds of some rows over all cuts and, where they are open, over all policies.

        `costs` are the table's with the state that counts; `placed` where the rows sit on the network, if that is decided.
        """

        def bounds(cuts: Cuts, part: Array) -> Array:
            stages = None if some is None else some[part]
            return cuts.bounds(self.setting, cutoff_s, tolerance, coarse, stages)

        out = np.zeros(len(near))
        tight = self._by_depth(table, costs, near, self._binds) > 0
        out[~tight] = self._by_depth(table, costs, near[~tight], bounds)
        rooms = host_rooms(self.setting, costs.rows, near, placed)
        pooled = shares_pool(self.setting, costs.rows)[near]
        hosted = np.isfinite(rooms).any(axis=1)
        together = with_host_state(table) if placed is not None and hosted.any() else costs
        for prices in (_COARSE,) if coarse else (_COARSE, _FINE):
            left = np.flatnonzero(tight & (out < cutoff_s))
            out[left] = np.maximum(out[left], self._by_depth(table, costs, near[left], bounds, prices))
            left = np.flatnonzero(tight & (out < cutoff_s) & hosted)
            both = self._by_depth(table, together, near[left], bounds, prices, rooms[left], on_hosts=True)
            out[left] = np.maximum(out[left], both)
            left = np.flatnonzero(tight & (out < cutoff_s) & pooled)
            both = self._by_depth(table, together, near[left], self._pooled, prices, on_hosts=True)
            out[left] = np.maximum(out[left], both)
        return out

    def _pooled(self, cuts: Cuts, part: Array) -> Array:
        """Bounds with the memory of all devices and hosts in one."""
        return pooled_bounds(self.setting, cuts)

    def _binds(self, cuts: Cuts, part: Array) -> Array:
        """Whether rows with open policies may lack the memory for layers that save all they can, cut evenly."""
        if cuts.lines.most is None:
            return np.zeros(len(part))
        plain = replace(cuts, lines=replace(cuts.lines, saved=cuts.lines.most))
        return (~plain.feasible(plain.even_s, self.setting.capacity_bytes)).astype(float)

    def _by_depth(
        self,
        table: StageTable,
        costs: StageCosts,
        near: Array,
        value: Callable[[Cuts, Array], Array],
        prices: int = 0,
        rooms: Array | None = None,
        on_hosts: bool = False,
    ) -> Array:
        """A value of each row that is asked for, by groups of rows cut from the same units and about as deep.

        Tables are as wide as the deepest pipeline in them. Without `prices` memory counts at what layers save at least.
        `on_hosts` where what is saved on hosts counts with what is on devices; `rooms` of each stage there then do, too.
        """
        rows, out = costs.rows[near], np.zeros(len(near))
        layers, periods = Units.of(self.setting, 1), Units.periods(self.setting)
        chunked = (rows.vpp > 1) | layers.alike
        sizes = np.where(chunk_periods(self.setting, rows) > 0, 1, rows.vpp)
        group = np.ceil(np.log2(rows.pp) / 2).astype(np.int64) * 2 + chunked
        for one in np.unique(group).tolist():
            part = near[group == one]
            lines = lines_of(self.space.menus, table, costs, part, prices, on_hosts)
            beside = 0.0 if rooms is None else rooms[group == one, : int(rows.pp[group == one].max())]
            units, size = (periods, sizes[group == one]) if one % 2 else (layers, None)
            out[group == one] = value(Cuts.of(costs[part], units, lines, size, beside), part)
        return out
