"""What a launcher's limits cost: the best plan without them, and the limits that it breaks."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from meshwright.costmodel.estimate import digits
from meshwright.costmodel.setting import Setting
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.decode import decode, value_of
from meshwright.optimizer.launchers.check import runs_on
from meshwright.optimizer.settle import SolveOptions
from meshwright.optimizer.solve import Search, Watch
from meshwright.optimizer.space import Space

if TYPE_CHECKING:
    from meshwright.optimizer.plan import Plan


def cost_of(
    given: Setting, plan: "Plan", constraints: str | None, options: SolveOptions, watch: Watch | None = None
) -> dict[str, Any]:
    """The unrestricted optimum of the same question, at the same rates and memory habits.

    Returns JSON types: `name`; `proven`, whether the search without the limits came to its end; `value_s`, seconds of
    the best plan without them for the nominal batch, the plan's own where none is faster; `faster`, the share of time
    that it saves; `layout` of it, or None; `limits`, the rules that it breaks as `{rule, message}`.
    """
    own = plan.certificate
    free = replace(given, launcher="any")
    # Only what is faster by more than rounding is of interest, which keeps the second search short.
    search = Search(
        Space(free, parse_constraints(constraints)), replace(options, runner_ups=0),
        within_s=own.value_s - own.slack_s, watch=watch,
    )  # fmt: skip
    whole = search.run() and not search.undecided
    out: dict[str, Any] = {
        "name": given.launcher, "proven": whole, "value_s": digits(own.value_s), "faster": 0.0, "layout": None,
        "limits": [],
    }  # fmt: skip
    best = search.ranked[0] if search.best else None
    if best is None or best.value_s + best.slack_s >= own.value_s - own.slack_s:
        return out
    layout, priced = decode(free, best)
    value_s = value_of(free, best.row, priced.step_s)
    limits = runs_on(given, layout).limits
    if not limits:
        raise AssertionError(f"a faster plan breaks no rule of {given.launcher}: {layout}")
    return out | {
        "value_s": digits(value_s),
        "faster": digits(1.0 - value_s / own.value_s),
        "layout": layout.to_dict(),
        "limits": list(limits),
    }
