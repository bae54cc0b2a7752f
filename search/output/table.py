"""What a search priced, as CSV or Parquet: one row per shape, one column per decision, cost and loss."""

from collections.abc import Mapping
from dataclasses import fields
from os import PathLike
from typing import Any

import numpy as np

from meshwright.hardware.errors import MissingExtraError
from meshwright.optimizer.files import replacing
from meshwright.optimizer.report.table import write_rows
from meshwright.search.asked import Searched
from meshwright.search.price import Costs
from meshwright.search.shape import Shapes

Columns = Mapping[str, np.ndarray[Any, Any]]


def columns_of(done: Searched) -> Columns:
    """Every kept shape, in the order of the grid. `best` numbers the budget, from 1, that a row is the best under."""
    rows = len(done.shapes)
    on_front, best = np.zeros(rows, dtype=np.bool_), np.zeros(rows, dtype=np.int64)
    on_front[done.on_front] = True
    for number, row in reversed(list(enumerate(done.best, 1))):
        if row is not None:
            best[row] = number
    return {
        **{f.name: getattr(done.shapes, f.name) for f in fields(Shapes)},
        "expert_width": done.shapes.expert_width,
        "params": done.counts.params.astype(np.int64),
        "active_params": done.counts.active_params.astype(np.int64),
        "loss": np.asarray(done.loss, dtype=np.float64),
        "inside_law": done.priced.inside,
        **{f.name: getattr(done.costs, f.name) for f in fields(Costs)},
        "on_front": on_front,
        "best": best,
    }


def write_csv(path: str | PathLike[str], columns: Columns) -> None:
    """Floats at ten significant digits, so that the same search writes the same bytes.

    Errors: InputError where the file cannot be written.
    """
    write_rows(path, list(columns), zip(*(column.tolist() for column in columns.values()), strict=True))


def write_parquet(path: str | PathLike[str], columns: Columns) -> None:
    """The same columns with their types.

    Errors: MissingExtraError (exit code 5) without pyarrow; InputError where the file cannot be written.
    """
    pyarrow, parquet = _pyarrow()
    with replacing(path) as part:
        parquet.write_table(pyarrow.table(dict(columns)), part)


def check_parquet() -> None:
    """Asked before a search, so that no answer is lost. Errors: MissingExtraError without pyarrow."""
    _pyarrow()


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # type: ignore[import-untyped,import-not-found,unused-ignore]
        from pyarrow import parquet  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise MissingExtraError("--parquet", "table") from None
    return pyarrow, parquet
