"""The calibration file as benchmarks/fit.py writes it: values, what the data said of each, and bands."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml

from training_accuracy.cases import Case
from training_accuracy.fitting import Fit
from training_accuracy.parameters import PARAMETERS, Parameter, file_of, plain

HEADER = """\
# Rates of programs and machines, fitted to published training runs: benchmarks/fit.py writes this file from
# benchmarks/data/training_runs.yaml.gz and training_fixed.yaml; change those and not this file.
# fit: x/÷ one standard deviation after the data. prior: the data did not narrow the value; it is no measurement.
"""
TOLD = 0.8  # a spread above this share of the prior's says that the data told nothing
Bands = Mapping[str, tuple[float, float]]


def calibration_text(
    full: Fit, fixed: Mapping[str, Any], measured: Bands, others: Bands, cases: Sequence[Case]
) -> str:
    """The YAML text. `measured` and `others`: bands with families and with sources left out, by kind."""
    data: dict[str, Any] = plain(file_of(full.x, dict(fixed)))
    chips = sorted({c.setting.cluster.chip.name for c in cases})
    data["provenance"] = (
        f"fitted to {len(cases)} published training runs on {len(chips)} chips (benchmarks/fit.py)"
    )
    data["bands"] = {
        "source": f"{len(cases)} published training runs",
        "chips": chips,
        "measured": {kind: _band(band) for kind, band in measured.items()},
        "others": {kind: _band(_wider(band, measured[kind])) for kind, band in others.items()},
    }
    notes = {p.path: _note(p, float(s)) for p, s in zip(PARAMETERS, full.spread, strict=True)}
    return HEADER + "\n".join(_lines(data, notes)) + "\n"


def _wider(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Of a chip without runs nothing can be better known than of one with them."""
    return min(one[0], other[0]), max(one[1], other[1])


def _band(band: tuple[float, float]) -> list[float]:
    low, high = band
    return [float(f"{min(low, 1.0):.3g}"), float(f"{max(high, 1.0):.3g}")]


def _note(parameter: Parameter, spread: float) -> str:
    return f"fit, x/÷ {np.exp(spread):.2f}" if spread < TOLD * parameter.sd else "prior"


def _lines(data: Mapping[str, Any], notes: Mapping[str, str], path: str = "", indent: int = 0) -> list[str]:
    """A mapping as block YAML, a comment beside each fitted number."""
    out = []
    for key, value in data.items():
        here = f"{path}.{key}" if path else str(key)
        head = " " * indent + f"{key}:"
        if isinstance(value, Mapping) and value:
            out += [head, *_lines(value, notes, here, indent + 2)]
            continue
        text = (
            yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
            .strip()
            .removesuffix("...")
            .strip()
        )
        out.append(f"{head} {text}" + (f"  # {notes[here]}" if here in notes else ""))
    return out
