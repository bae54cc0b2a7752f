"""The memory of devices and hosts together, by stage: room for all that layers save, wherever they save it."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.hostlink import room_when_alike
from meshwright.costmodel.hosts import host_shares
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageCosts, StageTable
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
    sizes = tuple(level.size for level in setting.cluster.levels)
    for i in np.flatnonzero(keeps & ~alone & ~rows.splits[at]).tolist():
        row = at[i]
        shares = host_shares(
            placed.factors[row], placed.strides[row], sizes, setting.cluster.devices_per_host or 1
        )
        rooms[i, int(rows.pp[row]) :] = 0.0  # no stages
        for stage, count in (pair for host in shares for pair in host):
            rooms[i, stage] = min(rooms[i, stage], memory / count)
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
