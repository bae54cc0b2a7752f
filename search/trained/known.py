"""Shapes of a grid that a law can speak of: dense models, mixtures or both, as its authors trained them."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from meshwright.hardware.errors import InputError, shown
from meshwright.optimizer.report.words import size_of
from meshwright.search.architecture import Ends, counts_of
from meshwright.search.grid import Grid, Listing, Rule, list_shapes
from meshwright.search.law import Law
from meshwright.search.law_columns import Bools, Columns
from meshwright.search.shape import Shapes

NO_LIMIT = (0.0, float("inf"))
# What tells a dense model from a mixture, and mixtures apart: outside of it a law speaks of other models altogether.
_KIND = ("activation", "shared_share")


@dataclass(frozen=True)
class Outside:
    """One shape outside a range of parameters, [1], with more promise than those inside: the loss that it may reach."""

    shape: Shapes
    params: float
    loss: float


def known_shapes(grid: Grid, law: Law, params: tuple[float, float], extrapolate: bool) -> Listing:
    """The legal shapes of a grid, those left out that a law was not fitted on or that pass a range of parameters.

    Errors: InputError where none is left, or the range is none.
    """
    if not (
        isinstance(params, tuple) and len(params) == 2 and all(isinstance(p, int | float) for p in params)
    ):
        raise InputError(f"params is {shown(params)}; give a pair such as (1e9, 1e10)")
    low, high = params
    if not 0 <= low <= high:
        raise InputError(f"params from {low:g} to {high:g} hold no number; give the smaller one first")
    limits: dict[str, Rule] = {}
    for name in () if extrapolate else _KIND:
        if name in law.box and law.box[name].known:
            limits[f"{law.name} was fitted at {name} {law.box[name]}"] = partial(_kind_of_law, law, name)
    if params != NO_LIMIT:
        limits[f"parameters from {low:.4g} to {high:.4g}"] = partial(_within, grid.ends, params)
    listing = list_shapes(grid, limits)
    if not len(listing.shapes):
        fallen = ", ".join(f"{rule} {count:,}" for rule, count in listing.removed.items() if count)
        raise InputError(
            f"the rules leave none of the {listing.listed:,} shapes of the grid ({fallen}); widen the grid or --params, "
            "choose another law, or allow kinds that it was not fitted on with --extrapolate"
        )
    return listing


def outside(grid: Grid, law: Law, params: tuple[float, float], extrapolate: bool) -> Shapes:
    """The shapes that a range of parameters alone leaves out."""
    shapes = known_shapes(grid, law, NO_LIMIT, extrapolate).shapes
    return shapes[np.zeros(len(shapes), bool) if params == NO_LIMIT else ~_within(grid.ends, params, shapes)]


def in_words(shapes: Shapes, row: int, params: float) -> str:
    """A shape as a sentence has it."""
    return f"{int(shapes.layers[row])} layers of width {int(shapes.width[row])} ({size_of(int(params))} parameters)"


def _kind_of_law(law: Law, name: str, shapes: Shapes) -> Bools:
    return law.box[name].holds(Columns.of(shapes).given()[name])


def _within(ends: Ends, params: tuple[float, float], shapes: Shapes) -> Bools:
    count = counts_of(shapes, ends).params
    return np.asarray((count >= params[0]) & (count <= params[1]))
