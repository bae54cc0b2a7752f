"""Runs of a source that was left out, predicted after a few of its runs were given to `calibrate`."""

from collections.abc import Sequence

import numpy as np

from meshwright.optimizer.calibrate_runs import fit_runs, scaled
from training_accuracy.cases import Case
from training_accuracy.fitting import Rates

GIVEN = 3
DRAWS, SEED = 20, 20261130


def by_rule(cases: Sequence[Case]) -> list[int]:
    """Three runs chosen before any time is read: the shortest sequence, the longest, and the most chips.

    Of several the first by id, and none twice: the next in the same order.
    """
    order = sorted(range(len(cases)), key=lambda i: cases[i].id)
    seq = [c.row["model"]["seq"] for c in cases]
    chips = [c.row["hardware"]["chips"] for c in cases]
    chosen: list[int] = []
    for key in (lambda i: seq[i], lambda i: -seq[i], lambda i: -chips[i]):
        left = [i for i in order if i not in chosen and not _twin(cases, i, chosen)]
        if left:
            chosen.append(min(left, key=key))
    return chosen


def _twin(cases: Sequence[Case], i: int, chosen: Sequence[int]) -> bool:
    return any(cases[i].config == cases[j].config for j in chosen)


def drawn(cases: Sequence[Case], draw: int) -> list[int]:
    """Three runs at random, seeded."""
    random = np.random.default_rng(SEED + draw)
    return list(random.permutation(len(cases))[:GIVEN])


def after(cases: Sequence[Case], rates: Rates, given: Sequence[int]) -> np.ndarray:
    """Predicted seconds of all runs after some were given; nan of those that were, and of their repeats."""
    fitted = fit_runs([(cases[i], rates.of(cases[i])) for i in given])
    seconds = np.array([c.predicted_s(scaled(rates.of(c), fitted.factors)) for c in cases])
    known = {cases[i].config for i in given}
    seconds[[c.config in known for c in cases]] = np.nan
    return seconds
