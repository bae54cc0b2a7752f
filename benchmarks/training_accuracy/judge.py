"""Every run of a file predicted by fits that did not see its family, or its source, and by a few of its source's runs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from training_accuracy import calibrated
from training_accuracy.cases import Case, Refusal, read_cases, read_rows
from training_accuracy.fitting import Rates
from training_accuracy.folds import KEYS, effect_of, flat
from training_accuracy.score import (
    CLASSES,
    NEAR_BAND,
    band_of,
    by_class,
    errors,
    macro,
    plain,
    ranked,
    ranking,
)
from training_accuracy.shipped import Fits, fixed, is_odd, load, without_bad

Array = np.ndarray
SPLITS = ("family", "source")


@dataclass
class Judged:
    """Attributes:
    seconds: predictions by split, and `calibrated` (by rule) with nan where a run was given.
    drawn: mean error over seeded draws of three runs. flat: of one share of peak per chip and dtype, by split.
    """

    cases: list[Case]
    refused: list[Refusal]
    bad: list[Refusal]
    rows: int
    seconds: dict[str, Array]
    flat: dict[str, Array]
    drawn: float

    @property
    def measured(self) -> Array:
        return np.array([c.step_s for c in self.cases])


def judge(path: Path) -> Judged:
    """Errors: InputError for a file that is none of runs."""
    rows = read_rows(path)
    read, refused = read_cases(rows)
    cases, bad = without_bad(read)
    fits, numbers = load(), fixed()
    seconds = {split: predict(cases, split, fits, numbers) for split in SPLITS}
    seconds["calibrated"], drawn = after_three(cases, fits, numbers)
    baseline = {s: flat(cases, np.array([KEYS[s](c) for c in cases])) for s in SPLITS}
    return Judged(cases, refused, bad, len(rows), seconds, baseline, drawn)


def predict(cases: Sequence[Case], split: str, fits: Fits, numbers: dict[str, Any]) -> Array:
    """Each run by the fit that did not see its group; one of no known group by the fit on all kept runs."""
    out = np.zeros(len(cases))
    keys = [KEYS[split](c) for c in cases]
    found = {key: fits.of(split, key) for key in set(keys)}
    rates = {id(fit): Rates(fit.x, numbers) for fit in found.values()}
    for i, (case, key) in enumerate(zip(cases, keys, strict=True)):
        fit = found[key]
        out[i] = rates[id(fit)].predicted_s(case) * np.exp(effect_of(fit, case))
    return out


def after_three(cases: Sequence[Case], fits: Fits, numbers: dict[str, Any]) -> tuple[Array, float]:
    """(seconds with three runs of the source given by rule, mean error over seeded draws of three)."""
    out, drawn = np.full(len(cases), np.nan), []
    for source in sorted({c.source for c in cases}):
        at = [i for i, c in enumerate(cases) if c.source == source]
        of = [cases[i] for i in at]
        rates = Rates(fits.of("source", source).x, numbers)
        if len({c.config for c in of}) <= calibrated.GIVEN:
            continue
        out[at] = calibrated.after(of, rates, calibrated.by_rule(of))
        measured = np.array([c.step_s for c in of])
        for draw in range(calibrated.DRAWS):
            found = calibrated.after(of, rates, calibrated.drawn(of, draw))
            drawn += list(np.abs(found / measured - 1.0)[np.isfinite(found)])
    return out, float(np.mean(drawn)) if drawn else float("nan")


def band_coverage(
    cases: Sequence[Case], seconds: Array, split: str = "family"
) -> tuple[dict[str, tuple[float, float]], float]:
    """(band of measured over predicted by kind, share of runs inside the band that the other groups make)."""
    ratios = np.array([c.step_s for c in cases]) / seconds
    kinds, keys = np.array([c.kind for c in cases]), np.array([KEYS[split](c) for c in cases])
    inside = []
    for kind in set(kinds):
        for key in set(keys[kinds == kind]):
            mine, others = (kinds == kind) & (keys == key), (kinds == kind) & (keys != key)
            if others.sum() >= 10:
                low, high = band_of(ratios[others])
                inside += list((ratios[mine] >= low) & (ratios[mine] <= high))
    bands = {str(kind): band_of(ratios[kinds == kind]) for kind in sorted(set(kinds))}
    return bands, float(np.mean(inside)) if inside else float("nan")


def summary(done: Judged) -> dict[str, Any]:
    """What the last line says."""
    cases, measured = done.cases, done.measured
    out: dict[str, Any] = {
        "rows": done.rows,
        "priced": len(cases),
        "bad_rows": len(done.bad),
        "refused": dict(Counter(r.reason for r in done.refused)),
        "drawn_three_mape": plain(done.drawn),
    }
    for split in SPLITS:
        seconds = done.seconds[split]
        classes = by_class(cases, seconds, measured)
        bands, holds = band_coverage(cases, seconds, split)
        groups = ranked(cases, seconds)
        even = np.array([not is_odd(c) for c in cases], dtype=bool)
        usual = ranked([c for c, e in zip(cases, even, strict=True) if e], seconds[even])
        out[split] = {
            "all": errors(seconds, measured),
            "flat": errors(done.flat[split], measured),
            "macro_mape": macro(classes),
            "classes": {name: classes[name] for name in CLASSES},
            "band": {kind: [plain(v) for v in band] for kind, band in bands.items()},
            "band_holds": plain(holds),
            "band_aims": NEAR_BAND,
            "ranking": ranking(groups),
            "ranking_without_odd": ranking(usual),
            "flat_ranking": ranking(ranked(cases, done.flat[split])),
            "ranking_by_source": {
                s: ranking([g for g in groups if g.source == s]) for s in sorted({g.source for g in groups})
            },
        }
    seconds = done.seconds["calibrated"]
    there = np.isfinite(seconds)
    if there.any():
        out["calibrated"] = errors(seconds[there], measured[there]) | {
            "same_rows_before": errors(done.seconds["source"][there], measured[there])["mape"]
        }
    return out


def rows_json(done: Judged) -> list[dict[str, Any]]:
    """Every run with its predictions, seconds; null where a run was itself given."""
    return [
        {
            "id": c.id,
            "source": c.source,
            "family": c.family,
            "kind": c.kind,
            "assumed": list(c.assumed),
            "measured": c.step_s,
        }
        | {name: float(f"{s[i]:.6g}") if np.isfinite(s[i]) else None for name, s in done.seconds.items()}
        for i, c in enumerate(done.cases)
    ]
