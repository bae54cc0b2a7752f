"""How well losses are predicted: R2, RMSE, MAPE, rank correlation; and the neighbours that a law has to beat."""

from dataclasses import dataclass

import numpy as np

from meshwright.search.shape import Floats

_NEIGHBOURS = 3


@dataclass(frozen=True)
class Scores:
    """r2, rmse in nats, mape a share, spearman of ranks; nan where too few rows differ to say."""

    rows: int
    r2: float
    rmse: float
    mape: float
    spearman: float


def scores(measured: Floats, predicted: Floats) -> Scores:
    """Of R rows."""
    error = predicted - measured
    if not len(error):
        return Scores(0, np.nan, np.nan, np.nan, np.nan)
    spread = float(((measured - measured.mean()) ** 2).sum())
    r2 = 1 - float((error**2).sum()) / spread if spread > 0 else np.nan
    rmse, mape = float(np.sqrt((error**2).mean())), float(np.abs(error / measured).mean())
    return Scores(len(error), r2, rmse, mape, spearman(measured, predicted))


def spearman(one: Floats, other: Floats) -> float:
    """Rank correlation, ties at their mean rank; nan where either does not vary."""
    a, b = (ranks(column) for column in (one, other))
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / size if size > 0 else np.nan


def ranks(column: Floats) -> Floats:
    """From 1 at the least; equal values share the mean of their ranks."""
    _, index, counts = np.unique(column, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[index.reshape(-1)])


def nearest(fit: Floats, losses: Floats, asked: Floats) -> Floats:
    """Mean loss of the three nearest rows, by the logs of columns scaled to their spread.

    fit: [F, V] of rows with known losses [F]. asked: [R, V].
    """
    logs = np.log(np.concatenate([fit, asked]))
    spread = np.log(fit).std(axis=0)
    logs = logs / np.where(spread > 0, spread, 1)
    known, new = logs[: len(fit)], logs[len(fit) :]
    apart = ((new[:, None] - known) ** 2).sum(axis=-1)
    near = np.argsort(apart, axis=1, kind="stable")[:, : min(_NEIGHBOURS, len(fit))]
    return np.asarray(losses[near].mean(axis=1))
