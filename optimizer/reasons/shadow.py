"""shadow_prices(): what a tenth more of each thing would bring, by solving the question on the changed machine.

The plan that is best now also runs there, so only a faster one is looked for: where there is none, the plan stays.
"""

from dataclasses import dataclass
from typing import Any

from meshwright.costmodel.estimate import digits, estimate
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.setting import Setting
from meshwright.hardware.errors import check_type
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.decode import layout_of
from meshwright.optimizer.plan import SCHEMA_VERSION, Plan
from meshwright.optimizer.reasons.effort import Effort
from meshwright.optimizer.reasons.machine import levers
from meshwright.optimizer.reasons.question import Question, question_of
from meshwright.optimizer.reasons.solving import Case, solve
from meshwright.optimizer.recommend import recommend_in
from meshwright.optimizer.solve import SolveOptions

MORE = 1.1  # times as much


@dataclass(frozen=True)
class ShadowPrice:
    """What more of one thing brings.

    Attributes:
        name: of the thing. step_s: best step with `MORE` times as much, for the batch as asked.
        gain: share of the step that this saves. moved: another layout is best then, `layout`.
        proven: the search was not cut short; else a faster plan may exist.
    """

    name: str
    step_s: float
    gain: float
    moved: bool
    layout: Layout
    proven: bool


@dataclass(frozen=True)
class ShadowPrices:
    """All of them, the largest gain first. `step_s` is the plan's, for the batch as asked."""

    plan: Plan
    step_s: float
    prices: tuple[ShadowPrice, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "schema_version": SCHEMA_VERSION,
            "times": MORE,
            "step_s": digits(self.step_s),
            "prices": [
                {
                    "name": p.name,
                    "step_s": digits(p.step_s),
                    "gain": digits(p.gain),
                    "moved": p.moved,
                    "layout": p.layout.to_dict(),
                    "proven": p.proven,
                }
                for p in self.prices
            ],
        }


def shadow_prices(
    question: Plan | Setting,
    *,
    constraints: str | None = None,
    options: SolveOptions | None = None,
    setting: Setting | None = None,
) -> ShadowPrices:
    """What a tenth more of HBM size and bandwidth, FLOP/s, each kind of link and the host link would bring.

    Args:
        question: a plan, or what `resolve` returns with `constraints`.
        setting: the question of a plan, where the names in it do not say it all.

    Errors: as `recommend`, and InputError where a plan's question is not found again.
    """
    check_type("options", options, (SolveOptions, type(None)), "a SolveOptions, or None")
    options = options or SolveOptions()
    asked = question_of(question, constraints, setting)
    plan = asked.plan or recommend_in(asked.setting, asked.constraints, options)
    return prices_of(Question(asked.setting, asked.constraints, plan), plan, options)


def prices_of(
    asked: Question, plan: Plan, options: SolveOptions, effort: Effort | None = None
) -> ShadowPrices:
    """The same for a plan of a known question; who looks on may leave the rest open."""
    effort = effort or Effort.endless()
    case = Case(asked.setting, parse_constraints(asked.constraints))
    step_s = plan.certificate.value_s
    prices = []
    for lever in levers(case.space):
        changed = lever.scale(case.setting, MORE)
        with effort.on(f"shadow price of {lever.name}"):
            prices.append(_price(lever.name, Case(changed, case.wishes), plan, step_s, options, effort))
    return ShadowPrices(plan, step_s, tuple(sorted(prices, key=lambda p: p.step_s)))


def _price(
    name: str, case: Case, plan: Plan, now_s: float, options: SolveOptions, effort: Effort
) -> ShadowPrice:
    """Solve for a plan that is faster than today's is on the changed machine."""
    stays = estimate(case.setting, plan.layout)
    stays_s = stays.step_s * case.setting.training.sequences / stays.sequences
    outcome = solve(case, options, within_s=stays_s, effort=effort)
    step_s, layout = stays_s, plan.layout
    # Rounding in the solver may rank the plan itself before what it takes.
    if outcome.found is not None and outcome.found.value_s + outcome.found.slack_s < stays_s:
        step_s, layout = outcome.found.value_s, layout_of(case.setting, outcome.found)
    moved = layout != plan.layout
    return ShadowPrice(name, step_s, 1.0 - step_s / now_s, moved, layout, outcome.settled)
