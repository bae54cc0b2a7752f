"""Multipliers of the limits, the bound that they give, and what it rules out.

    bound(lam) = sum_g count_g min_v (score_gv + lam . use_gv) - lam . room        for every lam >= 0

The linear program over fractions of choices gives the best lam; the bound is then computed anew from lam, so that it
holds whatever the program's tolerances. `excess_gv`, by which row v passes the least of its group, adds to it: a row
whose excess passes cutoff - bound is on no solution within the cutoff.
"""

from dataclasses import dataclass

import numpy as np
from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]

from meshwright.search.layers.instance import SCORE_TICKS, Group, Instance
from meshwright.search.layers.problem import Bools, Floats


@dataclass(frozen=True)
class Relaxed:
    """What multipliers say of an instance, in ticks.

    Attributes:
        lam: [S] ticks per unit of use. bound: no solution is below it. excess: [V] per group, least is 0.
        error: what float arithmetic may have lost.
    """

    lam: Floats
    bound: float
    excess: tuple[Floats, ...]
    error: float

    @property
    def floor(self) -> int:
        """The bound in whole ticks."""
        return int(np.ceil(self.bound - self.error))

    def kept(self, instance: Instance, cutoff: float) -> Instance:
        """Without rows that no solution within the cutoff takes."""
        room = cutoff - self.bound + self.error
        groups = zip(instance.groups, self.excess, strict=True)
        return instance.with_groups(group.only(excess <= room) for group, excess in groups)


def relax(instance: Instance) -> Relaxed | None:
    """The bound at the best multipliers; None where not even fractions of choices keep the limits."""
    lam = _multipliers(instance)
    if lam is None:
        return None
    found, free = at(instance, lam), at(instance, np.zeros_like(lam))
    return found if found.bound >= free.bound else free  # never below 0, whatever the linear program gave


def at(instance: Instance, lam: Floats) -> Relaxed:
    """The bound and the excesses at given multipliers."""
    costs = [group.score + group.use @ lam for group in instance.groups]
    least = [float(cost.min()) for cost in costs]
    paid = float(lam @ instance.room)
    bound = sum(g.count * low for g, low in zip(instance.groups, least, strict=True)) - paid
    size = abs(paid) + sum(
        g.count * float(np.abs(c).max()) for g, c in zip(instance.groups, costs, strict=True)
    )
    excess = tuple(cost - low for cost, low in zip(costs, least, strict=True))
    return Relaxed(lam, bound, excess, 0.01 + 1e-13 * size)


def _multipliers(instance: Instance) -> Floats | None:
    solver = pywraplp.Solver.CreateSolver("GLOP")
    used = np.array([group.count * np.abs(group.use).max(0) for group in instance.groups]).sum(0)
    most = np.maximum(used, 1)  # by side; the program's numbers then are near 1
    infinity = solver.infinity()
    sides = [solver.Constraint(-infinity, float(r / m)) for r, m in zip(instance.room, most, strict=True)]
    goal = solver.Objective()
    for group in instance.groups:
        total = solver.Constraint(group.count, group.count)
        scaled = group.use / most
        for score, uses in zip(group.score.tolist(), scaled.tolist(), strict=True):
            take = solver.NumVar(0, infinity, "")
            total.SetCoefficient(take, 1)
            goal.SetCoefficient(take, score / SCORE_TICKS)
            for side, use in zip(sides, uses, strict=True):
                side.SetCoefficient(take, use)
    goal.SetMinimization()
    status = solver.Solve()
    if (
        status != pywraplp.Solver.OPTIMAL
    ):  # anything but infeasible is numerical trouble: a bound without limits
        return None if status == pywraplp.Solver.INFEASIBLE else np.zeros(len(sides))
    duals = np.array([side.dual_value() for side in sides], dtype=np.float64)
    return np.asarray(np.maximum(0.0, -duals) * SCORE_TICKS / most)


def undominated(instance: Instance) -> Instance:
    """Without rows that another one of their group matches in every side and in score: some best solution has none."""
    return instance.with_groups(group.only(_best(group)) for group in instance.groups)


def _best(group: Group) -> Bools:
    """Rows at most as large as which, in all columns, there is no other; of equal rows the first."""
    rows = np.column_stack((group.score, group.use))
    below = (rows[:, None] <= rows[None]).all(-1)
    equal = below & below.T
    before = np.tri(len(rows), k=-1, dtype=bool).T  # [i, j]: i stands before j
    return np.asarray(~(below & (~equal | before)).any(0))
