"""The law of reached rates, fitted: few parameters in logarithms, each drawn to a common value as far as rows are few.

Least squares of log(predicted / measured) under a pseudo-Huber loss (a row that is far off counts by its distance, not
by the square), with a normal prior on every parameter. A kind of device without rows falls back to what all share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_accuracy.cases import Case, groups
from edge_accuracy.predict import Columns, Floats, token_rates
from meshwright.hardware.errors import MissingExtraError
from meshwright.hardware.inference_rates import OTHER, Band, Engine, Fitted, Kind, Measured, RatesFile

KINDS = {
    "discrete": "llama.cpp",
    "server": "llama.cpp",
    "apple": "llama.cpp",
    "integrated": "vllm",
    "cpu": "executorch",
}
# Architectures of chip files.
ARCHITECTURES = {
    "ga102": "discrete", "ada": "discrete", "blackwell-geforce": "discrete",
    "ampere": "server", "hopper": "server",
    "apple-m1": "apple", "apple-m2": "apple", "apple-m3": "apple", "apple-m4": "apple",
    "orin": "integrated", "thor": "integrated", "gb10": "integrated",
}  # fmt: skip
ENGINES = ("llama.cpp", "vllm", "mlc", "executorch", OTHER)
NOISE = 0.12  # of a row, in logarithms, where the loss turns from square to linear
SHORT_PROMPT = 64  # fewer tokens than that time a cold start and not a device

# Parameter: where it is drawn to, and the standard deviation of its logarithm. `hbm:apple` multiplies `hbm`.
PRIORS: dict[str, tuple[float, float]] = {
    "hbm": (0.8, 0.3), **{f"hbm:{kind}": (1, 0.25) for kind in KINDS},
    "launch": (1e-4, 1.0), "launch:apple": (1, 0.5), "falls": (0.3, 0.7),
    "expert": (0.7, 0.5), "expert:llama.cpp": (1, 0.5), "expert:vllm": (1, 0.5),
    "wide:mlc": (1, 0.3),
    "flop": (0.6, 0.4), **{f"flop:{kind}": (1, 0.5) for kind in ("discrete", "server", "apple", "integrated")},
    "quantised": (1, 0.3), "ceiling": (1.5e14, 1.0),
}  # fmt: skip
NAMES = tuple(PRIORS)
_MEAN = np.log([PRIORS[name][0] for name in NAMES])
_SD = np.array([PRIORS[name][1] for name in NAMES])

Values = dict[str, float]


def rates_file(values: Values, **facts: Any) -> RatesFile:
    """The file that a set of parameters makes; `facts` replace bands, devices and words."""
    v = values

    def of(*names: str) -> Fitted:
        """A product of parameters; one that no prior lists is 1."""
        return Fitted(value=float(np.prod([v.get(name, 1.0) for name in names])))

    no_band = Band(width=1, rows=0)
    kinds = {
        kind: Kind(
            engine=engine,
            hbm_share=of("hbm", f"hbm:{kind}"),
            launch_s=of("launch", f"launch:{kind}"),
            launch_falls=of("falls") if kind == "integrated" else None,
            flop_share=of("flop", f"flop:{kind}"),
            decode=no_band,
            prefill=no_band,
        )
        for kind, engine in KINDS.items()
    }
    engines = {
        engine: Engine(
            expert_share=of("expert", f"expert:{engine}"),
            flop_ceiling_per_s=of("ceiling") if engine == "llama.cpp" else None,
            wide_heads=of("wide:mlc") if engine == "mlc" else None,
        )
        for engine in ENGINES
    }
    made = RatesFile(
        name="edge", provenance="a fit", architectures=ARCHITECTURES, kinds=kinds, engines=engines,
        quantised_flops=of("quantised"),
    )  # fmt: skip
    return made.model_copy(update=facts)


@dataclass(frozen=True)
class Fit:
    """A fit to some rows of a set of cases."""

    logs: Floats

    @property
    def values(self) -> Values:
        return dict(zip(NAMES, np.exp(self.logs).tolist(), strict=True))

    @cached_property
    def file(self) -> RatesFile:
        return rates_file(self.values)


def fit(columns: Columns, weight: Floats) -> Fit:
    """`weight` [R]: how often each row counts; 0 leaves it out. It starts at the priors, which know of no row.

    Errors: MissingExtraError where SciPy is not installed.
    """
    try:
        from scipy.optimize import least_squares  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("a fit of rates", "fit") from None
    kept = weight > 0

    def residuals(logs: Floats) -> Floats:
        got = token_rates(columns, Fit(logs).file)
        z = np.log(got / columns.rate)[kept] / NOISE
        huber = np.sign(z) * np.sqrt(2 * (np.sqrt(1 + z * z) - 1)) * np.sqrt(weight[kept])
        return np.concatenate([huber, (logs - _MEAN) / _SD])

    return Fit(least_squares(residuals, _MEAN, x_scale=_SD, ftol=1e-7, xtol=1e-7).x)


def row_weights(cases: Sequence[Case]) -> Floats:
    """Rows of one device share its errors: a device of n rows counts as sqrt(n)."""
    names = [case.machine.key + case.phase for case in cases]
    return np.array([names.count(name) ** -0.5 for name in names])


@dataclass(frozen=True)
class LeftOut:
    """A fit to all cases, and for each device one without it.

    Attributes:
        rates: tokens/s [R] predicted by the fit without the row's device.
    """

    columns: Columns
    full: Fit
    without: dict[str, Fit]

    @staticmethod
    def of(cases: Sequence[Case]) -> "LeftOut":
        columns, weight = Columns.of(cases), row_weights(cases)
        full = fit(columns, weight)
        without = {
            group: fit(columns, np.where(member(cases, group), 0.0, weight)) for group in groups(list(cases))
        }
        return LeftOut(columns, full, without)

    @cached_property
    def rates(self) -> Floats:
        out = np.zeros(len(self.columns.cases))
        for group, one in self.without.items():
            here = member(self.columns.cases, group)
            out[here] = token_rates(self.columns, one.file)[here]
        return out


def member(cases: Sequence[Case], group: str) -> NDArray[np.bool_]:
    return np.array([case.machine.group == group for case in cases])


def speeds(columns: Columns, full: Fit) -> dict[str, Measured]:
    """Every measured device's speed over its kind's: the mean of its rows and of two rows at 1, in logarithms."""
    logs = np.log(columns.rate / token_rates(columns, full.file))
    out = {}
    for key in dict.fromkeys(case.machine.key for case in columns.cases):
        here = np.array([case.machine.key == key for case in columns.cases])
        phases = {
            "prefill": here & columns.is_prefill & (columns.prompt >= SHORT_PROMPT), "decode": here & ~columns.is_prefill
        }  # fmt: skip
        drawn = {phase: float(np.exp(logs[rows].sum() / (rows.sum() + 2))) for phase, rows in phases.items()}
        out[key] = Measured(**drawn, rows=int(here.sum()))
    return out


def bands(left_out: LeftOut) -> dict[str, dict[str, Band]]:
    """By kind and phase: the 80% of measured over predicted with the device left out; of all kinds where rows are few."""
    columns = left_out.columns
    off = np.abs(np.log(columns.rate / left_out.rates))
    kinds = np.array([case.machine.kind for case in columns.cases])
    used = ~columns.is_prefill | (columns.prompt >= SHORT_PROMPT)
    out: dict[str, dict[str, Band]] = {}
    for phase, rows in (("prefill", columns.is_prefill & used), ("decode", ~columns.is_prefill)):
        for kind in KINDS:
            of_kind = rows & (kinds == kind)
            n = int(of_kind.sum())
            told = of_kind if n >= 8 else rows
            width = float(np.expm1(np.quantile(off[told], 0.8, method="higher")))
            out.setdefault(kind, {})[phase] = Band(width=width, rows=n)
    return out
