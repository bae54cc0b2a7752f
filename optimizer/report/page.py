"""The few ways a page is set: titles, lines, tables. The only module that knows the terminal library.

A terminal gets colour and its own width; a pipe or a file gets plain text, 110 columns wide. Characters that the
output cannot hold become `?`.
"""

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshwright.hardware.errors import InputError

WIDTH = 110
_NARROWEST = 60
_INDENT = (0, 0, 0, 2)
_MOST_COLUMNS = 12  # of a table that stands two blanks apart

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
    """A paragraph that hangs on a dash."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(Text("  -"), Text(text))
    return grid


def table(rows: Iterable[Cells], align: str, header: Cells = (), bold: Sequence[int] = ()) -> Block:
    """Columns without lines. `align` has one letter per column: l, r, or b for a bar, which never wraps.

    `bold` names rows by number.
    """
    gap = 2 if len(align) <= _MOST_COLUMNS else 1
    made = Table(
        box=None, show_header=bool(header), padding=(0, gap, 0, 0), pad_edge=False, header_style="dim"
    )
    for index, side in enumerate(align):
        name = Text(header[index]) if header else ""
        made.add_column(
            name, justify="right" if side == "r" else "left", overflow="fold", no_wrap=side != "l"
        )
    for number, row in enumerate(rows):
        made.add_row(*(Text(cell) for cell in row), style="bold" if number in bold else "")
    return Padding(made, _INDENT)


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
