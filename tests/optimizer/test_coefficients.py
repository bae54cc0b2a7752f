"""The program says of any choice of shares what the cost model says of that layout: seconds, and whether hosts hold it.

Programs are caught on their way to the solver, in real searches of random instances. Random choices of shares are fixed in
them one after the other; what the program then makes of its goal is the estimate of that layout, or there is no solution
because the estimate keeps more on a host than it holds, or passes the cutoff.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from exhaustive_oracle import hosts_of
from instances import SCHEDULED, STATES, Instance, instance
from judge import layout_of, search
from ortools.sat.python import cp_model

from meshwright.costmodel.estimate import estimate
from meshwright.costmodel.tensors import HOST
from meshwright.optimizer import program, settle
from meshwright.optimizer.cuts import Cuts
from meshwright.optimizer.entries import Entries
from meshwright.optimizer.settle import Found, Settler
from meshwright.optimizer.settled import Placed

SEEDS = (*range(0, 24, 2), *range(STATES, STATES + 12), *range(SCHEDULED, SCHEDULED + 6))
MORE = (*range(300), *range(STATES, STATES + 100), *range(SCHEDULED, SCHEDULED + 100))
CHOICES = 6  # of every program
PROGRAMS = 4  # of every instance


@dataclass(frozen=True)
class Caught:
    """A program and what it was made of."""

    plan: Placed
    cuts: Cuts
    entries: Entries
    cutoff_s: float
    model: cp_model.CpModel
    hosting: bool  # some share must keep activations on a host

    def goal_s(self, chosen: list[int]) -> float | None:
        """Step seconds that the program finds for a choice of one share for each stage; None where it has no solution."""
        fixed = self.model.clone()
        for e in chosen:
            fixed.add(fixed.get_bool_var_from_proto_index(e) == 1)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers, solver.parameters.cp_model_presolve = 1, False
        if solver.status_name(solver.solve(fixed)) != "OPTIMAL":
            return None
        row = self.cuts.rows
        scale = int(row.pp[0]) if row.splits[0] else int(row.vpp[0])
        tick = self.cutoff_s / program.TICKS
        return float(solver.objective_value * tick / scale - float(self.cuts.costs.hidden_s[0]))

    def kept_kib(self, chosen: list[int], host_bytes: int) -> list[float]:
        """KiB on each host that the program bounds, for a choice of shares."""
        taken, kept = set(chosen), []
        # To read `linear` of a constraint of another kind would make it one.
        for linear in (one.linear for one in self.model.proto.constraints if one.has_linear()):
            if list(linear.domain)[-1:] == [host_bytes // 1024]:
                terms = zip(linear.vars, linear.coeffs, strict=True)
                kept.append(float(sum(c for v, c in terms if v in taken)))
        return kept


def caught(asked: Instance) -> list[Caught]:
    """Programs of an instance's search, drawn from all of them."""
    found: list[Caught] = []
    plans: list[Placed] = []
    settle_one, solve_one = Settler.settle, program.solve_cut

    def settling(self: Settler, plan: Placed, cutoff_s: float, bound_s: float) -> object:
        plans.append(plan)
        return settle_one(self, plan, cutoff_s, bound_s)

    def solving(cuts: Cuts, entries: Entries, cutoff_s: float, *rest: object) -> object:
        class Solver(cp_model.CpSolver):
            def solve(self, model: cp_model.CpModel, *more: object) -> object:
                found.append(Caught(plans[-1], cuts, entries, cutoff_s, model.clone(), bool(rest[-1])))
                return super().solve(model, *more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(program.cp_model, "CpSolver", Solver)
            return solve_one(cuts, entries, cutoff_s, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Settler, "settle", settling)
        patch.setattr(settle, "solve_cut", solving)
        search(asked)
    return Random(asked.seed).sample(found, min(PROGRAMS, len(found)))


def choices(made: Caught, random: Random) -> Iterator[list[int]]:
    """Random choices of a share for each stage that hold all units in order."""
    pp, units, alike = int(made.cuts.rows.pp[0]), len(made.cuts.units), made.cuts.units.alike
    e = made.entries
    for _ in range(20 * CHOICES):
        chosen, at = [], 0
        for stage in range(pp):
            fits = (e.stage == stage) & ((e.start < 0) | (e.start == at))
            fits &= e.length == units - at if stage == pp - 1 and alike else at + e.length <= units
            if not fits.any():
                break
            chosen.append(random.choice(np.flatnonzero(fits).tolist()))
            at += int(e.length[chosen[-1]])
        if len(chosen) == pp and at == units:
            yield chosen


def check(asked: Instance) -> dict[str, int]:
    """Choices that were priced, and bounds on hosts that were read."""
    setting, random = asked.setting, Random(asked.seed)
    counts = {"priced": 0, "hosts": 0}
    for made in caught(asked):
        size = setting.model.layers // len(made.cuts.units)
        row, cluster = made.plan.rows, setting.cluster
        for chosen, _ in zip(choices(made, random), range(CHOICES), strict=False):
            lengths = tuple(int(made.entries.length[e]) * size for e in chosen)
            mixes = tuple(made.entries.mixes[e] for e in chosen)
            layout = layout_of(setting, Found(row, made.plan.placement, lengths, mixes, 0.0, 0.0, 0.0))
            own = estimate(setting, layout)
            shares = hosts_of(made.plan.placement, cluster.levels, cluster.devices_per_host or 1, layout.pp)
            on_hosts = np.array(shares) @ np.array(own.host_bytes) / 1024
            host_kib = (cluster.host_memory_bytes or 0) / 1024
            for kib in made.kept_kib(chosen, int(1024 * host_kib)) if layout.offload != "none" else ():
                rounding = max(map(sum, shares))
                assert np.abs(on_hosts - kib).min() <= rounding, (str(asked), layout)
                counts["hosts"] += 1
            goal_s = made.goal_s(chosen)
            if made.hosting and not any(code >> HOST for stage in mixes for mix in stage for code, _ in mix):
                assert goal_s is None, (str(asked), layout)
                continue
            slack = made.cutoff_s * (int(row.micro_batches[0]) + layout.pp + 2) / program.TICKS
            if goal_s is not None:
                assert goal_s == pytest.approx(own.step_s, abs=slack), (str(asked), layout)
                counts["priced"] += 1
            elif layout.offload == "none" or (on_hosts <= host_kib).all():
                assert own.step_s >= made.cutoff_s - slack, (str(asked), layout)
    return counts


def test_a_program_prices_a_layout_as_the_cost_model_does() -> None:
    counts = [check(instance(seed)) for seed in SEEDS]
    assert sum(c["priced"] for c in counts) > 100
    assert sum(c["hosts"] for c in counts) > 0


@pytest.mark.full
@pytest.mark.parametrize("seed", MORE)
def test_programs_of_500_instances(seed: int) -> None:
    check(instance(seed))
