"""Questions asked again with something dropped or changed: whether a plan is left, and how fast the best one is."""

from dataclasses import dataclass, replace

from meshwright.costmodel.legal import RULES, Rule
from meshwright.costmodel.setting import Setting
from meshwright.optimizer.constraints import Constraint
from meshwright.optimizer.reasons.effort import Effort
from meshwright.optimizer.solve import Found, Search, SolveOptions
from meshwright.optimizer.space import Space


@dataclass(frozen=True)
class Case:
    """A question that can lose its parts: `rules` are those of every layout, `wishes` the user's constraints.

    Attributes:
        unbound: names of the launcher's rules that are left out. placed: the degrees must fit the network together. With
            either a case can only be listed (`reasons.rule_clash`), not solved.
    """

    setting: Setting
    wishes: tuple[Constraint, ...]
    rules: tuple[Rule, ...] = RULES
    unbound: frozenset[str] = frozenset()
    placed: bool = True

    @property
    def space(self) -> Space:
        return Space(self.setting, self.wishes, rules=self.rules)


@dataclass(frozen=True)
class Outcome:
    """What solving a case gave.

    Attributes:
        found: a plan that fits, None where there is none or none was found.
        settled: nothing was left open: `found` is the best (or the first, if that was asked), or None is proven.
    """

    found: Found | None
    settled: bool

    @property
    def feasible(self) -> bool | None:
        """None where it is open."""
        return True if self.found is not None else False if self.settled else None


def solve(
    case: Case,
    options: SolveOptions,
    *,
    first: bool = False,
    within_s: float = float("inf"),
    effort: Effort | None = None,
) -> Outcome:
    """The best plan of a case, or with `first` any; only one faster than `within_s`.

    What the refinements of `options` or the effort do not settle is left open.
    """
    effort = effort or Effort.endless()
    space = case.space
    if not space.offloads or not space.any_policy:
        return Outcome(None, True)
    if effort.over:
        return Outcome(None, False)
    watch = effort.watching(lambda search: first and bool(search.best))
    search = Search(space, replace(options, runner_ups=0), within_s=within_s, watch=watch)
    whole = search.run()
    effort.spend(search)
    found = search.ranked[0] if search.best else None
    open_s = min(search.undecided, default=float("inf"))
    proven = found is not None and open_s >= found.value_s - found.slack_s
    return Outcome(found, (first and found is not None) or proven or (whole and not search.undecided))
