"""Search bounds: seconds, on the scale of the goal, that no plan of a candidate can beat, each cheaper one first.

For `step = (m - 1/v) max_s t_s + (1/v) sum_s t_s + max_s G_s` every bound keeps the exact sum of stage times and
differs in how it bounds the slowest stage T:

    frame  T >= max(sum / pp, ceil(units / pp) * shortest unit): compute and tp communication only, no memory
    row    the same with every collective at its fastest split of the network and G of a mean stage
    cut    T >= T*, the least T that memory allows (`optimizer.cuts`)

Nothing assumes even stages.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.comm import COMPACT, BestComm
from meshwright.costmodel.hostlink import pool_bytes
from meshwright.costmodel.layout import CP_KINDS
from meshwright.costmodel.legal import pattern_period
from meshwright.costmodel.memory import memory_costs
from meshwright.costmodel.pipeline import step_s, weights
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.schedules import ONE_F_ONE_B
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import Shapes, distinct
from meshwright.costmodel.stages import StageCosts, StageTable, hidden_of

Array = NDArray[Any]

# Sums of floats in another order differ by less than this; bounds give it away so that they stay below.
SAFE = 1.0 - 1e-9


def best_comm(setting: Setting, rows: Rows) -> BestComm:
    """Every communicator at its fastest split."""
    # One cache per network, kept on the setting: rates of a degree do not depend on the rows that ask.
    cache = setting.__dict__.setdefault("_best_rates", {})
    degrees = {
        "tp": rows.tp, "cp": rows.cp, "pp": rows.pp, "dp_replicate": rows.dp_replicate,
        "shard": rows.shard, "ep": rows.ep, "edp": rows.edp,
    }  # fmt: skip
    experts = (rows.ep, rows.etp) if any(k.ffn.experts for k in setting.model.kinds) else None
    if setting.streams == "shared":
        return BestComm(setting.network, degrees, experts, cache, COMPACT)
    return BestComm(setting.network, degrees, experts, cache)


def frame_bounds(setting: Setting, frame: Rows) -> Array:
    """Least step seconds of each frame over everything that is still open, times nominal over real batch."""
    layer, ends = _frame_seconds(setting, frame)
    counts = np.array(setting.model.layers_by_kind, float)
    total = layer @ counts + ends
    slowest = np.maximum(total / frame.pp, _least_units(setting, frame) * layer.min(axis=1))
    hidden = np.minimum(_most_hidden(setting, frame), weights(frame)[1] * total)
    return SAFE * per_batch(setting, frame, step_s(frame, slowest, total, np.zeros(len(frame)), hidden))


def _most_hidden(setting: Setting, frame: Rows) -> Array:
    """What the schedule of each frame hides at most, [R]: all experts on one device, whose products are slowest."""
    out, at = np.zeros(len(frame)), np.flatnonzero(frame.splits)
    if not len(at):
        return out
    rows = frame[at]
    one = np.ones_like(rows.tp)
    for etp in (one, rows.tp) if any(k.ffn.experts for k in setting.model.kinds) else (one,):
        hidden = hidden_of(Shapes.of(setting, rows.with_columns(ep=one, etp=etp)))
        out[at] = np.maximum(out[at], hidden * (2.0 - SAFE))
    return out


def per_batch(setting: Setting, rows: Rows, seconds: Array) -> Array:
    """Seconds on the scale of the goal: for the batch that was asked for, and what they count there."""
    return seconds * setting.goal.weight(setting.training.sequences, rows.sequences, rows.devices)


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
        schedule=ONE_F_ONE_B * one,  # a layer that splits its backward pass hides less communication
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
    return SAFE * per_batch(setting, rows, step_s(rows, slowest, total, once, table.hidden_s))


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
    away = rows.offload > 0
    if setting.cluster.host_memory_bytes is None or not away.any():
        return np.ones(len(rows), bool)
    memory = memory_costs(setting, Shapes.of(setting, rows))
    layers = np.array(setting.model.layers_by_kind, float)
    # Every layer's saved activations are in flight at least once.
    chain = (memory.host_state + memory.host_saved) @ layers + memory.host_first + memory.host_last
    held: NDArray[np.bool_] = ~away | (SAFE * chain * rows.stage_devices <= pool_bytes(setting))
    return held
