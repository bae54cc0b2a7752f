"""The numbers of every law, fitted per case, and again without each part of the shapes.

Least squares of log(predicted / measured) in logarithms of the numbers under a soft absolute loss, so that a kernel that
switches form does not bend the rest; a weak normal prior on each keeps what the rows do not tell where it usually is.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshwright.hardware.errors import MissingExtraError
from meshwright.hardware.kernel_rates import ANY, LAWS, LOOSE, Entry, LawFile, number_format
from operator_accuracy.cases import FOLDS, Cases, Key
from operator_accuracy.laws import seconds
from operator_accuracy.tables import Array, hashed

MOST_ROWS = 700  # of a case, taken by hash: more move no number beyond its error
FEWEST_ROWS = 12
SCALE = 0.05  # of a residual, where the loss turns from square to absolute; also the weight of a prior
BAND = 0.8
# A number is not told by the rows where it stands this near an end of what is allowed, in the logarithm, or where half as
# much again changes predictions by less than this.
AT_END, FAINT = 0.01, 0.005

# Number: usual value, lowest, highest; the prior has a standard deviation of 1 in the logarithm.
PRIORS: dict[str, dict[str, tuple[float, float, float]]] = {
    "matmul": {
        "t0_s": (5e-6, 3e-7, 3e-4), "e_c": (0.7, 0.05, 1.0), "e_m": (0.8, 0.05, 1.5), "p": (2, 0.7, 8),
        "walk_s": (5e-7, 1e-9, 5e-5), "walk_power": (0.7, 0.2, 1.2), "e_q": (0.5, 0.03, 4), "row_columns": (100, 1, 1e5),
    },
    "prefill": {
        "t0_s": (1e-5, 5e-7, 3e-4), "e_c": (0.7, 0.02, 1.0), "e_m": (0.5, 0.05, 2), "p": (1.5, 0.6, 8),
        "tile": (128, 8, 512), "keys": (150, 0.1, 3000), "score_per_s": (4e12, 1e10, 1e15), "walk_s": (1e-6, 1e-9, 5e-4),
    },
    "decode": {
        "t0_s": (1e-5, 5e-7, 3e-4), "e_c": (0.3, 0.002, 1.0), "e_m": (0.9, 0.05, 2.5), "p": (1.5, 0.6, 8),
        "keys": (100, 0.1, 3000), "e_wide": (0.1, 0.0005, 1.0), "walk_s": (1e-6, 1e-9, 1e-4),
        "walk_power": (0.6, 0.2, 1.5),
    },
    "experts": {
        "t0_s": (3e-5, 2e-6, 4e-4), "e_c": (0.6, 0.02, 1.0), "e_m": (0.9, 0.05, 2.5), "p": (2, 0.6, 8),
        "load": (1.5, 1, 8), "rows": (16, 0.01, 400), "n0": (100, 0.1, 5000), "e_a": (0.4, 0.02, 10),
        "e_pairs": (2, 0.02, 200),
    },
    "collective": {"alpha_s": (1e-5, 1e-6, 1e-1), "bytes_per_s": (2e11, 1e8, 2e12), "q": (0.7, 0.3, 3)},
    "custom": {"alpha_s": (5e-6, 1e-6, 1e-1), "bytes_per_s": (2e11, 1e8, 2e12), "q": (0.7, 0.3, 3)},
    "domain": {
        "a0_s": (7e-6, 1e-6, 1e-3), "a1_s": (7e-7, 1e-8, 1e-4), "bytes_per_s": (3e11, 1e8, 2e12), "q": (0.6, 0.3, 3),
        "reduce_gain": (1.3, 1, 2), "pair_loss": (0.5, 0.01, 1),
    },
    "dispatch": {
        "alpha_s": (2e-5, 1e-6, 1e-2), "bytes_per_s": (3e11, 1e9, 2e12), "q": (1, 0.4, 4), "sm_bytes_per_s": (2e10, 1e8, 1e13),
    },
    "memory": {"t0_s": (3e-6, 1e-7, 1e-3), "e_m": (0.7, 0.05, 10), "p": (1.5, 0.5, 8)},
}  # fmt: skip
QUANTISED = ("e_q", "row_columns")


@dataclass
class Fits:
    """Entries of one law of all shapes, and of all but those of each part."""

    law: str
    whole: dict[Key, Entry] = field(default_factory=dict)
    parts: list[dict[Key, Entry]] = field(default_factory=lambda: [{} for _ in range(FOLDS)])


def names_of(law: str, case: str) -> tuple[str, ...]:
    """The numbers that a case has."""
    quantises = law != "matmul" or number_format(case).quantises
    return tuple(name for name in PRIORS[law] if quantises or name not in QUANTISED)


def fit_law(cases: Cases) -> Fits:
    """Every case with rows enough: by engine and kernel, and over all where there are several."""
    out = Fits(cases.law)
    for key, rows in _groups(cases):
        if len(rows) < FEWEST_ROWS:
            continue
        part = cases.some(rows)
        values, entry = _fit(part, key, None)
        errors = []
        for fold in range(FOLDS):
            seen = part.fold != fold
            if not seen.any() or seen.all():
                out.parts[fold][key] = entry if seen.all() else entry.model_copy(update={"rows": 1})
                continue
            held, out.parts[fold][key] = _fit(part.some(seen), key, values)
            errors.append(held)
        out.whole[key] = _judged(part, key, entry, errors, out.parts)
    return out


def _groups(cases: Cases) -> Iterator[tuple[Key, Array]]:
    """Keys with the rows they are fitted on: their own, and where there are several kernels or engines those of all."""
    wide: dict[Key, dict[Key, None]] = {}
    own = {key: np.flatnonzero(cases.key == i) for i, key in enumerate(cases.keys)}
    for key in cases.keys:
        chip, engine, _, case = key
        for over in ((chip, engine, ANY, case), (chip, ANY, ANY, case)):
            wide.setdefault(over, {})[key] = None
    for key, rows in own.items():
        yield key, rows
    for over, keys in wide.items():
        if len(keys) > 1 and over not in own:
            yield over, np.sort(np.concatenate([own[key] for key in keys]))


def _fit(cases: Cases, key: Key, start: Array | None) -> tuple[Array, Entry]:
    """Logarithms of the numbers, and their entry."""
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise MissingExtraError("fitting operators", "fit") from error
    if len(cases) > MOST_ROWS:
        cases = cases.some(np.argsort(_spread(cases), kind="stable")[:MOST_ROWS])
    names = names_of(cases.law, key[3])
    usual, low, high = np.log(np.array([PRIORS[cases.law][name] for name in names])).T

    def residuals(x: Array) -> Array:
        off = np.log(
            seconds(cases.law, _rates(cases.law, names, x), key[0], key[3], cases.columns) / cases.seconds
        )
        return np.concatenate([off, SCALE * (x - usual)])

    def run(x: Array, **loss: Any) -> Any:
        inside = np.clip(x, low + 1e-6, high - 1e-6)
        return least_squares(residuals, inside, bounds=(low, high), max_nfev=60, **loss)

    # The absolute loss is too flat far away to start on: squares find the place, from more than one side.
    near = (
        [start] if start is not None else [run(x).x for x in (usual, (usual + low) / 2, (usual + high) / 2)]
    )
    best = min((run(x, loss="soft_l1", f_scale=SCALE) for x in near), key=lambda done: float(done.cost))
    loose = [
        name
        for i, name in enumerate(names)
        if min(best.x[i] - low[i], high[i] - best.x[i]) < AT_END or _moves(residuals, best.x, i) < FAINT
    ]
    values = {name: rounded(value) for name, value in zip(names, np.exp(best.x), strict=True)}
    return best.x, Entry(rows=len(cases), values=values, loose=tuple(loose))


def _moves(residuals: Callable[[Array], Array], x: Array, i: int) -> float:
    """Mean change of predictions, in the logarithm, where number i is half as large again."""
    other = x.copy()
    other[i] += np.log(1.5)
    change = np.abs(residuals(other) - residuals(x))[: -len(x)]
    return float(change.mean())


def _spread(cases: Cases) -> Array:
    """A number per row that orders rows without regard to what they are."""
    return hashed(*cases.columns.values())


def _rates(law: str, names: tuple[str, ...], logs: Array) -> Any:
    return LAWS[law](**dict(zip(names, np.exp(logs), strict=True)))


def _judged(part: Cases, key: Key, entry: Entry, logs: list[Array], parts: list[dict[Key, Entry]]) -> Entry:
    """With errors over the shapes left out (jackknife), the band of rows left out, and what the rows do not tell."""
    if len(logs) < 2:
        return entry.model_copy(update={"rows": len(part)})
    spread = np.sqrt((len(logs) - 1) * np.mean((np.array(logs) - np.mean(logs, axis=0)) ** 2, axis=0))
    errors = {name: rounded(float(e), 2) for name, e in zip(entry.values, spread, strict=True)}
    off = np.zeros(len(part))
    for fold, held in enumerate(parts):
        rows = part.fold == fold
        rates = LAWS[part.law](**held[key].values)
        off[rows] = np.log(
            seconds(part.law, rates, key[0], key[3], part.some(rows).columns) / part.seconds[rows]
        )
    band = float(np.expm1(np.quantile(np.abs(off), BAND)))
    loose = dict.fromkeys([*entry.loose, *(name for name, error in errors.items() if error > LOOSE)])
    return entry.model_copy(
        update={"rows": len(part), "band": rounded(band), "error": errors, "loose": tuple(loose)}
    )


def rounded(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")


def law_file(law: str, entries: dict[Key, Entry], provenance: str = "", family_band: float = 1.0) -> LawFile:
    """Entries by chip, engine, kernel and case; not validated again, they are."""
    nested: dict[str, Any] = {}
    for (chip, engine, kernel, case), entry in sorted(entries.items()):
        nested.setdefault(chip, {}).setdefault(engine, {}).setdefault(kernel, {})[case] = entry
    return LawFile.model_construct(law=law, provenance=provenance, family_band=family_band, entries=nested)
