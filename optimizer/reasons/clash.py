"""The clash behind a proven no: limits and rules that cannot hold together, none of which can be spared.

Where rules leave no candidate, whatever the memory, `reasons.rule_clash` tells which. Else every test is a search of its
own, so the clash alone is proven infeasible, and with any one member less a plan was found.
"""

from meshwright.optimizer.reasons.effort import Effort
from meshwright.optimizer.reasons.limits import Clash, filtered, limits_of
from meshwright.optimizer.reasons.rule_clash import clash_of_rules
from meshwright.optimizer.reasons.solving import Case, solve
from meshwright.optimizer.solve import SolveOptions


def clash_of(case: Case, options: SolveOptions, effort: Effort | None = None) -> Clash:
    """A minimal clash of a case that is proven infeasible; what the effort leaves open stays in it."""
    effort = effort or Effort()
    with effort.on("what clashes"):
        if (rules := clash_of_rules(case, options.batch_sizes, effort)) is not None:
            return rules
        kept, proven = filtered(
            case, limits_of(case), lambda c: solve(c, options, first=True, effort=effort).feasible
        )
    return Clash(kept, proven)
