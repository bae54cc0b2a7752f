"""Doors of the engine: the best shape under limits, and the exact front of loss against a cost."""

from collections.abc import Callable, Sequence

import numpy as np

from meshwright.hardware.errors import InputError, check_type, shown
from meshwright.optimizer.plan import Undecided
from meshwright.search.engine.answers import Certificate, Found, NoShape
from meshwright.search.engine.exact import Candidate, Exact, priced_of, shapes_from
from meshwright.search.engine.inside import INSIDE, inside_rules, inside_sides
from meshwright.search.engine.objective import Cost, Loss, Objective, pieces_of
from meshwright.search.engine.parts import price_parts
from meshwright.search.engine.pieces import Split
from meshwright.search.engine.question import RESOURCES, Question, Rule, check_resource
from meshwright.search.engine.rows import NEAR
from meshwright.search.engine.search import Effort, Search
from meshwright.search.engine.table import tables_of
from meshwright.search.grid import sides_of

_FREE = Rule("", "params", 1, np.inf)


def best_shape(
    question: Question, *, against: str = "total_s", count: int = 1, effort: Effort | None = None
) -> Found:
    """The shape of the least loss that keeps the limits, and so many next best.

    Of equal losses the one that costs less `against`, of those the first in the grid's listing.

    Errors: NoShape, proven; Undecided where the effort ended first; LawError where no table holds a term of the law; MissingVariableError; InputError.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 10_000:
        raise InputError(f"count is {shown(count)}; give how many shapes are wanted, from 1 to 10,000")
    space = _Space(question, against, effort)
    search = space.loss_search()
    best = search.solve(space.rules, count)
    if not best:
        raise space.nothing(search)
    return space.found(best, search, best[0].loss)


def exact_front(
    question: Question, *, against: str = "total_s", apart: float = 0.0, effort: Effort | None = None
) -> Found:
    """All shapes within the limits that no other beats in loss and in the cost `against`, by rising cost.

    Each budget is the last point's cost, strictly (epsilon-constraint), or less than it by the share `apart`: then points
    of the front are left out, and those that are there are on it. Of shapes equal in both the first in the grid's
    listing. The certificate's value and bound are those of the least loss; FEASIBLE says that cheaper points may miss.

    Errors: as `best_shape`.
    """
    check_type("apart", apart, (int, float), "a share of the cost")
    if not 0 <= apart < 1:
        raise InputError(f"apart is {shown(apart)}; give a share of the cost from 0, below 1")
    space = _Space(question, against, effort)
    search, rules = space.loss_search(), space.rules
    points: list[Candidate] = []
    while (best := search.solve(rules)) and (search.proven or not points):
        points.append(best[0])
        if len(points) == space.effort.points or not search.proven:
            search.proven = False
            break
        below = float(np.nextafter(best[0].cost(against) * (1 - apart), -np.inf))
        rules = (*space.rules, Rule(against, against, 1, below))
    if not points:
        raise space.nothing(search)
    return space.found(points[::-1], search, points[0].loss)


class _Space:
    """A question's space as tables, shared by all its budgets."""

    def __init__(self, question: Question, against: str, effort: Effort | None) -> None:
        check_type("question", question, Question, "a Question")
        check_resource(against)
        self.question, self.against = question, against
        self.effort = Effort() if effort is None else effort
        check_type("effort", self.effort, Effort, "an Effort")
        self.exact = Exact(question)
        self.rules = question.rules()
        grid, layers = question.grid, np.array(question.grid.layers)
        sides, stays = sides_of(grid), np.full(len(layers), True)
        self.removed = dict(sides.removed)
        self.legal = grid.size - sum(self.removed.values())
        if question.inside_only and self.legal:
            sides, stays = inside_sides(question, sides, layers)
            self.rules += inside_rules(question)
            left = int(stays.sum()) * sides.pairs(len(grid.width))
            self.removed[INSIDE], self.legal = self.legal - left, left
        if not self.legal:
            last = next((name for name, n in reversed(self.removed.items()) if n), "an empty axis")
            raise NoShape(f"the rules of the grid leave nothing, the last to take some away is {last}")
        self.parts = price_parts(question, sides.attention, sides.ffn)
        self.tables = tables_of(self.parts, np.array(grid.width), layers[stays], np.flatnonzero(stays))

    def loss_search(self) -> Search:
        split = Split(self.question.law, self.question.tokens)
        pieces = pieces_of(split, self.tables)
        return self._search([Loss(table, split, pieces) for table in self.tables], lambda c: c.loss)

    def cost_search(self, rule: Rule) -> Search:
        """For what lies nearest to a rule, or deepest within it."""
        costs = [Cost(table, rule.resource, rule.sign) for table in self.tables]
        return self._search(costs, lambda c: rule.sign * c.cost(rule.resource))

    def _search(self, objectives: Sequence[Objective], value: Callable[[Candidate], float]) -> Search:
        return Search(self.tables, objectives, self.exact, self.effort, value, self.against)

    def found(self, shown: Sequence[Candidate], search: Search, value: float) -> Found:
        """Errors: ModelDriftError where the law prices the answer other than the search did."""
        shapes = shapes_from(shown)
        costs = {name: np.array([c.cost(name) for c in shown]) for name in RESOURCES}
        most = {rule.label: shown[0].cost(rule.resource) / rule.limit for rule in self.rules if rule.sign > 0}
        proven = search.proven
        certificate = Certificate(
            status="OPTIMAL" if proven else "FEASIBLE",
            value=value,
            bound=value if proven else min(value, search.bound),
            slack=NEAR * abs(value),
            space=self.question.grid.size,
            legal=self.legal,
            removed=self.removed,
            rows=search.tally(),
            bounded=search.bounded,
            parts_priced=self.parts.priced,
            combined=search.combined,
            shapes_priced=self.exact.meter.priced,
            programs=search.programs,
            solves=search.solves,
            space_hash=self.question.space_hash(self.against),
        )
        return Found(shapes, costs, priced_of(self.question, shapes), most, certificate)

    def nothing(self, search: Search) -> NoShape | Undecided:
        """Why a search found nothing."""
        if not search.proven:
            return Undecided(
                f"{search.settles:,} rows were settled without a shape that keeps the limits; allow more",
                None,
            )
        return self._no_shape()

    def _no_shape(self) -> NoShape:
        """Which limit cannot be kept: alone, else beside the others."""
        for rule in self.rules:
            nearest = self.cost_search(rule).solve((_FREE,))[0]
            if not nearest.keeps((rule,)):
                return self._unkept(rule, nearest, beside=False)
        for rule in self.rules:
            others = tuple(r for r in self.rules if r is not rule)
            if best := self.cost_search(rule).solve(others or (_FREE,)):
                return self._unkept(rule, best[0], beside=True)
        return NoShape("several contradict each other, whichever one is left out; relax two")

    def _unkept(self, rule: Rule, nearest: Candidate, beside: bool) -> NoShape:
        least, way = nearest.cost(rule.resource), "least" if rule.sign > 0 else "most"
        kept = ", with the other limits kept," if beside else ""
        return NoShape(
            f"{rule.label} is limited to {rule.limit:.6g}, and the {way} of any shape{kept} is {least:.6g}; "
            "relax it, or widen the grid",
            rule.label, least, beside,
        )  # fmt: skip
