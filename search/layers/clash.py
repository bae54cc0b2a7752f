"""Why no choice keeps the limits: some that cannot hold together, none of which can be spared, and what can be reached."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.search.layers.instance import instance_of
from meshwright.search.layers.limits import told
from meshwright.search.layers.problem import Limit, Problem
from meshwright.search.layers.settle import Options, Settled, settle

# For what could be reached: told to four digits, a proof to the last is not needed.
_LABELS, _WORK = 1000, 1.0


def clash(problem: Problem, limits: Sequence[Limit], options: Options) -> str:
    """One sentence: the limits that clash, and for each what is best within the others of them."""
    together = _smallest(problem, limits, options)
    reached = [
        _reached(problem, limit, [o for o in together if o is not limit], options) for limit in together
    ]
    which = " and ".join(map(str, together))
    if len(together) == 1:
        return f"no choice keeps {which}: {reached[0]} whatever the variants; allow it, or add variants"
    within = [f"without {limit}, {text}" for limit, text in zip(together, reached, strict=True)]
    return f"no choice keeps {which} together: {'; '.join(within)}; widen one of them, or add variants"


def _smallest(problem: Problem, limits: Sequence[Limit], options: Options) -> list[Limit]:
    """Limits that still clash and of which each is needed; one whose dropping is undecided stays.

    Without scores no label is better than another, so the program is asked alone.
    """
    kept, options = list(limits), replace(options, labels=0)
    for limit in limits:
        without = [other for other in kept if other is not limit]
        if _best(_scored(problem, None), without, options).status == "INFEASIBLE":
            kept = without
    return kept


def _reached(problem: Problem, limit: Limit, others: Sequence[Limit], options: Options) -> str:
    """The best of what a limit limits, under others, to the digits that are told."""
    sign, word = (1.0, "least") if np.isfinite(limit.most) else (-1.0, "most")
    aimed = _scored(problem, limit.total, sign)
    instance = instance_of(aimed, others)
    done = settle(instance, replace(options, labels=min(options.labels, _LABELS), work_limit=_WORK))
    if done.taken is None:
        return f"what {limit.total} could be was not settled"
    value = problem.total_of(done.taken, limit.total)
    bound = sign * (instance.offset + instance.tick * done.bound) + problem.column(limit.total)[1]
    found, beyond = told(limit.total, value), told(limit.total, bound)
    unsure = "" if found == beyond else f"; none beyond {beyond}"
    return f"the {word} {limit.total} {'found' if unsure else 'reachable'} is {found}{unsure}"


def _best(problem: Problem, limits: Sequence[Limit], options: Options) -> Settled:
    return settle(instance_of(problem, limits), options)


def _scored(problem: Problem, total: str | None, sign: float = 1.0) -> Problem:
    """The problem with a total for its score, or with none."""
    columns = [np.zeros_like(p.score) for p in problem.parts] if total is None else problem.column(total)[0]
    parts = (replace(p, score=sign * c) for p, c in zip(problem.parts, columns, strict=True))
    return replace(problem, parts=tuple(parts))
