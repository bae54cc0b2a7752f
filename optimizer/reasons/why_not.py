"""why_not(): another layout pinned and solved; the difference term by term, or the proof that it cannot be."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from meshwright.costmodel.estimate import digits
from meshwright.costmodel.layout import layout_pairs
from meshwright.costmodel.offloads import in_order
from meshwright.costmodel.setting import Setting
from meshwright.hardware.errors import LayoutError, UnknownNameError, check_type, shown
from meshwright.optimizer.compare import Comparison, compare
from meshwright.optimizer.constraints import NUMBERS, WORDS, parse_constraints
from meshwright.optimizer.plan import SCHEMA_VERSION, Infeasible, Plan
from meshwright.optimizer.reasons.clash import clash_of
from meshwright.optimizer.reasons.effort import Effort
from meshwright.optimizer.reasons.headline import narrowed
from meshwright.optimizer.reasons.limits import MEMORY, Clash
from meshwright.optimizer.reasons.question import Question, question_of
from meshwright.optimizer.reasons.short import Short, short_of
from meshwright.optimizer.reasons.solving import Case
from meshwright.optimizer.recommend import recommend_in, space_of
from meshwright.optimizer.solve import SolveOptions
from meshwright.optimizer.wishes import refuse_impossible

_MIXED = {*"*|;(:"}  # what only policies by layer or by tensor are written with
SAME, TIE, SLOWER, FASTER, NONE = "the plan itself", "a tie", "slower", "faster", "no such plan"


@dataclass(frozen=True)
class WhyNot:
    """What became of a layout that was asked for.

        Attributes:
            asked: the layout as written. pinned: the same as constraints.
            verdict: _MIXED = {*"*|;(:"}  # what only policies by layer or by tensor are written with
    SAME, TIE, SLOWER or NONE; FASTER where the plan was not proven to be the best.
            plan: the best plan of the question. other: the best with what was asked for; None where there is none.
            comparison: `plan` against `other`, term by term.
            refusal: the rule that what was asked for breaks by itself, where it does.
            reason, clash, short: else a sentence of what it clashes with, the same as limits, and the memory that it misses.
    """

    asked: str
    pinned: str
    verdict: str
    plan: Plan
    other: Plan | None = None
    comparison: Comparison | None = None
    refusal: str | None = None
    reason: str | None = None
    clash: Clash | None = None
    short: Short | None = None

    @property
    def slower_by(self) -> float | None:
        """Share of step time, both for the batch as asked; None where there is no such plan."""
        if self.other is None:
            return None
        return self.other.certificate.value_s / self.plan.certificate.value_s - 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "schema_version": SCHEMA_VERSION,
            "asked": self.asked,
            "pinned": self.pinned,
            "verdict": self.verdict,
            "slower_by": None if self.slower_by is None else digits(self.slower_by),
            "other": None if self.other is None else self.other.to_dict(),
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
            "refusal": self.refusal,
            "reason": self.reason,
            "clash": None if self.clash is None else self.clash.to_dict(),
            "short": None if self.short is None else self.short.to_dict(),
        }


def why_not(
    question: Plan | Setting,
    layout: str,
    *,
    constraints: str | None = None,
    options: SolveOptions | None = None,
    setting: Setting | None = None,
) -> WhyNot:
    """Why the plan is not another layout.

    Args:
        question: a plan, or what `resolve` returns with `constraints`.
        layout: partly given, like 'tp=4,pp=1'; what it leaves out stays open.
        setting: the question of a plan, where the names in it do not say it all.

    Errors: LayoutError, UnknownNameError: the layout does not read. Infeasible, Undecided: as `recommend`.
    """
    pinned(layout)  # before any search
    return why_not_in(question_of(question, constraints, setting), layout, options)


def why_not_in(
    asked: Question, layout: str, options: SolveOptions | None = None, effort: Effort | None = None
) -> WhyNot:
    """The same for a resolved question; `effort` bounds what a no costs, and who looks on there may end the search.

    Raises: Interrupted where it did, as `recommend_in`.
    """
    options, given, effort = options or SolveOptions(), asked.setting, effort or Effort()
    check_asked(given, asked.constraints, layout)
    pin_text = ", ".join(pinned(layout))
    plan = asked.plan or recommend_in(given, asked.constraints, options, effort.watch)
    both = ", ".join(filter(None, (asked.constraints, pin_text)))
    wishes = parse_constraints(both)
    try:
        refuse_impossible(given, wishes)
    except LayoutError as rule:
        return WhyNot(layout, pin_text, NONE, plan, refusal=str(rule))
    try:
        with effort.on(f"why not {layout}"):
            other = recommend_in(given, both, options, effort.watch)
    except Infeasible as no:
        case = Case(given, wishes)
        no = narrowed(no, given, both, options, effort)
        clash = no.clash or clash_of(case, options, effort)
        known = None if no.layout is None else (no.layout, no.short_bytes or 0.0)
        short = short_of(case, options, known, effort) if MEMORY in clash.kinds else None
        return WhyNot(layout, pin_text, NONE, plan, reason=no.reason, clash=clash, short=short)
    return WhyNot(layout, pin_text, _verdict(plan, other), plan, other, compare(plan, other))


def check_asked(given: Setting, constraints: str | None, layout: str) -> None:
    """Raises before any search what a layout asked for would raise after it.

    Errors: LayoutError, UnknownNameError: it does not read. MissingFigureError: it offloads what the hosts cannot hold. A rule
    that it breaks is none: that is the answer.
    """
    both = ", ".join(filter(None, (constraints, *pinned(layout))))
    parse_constraints(both)
    with suppress(LayoutError):
        space_of(given, both)


def _verdict(plan: Plan, other: Plan) -> str:
    if other.layout == plan.layout:
        return SAME
    apart = other.certificate.value_s - plan.certificate.value_s
    if abs(apart) <= max(plan.certificate.slack_s, other.certificate.slack_s):
        return TIE
    return SLOWER if apart > 0 else FASTER


def pinned(layout: str) -> tuple[str, ...]:
    """A layout string, partly given, as constraints.

    Errors: LayoutError, UnknownNameError, as `parse_layout` and `parse_constraints` say it.
    """
    check_type("layout", layout, str, "a string such as 'tp=4,pp=1'", LayoutError)
    out = []
    for name, word in layout_pairs(layout).items():
        if name in ("layers", "placement"):
            told = "layers of stages are" if name == "layers" else "placement is"
            raise LayoutError(
                f"{told} the solver's to choose; leave {name} out, or price {'them' if name == 'layers' else 'it'} with "
                "estimate"
            )
        if name not in (*NUMBERS, *WORDS):
            raise UnknownNameError("layout key", name, (*NUMBERS, *WORDS))
        if name == "recompute" and word not in WORDS[name] and (_MIXED & {*word}):
            raise LayoutError(
                f"recompute={shown(word)} says it layer by layer or tensor by tensor, and why-not pins one policy for all "
                f"layers: {', '.join(WORDS[name])} (any without a name); price that layout with estimate --layout"
            )
        if "/" in word:
            raise LayoutError(
                f"{name}={word} gives one each; pin one for all, or price that layout with estimate"
            )
        out.append(f"{name}=={in_order(word) if name == 'offload' else word}")
    parse_constraints(", ".join(out))
    return tuple(out)
