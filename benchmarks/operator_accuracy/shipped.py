"""What the project keeps of the measurements, and the fits without each part of their shapes."""

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.hardware.errors import InputError
from meshwright.hardware.kernel_rates import LAWS, Entry, LawFile, load_law
from operator_accuracy.cases import FOLDS, Key, Read, cases_of
from operator_accuracy.fit import Fits, law_file
from operator_accuracy.tables import Array, read_tables

SHIPPED = Path(__file__).parents[1] / "data" / "operators"
FOLDS_FILE = SHIPPED / "folds.json.gz"


@dataclass(frozen=True)
class Known:
    """Of one law: the shipped numbers, those without each part of the shapes, and hashes of the shapes behind them."""

    shipped: LawFile
    parts: tuple[LawFile, ...]
    shapes: Array


@cache
def shipped_cases() -> Read:
    """The rows that the project keeps."""
    return cases_of(read_tables(SHIPPED))


@cache
def known(law: str) -> Known:
    """Errors: InputError where a shipped file is damaged."""
    raw: dict[str, Any] = _folds().get(law, {})
    names = raw.get("names", [])
    parts = []
    for fold in range(FOLDS):
        entries: dict[Key, Entry] = {}
        for *key, values in raw.get("parts", [[]] * FOLDS)[fold]:
            told = {name: value for name, value in zip(names, values, strict=True) if value is not None}
            entries[tuple(key)] = Entry.model_construct(rows=1, values=told)  # type: ignore[index]
        parts.append(law_file(law, entries))
    cases = shipped_cases().cases.get(law)
    shapes = np.unique(cases.shape) if cases is not None else np.zeros(0, np.uint64)
    return Known(load_law(law), tuple(parts), shapes)


@cache
def _folds() -> dict[str, Any]:
    """Errors: InputError where the file is missing or damaged."""
    try:
        loaded: dict[str, Any] = json.loads(gzip.decompress(FOLDS_FILE.read_bytes()))
    except (OSError, EOFError, ValueError) as error:
        raise InputError(
            f"{FOLDS_FILE} cannot be read; write it by benchmarks/fit_operators.py --write"
        ) from error
    return loaded


def folds_data(fits: dict[str, Fits]) -> bytes:
    """The file of the fits without each part, the same bytes for the same fits; laws not among them stay as they are."""
    laws = {} if set(fits) == set(LAWS) else dict(_folds())
    laws |= {law: _parts(one) for law, one in fits.items()}
    text = ",\n".join(f"{json.dumps(law)}:{json.dumps(laws[law], separators=(',', ':'))}" for law in LAWS)
    return gzip.compress(f"{{{text}}}\n".encode(), 9, mtime=0)


def _parts(fits: Fits) -> dict[str, Any]:
    """Names of the numbers, and per part each case with its own, None for one it does not have."""
    names = sorted({name for part in fits.parts for entry in part.values() for name in entry.values})
    parts = [
        [[*key, [entry.values.get(name) for name in names]] for key, entry in sorted(part.items())]
        for part in fits.parts
    ]
    return {"names": names, "parts": parts}
