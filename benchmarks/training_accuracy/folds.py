"""Groups of runs that fits leave out, and predictions by flat efficiencies."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshwright.costmodel.flops import model_flops
from training_accuracy.cases import Case
from training_accuracy.fitting import Fit

Array = np.ndarray
FOLDS = {"family": 14}
KEYS: dict[str, Callable[[Case], str]] = {
    "family": lambda c: c.family,
    "source": lambda c: c.source,
}


def groups_of(cases: Sequence[Case], split: str) -> Array:
    """The fold of every run: each source its own, families in FOLDS of like size."""
    keys = [KEYS[split](c) for c in cases]
    if split not in FOLDS:
        return np.array(keys)
    size = Counter(keys)
    filled, fold = [0] * FOLDS[split], {}
    for key in sorted(size, key=lambda k: (-size[k], k)):
        least = filled.index(min(filled))
        fold[key], filled[least] = least, filled[least] + size[key]
    return np.array([f"{split} {fold[key]:02}" for key in keys])


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
