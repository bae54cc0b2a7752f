"""Which runs are fitted and which are kept for judgement.

Runs of one model at several tokens stay together: a law that has seen a model at 100e9 tokens is not tested by it at
110e9. The largest models are the extrapolation; of the rest one in five is held out, over the range of losses.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.search.fit.runs import SPLITS, Runs
from meshwright.search.shape import Floats

_LARGEST = 0.1  # share of the models that is the extrapolation
_OF = 5  # one of so many is held out
_LEAST = 10  # models below which none is kept back


@dataclass(frozen=True)
class Split:
    """Masks over the rows, disjoint; `how` says it in words."""

    fit: NDArray[np.bool_]
    held_out: NDArray[np.bool_]
    extrapolation: NDArray[np.bool_]
    how: str

    def parts(self) -> dict[str, NDArray[np.bool_]]:
        return {name: getattr(self, name) for name in SPLITS}


def split_runs(runs: Runs, rng: np.random.Generator) -> Split:
    """As the file says, or by the rule above."""
    if runs.split is not None:
        fit, held, extrapolation = (np.asarray(runs.split == name) for name in SPLITS)
        return Split(fit, held, extrapolation, "as the column split says")
    model = runs.names()
    count = int(model.max()) + 1
    if count < _LEAST:
        every = np.ones(len(runs), dtype=bool)
        return Split(every, ~every, ~every, f"all rows: {count} models are too few to keep some back")
    largest = _largest(runs, model, count)
    rest = np.flatnonzero(~largest)
    mean_loss = np.bincount(model, runs.loss) / np.bincount(model)
    ordered = rest[np.argsort(mean_loss[rest], kind="stable")]
    held = np.zeros(count, dtype=bool)
    for first in range(0, len(ordered) - _OF + 1, _OF):
        held[ordered[first + rng.integers(_OF)]] = True
    how = f"{count} models: {int(held.sum())} held out over the range of losses"
    how += f", the {int(largest.sum())} largest kept for extrapolation" if largest.any() else ""
    return Split(~held[model] & ~largest[model], held[model], largest[model], how)


def _largest(runs: Runs, model: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """Of the models; none where the file has no size, or all are of one."""
    name = next((n for n in ("params_total", "params_active") if runs.has(n)), None)
    size: Floats = runs.given[name] if name is not None else np.ones(len(runs))
    of_model = np.zeros(count)
    of_model[model] = size
    at_least = np.sort(of_model)[-max(1, round(_LARGEST * count))]
    return np.asarray((of_model >= at_least) & (of_model > of_model.min()))
