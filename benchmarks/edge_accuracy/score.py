"""How far predicted token rates are from measured ones, the device of every row left out of what predicts it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_accuracy.cases import PHASES, Case, Refusal
from edge_accuracy.fit import SHORT_PROMPT, fit, row_weights
from edge_accuracy.predict import Columns, Floats, token_rates
from meshwright.hardware.inference_rates import OTHER, RatesFile

Mask = NDArray[np.bool_]


def _size(case: Case) -> str:
    billions = case.model.active_params / 1e9
    return next((f"below {most}B" for most in (2, 5, 10) if billions < most), "from 10B")


def _precision(case: Case) -> str:
    return "below 6 bits" if case.bits < 6 else "6 to 9 bits" if case.bits < 9 else "16 bits"


CLASSES: dict[str, Callable[[Case], str]] = {
    "kind": lambda c: c.machine.kind,
    "engine": lambda c: c.engine,
    "precision": _precision,
    "mixture": lambda c: "moe" if c.moe else "dense",
    "size": _size,
    "lengths": lambda c: "assumed" if c.assumed else "stated",
    "figures": lambda c: "sourced" if c.machine.sourced else "of the file",
    "device": lambda c: c.machine.name,
}


@dataclass(frozen=True)
class Scored:
    """Cases of one file [R] beside the rows that the shipped rates were fitted on; predictions in tokens/s."""

    columns: Columns
    refused: tuple[Refusal, ...]
    known: Columns
    shipped: RatesFile

    @cached_property
    def left_out(self) -> Floats:
        """By the law fitted without the row's device; by the shipped rates where the device is none of the known rows.

        Errors: MissingExtraError where SciPy is not installed.
        """
        return self._without(lambda case: case.machine.group)

    @cached_property
    def engine_left_out(self) -> Floats:
        """The same without any row of the row's engine."""
        return self._without(lambda case: case.engine)

    @cached_property
    def fitted(self) -> Floats:
        """By the shipped rates, with the device's own speed where it was measured."""
        return token_rates(self.columns, self.shipped, measured=True)

    @cached_property
    def roofline(self) -> Floats:
        """At peak rates."""
        return token_rates(self.columns, None)

    @cached_property
    def class_means(self) -> Floats:
        """The roofline times the mean share that other devices of the class reach."""
        return self.roofline * _class_shares(self.cases, self.known)

    def _without(self, label: Callable[[Case], str]) -> Floats:
        """Every row by the law without the known rows of its label."""
        out, weight = token_rates(self.columns, self.shipped), row_weights(self.known.cases)
        here, there = (np.array([label(case) for case in c.cases]) for c in (self.columns, self.known))
        for one in sorted(set(here.tolist()) & set(there.tolist())):
            law = fit(self.known, np.where(there == one, 0.0, weight))
            out[here == one] = token_rates(self.columns, law.file)[here == one]
        return out

    @property
    def cases(self) -> tuple[Case, ...]:
        return self.columns.cases

    @cached_property
    def predictions(self) -> dict[str, Floats]:
        names = ("left_out", "engine_left_out", "fitted", "roofline", "class_means")
        return {name: getattr(self, name) for name in names}

    def rows(self, phase: str) -> Mask:
        """Rows of a phase; of prefill those whose prompt is long enough to time the device."""
        wanted = self.columns.is_prefill == (phase == "prefill")
        out: Mask = wanted & ((phase == "decode") | (self.columns.prompt >= SHORT_PROMPT))
        return out

    def errors(self, rows: Mask) -> dict[str, Any]:
        """Relative errors of predicted rates over some rows, by how they were predicted."""
        out: dict[str, Any] = {"rows": int(rows.sum())}
        if not rows.any():
            return out
        for name, rates in self.predictions.items():
            off = (rates / self.columns.rate - 1)[rows]
            out[name] = {
                "mean_abs": round(float(np.abs(off).mean()), 4),
                "bias": round(float(off.mean()), 4),
                "within_10": round(float((np.abs(off) <= 0.1).mean()), 4),
                "within_20": round(float((np.abs(off) <= 0.2).mean()), 4),
            }
        return out

    def by_class(self, phase: str) -> dict[str, dict[str, Any]]:
        rows, out = self.rows(phase), {}
        for name, of in CLASSES.items():
            labels = np.array([of(case) for case in self.cases])
            out[name] = {
                label: self.errors(rows & (labels == label)) for label in sorted(set(labels[rows].tolist()))
            }
        return out

    def summary(self) -> dict[str, Any]:
        """What the last line of the command holds."""
        sourced = np.array([case.machine.sourced for case in self.cases], bool)
        out: dict[str, Any] = {
            "judge": "edge", "rows": len(self.cases) + len(self.refused), "priced": len(self.cases),
            "refused": dict(sorted(Counter(r.reason for r in self.refused).items())),
        }  # fmt: skip
        for phase in PHASES:
            rows = self.rows(phase)
            out[phase] = self.errors(rows) | {
                "sourced": self.errors(rows & sourced),
                "engine": {k: v["left_out"]["mean_abs"] for k, v in self.by_class(phase)["engine"].items()},
            }
        out["prefill"]["short_prompts_apart"] = int((self.columns.is_prefill & ~self.rows("prefill")).sum())
        return out


def _class_shares(cases: Sequence[Case], known: Columns) -> Floats:
    """Mean share of the roofline that other devices of a case's class reach; of wider classes where it has none."""
    share = known.rate / token_rates(known, None)
    labels: tuple[Callable[[Case], tuple[object, ...]], ...] = (
        lambda c: (c.phase, c.machine.kind, c.engine, c.bits < 8, c.moe),
        lambda c: (c.phase, c.machine.kind, c.bits < 8),
        lambda c: (c.phase, c.machine.kind),
        lambda c: (c.phase,),
    )
    out = np.ones(len(cases))
    for i, case in enumerate(cases):
        for label in labels:
            alike = [
                s
                for s, k in zip(share, known.cases, strict=True)
                if k.machine.group != case.machine.group and label(k) == label(case) and k.engine != OTHER
            ]
            if alike:
                out[i] = float(np.mean(alike))
                break
    return out
