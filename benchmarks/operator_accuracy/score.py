"""How far predicted seconds of operators are from measured ones, the shape of every row left out of what predicts it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.kernel_rates import ANY, LAWS, find
from operator_accuracy.cases import FOLDS, Cases, Read
from operator_accuracy.laws import is_data_centre, roofline_s, seconds
from operator_accuracy.shipped import Known, known, shipped_cases
from operator_accuracy.tables import Array

BARS = {"matmul": 0.12, "prefill": 0.15, "decode": 0.18, "experts": 0.22, "collective": 0.09, "domain": 0.13}
WAYS = ("left_out", "family", "no_kernel", "flat")
FEW_ROWS = 50  # a chip or case with fewer is shown but counts in no median


def predicted(cases: Cases, by: Known, *, itself: bool = True, kernels: bool = True) -> Array:
    """Seconds of every row: of a shape that is known by the fit without it, else by the shipped numbers; NaN where nothing
    near was measured.

    Args:
        itself: False leaves the chip's own numbers out. kernels: False forgets which kernel it was.
    """
    part = np.where(np.isin(cases.shape, by.shapes), cases.fold, FOLDS)
    out = np.full(len(cases), np.nan)
    for rows in _together(cases.key * (FOLDS + 1) + part):
        chip, engine, kernel, case = cases.keys[cases.key[rows[0]]]
        file = (*by.parts, by.shipped)[part[rows[0]]]
        try:
            found = find(file, chip, case, engine, kernel if kernels else ANY, itself=itself)
        except MeshwrightError:
            continue
        columns = {name: column[rows] for name, column in cases.columns.items()}
        out[rows] = seconds(cases.law, found.rates, chip, case, columns)
    return out


def flat(cases: Cases) -> Array:
    """Seconds at one share of the roofline per chip and case, the median of the shipped rows'; NaN where there are none."""
    ours = shipped_cases().cases.get(cases.law)
    shares = {} if ours is None else _shares(ours)
    out = np.full(len(cases), np.nan)
    for rows, roof in _roofs(cases):
        chip, _, _, case = cases.keys[cases.key[rows[0]]]
        if (share := shares.get((chip, case))) is not None:
            out[rows] = roof / share
    return out


def _shares(cases: Cases) -> dict[tuple[str, str], float]:
    reached: dict[tuple[str, str], list[Array]] = {}
    for rows, roof in _roofs(cases):
        chip, _, _, case = cases.keys[cases.key[rows[0]]]
        reached.setdefault((chip, case), []).append(roof / cases.seconds[rows])
    return {key: float(np.median(np.concatenate(some))) for key, some in reached.items()}


def _roofs(cases: Cases) -> Iterable[tuple[Array, Array]]:
    for rows in _together(cases.key):
        chip, _, _, case = cases.keys[cases.key[rows[0]]]
        columns = {name: column[rows] for name, column in cases.columns.items()}
        yield rows, roofline_s(cases.law, chip, case, columns)


def _together(codes: Array) -> list[Array]:
    """Indices of rows of one code, code by code."""
    order = np.argsort(codes, kind="stable")
    cuts = np.flatnonzero(np.diff(codes[order])) + 1
    return [rows for rows in np.split(order, cuts) if len(rows)]


@dataclass(frozen=True)
class ScoredLaw:
    """Cases of one law and what each way predicts."""

    cases: Cases
    ways: dict[str, Array]

    @staticmethod
    def of(cases: Cases) -> "ScoredLaw":
        by = known(cases.law)
        return ScoredLaw(
            cases,
            {
                "left_out": predicted(cases, by),
                "family": predicted(cases, by, itself=False),
                "no_kernel": predicted(cases, by, kernels=False),
                "flat": flat(cases),
            },
        )

    @cached_property
    def priced(self) -> Array:
        return np.isfinite(self.ways["left_out"])

    @cached_property
    def chips(self) -> Array:
        """Index of each row's chip in `chip_names`."""
        names = {name: i for i, name in enumerate(self.chip_names)}
        return np.array([names[key[0]] for key in self.cases.keys], int)[self.cases.key]

    @cached_property
    def chip_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key[0] for key in self.cases.keys))

    def errors(self, rows: Array) -> dict[str, Any]:
        """Relative errors of seconds over rows that are priced; of the other ways the mean over rows that they price."""
        rows = rows & self.priced
        out: dict[str, Any] = {"rows": int(rows.sum())}
        if not rows.any():
            return out
        off = self.ways["left_out"][rows] / self.cases.seconds[rows] - 1
        out |= {
            "mape": _short(np.abs(off).mean()), "median": _short(np.median(np.abs(off))), "bias": _short(off.mean()),
        }  # fmt: skip
        for way in WAYS[1:]:
            there = rows & np.isfinite(self.ways[way])
            if there.any():
                out[way] = _short(np.abs(self.ways[way][there] / self.cases.seconds[there] - 1).mean())
        return out

    @cached_property
    def by_chip(self) -> dict[str, dict[str, Any]]:
        return {name: self.errors(self.chips == i) for i, name in enumerate(self.chip_names)}

    @cached_property
    def by_engine(self) -> dict[str, dict[str, Any]]:
        engines = [key[1].split()[0] for key in self.cases.keys]
        code = np.array(engines)[self.cases.key] if engines else np.zeros(0, str)
        return {name: self.errors(code == name) for name in sorted(set(engines))}

    @cached_property
    def by_case(self) -> dict[str, dict[str, Any]]:
        return {" ".join(key): self.errors(self.cases.key == i) for i, key in enumerate(self.cases.keys)}

    def summary(self) -> dict[str, Any]:
        """Medians over chips of the mean absolute error, over all chips and those of data centres."""
        out: dict[str, Any] = {"rows": len(self.cases), "priced": int(self.priced.sum())}
        counted = {name: one for name, one in self.by_chip.items() if one["rows"] >= FEW_ROWS}
        for name, chips in (
            ("all_chips", counted),
            ("data_centre", {chip: one for chip, one in counted.items() if is_data_centre(chip)}),
        ):
            out[name] = {"chips": len(chips)}
            for way in ("mape", *WAYS[1:]):
                if values := [one[way] for one in chips.values() if way in one]:
                    out[name][way] = _short(float(np.median(values)))
        if self.cases.law in BARS:
            out["bar"] = BARS[self.cases.law]
        out["by_chip"] = {name: one["mape"] for name, one in self.by_chip.items() if one["rows"]}
        return out


@dataclass(frozen=True)
class Scored:
    """All laws of the tables given."""

    laws: dict[str, ScoredLaw]
    refused: Counter[str]
    rows: int

    @staticmethod
    def of(read: Read) -> "Scored":
        laws = {law: ScoredLaw.of(read.cases[law]) for law in LAWS if law in read.cases}
        refused = Counter(read.refused)
        for law, one in laws.items():
            if law != "domain":
                refused[f"{law}: measured neither on the chip nor on its family"] += int((~one.priced).sum())
        return Scored(laws, +refused, read.rows)

    def summary(self) -> dict[str, Any]:
        """What the last line of the command holds."""
        return {
            "judge": "operators", "rows": self.rows, "priced": self.rows - sum(self.refused.values()),
            "refused": dict(sorted(self.refused.items())),
            "laws": {law: one.summary() for law, one in self.laws.items()},
        }  # fmt: skip


def _short(value: Any) -> float:
    return round(float(value), 4)
