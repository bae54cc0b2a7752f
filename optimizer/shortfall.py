"""The closest miss when nothing fits: the layout that passes the device memory by the fewest bytes."""

import numpy as np

from meshwright.costmodel.comm import PlacedComm
from meshwright.costmodel.layout import DIMENSIONS
from meshwright.costmodel.placement import enumerate_placements, groups_of
from meshwright.costmodel.stages import StageTable
from meshwright.optimizer.bounds import Cuts, Units, best_comm
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.program import entries_of
from meshwright.optimizer.solve import Found, by_vpp
from meshwright.optimizer.space import Space, concatenate, expand, frames, with_choices

_CHUNK = 4096


def closest_miss(space: Space) -> tuple[Found | None, float]:
    """The plan that needs the least memory, and the bytes it is short.

    Memory does not depend on where degrees sit, so any placement serves; rows that cannot be placed are passed
    over.
    """
    setting, funnel = space.setting, Funnel()
    frame = frames(space, funnel)
    best: list[tuple[float, int]] = []
    parts = []
    for at in range(0, len(frame), 256):
        rows = expand(space, frame[at : at + 256], funnel)
        for start in range(0, len(rows), _CHUNK):
            for choices in by_vpp(with_choices(space, rows[start : start + _CHUNK])):
                if not len(choices):
                    continue
                cuts = Cuts.of(
                    StageTable.of(setting, choices, best_comm(setting, choices)), Units.of(setting, int(choices.vpp[0]))
                )
                need = cuts.least_bytes()
                least = int(np.argmin(need))
                best.append((float(need[least]), len(parts)))
                parts.append(choices[least : least + 1])
    if not parts:
        return None, 0.0
    rows = concatenate(parts)
    for need, index in sorted(best):
        row = rows[index : index + 1]
        degrees = {d: int(getattr(row, d)[0]) for d in DIMENSIONS}
        placement = next(enumerate_placements(degrees, setting.cluster.levels), None)
        if placement is None:
            continue
        table = StageTable.of(setting, row, PlacedComm(setting.network, groups_of([placement], row.ep, row.etp)))
        cuts = Cuts.of(table, Units.of(setting, int(row.vpp[0])))
        entries = entries_of(cuts, float("inf"), int(need) + 2)
        lengths = _any_cut(entries.stage, entries.length, int(row.pp[0]), len(cuts.units))
        size = setting.model.layers // len(cuts.units)
        found = Found(row, placement, tuple(n * size for n in lengths), 0.0, 0.0, 0.0)
        return found, need - setting.capacity_bytes
    return None, 0.0


def _any_cut(stage: np.ndarray, length: np.ndarray, pp: int, units: int) -> list[int]:
    """Farthest-reaching stages, kept short enough for the rest."""
    out: list[int] = []
    left = units
    for s in range(pp):
        most = int(length[stage == s].max(initial=1))
        out.append(min(most, left - (pp - 1 - s)))
        left -= out[-1]
    out[-1] += left
    return out
