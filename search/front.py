"""Exact choices from columns: the Pareto front of loss against a cost, and the best row under limits."""

from collections.abc import Sequence

import numpy as np

from meshwright.hardware.errors import InputError
from meshwright.search.shape import Floats, Ints


def front(loss: Floats, cost: Floats) -> Ints:
    """Rows that no other row matches in both columns and beats in one, by rising cost.

    Weakly dominated rows are dropped; of rows equal in both columns the first stays.
    """
    _check(loss, cost)
    order = np.lexsort((loss, cost))  # stable: equal rows keep their order
    ordered = loss[order]
    before = np.minimum.accumulate(np.concatenate(([np.inf], ordered)))[:-1]
    return order[ordered < before]


def best(loss: Floats, cost: Floats, budget: float, *limits: tuple[Floats, float]) -> int | None:
    """Row of the least loss with cost <= budget, and each further column within its limit; None where none is.

    Of equal losses the cheapest, of those the first.
    """
    _check(loss, cost, *(column for column, _ in limits))
    within: Sequence[tuple[Floats, float]] = ((cost, budget), *limits)
    if any(np.isnan(limit) for _, limit in within):
        raise InputError("a budget is not a number; give one, or inf for none")
    rows = np.flatnonzero(np.logical_and.reduce([column <= limit for column, limit in within]))
    if not len(rows):
        return None
    return int(rows[np.lexsort((cost[rows], loss[rows]))[0]])


def _check(*columns: Floats) -> None:
    shapes = {column.shape for column in columns}
    if len(shapes) != 1 or columns[0].ndim != 1:
        raise InputError(f"columns of the shapes {sorted(shapes)}; give columns of one length")
    for column in columns:
        if not np.isfinite(column).all():
            row = int(np.flatnonzero(~np.isfinite(column))[0])
            raise InputError(f"row {row} holds {column[row]}; a front needs finite numbers")
