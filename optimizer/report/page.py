"""The few ways a page is set: titles, lines, tables. The only module that knows the terminal library.

A terminal gets colour and its own width; a pipe or a file gets plain text, 110 columns wide. Characters that the
output cannot hold become `?`.
"""

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshwright.hardware.errors import InputError
from meshwright.optimizer.report.columns import Band, bands

WIDTH = 110
_NARROWEST = 60
_INDENT = (0, 0, 0, 2)

Block = RenderableType
Cells = Sequence[str]


def title(text: str, aside: str = "") -> Block:
    """A heading with a blank line above it; `aside` follows on the same line."""
    return Text.assemble("\n", (text, "bold cyan"), f"   {aside}" if aside else "")


def headline(text: str) -> Block:
    return Text(text, "bold")


def alarm(text: str) -> Block:
    """A line nobody should miss."""
    return Text(text, "bold red")


def line(text: str, style: str = "") -> Block:
    """A paragraph, indented, wrapped at the page's width."""
    return Padding(Text(text, style), _INDENT)


def faint(text: str) -> Block:
    return line(text, "dim")


def bullet(text: str) -> Block:
    """A paragraph that hangs on a dash. A word longer than the line goes on in the next."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column()
    grid.add_column(overflow="fold")
    grid.add_row(Text("  -"), Text(text))
    return grid


def table(rows: Iterable[Cells], align: str, header: Cells = (), bold: Sequence[int] = ()) -> Block:
    """Columns without lines. `align` has one letter per column: l, r, or b for a bar. Only l wraps, between words.

    `bold` names rows by number.
    """
    return Padding(_Columns(tuple(rows), align, header, frozenset(bold)), _INDENT)


@dataclass(frozen=True)
class _Columns:
    """A table that is laid out when the width of the page is known."""

    rows: Sequence[Cells]
    align: str
    header: Cells
    bold: frozenset[int]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [[str(row[c]) for row in (*((self.header,) if self.header else ()), *self.rows)]
                 for c in range(len(self.align))]  # fmt: skip
        whole = [max(map(cell_len, column), default=0) for column in cells]
        words = [max((cell_len(w) for cell in column for w in cell.split()), default=0) for column in cells]
        least = [w if side == "l" else all_ for side, w, all_ in zip(self.align, words, whole, strict=True)]
        found = bands(whole, least, options.max_width)
        if found and (len(found) == 1 or self.header):
            yield from (self._band(band) for band in found)
        else:
            yield from self._listed()

    def _band(self, band: Band) -> Table:
        made = Table(
            box=None, show_header=bool(self.header), padding=(0, band.gap, 0, 0), pad_edge=False,
            header_style="dim",
        )  # fmt: skip
        for c, width in zip(band.columns, band.widths, strict=True):
            side = self.align[c]
            made.add_column(
                Text(self.header[c]) if self.header else "",
                justify="right" if side == "r" else "left", no_wrap=side != "l", width=width,
            )  # fmt: skip
        for number, row in enumerate(self.rows):
            made.add_row(*(Text(row[c]) for c in band.columns), style="bold" if number in self.bold else "")
        return made

    def _listed(self) -> Iterator[RenderableType]:
        """One row after the other, a line for each cell: fits any page."""
        for number, row in enumerate(self.rows):
            names = [f"{name}: " if name else "" for name in self.header] or [""] * len(row)
            for c, (name, cell) in enumerate(zip(names, row, strict=True)):
                if cell:
                    text = Text(f"{name}{cell}", "bold" if number in self.bold else "")
                    yield Padding(text, _INDENT) if c else text


def render(blocks: Iterable[Block], width: int = WIDTH, colour: bool = False) -> str:
    """A page as text; without colour the lines carry no trailing blanks."""
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=width, force_terminal=colour, color_system="auto" if colour else None,
        markup=False, highlight=False, emoji=False, legacy_windows=False, force_jupyter=False,
    )  # fmt: skip
    for block in blocks:
        console.print(block)
    lines = (row.rstrip() for row in buffer.getvalue().splitlines())
    return "\n".join(lines).strip("\n") + "\n" if not colour else buffer.getvalue().lstrip("\n")


def show(blocks: Iterable[Block]) -> None:
    """Print a page as fits the standard output."""
    if sys.stdout is not None and sys.stdout.isatty():
        width = min(WIDTH, max(_NARROWEST, shutil.get_terminal_size((WIDTH, 50)).columns))
        emit(render(blocks, width, colour=True))
    else:
        emit(render(blocks))


def emit(text: str) -> None:
    """Write to the standard output; a reader that has left (`| head`) is no fault."""
    if sys.stdout is None:  # closed by the caller
        raise InputError("the standard output is closed; open it, or write the answer with -o plan.yaml")
    try:
        _forgiving(sys.stdout).write(text)
        sys.stdout.flush()
    except OSError as error:
        # Python flushes once more at exit; give it somewhere to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"cannot write to the standard output: {error.strerror}") from None


def _forgiving(stream: TextIO) -> TextIO:
    with contextlib.suppress(AttributeError, ValueError):
        stream.reconfigure(errors="replace")  # type: ignore[attr-defined]
    return stream
