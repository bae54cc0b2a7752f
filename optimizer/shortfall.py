"""The closest miss when nothing fits: the layout that passes the device memory by the fewest bytes.

Memory does not depend on where degrees sit. Candidates are taken in order of a bound on what their heaviest stage
needs (everything sharded over all data ranks, saved activations counted once, spread evenly over the stages),
until no bound lies below the best need found.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.estimate import estimate
from meshwright.costmodel.layout import DIMENSIONS, Placement
from meshwright.costmodel.legal import chunk_periods
from meshwright.costmodel.memory import memory_costs
from meshwright.costmodel.placement import enumerate_placements, placeable
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.shapes import Shapes
from meshwright.costmodel.stages import StageTable
from meshwright.optimizer.bounds import best_comm, hosts_may_hold
from meshwright.optimizer.cuts import Cuts
from meshwright.optimizer.decode import layout_of
from meshwright.optimizer.entries import entries_of
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.launchers.launcher import factors_of
from meshwright.optimizer.offers import Mix, Offer
from meshwright.optimizer.queue import Level
from meshwright.optimizer.solve import Found
from meshwright.optimizer.space import (
    Space,
    frames,
    with_experts,
    with_leanest,
    with_offload,
    with_policy,
    with_sharding,
)
from meshwright.optimizer.units import Units

Array = NDArray[Any]


def closest_miss(
    space: Space, batch_sizes: int, tick: Callable[[str], bool] = lambda told: False
) -> tuple[Found | None, float]:
    """The plan that needs the least memory on its heaviest stage, and the bytes it is short, as `estimate` prices it.

    `tick` is told how far it is; where it says to stop there is none: what is closest is not known then.
    """
    setting, funnel = space.setting, Funnel()
    open_rows: Level = Level(256, 256)
    best, need = None, np.inf
    # Without full recompute the leanest policy is looked for shape by shape.
    at_once = 4096 if space.allows_policy("full") else 128
    for batch in space.batches[:batch_sizes]:
        frame = frames(space, funnel, (batch,))
        for at in range(0, len(frame), at_once):
            rows = with_offload(space, with_experts(space, frame[at : at + at_once], funnel), funnel)
            for kind in space.kinds_by_weight:
                rows = _with_policy(space, rows, kind)
            if len(rows):
                bounds = _least_need(space, rows)
                open_rows.push(bounds[bounds < need], rows[bounds < need])
                # Closing in early keeps what is open, and so the memory, small.
                best, need = _closer(space, open_rows, best, need)
                open_rows.drop(need)
            if tick(f"the closest miss, {len(open_rows):,} candidates open"):
                return None, 0.0
    while open_rows.least < need:
        if tick(f"the closest miss, {len(open_rows):,} candidates open"):
            return None, 0.0
        best, need = _closer(space, open_rows, best, need)
    if best is None:
        return None, 0.0
    found = _cut(space, best, need)
    # The bound that found it is a bisection, some bytes below what the plan needs.
    needs = max(estimate(setting, layout_of(setting, found)).stage_bytes)
    return found, needs - setting.capacity_bytes


def _with_policy(space: Space, rows: Rows, kind: int) -> Rows:
    """Rows with the policies of one layer kind among which the least memory is."""
    return with_leanest(space, rows, kind) if space.menus.mixes else with_policy(space, rows, kind, Funnel())


def _closer(space: Space, open_rows: Level, best: Rows | None, need: float) -> tuple[Rows | None, float]:
    """The better of the closest row so far and of those with the lowest bounds."""
    if not open_rows.least < need:
        return best, need
    bounds, rows = open_rows.pop(need)
    _, rows = with_sharding(space, rows[bounds < need], Funnel())
    rows = rows[hosts_may_hold(space.setting, rows)]
    needs = _needs(space, rows)
    for i in np.argsort(needs, kind="stable"):
        if not needs[i] < need:
            break
        if places(space, rows[i : i + 1]):
            return rows[i : i + 1], float(needs[i])
    return best, need


def _least_need(space: Space, rows: Rows) -> Array:
    """Bytes that the heaviest stage of a row needs at least under any sharding and cut, [R]."""
    setting = space.setting
    sharded = rows.with_columns(
        dp_replicate=np.ones_like(rows.dp), dp_shard=rows.dp, zero=np.full_like(rows.zero, 3)
    )
    state = memory_costs(setting, Shapes.of(setting, sharded))
    whole = memory_costs(setting, Shapes.of(setting, rows))  # gathers nothing: the least transient bytes
    layers = np.array(setting.model.layers_by_kind, float)
    spread = (state.state_bytes + whole.saved) @ layers + state.first_bytes + state.last_bytes
    need: Array = spread / rows.pp + whole.working.min(axis=1) + whole.gathers
    return need


def _needs(space: Space, rows: Rows) -> Array:
    """Bytes of the heaviest stage under the cut that makes it lightest, [R]."""
    setting, needs = space.setting, np.zeros(len(rows))
    alike = np.stack([rows.vpp, chunk_periods(setting, rows)], axis=1)
    for one in np.unique(alike, axis=0):
        part = np.flatnonzero((alike == one).all(axis=1))
        table = StageTable.of(setting, rows[part], best_comm(setting, rows[part]))
        needs[part] = Cuts.of(table.costs, Units.of_rows(setting, rows[part])).least_bytes()
    return needs


def places(space: Space, row: Rows) -> bool:
    """Whether the degrees of a row fit the network together, as the launcher can number the ranks."""
    degrees = sorted((int(getattr(row, d)[0]) for d in DIMENSIONS), reverse=True)
    sizes = tuple(level.size for level in space.setting.cluster.levels)
    if not placeable(tuple(d for d in degrees if d > 1), sizes):
        return False
    return not space.launcher.bounds_placement or next(_placements(space, row), None) is not None


def _placements(space: Space, row: Rows) -> Iterator[Placement]:
    """Placements of a row that the launcher can number."""
    degrees = {d: int(getattr(row, d)[0]) for d in DIMENSIONS}
    for placement in enumerate_placements(degrees, space.setting.cluster.levels):
        if not space.launcher.bounds_placement or space.launcher.orders(factors_of(placement)).all():
            yield placement


def _cut(space: Space, row: Rows, need: float) -> Found:
    """A cut of the row whose heaviest stage needs `need` bytes, on its usual placement, or as few more as there is a cut
    with, where layers of several kinds need more than their bound."""
    setting = space.setting
    table = StageTable.of(setting, row, best_comm(setting, row))
    cuts = Cuts.of(table.costs, Units.of_rows(setting, row))
    offers = tuple(_only_offer(table, k) for k in range(len(setting.model.kinds)))
    entries, more = entries_of(table, cuts, offers, np.inf, np.inf, int(need * (1 + 1e-6))), 1e-3
    while not len(entries):
        need, more = need * (1 + more), more * 1.5
        entries = entries_of(table, cuts, offers, np.inf, np.inf, int(need))
    size = setting.model.layers // len(cuts.units)
    placement = next(_placements(space, row))
    lengths = _farthest(entries.stage, entries.start, entries.length, int(row.pp[0]), len(cuts.units))
    codes = row.policies[0].tolist()
    mixes: tuple[tuple[Mix, ...], ...] = (tuple(((code, 1),) for code in codes),)
    return Found(row, placement, tuple(n * size for n in lengths), mixes, 0.0, 0.0, 0.0)


def _only_offer(table: StageTable, kind: int) -> Offer:
    """The policy of a row that has chosen one."""
    memory = table.memory
    columns = (table.rows.policies, table.layer_s, memory.saved, memory.host_saved, memory.working)
    return Offer(*(x[:, kind] for x in columns))


def _farthest(stage: Array, start: Array, length: Array, pp: int, units: int) -> list[int]:
    """Farthest-reaching stages that leave one unit for each later one."""
    out: list[int] = []
    at = 0
    for s in range(pp):
        here = (stage == s) & ((start == at) | (start < 0))
        reach = int(length[here].max())
        if (start < 0).all():  # told by their lengths alone
            reach = min(reach, units - at - (pp - 1 - s))
        out.append(reach)
        at += reach
    return out
