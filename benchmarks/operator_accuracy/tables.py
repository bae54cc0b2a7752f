"""A table of operator measurements as columns: CSV, plain or gzip, whose kind its columns tell."""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.hardware.errors import InputError

Array = NDArray[Any]
TEXT = (
    "chip", "backend", "dtype", "kv_dtype", "phase", "kind", "distribution", "network", "op", "source",
)  # fmt: skip
# What each kind of table needs; the first whose columns are all there is the table's. busbw_GBps and the like are not read.
KINDS: dict[str, tuple[str, ...]] = {
    "gemm": ("chip", "backend", "dtype", "m", "n", "k", "time_us"),
    "attention": (
        "chip", "backend", "phase", "kind", "dtype", "kv_dtype", "batch", "q_len", "kv_len", "heads", "kv_heads",
        "head_dim", "causal", "time_us",
    ),
    "moe": (
        "chip", "backend", "dtype", "tokens", "hidden", "ffn", "experts", "topk", "ep", "tp", "distribution", "time_us",
    ),
    "collective": ("chip", "backend", "network", "op", "ranks", "nodes", "bytes", "dtype", "time_us"),
    "memory": ("chip", "backend", "op", "dtype", "rows", "cols", "bytes", "time_us"),
}  # fmt: skip
ZERO_ALLOWED = ("causal",)
LARGEST = 2.0**53  # of whole numbers that a float holds


@dataclass(frozen=True)
class Table:
    """One file. `numbers` are float columns [R], NaN where a cell is none; `texts` codes [R] into lists of words."""

    kind: str
    numbers: dict[str, Array]
    texts: dict[str, tuple[Array, tuple[str, ...]]]
    ragged: int

    @property
    def rows(self) -> int:
        return len(self.numbers["time_us"])

    @property
    def good(self) -> Array:
        """Rows whose numbers are all above 0 (0 allowed where it is a flag) and below 2^53."""
        ok = np.ones(self.rows, bool)
        for name, column in self.numbers.items():
            ok &= (np.abs(column) < LARGEST) & ((column > 0) | ((name in ZERO_ALLOWED) & (column == 0)))
        return ok

    def words(self, name: str) -> list[str]:
        """A text column, one word per row."""
        codes, words = self.texts[name]
        return [words[code] for code in codes]


def read_tables(path: Path) -> list[Table]:
    """The table, or every *.csv and *.csv.gz of a folder. Errors: InputError where there is none."""
    if not path.is_dir():
        return [read_table(path)]
    files = sorted(f for f in path.iterdir() if f.name.endswith((".csv", ".csv.gz")))
    if not files:
        raise InputError(f"{path} holds no .csv or .csv.gz; give a folder of operator tables")
    return [read_table(f) for f in files]


def read_table(path: Path) -> Table:
    """Errors: InputError where the file cannot be read or has the columns of no kind of table."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
        head, *rows = list(csv.reader(io.StringIO(text))) or [[]]
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise InputError(f"{path} is no readable CSV table ({type(error).__name__}: {error})") from error
    kind = next((k for k, needed in KINDS.items() if set(needed) <= set(head)), None)
    if kind is None:
        raise InputError(
            f"{path} has columns {', '.join(head)[:120] or 'none'}; an operator table has those of one of "
            + "; ".join(f"{k}: {', '.join(needed)}" for k, needed in KINDS.items())
        )
    if len(set(head)) < len(head):
        raise InputError(f"{path} names a column twice; give each once")
    whole = [row for row in rows if len(row) == len(head)]
    columns = dict(zip(head, zip(*whole, strict=True) if whole else [()] * len(head), strict=True))
    wanted = KINDS[kind]
    columns.setdefault("source", ("",) * len(whole))
    return Table(
        kind,
        {name: _numbers(columns[name]) for name in wanted if name not in TEXT},
        {name: _codes(columns[name]) for name in (*wanted, "source") if name in TEXT},
        sum(1 for row in rows if row) - len(whole),
    )


def _numbers(cells: Sequence[str]) -> Array:
    try:
        return np.array(list(map(float, cells)))
    except ValueError:
        return np.array([_number(cell) for cell in cells])


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _codes(cells: Sequence[str]) -> tuple[Array, tuple[str, ...]]:
    known: dict[str, int] = {}
    codes = [known.setdefault(cell, len(known)) for cell in cells]
    return np.array(codes, np.int64), tuple(known)


def hashed(*columns: Array) -> Array:
    """One 64-bit number per row of whole-number columns, alike on every machine (the mixing steps of splitmix64)."""
    out = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        whole = np.where(np.abs(column) < LARGEST, column, 0).astype(np.int64).astype(np.uint64)
        out = (out + np.uint64(0x9E3779B97F4A7C15)) ^ whole
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            out = (out ^ (out >> np.uint64(shift))) * np.uint64(factor)
        out ^= out >> np.uint64(31)
    return out
