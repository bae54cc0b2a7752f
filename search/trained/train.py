"""train(): grid, law, cluster and deadline in; the best model that can be trained, with its layout and a proof, out."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.costmodel.doors import ClusterSource, check_positive
from meshwright.costmodel.limits.run_time import DAY_S
from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.setting import Overlap, Setting, Streams
from meshwright.costmodel.workload import Training
from meshwright.hardware.errors import InputError, WorkloadError, check_type, shown
from meshwright.hardware.units import human_count, human_seconds
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.plan import Infeasible, Plan, Undecided
from meshwright.optimizer.question import resolve
from meshwright.optimizer.recommend import recommend_in
from meshwright.optimizer.solve import SolveOptions
from meshwright.search.architecture import Counts, counts_of, model_of
from meshwright.search.grid import Grid
from meshwright.search.law import Law, Priced
from meshwright.search.shape import Shapes
from meshwright.search.trained.find import Chosen, Outcome, find, quickest, too_large
from meshwright.search.trained.floors import replace_training, step_floor_s
from meshwright.search.trained.known import NO_LIMIT, Outside, in_words, known_shapes, outside
from meshwright.search.trained.layouts import Layouts
from meshwright.search.trained.pairs import Pairs
from meshwright.search.trained.tokens import Fixed, Free, Losses, Tokens


@dataclass(frozen=True)
class Proof:
    """What was proved: no shape of the grid under any layout of its space has a loss below the answer's.

    Attributes:
        listed, removed: shapes of the grid, and those that each rule of it removed.
        kept_out: shapes by the reason for which they are not the answer (see `trained.find`).
        searched: shapes whose layouts were searched.
        pairs: shapes x legal layouts: rows of every shape's layout space (`trained.pairs`).
        plans_priced: plans that the cost model priced in full, stages and all, over all searches of the proof.
        rows_bounded: rows from whose costs the searches computed a bound, without a full price.
    """

    listed: int
    removed: Mapping[str, int]
    kept_out: Mapping[str, int]
    searched: int
    pairs: int
    plans_priced: int
    rows_bounded: int

    @property
    def share_priced(self) -> float:
        """Of the pairs."""
        return self.plans_priced / self.pairs


@dataclass(frozen=True)
class Trained:
    """The answer.

    Attributes:
        given: the question, with a model of the grid in place of the answer's.
        outcome: what the search over shapes found; its first is the answer.
        outside: a shape that the range of parameters alone leaves out and that may have less loss.
        priced: losses of the ranked shapes at their tokens, and where they leave the law's box.
        plan: of the answer; its certificate is that of the layout.
    """

    law: Law
    grid: Grid
    given: Setting
    deadline_s: float
    tokens: Tokens
    shapes: Shapes
    counts: Counts
    outcome: Outcome
    outside: Outside | None
    priced: Priced
    plan: Plan
    proof: Proof

    @property
    def best(self) -> Chosen:
        return self.outcome.ranked[0]

    @property
    def model(self) -> ModelSpec:
        """The best shape as a model, ready to be written."""
        return model_of(self.shapes, self.best.row, self.grid.ends)

    def trained_on(self, chosen: Chosen) -> int:
        """Tokens of a shape's run."""
        return round(float(self.tokens.tokens(float(chosen.steps))))

    def days(self, chosen: Chosen) -> float:
        return chosen.steps * chosen.fastest.step_s / DAY_S


def train(
    law: Law,
    grid: Grid,
    cluster: ClusterSource,
    training: Training,
    deadline_s: float,
    *,
    constraints: str | None = None,
    efficiency: str = "default",
    overlap: Overlap = "calibrated",
    comm_streams: Streams = "shared",
    framework: str = "jax",
    params: tuple[float, float] = NO_LIMIT,
    extrapolate: bool = False,
    runner_ups: int = 0,
    options: SolveOptions | None = None,
) -> Trained:
    """The shape of least loss that the cluster trains in time, with its fastest layout.

    Args:
        training: batch and sequence; `total_tokens` of the run, or None: as many as the deadline allows.
        params: shapes with fewer or more parameters are left out.
        extrapolate: keep dense shapes or mixtures that the law was not fitted on.
        runner_ups: further shapes, each with its layout.
        options: effort of each layout search, and runner-ups of the plan.

    Raises:
        InputError: the question is wrong. LawError: the law reads no tokens where they are free.
        Infeasible: proven that no shape keeps the deadline, or fits. Undecided: a work limit came first.
    """
    check_type("law", law, Law, "what load_law gives")
    check_type("grid", grid, Grid, "what load_grid gives")
    check_type("training", training, Training, "a Training(global_batch_tokens=..., seq_len=...)")
    check_positive(WorkloadError, deadline=deadline_s)
    _check_runner_ups(runner_ups)
    check_type("extrapolate", extrapolate, bool, "True or False")
    check_type("options", options, (SolveOptions, type(None)), "a SolveOptions, or None")
    if training.batch_tolerance:
        raise WorkloadError(
            f"a tolerance of {training.batch_tolerance:.0%} moves the batch, and shapes are compared at one batch; "
            "leave the tolerance out"
        )
    listing, ends = known_shapes(grid, law, params, extrapolate), grid.ends
    shapes, counts = listing.shapes, counts_of(listing.shapes, ends)
    given = resolve(
        model_of(shapes, 0, ends), cluster, training,
        efficiency=efficiency, overlap=overlap, comm_streams=comm_streams, framework=framework,
    )  # fmt: skip
    losses = Losses(law, shapes, ends)
    tokens = tokens_of(losses, training, deadline_s)
    effort = options or SolveOptions()
    alone = SolveOptions(0, effort.work_limit, effort.seed, effort.refinements)
    layouts = Layouts(given, shapes, ends, parse_constraints(constraints), alone)
    outcome = find(layouts, tokens, counts.params, runner_ups)
    if outcome.undecided:
        raise Undecided(_left_open(layouts, outcome, tokens), None)
    if not outcome.ranked:
        raise _refusal(layouts, outcome, tokens, counts, constraints)
    made = Trained(
        law, grid, given, deadline_s, tokens, shapes, counts, outcome,
        outside=_outside(layouts, outside(grid, law, params, extrapolate), tokens, outcome.ranked[0].loss),
        priced=_priced(law, shapes, counts, outcome, tokens),
        plan=_plan(layouts, outcome.ranked[0], tokens, constraints, effort),
        proof=Proof(
            listing.listed, listing.removed, outcome.removed, layouts.searches,
            Pairs(given, shapes, ends, layouts.wishes).total(), layouts.plans_priced, layouts.rows_bounded,
        ),
    )  # fmt: skip
    return made


