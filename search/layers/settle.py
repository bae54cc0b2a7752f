"""Settle an instance: dominance, multipliers, labels, then the program on what is left.

Each step keeps what the one before proved: multipliers give a floor, labels raise it and find solutions, the program
closes what is still between them. Effort is counted in labels and solver work, never in seconds.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.costmodel.doors import check_whole
from meshwright.hardware.errors import InputError, shown
from meshwright.search.layers.instance import Instance
from meshwright.search.layers.near import Near
from meshwright.search.layers.problem import Ints
from meshwright.search.layers.program import solve_program
from meshwright.search.layers.relax import relax, undominated


@dataclass(frozen=True)
class Options:
    """Effort: the same options give the same answer on any machine.

    Attributes:
        work_limit: deterministic CP-SAT work for one program.
        labels: held at once at most; 0 leaves all to CP-SAT.
    """

    work_limit: float = 10.0
    seed: int = 0
    labels: int = 100_000

    def __post_init__(self) -> None:
        check_whole(InputError, 0, seed=self.seed, labels=self.labels)
        limit = self.work_limit
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < float("inf"):
            raise InputError(f"work_limit is {shown(limit)}; give a number above zero")


@dataclass(frozen=True)
class Funnel:
    """How an instance was settled.

    Attributes:
        rows: choices, one per group and variant; undominated: those that none matches; kept: those that the bound
            leaves for the program. labels: held at once.
    """

    rows: int
    undominated: int
    kept: int
    labels: int


@dataclass(frozen=True)
class Settled:
    """What is known of an instance, in ticks.

    Attributes:
        status: OPTIMAL, FEASIBLE, INFEASIBLE or UNKNOWN.
        taken: variants [L, P]; None without a solution.
        score, bound: of the solution, and what none beats. relaxed: the bound of the multipliers alone.
    """

    status: str
    taken: Ints | None
    score: float
    bound: float
    relaxed: float
    funnel: Funnel


def settle(instance: Instance, options: Options, known: Ints | None = None) -> Settled:
    """Prove the best solution; `known` is one to start from, [L, P], if it keeps the limits."""
    score = np.inf
    if known is not None:
        ticks, fits = instance.weigh(known)
        known, score = (known, ticks) if fits else (None, np.inf)
    left = undominated(instance)
    rows = instance.rows, left.rows
    relaxed = relax(left)
    if relaxed is None:  # a float's word: the program has the last
        return _by_program(left, options, None, known, score, 0.0, Funnel(*rows, left.rows, 0))
    near = Near(left, relaxed, score)
    if options.labels:
        near.run(options.labels)
    taken = known if near.taken is None else near.taken
    left = left if near.score == np.inf else relaxed.kept(left, near.score)
    funnel = Funnel(*rows, left.rows, near.held)
    floor = near.floor if np.isfinite(near.floor) else None
    if near.closed and taken is None:
        return Settled("INFEASIBLE", None, np.inf, np.inf, relaxed.bound, funnel)
    return _by_program(left, options, floor, taken, near.score, relaxed.bound, funnel)


def _by_program(
    left: Instance,
    options: Options,
    floor: float | None,
    taken: Ints | None,
    score: float,
    relaxed: float,
    funnel: Funnel,
) -> Settled:
    """The program between floor and the best known score, which stands if the program finds no better."""
    cutoff = None if taken is None else int(score)
    least = 0 if floor is None else int(floor)
    done = solve_program(left, least, cutoff, taken, options.work_limit, options.seed)
    if done.taken is not None:
        return Settled(done.status, done.taken, done.score, done.bound, relaxed, funnel)
    if taken is not None:
        # No better one is left: what is known is best, or the work limit came first.
        proved = done.status == "INFEASIBLE" or least >= score
        return Settled(
            "OPTIMAL" if proved else "FEASIBLE", taken, score, score if proved else least, relaxed, funnel
        )
    bound = np.inf if done.status == "INFEASIBLE" else float(least)
    return Settled(done.status, None, np.inf, bound, relaxed, funnel)
