"""A few numbers of the calibration fitted to step times of a cluster's own runs.

A handful of runs cannot tell every rate apart, so each number stays near the one that is shipped unless runs say
otherwise: least squares on the logarithm of step seconds with priors on the logarithms of the factors. The two numbers
that differ most between clusters and programs are the share of peak that products and that attention reach; one scalar
for all is worse than none where sequence lengths differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from meshwright.hardware.calibration import Efficiency
from meshwright.hardware.errors import InputError

Array = NDArray[np.float64]

# Numbers that are fitted, and the standard deviation of the logarithm of each between published sources.
PRIORS: dict[str, float] = {
    "matmul": 0.20,
    "attention": 0.40,
    "elementwise": 0.30,
    "scale_up": 0.20,
    "scale_out": 0.25,
    "launch": 0.40,
}
TOLD = 0.8  # a spread above this share of its prior's says that the runs did not tell the number
RUN_SD = 0.05  # of the logarithm of a run's step seconds, beside what the numbers explain
_ROUNDS, _STEP = 5, 0.02


class Run(Protocol):
    """A run whose step time is measured and can be predicted at other rates."""

    @property
    def step_s(self) -> float: ...

    def predicted_s(self, efficiency: Efficiency) -> float: ...


@dataclass(frozen=True)
class Fitted:
    """Attributes:
    factors: of each number over the shipped one; 1 where the runs did not tell it.
    spreads: standard deviation of the logarithm of each; near its prior where the runs did not tell.
    told: numbers that the runs tell.
    before, after: mean of |predicted / measured - 1| over the runs, without and with the factors.
    """

    factors: dict[str, float]
    spreads: dict[str, float]
    told: tuple[str, ...]
    before: float
    after: float


def scaled(efficiency: Efficiency, factors: Mapping[str, float]) -> Efficiency:
    """The calibration with some numbers moved; a share never passes 1."""
    new: dict[str, float] = {}
    for name, factor in factors.items():
        if name == "launch":
            new |= {n: getattr(efficiency, n) * factor for n in ("launch_s", "moe_launch_s")}
        elif name == "elementwise":
            new |= {n: getattr(efficiency, n) * factor for n in ("elementwise", "permute")}
        else:
            new[name] = min(1.0, getattr(efficiency, name) * factor)
    return efficiency.model_copy(update=new)


def fit_runs(runs: Sequence[tuple[Run, Efficiency]]) -> Fitted:
    """The factors that bring predictions nearest to measured step times.

    Args:
        runs: each with the calibration that is shipped for its chip and program.

    Errors: InputError without runs, or for a step time that is not above zero.
    """
    if not runs:
        raise InputError("no runs to calibrate with; give one or more with their step seconds")
    measured = np.array([run.step_s for run, _ in runs])
    if not (np.isfinite(measured).all() and (measured > 0).all()):
        raise InputError("a step time is not a number of seconds above 0")
    target, told = np.log(measured), tuple(PRIORS)
    first = _log_s(runs, (), np.zeros(0))
    factors, spreads = _fitted(runs, told, target)
    # What the runs do not tell is held: else it would take a part of what they do, and be left out of the answer.
    while (now := tuple(n for n in told if spreads[n] < TOLD * PRIORS[n])) != told:
        told = now
        factors, narrow = _fitted(runs, told, target)
        spreads |= narrow
    last = _log_s(runs, told, np.log([factors[n] for n in told]))
    return Fitted(
        factors=dict.fromkeys(PRIORS, 1.0) | factors,
        spreads=spreads,
        told=told,
        before=float(np.abs(np.exp(first - target) - 1.0).mean()),
        after=float(np.abs(np.exp(last - target) - 1.0).mean()),
    )


def _fitted(
    runs: Sequence[tuple[Run, Efficiency]], names: tuple[str, ...], target: Array
) -> tuple[dict[str, float], dict[str, float]]:
    """(factors, spreads of their logarithms) of some numbers, the others as shipped."""
    x = np.zeros(len(names))
    if not names:
        return {}, {}
    precision = np.diag(1.0 / np.array([PRIORS[n] for n in names]) ** 2)
    for _ in range(_ROUNDS):
        at = _log_s(runs, names, x)
        steps = _STEP * np.eye(len(x))
        slopes = np.stack([(_log_s(runs, names, x + step) - at) / _STEP for step in steps], axis=1)
        normal = slopes.T @ slopes / RUN_SD**2 + precision
        moved = np.linalg.solve(normal, slopes.T @ (target - at + slopes @ x) / RUN_SD**2) - x
        x = x + np.clip(moved, -0.5, 0.5)
        if np.abs(moved).max() < 1e-3:
            break
    spread = np.sqrt(np.diag(np.linalg.inv(normal)))
    return dict(zip(names, map(float, np.exp(x)), strict=True)), dict(
        zip(names, map(float, spread), strict=True)
    )


def _log_s(runs: Sequence[tuple[Run, Efficiency]], names: tuple[str, ...], x: Array) -> Array:
    factors = dict(zip(names, np.exp(x), strict=True))
    return np.log([run.predicted_s(scaled(efficiency, factors)) for run, efficiency in runs])
