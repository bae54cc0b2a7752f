"""Best shapes of a grid too large to list: the engine's answers in the form of a listing.

Kept are the front and the best under each budget; that no other shape of the space is better, the certificates say.
"""

from dataclasses import fields
from os import PathLike

import numpy as np

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.search.architecture import counts_of
from meshwright.search.asked import AGAINST, ROUNDED, Against, Budget, Searched, check_asked
from meshwright.search.engine.answers import Found, NoShape
from meshwright.search.engine.question import Limit, Question
from meshwright.search.engine.solve import best_shape, exact_front
from meshwright.search.grid import Grid
from meshwright.search.law import Law
from meshwright.search.price import Latency, Pricer
from meshwright.search.shape import Shapes


def prove_shapes(
    law: Law | str,
    grid: Grid | str | PathLike[str],
    device: Device,
    request: Request,
    *budgets: Budget,
    latency: Latency = "full",
    against: Against = "total",
    tokens: float | None = None,
    apart: float = 0.0,
) -> Searched:
    """What `search_shapes` finds, without listing the grid.

    apart: points of the front that are closer in cost than this share are left out, as a dense front has many thousand.

    Errors: as `search_shapes`; NoShape where no shape fits the memory, or none keeps any of the budgets, proven.
    """
    law, grid = check_asked(law, grid, device, request, budgets, latency, against, tokens)
    cost = AGAINST[against]
    on = exact_front(Question(grid, law, device, request, latency, tokens=tokens), against=cost, apart=apart)
    found: list[Found] = [on]
    best: list[int | None] = []  # place among the found
    refusals = []
    for budget in budgets:
        limits = tuple(Limit(AGAINST[name], ROUNDED * limit) for name, limit in budget.finite().items())
        asked = Question(grid, law, device, request, latency, limits, tokens)
        try:
            found.append(best_shape(asked, against=cost))
        except NoShape as error:
            refusals.append(error)
            best.append(None)
        else:
            best.append(len(found) - 2)
    if refusals and len(refusals) == len(budgets):
        raise refusals[0]
    shapes, rows = _joined(on, found[1:])
    counts, costs = counts_of(shapes, grid.ends), Pricer(grid.ends, device, request, latency).costs(shapes)
    return Searched(
        grid, device, request, latency, against, shapes, costs, counts, law.loss(law.columns(shapes, counts, tokens)),
        budgets, tuple(None if i is None else rows[i] for i in best), np.arange(len(on)), on.certificate.space,
        on.certificate.removed, tuple(one.certificate for one in found), tokens,
    )  # fmt: skip


def _joined(on: Found, best: list[Found]) -> tuple[Shapes, list[int]]:
    """The front, then the best shapes that are not on it; and the row of each best."""
    names = [f.name for f in fields(Shapes)]

    def key(shapes: Shapes, row: int) -> tuple[float, ...]:
        return tuple(getattr(shapes, name)[row] for name in names)

    place = {key(on.shapes, row): row for row in range(len(on))}
    rows, parts = [], [on.shapes]
    for one in best:
        row = place.setdefault(key(one.shapes, 0), len(place))
        if row == sum(len(part) for part in parts):
            parts.append(one.shapes[:1])
        rows.append(row)
    return Shapes(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}), rows
