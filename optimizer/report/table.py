"""Rows as CSV. Floats have ten significant digits, so that the same question writes the same bytes."""

import csv
from collections.abc import Iterable, Sequence
from os import PathLike

from meshwright.optimizer.files import replacing

Cell = str | int | float | bool


def write_rows(path: str | PathLike[str], header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Errors: InputError where the file cannot be written."""
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        made = csv.writer(file, lineterminator="\n")
        made.writerow(header)
        made.writerows([_word(cell) for cell in row] for row in rows)


def _word(cell: Cell) -> str:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return f"{cell:.10g}" if isinstance(cell, float) else str(cell)
