"""What can be left out of a question, and a clash of such limits: their names, their words, and the question without them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

from meshwright.hardware.units import human_bytes
from meshwright.optimizer.constraints import Constraint
from meshwright.optimizer.launchers.catalogue import launcher_of
from meshwright.optimizer.reasons.machine import with_host_memory, with_memory
from meshwright.optimizer.reasons.solving import Case

MEMORY, HOST_MEMORY, CONSTRAINT, RULE = "device memory", "host memory", "constraint", "rule"
LAUNCHER = "launcher"
ENDLESS = 10**18  # bytes: more than anything needs, and still whole numbers to the solver


@dataclass(frozen=True)
class Limit:
    """Something that can be left out of a question. `drop` gives the question without it.

    `says`: of a rule, what it says to a layout that breaks it; `source`: where a launcher says so.
    """

    kind: str
    text: str
    drop: Callable[[Case], Case]
    says: str = ""
    source: str = ""

    def __str__(self) -> str:
        rule = f"launcher rule {self.text!r}" if self.kind == LAUNCHER and self.says else ""
        name = rule or (
            f"{self.kind} {self.text!r}" if self.kind in (CONSTRAINT, RULE) else f"{self.kind}: {self.text}"
        )
        return name + (f": {self.says}" if self.says else "") + (f" ({self.source})" if self.source else "")


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
        limits = [{"kind": x.kind, "text": x.text, "says": x.says} for x in self.limits]
        return {"limits": limits, "proven": self.proven}


def limits_of(case: Case) -> tuple[Limit, ...]:
    """What the user or the machine sets: constraints, memory of devices, memory of hosts where it is known, and what
    the launcher can run."""
    found = list(wishes_of(case))
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


def wishes_of(case: Case) -> tuple[Limit, ...]:
    """The user's constraints."""
    return tuple(Limit(CONSTRAINT, wish.text, partial(_without_wish, wish)) for wish in case.wishes)


def _without_wish(wish: Constraint, case: Case) -> Case:
    return replace(case, wishes=tuple(w for w in case.wishes if w is not wish))


def without(case: Case, limits: Sequence[Limit]) -> Case:
    """The question without some limits."""
    return reduce(lambda left, limit: limit.drop(left), limits, case)


def filtered(
    case: Case,
    candidates: Sequence[Limit],
    feasible: Callable[[Case], bool | None],
    *,
    rest: bool = False,
) -> tuple[tuple[Limit, ...], bool]:
    """(those of the candidates that the clash needs, whether every test was settled); `rest`: other limits may do alone.

    Deletion filter: leave one out; if nothing is left still, it is not part of the clash. All of a kind go at once where
    they can: a question of many constraints that memory alone decides takes few tests.
    """
    kept, proven = list(candidates), True
    dropped: list[Limit] = []
    for group in _groups(candidates):
        for some in (group, *([one] for one in group)) if len(group) > 1 else (group,):
            if not all(one in kept for one in some):
                continue
            if len(kept) == len(some) and not rest:
                continue  # without any limit there is always a plan: everything on one device
            answer = feasible(without(case, [*dropped, *some]))
            if answer is False:
                dropped += some
                kept = [one for one in kept if one not in some]
            # Of a group only its single members must be settled.
            proven = proven and (answer is not None or len(some) > 1)
    return tuple(kept), proven


def _groups(candidates: Sequence[Limit]) -> list[list[Limit]]:
    kinds = dict.fromkeys(limit.kind for limit in candidates)
    return [[limit for limit in candidates if limit.kind == kind] for kind in kinds]
