"""The memory of devices and hosts together, by stage: room for all that layers save, wherever they save it."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.hostlink import room_when_alike
from meshwright.costmodel.hosts import host_shares, stage_rooms
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageCosts, StageTable
from meshwright.optimizer.bounds import SAFE, per_batch
from meshwright.optimizer.cuts import Cuts
from meshwright.optimizer.settled import Placed

Array = NDArray[Any]


def host_rooms(setting: Setting, rows: Rows, at: Array, placed: Placed | None) -> Array:
    """Bytes of host memory of one device of each stage, at most, [A, S] for the rows at `at`; inf where that is not told.

    With a single stage every device has an equal share. Of more stages it takes where they sit (`placed`, with the order on
    every level decided): a stage has no more than a host by as many of its devices as share it. Told of rows that keep
    activations there and hold most of them when most micro-batches are in flight, on the device as on the host.
    """
    width = int(rows.pp.max(initial=1))
    rooms = np.full((len(at), width), np.inf)
    memory = setting.cluster.host_memory_bytes
    if memory is None:
        return rooms
    keeps = rows.offloads("activations")[at]
    alone = keeps & (rows.pp[at] == 1)
    rooms[alone] = room_when_alike(setting, rows[at[alone]])[:, None]
    if placed is None:
        return rooms
    for i in np.flatnonzero(keeps & ~alone & ~rows.splits[at]).tolist():
        row, stages = at[i], int(rows.pp[at[i]])
        shares = host_shares(setting.cluster, placed.factors[row], placed.strides[row])
        rooms[i, :stages] = stage_rooms(shares, memory, stages)
        rooms[i, stages:] = 0.0  # no stages
    return rooms


def with_host_state(table: StageTable) -> StageCosts:
    """Costs with the state that hosts hold beside that of the devices."""
    costs, memory = table.costs, table.memory
    return replace(
        costs,
        state=costs.state + memory.host_state,
        first_bytes=costs.first_bytes + memory.host_first,
        last_bytes=costs.last_bytes + memory.host_last,
    )


def shares_pool(setting: Setting, rows: Rows) -> NDArray[np.bool_]:
    """Rows of several stages that keep activations on hosts of known memory, to which `pooled_bounds` applies, [R]."""
    if setting.cluster.host_memory_bytes is None:
        return np.zeros(len(rows), bool)
    shares: NDArray[np.bool_] = rows.offloads("activations") & (rows.pp > 1) & ~rows.splits
    return shares


def pooled_bounds(setting: Setting, cuts: Cuts) -> Array:
    """Least step seconds, [R], where one device of every stage has all memory of their devices and their part of all hosts
    together, wherever stages sit and however they share hosts.

    At a price mu per byte saved for a micro-batch, layers take at least `least_mu` less the price of what is left for them.
    A stage with f micro-batches in flight pays f / f_min of it, so the price of a byte is the same on all stages:

        sum of stage seconds >= sum of least_mu - mu / f_min (room of all stages - their state)

    and where f_min times the fewest bytes that all layers save do not fit that room, nothing does: inf.
    """
    rows, costs, lines, whole = cuts.rows, cuts.costs, cuts.lines, cuts.units.prefix[-1]
    active = cuts.held > 0
    fewest = np.where(active, cuts.held, np.inf).min(axis=1)
    room = rows.pp * (setting.capacity_bytes + room_when_alike(setting, rows)) * (2.0 - SAFE)
    over = costs.state @ whole + np.where(active, cuts.ends_bytes, 0.0).sum(axis=1) - room
    least = np.einsum("rkg,k->rg", lines.least, whole) + lines.price * (over / fewest)[:, None]
    total = least.max(axis=1) + costs.first_s + costs.last_s + rows.pp * costs.hop_s
    plain, share, beside = cuts.weighted
    bounds = SAFE * per_batch(setting, rows, plain * total / rows.pp + share * total + beside)
    return np.where(over + fewest * (lines.saved @ whole) > 0, np.inf, bounds)
