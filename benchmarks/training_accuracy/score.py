"""Errors of predictions: overall, by class, in ranking, beside flat efficiencies, and how often a band holds."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from training_accuracy.cases import Case

Array = np.ndarray
NEAR_BAND = 0.8  # of runs that a band should hold
TIED = 0.0

CLASSES: dict[str, Callable[[Case], str]] = {
    "kind": lambda c: c.kind,
    "machine": lambda c: "TPU" if c.setting.cluster.chip.family == "tpu" else "GPU",
    "chip": lambda c: c.setting.cluster.chip.name,
    "dtype": lambda c: c.setting.training.compute_dtype,
    "parallelism": lambda c: parallelism(c),
    "chips": lambda c: _size(c.row["hardware"]["chips"]),
    "stated": lambda c: "stated" if not c.assumed else "with assumptions",
    "source": lambda c: c.source,
}


def parallelism(case: Case) -> str:
    x = case.layout
    if x.pp > 1:
        return "pp"
    return "tp" if x.tp > 1 else "FSDP" if x.zero == 3 else "dp"


def _size(chips: int) -> str:
    return next(f"<= {most}" for most in (8, 64, 256, 1024, 10**9) if chips <= most).replace(
        "<= 1000000000", "> 1024"
    )


def errors(seconds: Array, measured: Array, weight: Array | None = None) -> dict[str, float]:
    """MAPE, bias (geometric mean ratio - 1), 90th percentile, shares within 10% and 20%."""
    off = seconds / measured - 1.0
    return {
        "rows": len(off),
        "mape": _r(np.abs(off).mean()),
        "bias": _r(np.exp(np.log(seconds / measured).mean()) - 1.0),
        "p90": _r(np.quantile(np.abs(off), 0.9)),
        "within_10": _r((np.abs(off) <= 0.1).mean()),
        "within_20": _r((np.abs(off) <= 0.2).mean()),
    }


def _r(value: Any) -> float:
    return float(f"{float(value):.4g}")


def by_class(
    cases: Sequence[Case], seconds: Array, measured: Array
) -> dict[str, dict[str, dict[str, float]]]:
    out: dict[str, dict[str, dict[str, float]]] = {}
    for name, key in CLASSES.items():
        labels = np.array([key(c) for c in cases])
        out[name] = {
            str(label): errors(seconds[labels == label], measured[labels == label])
            for label in sorted(set(labels))
        }
    return out


def macro(classes: Mapping[str, Mapping[str, Mapping[str, float]]], of: str = "source") -> float:
    """Mean over sources of their MAPE."""
    return _r(np.mean([e["mape"] for e in classes[of].values()]))


@dataclass(frozen=True)
class Ranked:
    """One group of layouts: attributes as `ranking` says them."""

    name: str
    source: str
    layouts: int
    regret: float
    best_of_three: float
    top_1: bool
    tau: float


def ranked(cases: Sequence[Case], seconds: Array) -> list[Ranked]:
    """Groups of runs that differ in layout alone, three layouts or more; repeats of a layout are averaged."""
    from scipy.stats import kendalltau

    groups: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, case in enumerate(cases):
        groups[case.group][case.config].append(i)
    out = []
    for layouts in groups.values():
        if len(layouts) < 3:
            continue
        measured = np.array([np.mean([cases[i].step_s for i in rows]) for rows in layouts.values()])
        predicted = np.array([np.mean([seconds[i] for i in rows]) for rows in layouts.values()])
        order = np.argsort(predicted, kind="stable")
        best, case = measured.min(), cases[next(iter(layouts.values()))[0]]
        out.append(
            Ranked(
                f"{case.setting.model.name} on {case.setting.cluster.devices}",
                case.source,
                len(layouts),
                _r(measured[order[0]] / best - 1.0),
                _r(measured[order[:3]].min() / best - 1.0),
                bool(measured[order[0]] == best),
                _r(kendalltau(measured, predicted).statistic),
            )
        )
    return out


def ranking(groups: Sequence[Ranked]) -> dict[str, float]:
    """Regret: time of the layout that is predicted fastest over the fastest measured, - 1; likewise of the best of the
    three predicted fastest. Means over groups."""
    if not groups:
        return {"groups": 0}
    return {
        "groups": len(groups),
        "regret": _r(np.mean([g.regret for g in groups])),
        "worst_regret": _r(max(g.regret for g in groups)),
        "best_of_three": _r(np.mean([g.best_of_three for g in groups])),
        "top_1": _r(np.mean([g.top_1 for g in groups])),
        "kendall_tau": _r(np.mean([g.tau for g in groups if np.isfinite(g.tau)] or [0.0])),
    }


def band_of(ratios: Array) -> tuple[float, float]:
    """Quantiles of measured over predicted that hold NEAR_BAND of runs."""
    tail = (1.0 - NEAR_BAND) / 2.0
    low, high = np.quantile(ratios, [tail, 1.0 - tail])
    return float(low), float(high)
