"""Trained models to fit a law to: a CSV of one row each, checked, and what laws read of it."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.hardware.errors import InputError, UnknownNameError, check_type, shown
from meshwright.hardware.files import read_text
from meshwright.search.law_columns import Columns, Granularity
from meshwright.search.shape import Floats, Shapes

# Columns of the file and what they hold; the first nine are whole numbers.
COLUMNS: Mapping[str, str] = {
    "l": "layers",
    "d": "width of the model",
    "n_heads": "query heads",
    "n_kv": "key/value heads",
    "head_dim": "width of a head",
    "ffn": "width of the feed-forward part, or of one expert",
    "experts": "routed experts, 1 where dense",
    "top_k": "routed experts that a token meets, 1 where dense",
    "shared": "shared experts",
    "tokens": "training tokens",
    "params_total": "parameters, every expert counted",
    "params_active": "parameters that a token meets",
    "loss": "nats per token",
    "split": "fit, held_out or extrapolation",
    "weight": "of the row in the fit",
}
_WHOLE = tuple(COLUMNS)[:9]
_SHAPE = _WHOLE
_OPTIONAL = ("split", "weight")
SPLITS = ("fit", "held_out", "extrapolation")
# What a law reads that stands in the file as it is.
_AS_GIVEN = {
    "layers": "l", "width": "d", "experts": "experts", "top_k": "top_k", "tokens": "tokens",
    "parameters": "params_total", "active_parameters": "params_active",
}  # fmt: skip


class RunsError(InputError):
    """Runs that no law can be fitted to."""


@dataclass(frozen=True)
class Runs:
    """R trained models as columns by the names of COLUMNS; of `split` the words.

    Errors: RunsError for rows that are no models.
    """

    given: Mapping[str, Floats]
    split: NDArray[np.str_] | None = None

    def __post_init__(self) -> None:
        _check(self.given)

    def __len__(self) -> int:
        return len(self.given["loss"])

    @property
    def loss(self) -> Floats:
        return self.given["loss"]

    @property
    def weight(self) -> Floats:
        return self.given.get("weight", np.ones(len(self)))

    def has(self, *names: str) -> bool:
        return all(name in self.given for name in names)

    def dense(self) -> bool | None:
        """Whether every model is dense; None where the file does not say."""
        return bool((self.given["experts"] == 1).all()) if self.has("experts") else None

    def shapes(self) -> Shapes | None:
        """The rows as shapes, where the file gives all that makes one."""
        if not self.has(*_SHAPE):
            return None
        whole = {name: self.given[name].astype(np.int64) for name in _WHOLE}
        met = whole["top_k"] + whole["shared"]
        return Shapes(
            layers=whole["l"],
            width=whole["d"],
            heads=whole["n_heads"],
            kv_heads=whole["n_kv"],
            head_dim=whole["head_dim"],
            ffn_ratio=met * whole["ffn"] / whole["d"],
            experts=whole["experts"],
            top_k=whole["top_k"],
            shared=whole["shared"],
        )

    def read(self, granularity: Granularity | None = None) -> Columns:
        """What laws read, as far as the file gives it."""
        named: dict[str, Any] = {
            name: self.given[column] for name, column in _AS_GIVEN.items() if column in self.given
        }
        shapes = self.shapes()
        if shapes is None:
            return Columns(**named)
        cut = granularity.of(shapes) if granularity is not None else None
        return replace(Columns.of(shapes), granularity=cut, **named)

    def lacks(self, variables: Iterable[str]) -> tuple[str, ...]:
        """Columns of the file without which these variables of a law cannot be read."""
        asked = [c for v in variables for c in ((_AS_GIVEN[v],) if v in _AS_GIVEN else _SHAPE)]
        return tuple(c for c in COLUMNS if c in asked and c not in self.given)

    def names(self) -> NDArray[np.int64]:
        """[R] one number per model: runs of the same shape and size at several tokens are one."""
        keys = [self.given[name] for name in (*_SHAPE, "params_total", "params_active") if self.has(name)]
        if not keys:
            return np.arange(len(self))
        return np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def load_runs(path: str | Path) -> Runs:
    """Runs of a CSV file whose first line names the columns.

    Errors: InputError where the file cannot be read; RunsError for a column or a value that is none.
    """
    check_type("the runs", path, (str, Path), "the path of a CSV file", RunsError)
    text = read_text(Path(path).expanduser(), "a CSV file of runs").removeprefix("\ufeff")
    where = str(path)[-80:]
    try:
        lines = [
            [cell.strip() for cell in line]
            for line in csv.reader(StringIO(text, newline=""), strict=True)
            if line
        ]
    except csv.Error as error:
        raise RunsError(f"{where} is no CSV file ({error})") from None
    names = lines[0]
    check_commas(names, where)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RunsError(f"{where} names the column {twice[0][:40]!r} twice")
    for i, line in enumerate(lines[1:], 1):
        if len(line) != len(names):
            raise RunsError(f"{where}, row {i}: {len(line)} values under {len(names)} columns")
    return runs_of((dict(zip(names, line, strict=True)) for line in lines[1:]), where)


def check_commas(head: Sequence[str], where: str) -> None:
    """Errors: InputError for a first line that another sign than the comma divides."""
    for sign, told in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(head) == 1 and sign in head[0]:
            raise InputError(f"{where} divides its columns by {told}; write commas, and points in decimals")


def runs_of(rows: Iterable[Mapping[str, object]], where: str = "the runs") -> Runs:
    """Runs of rows that map names of COLUMNS to numbers or their text.

    Errors: RunsError.
    """
    try:
        listed = [dict(row) for row in rows]
    except (TypeError, ValueError):
        raise RunsError(f"{where}: give one mapping of columns to numbers per trained model") from None
    if not listed:
        raise RunsError(
            f"{where} has no row; give one per trained model, under a line that names the columns"
        )
    names = list(listed[0])
    for name in names:
        if name not in COLUMNS:
            raise UnknownNameError(f"column of {where}", str(name), COLUMNS)
    if "loss" not in names:
        raise RunsError(f"{where} has no column loss; a law is fitted to losses in nats per token")
    for i, row in enumerate(listed):
        if set(row) != set(names):
            raise RunsError(f"{where}, row {i + 1} has other columns than the first; give {', '.join(names)}")
    split = _words([row["split"] for row in listed], where) if "split" in names else None
    given = {name: _numbers(name, [row[name] for row in listed], where) for name in names if name != "split"}
    return Runs(given, split)


def _words(values: Sequence[object], where: str) -> NDArray[np.str_]:
    words = [str(value).strip() for value in values]
    for i, word in enumerate(words):
        if word not in SPLITS:
            raise RunsError(f"{where}, row {i + 1}: split is {shown(word)}; give {', '.join(SPLITS)}")
    return np.array(words)


def _numbers(name: str, values: Sequence[object], where: str) -> Floats:
    column = np.empty(len(values))
    for i, value in enumerate(values):
        try:
            column[i] = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise RunsError(
                f"{where}, row {i + 1}: {name} is {shown(value)}; give a number ({COLUMNS[name]})"
            ) from None
    return column


def _check(given: Mapping[str, Floats]) -> None:
    lengths = {np.shape(column) for column in given.values()}
    if "loss" not in given or len(lengths) != 1 or len(next(iter(lengths))) != 1:
        raise RunsError(
            f"runs are columns of one length with loss among them; these have the shapes {sorted(lengths)}"
        )
    for name, column in given.items():
        least, said = (0.0, "at least 0") if name == "shared" else (np.nextafter(0, 1), "above 0")
        good = np.isfinite(column) & (column >= least)
        whole = name not in _WHOLE or (column == np.rint(column))
        if not np.all(good & whole):
            row = int(np.flatnonzero(~(good & whole))[0])
            kind = "a whole number" if name in _WHOLE else "a finite number"
            raise RunsError(f"row {row + 1}: {name} is {column[row]:g}; give {kind} {said}")
    for less, more in (("top_k", "experts"), ("params_active", "params_total"), ("n_kv", "n_heads")):
        if less in given and more in given and (given[less] > given[more]).any():
            row = int(np.flatnonzero(given[less] > given[more])[0])
            raise RunsError(
                f"row {row + 1}: {less} {given[less][row]:g} is more than {more} {given[more][row]:g}"
            )
