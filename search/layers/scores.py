"""Scores of variants by layer, and costs that the cost model cannot know, from a CSV file.

Per part      layer,variant,score[,prefill_s,decode_s,weight_bytes,kv_bytes,params]
Whole layers  layer,attention,ffn,score[,the same]

`layer` counts from 0; `*` stands for every layer without a row of its own. Lower is better unless the caller says
otherwise. An empty cell says nothing; a cost that is given replaces the cost model's.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np

from meshwright.hardware.errors import InputError, UnknownNameError, check_type, shown
from meshwright.hardware.files import read_text
from meshwright.search.fit.runs import check_commas
from meshwright.search.layers.price import COSTS
from meshwright.search.layers.problem import Floats

_VALUES = ("score", *COSTS[:-1])
_WANTED = "a CSV file of scores, its first line layer,variant,score or layer,attention,ffn,score"
Key = tuple[str, ...]


@dataclass(frozen=True)
class Given:
    """What a file says. `joint` where it scores whole layers.

    Attributes:
        values: (layer or None for every one, names) to the values that are given, by column.
    """

    where: str
    joint: bool
    values: dict[tuple[int | None, Key], dict[str, float]]

    def table(self, column: str, layers: int, keys: Sequence[Key]) -> Floats:
        """[L, keys]; NaN where the file says nothing."""
        out = np.full((layers, len(keys)), np.nan)
        for k, key in enumerate(keys):
            whole = self.values.get((None, key), {}).get(column, np.nan)
            for layer in range(layers):
                out[layer, k] = self.values.get((layer, key), {}).get(column, whole)
        return out

    def check(self, layers: int, known: Sequence[Key]) -> None:
        """Errors: InputError for a layer that is not there, UnknownNameError for a variant."""
        keys = set(known)
        for layer, key in self.values:
            if layer is not None and layer >= layers:
                raise InputError(
                    f"{self.where}: layer {layer} of a model of {layers} layers; they count from 0 to {layers - 1}"
                )
            if key not in keys:
                raise UnknownNameError("variant", "+".join(key), ["+".join(k) for k in known], self.where)


def read_scores(path: str) -> Given:
    """Errors: InputError naming the line and what is wrong with it."""
    check_type("scores", path, str, "the path of a CSV file")
    rows = list(csv.reader(io.StringIO(read_text(Path(path).expanduser(), _WANTED))))
    head = [cell.strip() for cell in rows[0]]
    check_commas(head, path)
    joint = "attention" in head or "ffn" in head
    names = ("attention", "ffn") if joint else ("variant",)
    _check_head(path, head, names)
    values: dict[tuple[int | None, Key], dict[str, float]] = {}
    for number, row in enumerate(rows[1:], start=2):
        if not any(cell.strip() for cell in row):
            continue
        where = f"{path}, line {number}"
        if len(row) != len(head):
            raise InputError(f"{where} has {len(row)} cells and the first line {len(head)}; give as many")
        cells = dict(zip(head, (cell.strip() for cell in row), strict=True))
        key = _layer(where, cells["layer"]), tuple(cells[name] for name in names)
        if key in values:
            raise InputError(
                f"{where} gives layer {cells['layer']}, {'+'.join(key[1])} a second time; keep one"
            )
        values[key] = {c: _number(where, c, cells[c]) for c in _VALUES if cells.get(c)}
    return Given(path, joint, values)


def _check_head(path: str, head: list[str], names: tuple[str, ...]) -> None:
    needed = ("layer", *names, "score")
    if missing := [name for name in needed if name not in head]:
        raise InputError(f"{path}: the first line lacks {', '.join(missing)}; give {_WANTED}")
    if unknown := [name for name in head if name not in (*needed, *_VALUES)]:
        raise UnknownNameError("column", unknown[0], (*needed, *_VALUES[1:]), path)
    if len(set(head)) < len(head):
        raise InputError(f"{path}: the first line names a column twice; keep one")


def _layer(where: str, text: str) -> int | None:
    if text == "*":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise InputError(f"{where}: layer is {shown(text)}; give its number from 0, or * for every one")
    return int(text)


def _number(where: str, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value) or (column != "score" and value < 0):
        least = "" if column == "score" else " of at least 0"
        raise InputError(f"{where}: {column} is {shown(text)}; give a finite number{least}")
    return value
