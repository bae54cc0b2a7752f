"""The program of one candidate: how many layers each stage holds (CP-SAT).

Sets      S stages, U units of layers in order; entry e = (stage s, start a, length n) is one stage's share
Data      t_e, g_e ticks per micro-batch and per step; h_e bytes of host memory; m micro-batches, v chunks
Variables y_e in {0,1}; T, G integers
Minimise  (m v - 1) T + sum_e t_e y_e + v G                    v times the step in ticks, or
          p m T + (p - 1) sum_e t_e y_e + p G                  p times what hides nothing, where weight gradients split
Subject   sum_{e of s} y_e = 1                     each stage one share            `_one_share_each`
          shares follow each other from 0 to U     sums of lengths, or flow        `_cover_units`
          T >= sum_{e of s} t_e y_e, G >= sum_{e of s} g_e y_e                     `_slowest`
          sum of h_e y_e over stages of a host <= host memory                      `_host_pools`
          sum of y_e over shares that keep activations there >= 1, if some must

Entries that pass the device memory, or that no complete cut within the cutoff can use, are never made (reach
windows; `optimizer.entries`). Times are rounded to the nearest tick; `slack_s` is what all roundings together can hide.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from meshwright.costmodel.hosts import HostShare
from meshwright.costmodel.pipeline import weights
from meshwright.optimizer.cuts import Cuts
from meshwright.optimizer.entries import Entries

Array = NDArray[Any]
TICKS = 100_000_000  # ticks in the cutoff of a row: resolution 1e-8, totals far below 2**53


@dataclass(frozen=True)
class CutResult:
    """What the program found for one row.

    Attributes:
        status: OPTIMAL, INFEASIBLE (no cut within the cutoff), FEASIBLE or UNKNOWN (work limit).
        lengths: units of each stage; empty without a solution. chosen: the entry of each stage.
        value_s, bound_s: step seconds of the solution and the solver's bound, before slack.
        slack_s: seconds that rounding can hide.
    """

    status: str
    lengths: tuple[int, ...]
    value_s: float
    bound_s: float
    slack_s: float
    chosen: tuple[int, ...] = ()


def solve_cut(
    cuts: Cuts,
    entries: Entries,
    cutoff_s: float,
    floor_s: float,
    hosts: tuple[HostShare, ...],
    host_bytes: float,
    work_limit: float,
    seed: int = 0,
    hosting: bool = False,
) -> CutResult:
    """Prove the best cut of one row below `cutoff_s` step seconds; `floor_s` is a bound on max_s t_s.

    `hosts` lists the ways in which stages share a host of `host_bytes`; none where nothing is offloaded. `hosting` where some
    stage must keep activations there.
    """
    rows = cuts.rows
    pp, m = int(rows.pp[0]), int(rows.micro_batches[0])
    # A step counts the slowest stage and the sum of stages so often; times `scale` both are whole numbers.
    scale = pp if rows.splits[0] else int(rows.vpp[0])
    rounds, share = (round(scale * float(x[0])) for x in weights(rows))
    hidden = float(cuts.costs.hidden_s[0])
    tick = cutoff_s / TICKS
    slack = (m * scale + pp * share + scale) * tick / (2 * scale)
    nothing = CutResult("INFEASIBLE", (), np.inf, np.inf, slack)
    if len(set(entries.stage.tolist())) < pp:
        return nothing
    program = cp_model.CpModel()
    take = [program.new_bool_var(f"stage{s}[{a}:{n}]") for s, a, n in _labels(entries)]
    seconds = np.rint(entries.seconds / tick).astype(np.int64)
    once = np.rint(entries.once / tick).astype(np.int64)
    of_stage = [np.flatnonzero(entries.stage == s) for s in range(pp)]
    for members in of_stage:
        program.add_exactly_one([take[e] for e in members])
    _cover_units(program, take, entries, of_stage, len(cuts.units))
    least = int(np.floor(floor_s / tick)) if np.isfinite(floor_s) else 0
    if least > seconds.max():
        return nothing
    slowest = program.new_int_var(least, int(seconds.max()), "slowest")
    latest = program.new_int_var(int(once.min()), int(once.max()), "once")
    for variable, values in ((slowest, seconds), (latest, once)):
        for members in of_stage:
            program.add(variable >= _weighted(take, values, members))
    _host_pools(program, take, entries, of_stage, hosts, host_bytes)
    if hosting:
        program.add_bool_or([take[e] for e in np.flatnonzero(entries.hosting)])
    everything = np.arange(len(take))
    goal = rounds * slowest + share * _weighted(take, seconds, everything) + scale * latest
    limit = int(np.ceil(scale * (cutoff_s + hidden + slack) / tick))
    program.add(goal <= limit)
    program.minimize(goal)
    solver = cp_model.CpSolver()
    p = solver.parameters
    p.catch_sigint_signal = False  # Ctrl-C is Python's
    p.num_workers, p.random_seed, p.max_deterministic_time = 1, seed, work_limit
    # Presolve of 9.15 can lose the optimum of programs with exactly-one rows whose goal is bounded from below
    # (google/or-tools issue 5293), and small programs close in the root anyway.
    p.cp_model_presolve = False
    status = solver.status_name(solver.solve(program))
    if status == "MODEL_INVALID":
        raise RuntimeError(f"the stage program is invalid: {program.validate()}")
    if status not in ("OPTIMAL", "FEASIBLE"):
        return CutResult(status, (), np.inf, solver.best_objective_bound * tick / scale - hidden, slack)
    chosen = tuple(int(next(e for e in members if solver.value(take[e]))) for members in of_stage)
    lengths = tuple(int(entries.length[e]) for e in chosen)
    value = round(solver.objective_value) * tick / scale - hidden
    bound = solver.best_objective_bound * tick / scale - hidden
    return CutResult(status, lengths, value, bound, slack, chosen)


def _labels(entries: Entries) -> list[tuple[int, int, int]]:
    return list(zip(entries.stage.tolist(), entries.start.tolist(), entries.length.tolist(), strict=True))


def _weighted(take: list[Any], values: Array, members: Array) -> Any:
    return cp_model.LinearExpr.weighted_sum([take[e] for e in members], values[members].tolist())


def _cover_units(
    program: cp_model.CpModel, take: list[Any], entries: Entries, of_stage: list[Array], units: int
) -> None:
    if (entries.start < 0).all():
        program.add(_weighted(take, entries.length, np.arange(len(take))) == units)
        return
    stop = entries.start + entries.length
    for here, after in pairwise(of_stage):
        for unit in np.unique(stop[here]):
            arriving = [take[e] for e in here if stop[e] == unit]
            leaving = [take[e] for e in after if entries.start[e] == unit]
            program.add(sum(arriving) == sum(leaving))


def _host_pools(
    program: cp_model.CpModel,
    take: list[Any],
    entries: Entries,
    of_stage: list[Array],
    hosts: tuple[HostShare, ...],
    host_bytes: float,
) -> None:
    """Host memory in KiB, bytes rounded up and room down."""
    need = np.ceil(entries.host / 1024).astype(np.int64)
    for shares in hosts:
        kept = sum(count * _weighted(take, need, of_stage[stage]) for stage, count in shares)
        program.add(kept <= int(host_bytes // 1024))
