"""A fit as an answer: the law, how good it is where, and what the runs do not identify."""

from collections.abc import Iterator, Mapping

import numpy as np

from meshwright.costmodel.working import Step, Value, Working
from meshwright.search.fit.fit import Fit
from meshwright.search.fit.scores import Scores
from meshwright.search.law_forms import FORMS

_WORST = 3
_PAIRS = 4
_AS_GOOD = 1.05  # a baseline may be this much closer by chance


def working(fit: Fit) -> Working:
    """Coefficients as the table; scores of the law and of its baselines as steps; doubts as notes."""
    law = fit.law
    given = {
        "rows": Step(len(fit.runs), "", note=fit.split.how),
        "form": Step(law.form, "", _formula(law.form), fit.reason),
        "starts": Step(fit.starts, note=f"{fit.near[0]} of the {fit.near[1]} brought to the end agree"),
        "bootstrap": Step(fit.bootstrap, note=_intervals(fit)),
        "seed": Step(fit.seed),
    }
    steps = {
        **_scored("", fit.scores),
        **_scored("size_", fit.sizes, "size alone, and tokens"),
        **_scored("nearest_", fit.neighbours, "three nearest runs"),
        **_worst(fit),
    }
    return Working(
        f"a loss law for {len(fit.runs)} runs",
        given,
        steps,
        _verdict(fit),
        tuple(_notes(fit)),
        tuple(_table(fit)),
    )


def _formula(form: str) -> str:
    """As the form's function says it."""
    return (FORMS[form].terms.__doc__ or "").strip().splitlines()[0].rstrip(".")


def correlation_rows(fit: Fit) -> tuple[Mapping[str, Value], ...]:
    """The correlation matrix as rows."""
    found = fit.identified
    return tuple(
        {
            "coefficient": name,
            **{n: round(float(found.correlations[i, j]), 3) for j, n in enumerate(found.names)},
        }
        for i, name in enumerate(found.names)
    )


def _intervals(fit: Fit) -> str:
    if not fit.bootstrap:
        return "intervals of 95% from the curvature at the optimum"
    return "intervals of 95% from refits of models drawn again, each from the optimum"


def _scored(prefix: str, by_part: Mapping[str, Scores], note: str = "") -> dict[str, Step]:
    steps = {}
    for part, s in by_part.items():
        rows = f"{s.rows} rows{f': {note}' if note else ''}"
        for name, unit in (("r2", "ratio"), ("rmse", "nats"), ("mape", "ratio"), ("spearman", "ratio")):
            value = getattr(s, name)
            if np.isfinite(value) and (not prefix or name in ("r2", "rmse")):
                steps[f"{prefix}{name}_{part}"] = Step(float(value), unit, note=rows)
    return steps


def _worst(fit: Fit) -> dict[str, Step]:
    order = np.argsort(-np.abs(fit.residuals), kind="stable")[:_WORST]
    steps = {}
    for place, i in enumerate(order, 1):
        part = next((p for p, mask in fit.split.parts().items() if mask[i]), "")
        told = f"row {i + 1} ({part.replace('_', ' ')}): measured {fit.runs.loss[i]:.4f}"
        steps[f"worst_{place}"] = Step(float(fit.residuals[i]), "nats", "predicted - measured", told)
    return steps


def _table(fit: Fit) -> Iterator[Mapping[str, Value]]:
    found = fit.identified
    for name, value in fit.law.coefficients.items():
        low, high = found.intervals[name]
        flags = "; ".join(found.flags[name])
        yield {"coefficient": name, "value": value, "low": low, "high": high, "doubt": flags or "none"}


def _verdict(fit: Fit) -> str:
    found = fit.identified.unknown
    if not found:
        return "every coefficient is identified by these runs"
    return (
        f"identifiability: these runs do not identify {', '.join(found)} (see doubt); losses inside the box may still "
        "be well predicted, but these coefficients are not to be read one by one"
    )


def _notes(fit: Fit) -> Iterator[str]:
    for variable, values, names in fit.few:
        yield (
            f"{variable} takes {len(values)} value{'s'[: len(values) > 1]} ({', '.join(f'{v:g}' for v in values)}) in the "
            f"fitted runs, too few to tell {', '.join(names)} apart: {len(names)} or more would"
        )
    if fit.identified.free:
        yield (
            f"free ({', '.join(fit.identified.free)}): other values give the same fitted losses to a millionth; the "
            "interval is all that do within the bounds of the fit, and the value is one of them"
        )
    if pairs := fit.identified.pairs():
        told = ", ".join(f"{one} and {other} {r:.3f}" for one, other, r in pairs[:_PAIRS])
        more = f" and {len(pairs) - _PAIRS} more pairs" if len(pairs) > _PAIRS else ""
        yield f"move together (correlation): {told}{more}; these runs fix what such a pair makes together, not each"
    for form, names in fit.identified.low_confidence().items():
        yield f"low confidence: the closed form {form} reads {', '.join(names)}"
    part = "held_out" if fit.scores["held_out"].rows else "fit"
    for told, others in (("a law of size alone", fit.sizes), ("the nearest runs", fit.neighbours)):
        one, other = (f"{s.rmse:.4f}" for s in (others.get(part, fit.scores[part]), fit.scores[part]))
        if one != other and float(one) * _AS_GOOD < float(other):
            yield (
                f"{told} predict{'s' if told.startswith('a') else ''} the {part.replace('_', ' ')} runs better (RMSE "
                f"{one} against {other}): this law is not worth its terms"
            )
    for name, s in fit.scores.items():
        if s.rows and not np.isfinite(s.r2):
            yield f"no R2 of {name.replace('_', ' ')}: its {s.rows} rows have one and the same loss"
    if fit.near[0] == 1 and fit.near[1] > 1:
        yield "only one start reached the optimum; give more starts before you trust it"
    ranges = ", ".join(f"{name} {allowed}" for name, allowed in fit.law.box.items())
    yield f"valid box: {ranges}; outside it a loss is given and flagged"
    yield "correlations are of scales in the middle of the data; Huber loss on log(loss), delta 1e-3"
