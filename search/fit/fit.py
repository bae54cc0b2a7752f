"""`fit_law`: a user's runs in, a law with its intervals, its judges and its doubts out."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from meshwright.hardware.errors import check_type, shown
from meshwright.search.fit.choose import GRANULARITY, cannot, choose
from meshwright.search.fit.curve import Curve, curve_of
from meshwright.search.fit.free import few_values, trades
from meshwright.search.fit.identify import Identified, covariance_of, identify
from meshwright.search.fit.runs import Runs, RunsError, load_runs, runs_of
from meshwright.search.fit.scores import Scores, nearest, scores
from meshwright.search.fit.solve import Solution, again, resampled, solve
from meshwright.search.fit.split import Split, split_runs
from meshwright.search.law import Law
from meshwright.search.law_columns import Columns, Counted, Range
from meshwright.search.law_forms import FORMS, VARIABLES, Array
from meshwright.search.shape import Floats

STARTS, BOOTSTRAP = 40, 200
_DIGITS = 10  # of a coefficient in a law file
Counting = Literal["all", "without_embedding"]


@dataclass(frozen=True)
class Fit:
    """A fitted law and what is known of it.

    Attributes:
        reason: why this form.
        scores: of the law by part of the split (fit, held_out, extrapolation). sizes, neighbours: of a law of size
            alone, with tokens where they vary (empty where it cannot be fitted), and of the three nearest runs.
        residuals: [R] predicted less measured, nats.
        few: variables that take too few values for their terms: the values, and the coefficients those cannot tell apart.
        near: starts of those brought to the end that ended at the optimum's cost, and how many those were.
    """

    law: Law
    reason: str
    split: Split
    identified: Identified
    scores: Mapping[str, Scores]
    sizes: Mapping[str, Scores]
    neighbours: Mapping[str, Scores]
    residuals: Floats
    runs: Runs
    few: tuple[tuple[str, Array, tuple[str, ...]], ...]
    near: tuple[int, int]
    starts: int
    bootstrap: int
    seed: int


def fit_law(
    rows: Runs | str | Path | Iterable[Mapping[str, object]],
    form: str | None = None,
    *,
    name: str = "fitted",
    bootstrap: int = BOOTSTRAP,
    starts: int = STARTS,
    seed: int = 0,
    counts: Counting = "all",
) -> Fit:
    """Fit a loss law to trained models.

    rows: Runs, a CSV file, or mappings of the names in `runs.COLUMNS`. form: of `curve.FITTED_FORMS`, or None for the
    first that serves. counts: which parameters the columns of sizes count. bootstrap: refits behind the intervals; 0
    takes them from the curvature at the optimum.

    Errors: RunsError (an InputError) for rows that no law can be fitted to; UnknownNameError; MissingExtraError.
    """
    _check(name, bootstrap, starts, seed, counts)
    runs = (
        rows
        if isinstance(rows, Runs)
        else load_runs(rows)
        if isinstance(rows, (str, Path))
        else runs_of(rows)
    )
    rng = np.random.default_rng(seed)
    split = split_runs(runs, rng)
    if not split.fit.any():
        raise RunsError("no row is to be fitted; call some of them fit in the column split")
    chosen, reason = choose(runs, form, split.fit)
    if np.ptp(runs.loss[split.fit]) == 0:
        raise RunsError(
            f"all {int(split.fit.sum())} rows to be fitted have the loss {runs.loss[split.fit][0]:g}; "
            "a law is fitted to losses that differ"
        )
    columns = runs.read(GRANULARITY.get(chosen))
    fitted = _rows(columns, split.fit)
    losses, weights = runs.loss[split.fit], runs.weight[split.fit]
    weights = weights / weights.mean()
    curve = curve_of(chosen, fitted, losses)
    best = solve(curve, losses, weights, starts, rng)
    values = _rounded(curve.coefficients(best.theta))
    identified = _identified(curve, best, losses, weights, runs.names()[split.fit], bootstrap, rng, values)
    law = _law(name, chosen, values, runs, split, counts)
    predicted = np.broadcast_to(law.loss(columns).loss, runs.loss.shape)
    by_part = _by_part(split, runs.loss, predicted)
    law = law.model_copy(update={"notes": tuple(_notes(by_part, identified))})
    return Fit(
        law, reason, split, identified, by_part, _by_size(chosen, runs, split, rng),
        _neighbours(chosen, columns, runs, split), predicted - runs.loss, runs,
        tuple(few_values(FORMS[chosen], curve, fitted)), (len(best.near), best.ended), starts, bootstrap, seed,
    )  # fmt: skip


def _check(name: object, bootstrap: object, starts: object, seed: object, counts: object) -> None:
    check_type("the name of the law", name, str, "a word", RunsError)
    if not str(name).strip():
        raise RunsError(f"the name of the law is {shown(name)}; give a word")
    for what, value, least in (("bootstrap", bootstrap, 0), ("starts", starts, 1), ("seed", seed, 0)):
        check_type(what, value, int, f"a whole number from {least}", RunsError)
        if isinstance(value, bool) or (isinstance(value, int) and value < least):
            raise RunsError(f"{what} is {value}; give a whole number from {least}")
    if counts not in ("all", "without_embedding"):
        raise RunsError(f"counts is {counts!r}; give all or without_embedding")


def _rows(columns: Columns, mask: Array) -> Columns:
    given: dict[str, Any] = {n: np.broadcast_to(c, mask.shape)[mask] for n, c in columns.given().items()}
    return Columns(**given)


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.{_DIGITS}g}") for name, value in values.items()}


def _identified(
    curve: Curve, best: Solution, losses: Floats, weights: Floats, models: Array, bootstrap: int,
    rng: np.random.Generator, values: Mapping[str, float],
) -> Identified:  # fmt: skip
    theta = best.theta
    log, jacobian = curve.follow(theta)
    covariance = covariance_of(jacobian, log - np.log(losses), weights)
    if bootstrap:
        drawn = [again(curve, losses, resampled(models, weights, rng), theta) for _ in range(bootstrap)]
    else:
        size = np.sqrt(np.diag(covariance))
        drawn = [np.clip(theta + z * size, curve.knobs.low, curve.knobs.high) for z in (-1.96, 0.0, 1.96)]
    found = [curve.coefficients(one) for one in drawn]
    samples = {n: np.array([one[n] for one in found]) for n in curve.knobs.names}
    return identify(
        curve.knobs, theta, jacobian, covariance, samples, values, trades(curve, theta, best.near)
    )


def _by_part(split: Split, measured: Floats, predicted: Floats) -> dict[str, Scores]:
    return {part: scores(measured[mask], predicted[mask]) for part, mask in split.parts().items()}


def _by_size(fitted: str, runs: Runs, split: Split, rng: np.random.Generator) -> dict[str, Scores]:
    """The law of size alone, or of size and tokens; nothing where no sizes differ, or the law itself is one."""
    form = next((f for f in ("size_tokens", "size") if not cannot(f, runs, split.fit, 1.0)), None)
    if form is None or form == fitted:
        return {}
    columns, losses, weights = runs.read(), runs.loss[split.fit], runs.weight[split.fit]
    curve = curve_of(form, _rows(columns, split.fit), losses)
    best = solve(curve, losses, weights / weights.mean(), 10, rng)
    terms = FORMS[form].terms(curve.coefficients(best.theta), columns.given())
    return _by_part(split, runs.loss, np.broadcast_to(FORMS[form].joined(terms), runs.loss.shape))


def _neighbours(form: str, columns: Columns, runs: Runs, split: Split) -> dict[str, Scores]:
    """Of the parts that were kept back: a fitted run is its own neighbour."""
    at = columns.given()
    table = np.stack([at[v] + (v == "shared_share") for v in FORMS[form].variables], axis=1)
    found = _by_part(split, runs.loss, nearest(table[split.fit], runs.loss[split.fit], table))
    return {part: s for part, s in found.items() if part != "fit" and s.rows}


def _law(
    name: str, form: str, values: Mapping[str, float], runs: Runs, split: Split, counts: Counting
) -> Law:
    formula = FORMS[form]
    columns = runs.read(GRANULARITY.get(form)).given()
    sizes = {"parameters", "active_parameters"} & set(formula.variables)
    one = set(columns["tokens"].tolist()) if "tokens" in columns else set()
    return Law(
        name=name,
        title=f"fitted to {int(split.fit.sum())} runs",
        form=form,
        unit="nats per token",
        source=f"fit-law, {len(runs)} runs of which {int(split.fit.sum())} were fitted",
        confidence="fitted",
        tokens=one.pop() if len(one) == 1 and "tokens" not in formula.variables else None,
        counts=Counted(
            what=counts, basis="fitted", note="as the columns params_total and params_active count"
        )
        if sizes
        else None,
        granularity=GRANULARITY.get(form),
        coefficients=dict(values),
        box=_box(formula.variables, columns, split.fit),
    )


def _notes(by_part: Mapping[str, Scores], identified: Identified) -> Iterator[str]:
    """What a user of the law file has to know without the fit's answer."""
    parts = ((part.replace("_", " "), s) for part, s in by_part.items() if np.isfinite(s.r2))
    yield ", ".join(f"{part} R2 {s.r2:.4f} RMSE {s.rmse:.4f}" for part, s in parts)
    if identified.unknown:
        yield f"not identified by the runs, not to be read one by one: {', '.join(identified.unknown)}"
    for form, names in identified.low_confidence().items():
        yield f"low confidence: the closed form {form} reads {', '.join(names)}"


def _box(reads: tuple[str, ...], columns: Mapping[str, Array], fitted: Array) -> dict[str, Range]:
    """Ranges of what was fitted: of what the form reads, and of what else a shape has."""
    box = {}
    for name in VARIABLES:
        if name in reads:
            low, high = float(columns[name][fitted].min()), float(columns[name][fitted].max())
            box[name] = Range(low=low, high=high, basis="fitted")
        elif name in ("ffn_ratio", "activation", "gqa", "shared_share", "top_k"):
            box[name] = _unread(columns[name][fitted] if name in columns else None)
    return box


def _unread(column: Array | None) -> Range:
    if column is None:
        return Range(basis="unknown", note="not in the runs")
    low, high = float(column.min()), float(column.max())
    note = "no term reads it"
    if low == high:
        return Range(values=(low,), basis="fitted", note=note)
    return Range(low=low, high=high, basis="fitted", note=note)
