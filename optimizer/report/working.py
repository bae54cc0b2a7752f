"""The page and the JSON of a Working: formula, numbers put in, what binds."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from meshwright.costmodel.estimate import digits
from meshwright.costmodel.working import Step, Value, Working
from meshwright.optimizer.report.page import Block, bullet, headline, line, table, title

_MOST_ROWS = 30  # of a table on a page; one screen

_UNITS = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "B": ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "B/s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1.0, "B/s")),
    "FLOP/s": ((1e21, "ZFLOP/s"), (1e18, "EFLOP/s"), (1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1.0, "FLOP/s")),
    "FLOP": ((1e24, "YFLOP"), (1e21, "ZFLOP"), (1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1.0, "FLOP")),
}  # fmt: skip


def working_data(working: Working) -> dict[str, Any]:
    """Plain JSON types; floats at ten significant digits, so that the same question prints the same bytes."""
    data: dict[str, Any] = _rounded(asdict(working))
    return data


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    return digits(value) if isinstance(value, float) else value


def working_page(working: Working) -> Iterator[Block]:
    """One screen."""
    yield headline(working.question)
    if working.given:
        yield title("given")
        yield table([_row(name, step) for name, step in working.given.items()], "lrll")
    if working.steps:
        yield title("answer")
        yield table([_row(name, step) for name, step in working.steps.items()], "lrll")
    if working.table:
        names = tuple(working.table[0])
        kept = thinned(len(working.table))
        rows = [tuple(shown(working.table[i][n]) for n in names) for i in kept]
        yield table(rows, "l" + "r" * (len(names) - 1), header=names)
        if left_out := len(working.table) - len(kept):
            yield line(f"{left_out} of {len(working.table)} rows are left out; --json has all")
    if working.binds:
        yield title("what binds")
        yield line(working.binds)
    for note in working.notes:
        yield bullet(note)


def thinned(rows: int) -> list[int]:
    """Which rows of a long table are shown: evenly spread, the first and the last among them."""
    if rows <= _MOST_ROWS:
        return list(range(rows))
    return [round(i * (rows - 1) / (_MOST_ROWS - 1)) for i in range(_MOST_ROWS)]


def _row(name: str, step: Step) -> tuple[str, str, str, str]:
    return name, shown(step.value, step.unit), f"= {step.formula}" if step.formula else "", step.note


def shown(value: Value, unit: str = "") -> str:
    """A value as a reader wants it: 1.34 ms, 16 GiB, 459 TFLOP/s, yes."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    for scale, name in _UNITS.get(unit, ()):
        if abs(value) >= scale:
            return f"{value / scale:.4g} {name}"
    if isinstance(value, int):
        number = f"{value:,}"
    elif 1e4 <= abs(value) < 1e7:
        number = f"{value:,.0f}"
    else:
        number = f"{value:.4g}"
    return f"{number} {unit}".strip()
