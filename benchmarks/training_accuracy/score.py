"""Errors of predictions: overall, by class, in ranking, beside flat efficiencies, and how often a band holds."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from training_accuracy.cases import Case

Array = np.ndarray
NEAR_BAND = 0.8  # of runs that a band should hold

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


Number = float | None  # None where there is nothing to take it of


def errors(seconds: Array, measured: Array) -> dict[str, Number]:
    """MAPE, bias (geometric mean ratio - 1), 90th percentile, shares within 10% and 20%, of runs that have a prediction."""
    there = np.isfinite(seconds)
    if not there.any():
        return {"rows": 0} | dict.fromkeys(("mape", "bias", "p90", "within_10", "within_20"))
    seconds, measured = seconds[there], measured[there]
    off = seconds / measured - 1.0
    return {
        "rows": len(off),
        "mape": plain(np.abs(off).mean()),
        "bias": plain(np.exp(np.log(seconds / measured).mean()) - 1.0),
        "p90": plain(np.quantile(np.abs(off), 0.9)),
        "within_10": plain((np.abs(off) <= 0.1).mean()),
        "within_20": plain((np.abs(off) <= 0.2).mean()),
    }


def plain(value: Any) -> Number:
    """Four digits; None for what is no number, which JSON cannot hold."""
    return float(f"{float(value):.4g}") if np.isfinite(value) else None


def by_class(
    cases: Sequence[Case], seconds: Array, measured: Array
) -> dict[str, dict[str, dict[str, Number]]]:
    out: dict[str, dict[str, dict[str, Number]]] = {}
    for name, key in CLASSES.items():
        labels = np.array([key(c) for c in cases])
        out[name] = {
            str(label): errors(seconds[labels == label], measured[labels == label])
            for label in sorted(set(labels))
        }
    return out


def macro(classes: Mapping[str, Mapping[str, Mapping[str, Number]]], of: str = "source") -> Number:
    """Mean over sources of their MAPE."""
    known = [e["mape"] for e in classes[of].values() if e["mape"] is not None]
    return plain(np.mean(known)) if known else None


def told(value: Number, form: str) -> str:
    """A number as a page prints it; a dash where there is none."""
    return "-" if value is None else format(value, form)


@dataclass(frozen=True)
class Ranked:
    """One group of layouts: attributes as `ranking` says them."""

    name: str
    source: str
    layouts: int
    regret: float
    best_of_three: float
    top_1: bool
    tau: Number


def ranked(cases: Sequence[Case], seconds: Array) -> list[Ranked]:
    """Groups of runs that differ in layout alone, three layouts or more; repeats of a layout are averaged."""
    from scipy.stats import kendalltau

    groups: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, case in enumerate(cases):
        groups[case.group][case.config].append(i)
    out = []
    for layouts in groups.values():
        if len(layouts) < 3 or not all(np.isfinite(seconds[rows]).all() for rows in layouts.values()):
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
                plain(measured[order[0]] / best - 1.0),
                plain(measured[order[:3]].min() / best - 1.0),
                bool(measured[order[0]] == best),
                plain(kendalltau(measured, predicted).statistic),
            )
        )
    return out


def ranking(groups: Sequence[Ranked]) -> dict[str, Number]:
    """Regret: time of the layout that is predicted fastest over the fastest measured, - 1; likewise of the best of the
    three predicted fastest. Means over groups."""
    if not groups:
        return {"groups": 0}
    return {
        "groups": len(groups),
        "regret": plain(np.mean([g.regret for g in groups])),
        "worst_regret": plain(max(g.regret for g in groups)),
        "best_of_three": plain(np.mean([g.best_of_three for g in groups])),
        "top_1": plain(np.mean([g.top_1 for g in groups])),
        "kendall_tau": plain(np.mean([g.tau for g in groups if g.tau is not None] or [0.0])),
    }


def band_of(ratios: Array) -> tuple[float, float]:
    """Quantiles of measured over predicted that hold NEAR_BAND of runs."""
    tail = (1.0 - NEAR_BAND) / 2.0
    low, high = np.quantile(ratios, [tail, 1.0 - tail])
    return float(low), float(high)
