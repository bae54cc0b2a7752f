"""Why nothing fits: the clash, what is missing, and the ways out."""

from dataclasses import dataclass
from typing import Any

from meshwright.costmodel.setting import Setting
from meshwright.hardware.errors import InputError, check_type
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.plan import Infeasible
from meshwright.optimizer.reasons.clash import clash_of
from meshwright.optimizer.reasons.effort import Effort
from meshwright.optimizer.reasons.limits import MEMORY, Clash
from meshwright.optimizer.reasons.short import Short, short_of
from meshwright.optimizer.reasons.solving import Case, solve
from meshwright.optimizer.reasons.ways import WayOut, ways_out
from meshwright.optimizer.solve import SolveOptions


@dataclass(frozen=True)
class WhyNone:
    """The reasons of a proven no.

    Attributes:
        short: None where the device memory plays no part, or was not looked at.
        cut: why not all was looked at; empty where it was.
    """

    clash: Clash
    short: Short | None
    ways: tuple[WayOut, ...]
    cut: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "clash": self.clash.to_dict(),
            "short": None if self.short is None else self.short.to_dict(),
            "ways_out": [way.to_dict() for way in self.ways],
            "cut": self.cut,
        }


def why_none(
    given: Setting,
    constraints: str | None = None,
    options: SolveOptions | None = None,
    no: Infeasible | None = None,
    effort: Effort | None = None,
) -> WhyNone:
    """The reasons that no plan answers a question.

    Args:
        no: what `recommend` raised; without it the question is solved first.
        effort: what they may cost, and who looks on.

    Errors: InputError where the question has a plan, or where solving does not settle that it has none.
    """
    check_type("question", given, Setting, "what resolve(model, cluster, training) returns")
    check_type("options", options, (SolveOptions, type(None)), "a SolveOptions, or None")
    check_type("no", no, (Infeasible, type(None)), "what recommend raised, or None")
    options, effort = options or SolveOptions(), effort or Effort()
    case = Case(given, parse_constraints(constraints))
    if no is None and (fits := solve(case, options, first=True).feasible) is not False:
        told = "has a plan" if fits else "is not settled within the effort; raise refinements of SolveOptions"
        raise InputError(f"why none: the question {told}")
    clash = no.clash if no is not None and no.clash is not None else clash_of(case, options, effort)
    known = None if no is None or no.layout is None else (no.layout, no.short_bytes or 0.0)
    short = short_of(case, options, known, effort) if MEMORY in clash.kinds else None
    with effort.on("ways out"):
        ways = ways_out(case, clash, short, options, effort)
    return WhyNone(clash, short, ways, effort.over)
