"""What benchmarks/fit.py writes and the judge reads: the fit on all kept runs and those with groups left out."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from meshwright.hardware.errors import InputError
from training_accuracy.cases import BAD_ROWS, Case, Refusal
from training_accuracy.fitting import Fit
from training_accuracy.parameters import PARAMETERS

DATA = Path(__file__).parents[1] / "data"
RUNS, FITS = DATA / "training_runs.yaml.gz", DATA / "training_fits.json.gz"
CALIBRATION = Path(__file__).parents[2] / "hardware" / "data" / "calibration"
FIXED = DATA / "training_fixed.yaml"  # numbers of the calibration that no run moves


def fixed() -> dict[str, Any]:
    """The calibration's numbers that are not fitted."""
    data: dict[str, Any] = yaml.safe_load(FIXED.read_text())
    return data


def without_bad(cases: Sequence[Case]) -> tuple[list[Case], list[Refusal]]:
    """Runs that are measurements of what they say, and those that are not, with the reason."""
    bad = [b for b in yaml.safe_load(BAD_ROWS.read_text()) if "only" not in b]
    kept, out = [], []
    for case in cases:
        why = next((b["reason"] for b in bad if _is(case.id, b["id"])), None)
        if why is None:
            kept.append(case)
        else:
            out.append(Refusal(case.id, "bad row", why))
    return kept, out


def is_odd(case: Case) -> bool:
    """Whether a run is far from its repeats, so that it decides the order of its group."""
    odd = [b["id"] for b in yaml.safe_load(BAD_ROWS.read_text()) if b.get("only") == "ranking"]
    return case.id in odd


def _is(name: str, listed: str) -> bool:
    return name.startswith(listed) if listed.endswith("-") else name == listed


@dataclass
class Fits:
    """Attributes: full: on all kept runs. folds: by split, each fit with the groups that it did not see."""

    full: Fit
    folds: dict[str, list[tuple[frozenset[str], Fit]]] = field(default_factory=dict)

    def of(self, split: str, key: str) -> Fit:
        """The fit that did not see a group; the one on all where no fit did."""
        return next((fit for keys, fit in self.folds[split] if key in keys), self.full)


def save(fits: Fits, path: Path = FITS) -> None:
    data = {
        "parameters": [p.path for p in PARAMETERS],
        "full": _plain(fits.full),
        "folds": {
            split: [{"left_out": sorted(keys), **_plain(fit)} for keys, fit in folds]
            for split, folds in fits.folds.items()
        },
    }
    text = json.dumps(data, sort_keys=True, indent=0).encode()
    path.write_bytes(gzip.compress(text, mtime=0))


def load(path: Path = FITS) -> Fits:
    """Errors: InputError where the file is of other parameters than the code."""
    data = json.loads(gzip.decompress(path.read_bytes()))
    if data["parameters"] != [p.path for p in PARAMETERS]:
        raise InputError(
            f"{path.name} holds other parameters than are fitted today; run benchmarks/fit.py --write"
        )
    folds = {
        split: [(frozenset(one["left_out"]), _fit(one)) for one in of] for split, of in data["folds"].items()
    }
    return Fits(_fit(data["full"]), folds)


def _plain(fit: Fit) -> dict[str, Any]:
    return {
        "x": [float(f"{v:.6g}") for v in fit.x],
        "spread": [float(f"{v:.4g}") for v in fit.spread],
        "effects": {"/".join(k): float(f"{v:.5g}") for k, v in sorted(fit.effects.items())},
    }


def _fit(data: dict[str, Any]) -> Fit:
    effects = {tuple(k.rsplit("/", 1)): v for k, v in data["effects"].items()}
    return Fit(np.array(data["x"]), effects, np.array(data["spread"]))
