"""From a problem and limits to choices with their proofs: the best, and further ones that differ from all before."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from meshwright.costmodel.doors import check_whole
from meshwright.costmodel.estimate import digits
from meshwright.hardware.errors import InputError, MeshwrightError, check_type
from meshwright.optimizer.plan import ModelDriftError
from meshwright.search.layers.clash import clash
from meshwright.search.layers.instance import Instance, instance_of
from meshwright.search.layers.problem import Ints, Limit, Problem, one_sided
from meshwright.search.layers.settle import Options, Settled, settle


@dataclass(frozen=True)
class Proof:
    """What was proved; scores are lower-is-better.

    Attributes:
        status: OPTIMAL, or FEASIBLE where a gap is left.
        value, bound: score of the choice, and what no choice within the limits beats.
        slack: score that rounding to ticks can hide; part of the bound. relaxed: the bound of multipliers alone.
        layers, choices: choices of one layer; their product over layers is what was searched.
        rows, undominated, kept, labels: see `settle.Funnel`.
    """

    status: str
    value: float
    bound: float
    slack: float
    relaxed: float
    layers: int
    choices: int
    rows: int
    undominated: int
    kept: int
    labels: int

    @property
    def gap(self) -> float:
        """Score by which the choice can at most be beaten."""
        return max(0.0, self.value - self.bound)

    def to_dict(self) -> dict[str, float | int | str]:
        """Plain JSON types."""
        out = {f.name: getattr(self, f.name) for f in fields(self)} | {"gap": self.gap}
        return {name: digits(v) if isinstance(v, float) else v for name, v in out.items()}


@dataclass(frozen=True)
class Choice:
    """A variant of every part of every layer.

    Attributes:
        taken: [L, P] indices of variants. totals: of every cost and sum of costs, by name.
        differs: layers that differ from the nearest earlier choice; None for the first.
    """

    problem: Problem
    taken: Ints
    totals: dict[str, float]
    proof: Proof
    differs: int | None = None

    @property
    def variants(self) -> tuple[tuple[str, ...], ...]:
        """Names by layer and part."""
        parts = self.problem.parts
        return tuple(
            tuple(p.variants[v] for p, v in zip(parts, row, strict=True)) for row in self.taken.tolist()
        )

    @property
    def score(self) -> float:
        """As scores were given: higher is better where they said so."""
        return -self.proof.value if self.problem.higher_is_better else self.proof.value


@dataclass(frozen=True)
class Choices:
    """Best first. `ended` says why there are fewer than were asked for; empty where there are not."""

    found: tuple[Choice, ...]
    ended: str = ""

    @property
    def best(self) -> Choice:
        return self.found[0]

    @property
    def proven(self) -> bool:
        """Whether each is the best of what was left."""
        return all(choice.proof.status == "OPTIMAL" for choice in self.found)


class NoChoice(MeshwrightError):
    """Proven: no choice keeps all limits; the message says which of them clash."""

    exit_code = 3


class Unsettled(MeshwrightError):
    """The work limit came before any choice was found, and before a proof that there is none."""

    exit_code = 4


def solve(
    problem: Problem,
    limits: Sequence[Limit] = (),
    *,
    solutions: int = 1,
    differ: int = 1,
    options: Options | None = None,
    start: Choice | None = None,
    explain: bool = True,
) -> Choices:
    """The best choices under limits.

    Args:
        solutions: choices to find; each differs from every earlier one in at least `differ` layers, and is the best
            that does.
        start: a choice of the same problem to start from, under whatever limits it was found.
        explain: find which limits clash where no choice keeps them; takes some more solves.

    Errors: InputError; NoChoice where no choice keeps the limits; Unsettled where the work limit came first.
    """
    check_type("problem", problem, Problem, "a Problem, such as of `build_table` or `load_table`")
    check_whole(InputError, 1, solutions=solutions, differ=differ)
    if differ > problem.layers:
        raise InputError(
            f"differ is {differ} and the model has {problem.layers} layers; give at most as many"
        )
    limits, options = one_sided(limits), Options() if options is None else options
    check_type("options", options, Options, "Options, such as Options(work_limit=20)")
    _check_start(problem, start)
    instance = instance_of(problem, limits)
    done = settle(instance, options, None if start is None else start.taken)
    if done.status == "INFEASIBLE":
        raise NoChoice(clash(problem, limits, options) if explain else "no choice keeps all limits")
    if done.taken is None:
        raise Unsettled(
            f"no choice was found within the work limit of {options.work_limit:g}, nor a proof that there is none; "
            "allow more work, or wider limits"
        )
    found = [_choice(problem, limits, instance, done, done.taken)]
    if solutions == 1:
        return Choices(tuple(found))
    return _further(problem, limits, options, found, solutions, differ)


def _check_start(problem: Problem, start: Choice | None) -> None:
    check_type("start", start, (Choice, type(None)), "a Choice that `solve` found, or None")
    if start is not None and [p.variants for p in start.problem.parts] != [p.variants for p in problem.parts]:
        raise InputError("start is a choice among other variants; give one of the same problem, or none")
    if start is not None and start.problem.layers != problem.layers:
        raise InputError(
            f"start has {start.problem.layers} layers and the problem {problem.layers}; give a choice of the same problem"
        )


def _further(
    problem: Problem,
    limits: tuple[Limit, ...],
    options: Options,
    found: list[Choice],
    solutions: int,
    differ: int,
) -> Choices:
    joined = problem.joined()
    whole = instance_of(joined, limits, alike=False)
    sizes = [len(part.variants) for part in problem.parts]
    while len(found) < solutions:
        earlier = [np.ravel_multi_index(tuple(c.taken.T), sizes)[:, None] for c in found]
        instance = whole.differing(earlier, differ)
        done = settle(instance, options)
        if done.taken is None:
            no = "there is none" if done.status == "INFEASIBLE" else "none was found within the work limit"
            ended = (
                f"{len(found)} of {solutions} choices: of a further one that differs in {differ} layers {no}"
            )
            return Choices(tuple(found), ended)
        taken = problem.split(done.taken[:, 0])
        apart = min(int((taken != c.taken).any(1).sum()) for c in found)
        if apart < differ:
            raise ModelDriftError(
                f"a choice differs in {apart} layers from an earlier one, {differ} were asked for"
            )
        found.append(_choice(problem, limits, instance, done, taken, apart))
    return Choices(tuple(found))


def _choice(
    problem: Problem,
    limits: tuple[Limit, ...],
    instance: Instance,
    done: Settled,
    taken: Ints,
    differs: int | None = None,
) -> Choice:
    """Sum the tables again, without ticks, and hold the limits and the solver's score against it."""
    value = problem.score_of(taken)
    totals = {name: problem.total_of(taken, name) for name in problem.totals}
    ticked = instance.offset + instance.tick * done.score
    wide = 1e-9 * max(1.0, abs(value), abs(ticked))
    if abs(value - ticked) > instance.slack + wide:
        raise ModelDriftError(
            f"the solver's score {ticked:.10g} and the table's {value:.10g} differ by more than rounding"
        )
    for limit in limits:
        if not limit.keeps(totals[limit.total], rel=1e-9):
            raise ModelDriftError(f"{limit} is broken: the table sums to {totals[limit.total]:.10g}")
    bound = min(value, instance.offset + instance.tick * done.bound - instance.slack)
    relaxed = instance.offset + instance.tick * done.relaxed - instance.slack
    funnel = done.funnel
    proof = Proof(
        done.status, value, bound, instance.slack, relaxed, problem.layers, problem.choices,
        funnel.rows, funnel.undominated, funnel.kept, funnel.labels,
    )  # fmt: skip
    return Choice(problem, taken, totals, proof, differs)
