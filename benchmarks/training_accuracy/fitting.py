"""Fits the calibration to published runs, and refits it with groups of runs left out.

Least squares on the logarithm of step seconds with soft edges (soft_l1), priors on every parameter, and one effect per
source and chip that is shrunk to none. Repeats of a configuration count by the root of their number, and no source
counts for more than SOURCE_ROWS rows.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from meshwright.hardware.calibration import Efficiency, resolve
from training_accuracy.cases import Case
from training_accuracy.parameters import PARAMETERS, file_of, start

Array = np.ndarray

SIGMA, EDGE = 0.10, 2.0  # of the logarithm of one row; soft edge in sigmas
EFFECT_SD = 0.06  # of a source on one chip
SOURCE_ROWS = 80
STEP = 0.02  # of finite differences, in logarithms
ROUNDS, CHORDS, REWEIGHTED = 5, 2, 8


@dataclass
class Model:
    """Predictions of some runs as a function of the parameters.

    Attributes:
        effects: index of each run's effect, among `names`.
    """

    cases: Sequence[Case]
    fixed: dict[str, Any]
    workers: int = 2

    @property
    def effects(self) -> tuple[list[tuple[str, str]], Array]:
        keys = [(c.source, c.setting.cluster.chip.name) for c in self.cases]
        names = sorted(set(keys))
        return names, np.array([names.index(k) for k in keys])

    def log_s(self, x: Array) -> Array:
        """Logarithm of predicted step seconds, [rows]."""
        rates = Rates(x, self.fixed)
        return np.log([rates.predicted_s(case) for case in self.cases])

    def jacobian(self, x: Array) -> tuple[Array, Array]:
        """(logarithms, their derivatives by parameter [rows, parameters])."""
        parts = np.array_split(np.arange(len(self.cases)), max(self.workers, 1))
        jobs = [([self.cases[i] for i in part], x, self.fixed) for part in parts]
        if self.workers > 1:
            with get_context("fork").Pool(self.workers) as pool:
                done = pool.map(_jacobian, jobs)
        else:
            done = [_jacobian(job) for job in jobs]
        return np.concatenate([a for a, _ in done]), np.concatenate([b for _, b in done])


class Rates:
    """Efficiencies of a calibration, by chip and program."""

    def __init__(self, x: Array, fixed: dict[str, Any]) -> None:
        self.file = file_of(x, fixed)
        self._of: dict[tuple[str, str], Efficiency] = {}
        self._seconds: dict[str, float] = {}

    def of(self, case: Case) -> Efficiency:
        chip = case.setting.cluster.chip
        key = chip.name, case.software
        if key not in self._of:
            self._of[key] = resolve(self.file, chip, case.software)
        return self._of[key]

    def predicted_s(self, case: Case) -> float:
        if case.config not in self._seconds:
            self._seconds[case.config] = case.predicted_s(self.of(case))
        return self._seconds[case.config]


def _jacobian(job: tuple[Sequence[Case], Array, dict[str, Any]]) -> tuple[Array, Array]:
    cases, x, fixed = job
    base = Rates(x, fixed)
    log_s = np.log([base.predicted_s(case) for case in cases])
    slopes = np.zeros((len(cases), len(x)))
    for j in range(len(x)):
        moved, step = x.copy(), STEP if PARAMETERS[j].room(float(x[j])) > STEP else -STEP
        moved[j] += step
        rates = Rates(moved, fixed)
        for i, case in enumerate(cases):
            if rates.of(case) != base.of(case):
                slopes[i, j] = (np.log(rates.predicted_s(case)) - log_s[i]) / step
    return log_s, slopes


@dataclass
class Fit:
    """Attributes: x: parameters. effects: logarithm per source and chip. spread: posterior sd of `x`."""

    x: Array
    effects: dict[Any, float]
    spread: Array


def weights(cases: Sequence[Case], used: Array) -> Array:
    """Of every run; 0 where it is not used."""
    repeats = Counter(c.config for c, u in zip(cases, used, strict=True) if u)
    rows = Counter(c.source for c, u in zip(cases, used, strict=True) if u)
    return np.array([
        u / np.sqrt(repeats[c.config]) * min(1.0, np.sqrt(SOURCE_ROWS / rows[c.source])) if u else 0.0
        for c, u in zip(cases, used, strict=True)
    ])  # fmt: skip


def solve(
    log_s: Array,
    slopes: Array,
    at: Array,
    measured: Array,
    weight: Array,
    effects: Array,
    names: Sequence[Any],
) -> Fit:
    """One linearised fit around `at`: the best parameters and effects, and their spread.

    Reweighted least squares, whose weights are those of the pseudo-Huber loss; a parameter that passes its largest value
    is held there and the rest fitted again.
    """
    n, count, used = len(at), len(names), weight > 0
    sd = np.array([p.sd for p in PARAMETERS])
    root = np.sqrt(weight[used]) / SIGMA
    design = np.zeros((used.sum(), count))
    design[np.arange(used.sum()), effects[used]] = 1.0
    rows = np.hstack([slopes[used], design]) * root[:, None]
    target = (measured[used] - log_s[used] + slopes[used] @ at) * root
    prior = np.diag(np.concatenate([1.0 / sd, np.full(count, 1.0 / EFFECT_SD)]) ** 2)
    most = np.array([p.room(0.0) for p in PARAMETERS] + [np.inf] * count)
    z = np.concatenate([at, np.zeros(count)])
    for _ in range(REWEIGHTED):
        soft = 1.0 / np.sqrt(1.0 + ((rows @ z - target) / EDGE) ** 2)
        normal, right = (rows * soft[:, None]).T @ rows + prior, (rows * soft[:, None]).T @ target
        z = _held(normal, right, most)
    spread = np.sqrt(np.diag(np.linalg.inv(normal)))[:n]
    return Fit(z[:n], dict(zip(names, z[n:].tolist(), strict=True)), spread)


def _held(normal: Array, right: Array, most: Array) -> Array:
    """The solution of a positive definite system with none above `most`, by holding those that pass it."""
    free = np.ones(len(right), bool)
    z = np.where(np.isfinite(most), most, 0.0)
    while True:
        z[free] = np.linalg.solve(
            normal[np.ix_(free, free)], right[free] - normal[np.ix_(free, ~free)] @ z[~free]
        )
        over = free & (z > most)
        if not over.any():
            return z
        z[over], free = most[over], free & ~over


def fit(model: Model, say: Callable[[str], None] = lambda _: None) -> tuple[Fit, Array]:
    """The fit on all runs, and derivatives at its end."""
    x = start()
    measured = np.log([c.step_s for c in model.cases])
    names, effects = model.effects
    weight = weights(model.cases, np.ones(len(model.cases), bool))
    for r in range(ROUNDS):
        log_s, slopes = model.jacobian(x)
        found = solve(log_s, slopes, x, measured, weight, effects, names)
        moved = np.abs(found.x - x).max()
        x = found.x
        say(f"round {r}: moved {moved:.3f}")
        if moved < 0.01:
            break
    return found, slopes


def refit(model: Model, used: Array, full: Fit, slopes: Array) -> Fit:
    """The fit without some runs, started from the one on all and with its derivatives."""
    measured = np.log([c.step_s for c in model.cases])
    names, effects = model.effects
    weight = weights(model.cases, used)
    x = full.x
    for _ in range(CHORDS):
        found = solve(model.log_s(x), slopes, x, measured, weight, effects, names)
        moved = np.abs(found.x - x).max()
        x = found.x
        if moved < 0.02:
            break
    return found


def refit_groups(model: Model, folds: Array, full: Fit, slopes: Array) -> list[tuple[str, Fit]]:
    """The fit without each fold in turn."""
    names = sorted(set(folds))
    jobs = [(model, folds != name, full, slopes) for name in names]
    if model.workers > 1:
        with get_context("fork").Pool(model.workers) as pool:
            return list(zip(names, pool.starmap(refit, jobs, chunksize=1), strict=True))
    return [(name, refit(*job)) for name, job in zip(names, jobs, strict=True)]
