"""Predictions of every run by fits that did not see its model family, or its source, or by flat efficiencies."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from meshwright.costmodel.flops import model_flops
from training_accuracy.cases import Case
from training_accuracy.fitting import Fit, Model, Rates, refit

Array = np.ndarray
FOLDS = {"family": 14, "model": 12}
KEYS: dict[str, Callable[[Case], str]] = {
    "family": lambda c: c.family,
    "model": lambda c: c.setting.model.name,
    "source": lambda c: c.source,
    "chip": lambda c: c.setting.cluster.chip.name,
}


@dataclass(frozen=True)
class Folded:
    """Attributes: seconds: predicted, [rows]. effects: of source and chip that are in them, in logarithms."""

    seconds: Array
    effects: Array


def left_out(model: Model, split: str, full: Fit, slopes: Array, workers: int = 2) -> Folded:
    """Each group of the split predicted by the fit on the others."""
    keys = groups_of(model.cases, split)
    names = sorted(set(keys))
    jobs = [(model, keys != name, full, slopes) for name in names]
    if workers > 1:
        with get_context("fork").Pool(workers) as pool:
            done = pool.map(_one, jobs, chunksize=1)
    else:
        done = [_one(job) for job in jobs]
    seconds, effects = np.zeros(len(keys)), np.zeros(len(keys))
    for name, (at, up) in zip(names, done, strict=True):
        seconds[keys == name], effects[keys == name] = at, up
    return Folded(seconds, effects)


def groups_of(cases: Sequence[Case], split: str) -> Array:
    """The fold of every run: a source or a chip each its own, families and models in FOLDS of like size."""
    keys = [KEYS[split](c) for c in cases]
    if split not in FOLDS:
        return np.array(keys)
    size = Counter(keys)
    filled, fold = [0] * FOLDS[split], {}
    for key in sorted(size, key=lambda k: (-size[k], k)):
        least = filled.index(min(filled))
        fold[key], filled[least] = least, filled[least] + size[key]
    return np.array([f"{split} {fold[key]:02}" for key in keys])


def _one(job: tuple[Model, Array, Fit, Array]) -> tuple[Array, Array]:
    model, used, full, slopes = job
    found = refit(model, used, full, slopes)
    rates = Rates(found.x, model.fixed)
    out = [c for c, u in zip(model.cases, used, strict=True) if not u]
    effects = np.array([effect_of(found, c) for c in out])
    return np.array([rates.predicted_s(c) for c in out]) * np.exp(effects), effects


def effect_of(found: Fit, case: Case) -> float:
    """Of the run's source on its chip; none where the fit saw no run of both."""
    return found.effects.get((case.source, case.setting.cluster.chip.name), 0.0)


def flat(cases: Sequence[Case], keys: Array) -> Array:
    """Seconds by one share of the peak per chip and dtype, the geometric mean of the other groups' runs; nan without others."""
    work = np.array([
        model_flops(c.setting) / c.layout.devices / c.setting.cluster.chip.peak_flop_per_s(c.setting.training.compute_dtype)
        for c in cases
    ])  # fmt: skip
    logs = np.log([c.step_s for c in cases]) - np.log(work)
    kinds: list[Any] = [
        [f(c) for c in cases]
        for f in (
            lambda c: (c.setting.cluster.chip.name, c.setting.training.compute_dtype),
            lambda c: c.setting.cluster.chip.architecture,
            lambda c: "",
        )
    ]
    out = np.full(len(cases), np.nan)
    for i in range(len(cases)):
        for kind in kinds:
            there = [j for j in range(len(cases)) if kind[j] == kind[i] and keys[j] != keys[i]]
            if there:
                out[i] = work[i] * np.exp(np.mean(logs[there]))
                break
    return out