def _outside(layouts: Layouts, shapes: Shapes, tokens: Tokens, loss: float) -> Outside | None:
    """Of some shapes the one of least loss at its floor, where that is below a loss and state and compute alone fit."""
    if not len(shapes):
        return None
    given, ends = layouts.given, layouts.ends
    params, floor_s = counts_of(shapes, ends).params, step_floor_s(given, shapes, ends)
    run = tokens_of(Losses(tokens.losses.law, shapes, ends), given.training, tokens.deadline_s)
    steps = run.steps(floor_s)
    out = too_large(layouts, params) | (steps == 0)
    hoped = np.where(out, np.inf, run.losses.of(run.tokens(np.maximum(steps, 1))))
    row = int(np.argmin(hoped))
    return Outside(shapes[[row]], float(params[row]), float(hoped[row])) if hoped[row] < loss else None


def tokens_of(losses: Losses, training: Training, deadline_s: float) -> Tokens:
    """Fixed where the run has a length, free where it has none."""
    batch, wanted = training.global_batch_tokens, training.total_tokens
    return Free(losses, batch, deadline_s) if wanted is None else Fixed(losses, batch, deadline_s, wanted)


def _check_runner_ups(count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise InputError(f"runner_ups={shown(count)} is not a whole number of at least 0")


def _priced(law: Law, shapes: Shapes, counts: Counts, outcome: Outcome, tokens: Tokens) -> Priced:
    rows = np.array([c.row for c in outcome.ranked])
    trained = np.array([float(tokens.tokens(float(c.steps))) for c in outcome.ranked])
    some = Counts(counts.params[rows], counts.active_params[rows], counts.end_params[rows])
    return law.loss(law.columns(shapes[rows], some, trained))


def _plan(
    layouts: Layouts, best: Chosen, tokens: Tokens, constraints: str | None, effort: SolveOptions
) -> Plan:
    """The best shape's plan with its runner-ups, and what its run takes."""
    length = round(float(tokens.tokens(float(best.steps))))
    return recommend_in(replace_training(layouts.setting(best.row), length), constraints, effort)


def _left_open(layouts: Layouts, outcome: Outcome, tokens: Tokens) -> str:
    open_ones = outcome.undecided
    found = (
        f"the best found has {outcome.ranked[0].loss:.4f}"
        if outcome.ranked
        else "none was found that keeps the deadline"
    )
    return (
        f"work limits left the layouts of {len(open_ones)} shapes open, which may reach a loss of "
        f"{min(loss for _, loss in open_ones):.4f}; {found}; raise work_limit or refinements of SolveOptions"
    )


def _refusal(
    layouts: Layouts, outcome: Outcome, tokens: Tokens, counts: Counts, constraints: str | None
) -> Exception:
    """Why no shape of the grid will do: the shortest run that there is, or what keeps every shape from running."""
    given = layouts.given
    least = quickest(layouts, outcome.floor_s, counts.params)
    if least is None:
        if layouts.refused is not None:
            return layouts.refused
        smallest = layouts.setting(int(np.argmin(counts.params)))
        recommend_in(smallest, constraints, layouts.options)  # says what fails
        raise AssertionError("a shape has a layout that no search of it found")
    row = least.row
    steps = tokens.count if isinstance(tokens, Fixed) else 1
    what = f"{human_count(tokens.wanted)} tokens" if isinstance(tokens, Fixed) else "a single step"
    reason = (
        f"every shape of the grid takes longer than {human_seconds(tokens.deadline_s)} for {what} on {given.cluster.name}; the "
        f"quickest, {in_words(layouts.shapes, row, counts.params[row])}, takes {human_seconds(steps * least.fastest.step_s)}. Allow more time, fewer tokens, more chips "
        "or smaller shapes."
    )
    return Infeasible(reason, None, least.fastest.layout, dict(outcome.removed))
