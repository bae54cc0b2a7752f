"""The clash behind a proven no: limits and rules that cannot hold together, none of which can be spared.

Deletion filter: leave one out; if nothing fits still, it is not part of the clash. Every test is a search of its own, so
the clash alone is proven infeasible, and with any one member less a plan was found. Limits and the user's constraints
come first; the rules of every layout only where those leave nothing to place, whatever the memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

from meshwright.costmodel.legal import RULES, Rule
from meshwright.hardware.units import human_bytes
from meshwright.optimizer.constraints import Constraint
from meshwright.optimizer.launchers.catalogue import launcher_of
from meshwright.optimizer.reasons.machine import with_host_memory, with_memory
from meshwright.optimizer.reasons.solving import Case, solve
from meshwright.optimizer.solve import SolveOptions

MEMORY, HOST_MEMORY, CONSTRAINT, RULE = "device memory", "host memory", "constraint", "rule"
LAUNCHER = "launcher"
ENDLESS = 10**18  # bytes: more than anything needs, and still whole numbers to the solver

# Rules without which a layout can still be listed and priced; the others are how layouts are made.
_SPARED = (
    "tp divides the heads",
    "tp divides the feed-forward width",
    "ep divides the experts and the stage",
    "cp and tp divide the sequence",
    "all_to_all cuts the heads over cp too",
)
assert {*_SPARED} <= {rule.name for rule in RULES}


@dataclass(frozen=True)
class Limit:
    """Something that can be left out of a question. `drop` gives the question without it."""

    kind: str
    text: str
    drop: Callable[[Case], Case]

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.text!r}" if self.kind in (CONSTRAINT, RULE) else f"{self.kind}: {self.text}"
        )


@dataclass(frozen=True)
class Clash:
    """Limits that cannot hold together.

    Attributes:
        proven: every test was settled: nothing fits under the limits alone, and something does without any one.
    """

    limits: tuple[Limit, ...]
    proven: bool

    @property
    def kinds(self) -> set[str]:
        return {limit.kind for limit in self.limits}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"limits": [{"kind": x.kind, "text": x.text} for x in self.limits], "proven": self.proven}


def limits_of(case: Case) -> tuple[Limit, ...]:
    """What the user or the machine sets: constraints, memory of devices, memory of hosts where it is known, and what
    the launcher can run."""
    found = [Limit(CONSTRAINT, wish.text, partial(_without_wish, wish)) for wish in case.wishes]
    usable = f"{human_bytes(case.setting.capacity_bytes)} usable on a device"
    found.append(Limit(MEMORY, usable, lambda c: replace(c, setting=with_memory(c.setting, ENDLESS))))
    memory = case.setting.cluster.host_memory_bytes
    if memory is not None:
        here = f"{human_bytes(memory)} of a host"
        found.append(
            Limit(HOST_MEMORY, here, lambda c: replace(c, setting=with_host_memory(c.setting, ENDLESS)))
        )
    if launcher_of(case.setting).bounds:
        text = f"what {case.setting.launcher} can run"
        found.append(Limit(LAUNCHER, text, lambda c: replace(c, setting=replace(c.setting, launcher="any"))))
    return tuple(found)


def rules_of(case: Case) -> tuple[Limit, ...]:
    """Rules of every layout that a question can be asked without."""
    return tuple(Limit(RULE, r.name, partial(_without_rule, r)) for r in case.rules if r.name in _SPARED)


def _without_wish(wish: Constraint, case: Case) -> Case:
    return replace(case, wishes=tuple(w for w in case.wishes if w is not wish))


def _without_rule(rule: Rule, case: Case) -> Case:
    return replace(case, rules=tuple(r for r in case.rules if r is not rule))


def clash_of(case: Case, options: SolveOptions) -> Clash:
    """A minimal clash of a case that is proven infeasible."""
    limits = limits_of(case)
    kept, proven = _filtered(case, limits, (), options)
    if {limit.kind for limit in kept} == {CONSTRAINT}:
        # Memory plays no part, so the case without it tells the same, and quickly.
        rest = [limit for limit in limits if limit not in kept]
        rules, settled = _filtered(without(case, rest), rules_of(case), kept, options)
        kept, proven = (*kept, *rules), proven and settled
    return Clash(kept, proven)


def without(case: Case, limits: Sequence[Limit]) -> Case:
    """The question without some limits."""
    return reduce(lambda left, limit: limit.drop(left), limits, case)


def _filtered(
    case: Case, candidates: tuple[Limit, ...], fixed: tuple[Limit, ...], options: SolveOptions
) -> tuple[tuple[Limit, ...], bool]:
    """(those of the candidates that the clash needs, whether every test was settled); `fixed` ones always stay.

    All of a kind go at once where they can: a question of many constraints that memory alone decides takes few solves.
    """
    kept, proven = list(candidates), True
    dropped: list[Limit] = []
    for group in _groups(candidates):
        for some in (group, *([one] for one in group)) if len(group) > 1 else (group,):
            if not all(one in kept for one in some):
                continue
            if len(kept) == len(some) and not fixed:
                continue  # without any limit there is always a plan: everything on one device
            outcome = solve(without(case, [*dropped, *some]), options, first=True)
            if outcome.feasible is False:
                dropped += some
                kept = [one for one in kept if one not in some]
            proven = proven and outcome.feasible is not None
    return tuple(kept), proven


def _groups(candidates: Sequence[Limit]) -> list[list[Limit]]:
    kinds = dict.fromkeys(limit.kind for limit in candidates)
    return [[limit for limit in candidates if limit.kind == kind] for kind in kinds]
