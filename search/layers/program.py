"""The program: how many layers of each group take each variant (CP-SAT).

Sets      G groups of layers that are alike (one layer each where scores differ), V_g variants of group g, S sides
Data      count_g; c_gv ticks of score; u_gvs use and r_s room of side s (an upper limit, or a lower one with signs)
Variables n_gv in 0..count_g, a literal where count_g = 1
Minimise  sum c_gv n_gv                                    score in ticks
Subject   sum_v n_gv = count_g                             each layer one variant     `_one_each`
          sum u_gvs n_gv <= r_s                            every limit                `_within`
          floor <= score <= cutoff                         what is proved, and what is known

Where scores are given per part a group is one part of a layer, so that A + F literals stand for A x F choices.
`floor` comes from multipliers and labels (search.layers.relax, labels), as does the hint; rows that no solution
within the cutoff takes are gone before. All rounding is done in search.layers.instance.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from meshwright.search.layers.instance import Instance
from meshwright.search.layers.problem import Ints


@dataclass(frozen=True)
class Solved:
    """What the program found, in ticks.

    Attributes:
        status: OPTIMAL, FEASIBLE, INFEASIBLE (nothing between floor and cutoff) or UNKNOWN (work limit).
        taken: variants [L, P]; None without a solution.
        score, bound: of the solution, and what none beats.
    """

    status: str
    taken: Ints | None
    score: int
    bound: int


def solve_program(
    instance: Instance, floor: int, cutoff: int | None, hint: Ints | None, work_limit: float, seed: int
) -> Solved:
    """Prove the best solution between floor and cutoff; `hint` is a solution [L, P]."""
    program = cp_model.CpModel()
    take = [_variables(program, g, len(group.score), group.count) for g, group in enumerate(instance.groups)]
    for group, of_group in zip(instance.groups, take, strict=True):
        _one_each(program, of_group, group.count)
    every = [variable for of_group in take for variable in of_group]
    use = np.concatenate([group.use for group in instance.groups])
    for side, room in enumerate(instance.room.tolist()):
        _within(program, every, use[:, side], room)
    score = np.concatenate([group.score for group in instance.groups])
    goal = cp_model.LinearExpr.weighted_sum(every, score.tolist())
    most = sum(group.count * int(group.score.max()) for group in instance.groups)
    program.add_linear_constraint(goal, min(floor, most), most if cutoff is None else cutoff)
    program.minimize(goal)
    if hint is not None and (counts := instance.counts(hint)) is not None:
        for variable, value in zip(every, np.concatenate(counts).tolist(), strict=True):
            program.add_hint(variable, value)
    solver = cp_model.CpSolver()
    p = solver.parameters
    p.catch_sigint_signal = False  # Ctrl-C is Python's
    p.num_workers, p.random_seed, p.max_deterministic_time = 1, seed, work_limit
    p.linearization_level = 2
    # Presolve of 9.15 loses the optimum of such programs when the goal is bounded from below
    # (google/or-tools 5293; seed 119 of the tests); without it they close sooner too.
    p.cp_model_presolve = False
    status = solver.status_name(solver.solve(program))
    if status == "MODEL_INVALID":
        raise RuntimeError(f"the program of the layers is invalid: {program.validate()}")
    if status not in ("OPTIMAL", "FEASIBLE"):
        return Solved(status, None, 0, floor)
    taken = instance.taken([np.array([solver.value(n) for n in of_group]) for of_group in take])
    bound = max(floor, int(np.ceil(solver.best_objective_bound - 1e-6)))
    return Solved(status, taken, round(solver.objective_value), bound)


def _variables(program: cp_model.CpModel, group: int, rows: int, count: int) -> list[Any]:
    if count == 1:
        return [program.new_bool_var(f"group{group}[{v}]") for v in range(rows)]
    return [program.new_int_var(0, count, f"group{group}[{v}]") for v in range(rows)]


def _one_each(program: cp_model.CpModel, take: list[Any], count: int) -> None:
    if count == 1:
        program.add_exactly_one(take)
    else:
        program.add(sum(take) == count)


def _within(program: cp_model.CpModel, take: list[Any], use: Ints, room: int) -> None:
    program.add(cp_model.LinearExpr.weighted_sum(take, use.tolist()) <= room)
