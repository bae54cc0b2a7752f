"""Where the columns of a table go, so that no number and no word is ever broken. Plain arithmetic on widths."""

from collections.abc import Sequence
from dataclasses import dataclass

_MOST_COLUMNS = 12  # of a table that stands two blanks apart


@dataclass(frozen=True)
class Band:
    """Columns that stand side by side, by number, their widths, and the blanks between them."""

    columns: tuple[int, ...]
    widths: tuple[int, ...]
    gap: int


def bands(whole: Sequence[int], least: Sequence[int], width: int) -> tuple[Band, ...]:
    """Of columns that are `whole` wide and may be wrapped down to `least`: one band, or several below each other.

    A closer gap comes before a second band; each further band repeats the first column, which says whose row it is.
    Empty where not even two columns fit side by side.
    """
    every = tuple(range(len(whole)))
    for gap in (2, 1) if len(whole) <= _MOST_COLUMNS else (1,):
        if _taken(least, every, gap) <= width:
            return (_band(whole, least, width, every, gap),)
    found, rest = [], every[1:]
    while rest:
        kept = [n for n in range(len(rest) + 1) if _taken(least, (0, *rest[:n]), 2) <= width]
        if not kept or not kept[-1]:
            return ()
        found.append(_band(whole, least, width, (0, *rest[: kept[-1]]), 2))
        rest = rest[kept[-1] :]
    return tuple(found)


def _taken(widths: Sequence[int], columns: Sequence[int], gap: int) -> int:
    return sum(widths[c] for c in columns) + gap * (len(columns) - 1)


def _band(whole: Sequence[int], least: Sequence[int], width: int, columns: tuple[int, ...], gap: int) -> Band:
    """The widest column that may be wrapped is narrowed first."""
    at = [min(whole[c], max(width, least[c])) for c in range(len(whole))]
    for _ in range(_taken(at, columns, gap) - width):
        at[max((c for c in columns if at[c] > least[c]), key=lambda c: at[c])] -= 1
    return Band(columns, tuple(at[c] for c in columns), gap)
