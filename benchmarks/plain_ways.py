"""Plain ways that `why_cpsat.py` holds against CP-SAT: rows, a DP over stages and units, a DP over layers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.costmodel.comm import PlacedComm
from meshwright.costmodel.estimate import stage_counts, step_seconds
from meshwright.costmodel.layout import Layout, with_stages
from meshwright.costmodel.legal import chunk_unit
from meshwright.costmodel.pipeline import weights
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.costmodel.tensors import CODES, away
from meshwright.optimizer.cuts import Cuts
from meshwright.optimizer.entries import Entries
from meshwright.optimizer.settled import Placed


def rows_s(setting: Setting, plan: Placed, hold: Callable[[Any], bool]) -> float:
    """Step seconds of the best named policy with stages as even as they go; inf where none fits. Not for the batch."""
    row, kinds = plan.rows, plan.rows.policies.shape[1]
    codes = [*CODES.values(), *(map(away, CODES.values()) if row.offloads("activations")[0] else ())]
    same = np.zeros(len(codes), np.int64)
    rows = row[same].with_columns(policies=np.repeat(np.array(codes)[:, None], kinds, axis=1))
    table = StageTable.of(setting, rows, PlacedComm(setting.network, plan[same].groups))
    pp, vpp = int(row.pp[0]), int(row.vpp[0])
    plain = Layout(pp=pp, vpp=vpp, schedule="interleaved" if vpp > 1 else "1f1b")
    one, stages = stage_counts(setting, [with_stages(plain, setting.model.layers, chunk_unit(setting, vpp))])
    counts = np.broadcast_to(one, (len(codes), *one.shape[1:]))
    fits = table.stage_bytes(stages, counts).max(axis=1) <= setting.capacity_bytes
    fits &= [hold(kept) for kept in table.host_bytes(stages, counts)]
    return float(np.where(fits, step_seconds(table, stages, counts), np.inf).min())


def dp(cuts: Cuts, entries: Entries) -> tuple[float, list[int]]:
    """(step seconds of the micro-batches of one step, share of each stage): the least over caps on T and on G."""
    rounds, share = (float(x[0]) for x in weights(cuts.rows))
    pp, units = int(cuts.rows.pp[0]), len(cuts.units)
    best: tuple[float, list[int]] = np.inf, []
    for most_once in np.unique(entries.once):
        allowed = entries.once <= most_once
        least, _ = _least_sum(entries, allowed, pp, units)
        for slowest in np.unique(entries.seconds[allowed]):
            if rounds * slowest + share * least + most_once >= best[0]:
                break
            total, chosen = _least_sum(entries, allowed & (entries.seconds <= slowest), pp, units)
            if (value := rounds * slowest + share * total + most_once) < best[0]:
                best = float(value), chosen
    return best[0] - float(cuts.costs.hidden_s[0]), best[1]


def _least_sum(entries: Entries, allowed: Any, pp: int, units: int) -> tuple[float, list[int]]:
    """Least sum of seconds of stages that hold all units in order, and their shares."""
    before, came = np.full(units + 1, np.inf), np.full((pp, units + 1), -1)
    before[0] = 0.0
    for s in range(pp):
        after = np.full(units + 1, np.inf)
        for e in np.flatnonzero(allowed & (entries.stage == s)).tolist():
            n, start = int(entries.length[e]), int(entries.start[e])
            at = np.arange(units + 1 - n) if start < 0 else np.array([start])
            reached = before[at] + entries.seconds[e]
            better = at[reached < after[at + n]]
            after[better + n] = before[better] + entries.seconds[e]
            came[s, better + n] = e
        before = after
    if not np.isfinite(before[units]):
        return np.inf, []
    chosen, at_unit = [], units
    for s in reversed(range(pp)):
        chosen.append(int(came[s, at_unit]))
        at_unit -= int(entries.length[chosen[-1]])
    return float(before[units]), chosen[::-1]


def knapsack(score: Any, size: Any, room: int) -> Any:
    """Variant of each layer with the least score whose sizes fit room, [L]."""
    least, taken = np.zeros(room + 1), np.zeros((len(score), room + 1), np.int64)
    for layer, (scores, sizes) in enumerate(zip(score, size.tolist(), strict=True)):
        after = np.full(room + 1, np.inf)
        for v, n in enumerate(sizes):
            if n <= room:
                with_v = np.concatenate([np.full(n, np.inf), least[: room + 1 - n] + scores[v]])
                better = with_v < after
                after[better], taken[layer][better] = with_v[better], v
        least = after
    left, out = int(np.argmin(least)), []
    for layer in reversed(range(len(score))):
        out.append(int(taken[layer, left]))
        left -= int(size[layer, out[-1]])
    return np.array(out[::-1])
