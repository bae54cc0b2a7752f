"""Which form to fit: the first, in a fixed order, whose variables the runs give and vary.

PLAS first, since its terms are separable and it was fitted on a mix of dense and sparse shapes; the Gemstones form
where all models are dense; an aspect ratio on size and tokens for few runs; a law of granularity and shared experts
where those vary and PLAS does not read them.
"""

from collections.abc import Mapping

import numpy as np

from meshwright.hardware.errors import UnknownNameError, check_type
from meshwright.search.fit.curve import FITTED_FORMS
from meshwright.search.fit.runs import Runs, RunsError
from meshwright.search.law_columns import Granularity
from meshwright.search.law_forms import FORMS
from meshwright.search.shape import Array

GRANULARITY = {
    "granular": Granularity(
        what="ffn_over_expert", basis="fitted", note="from the columns ffn, top_k and shared"
    ),
    "comprehensive": Granularity(
        what="active_experts", basis="fitted", note="from the columns top_k and shared"
    ),
}
# Rows of the fit per coefficient below which a form is passed over.
_PER_COEFFICIENT: Mapping[str, float] = {"aspect": 2, "size_tokens": 1.5, "size": 1.5}
_USUAL = 3.0


def choose(runs: Runs, form: str | None, fitted: Array) -> tuple[str, str]:
    """Form and reason; `fitted` masks the rows that will be fitted.

    Errors: UnknownNameError; RunsError where the form cannot be fitted to these runs, or none can.
    """
    check_type("the form", form, (str, type(None)), "its name", RunsError)
    if form is not None:
        if form not in FITTED_FORMS:
            raise UnknownNameError("form", form, FITTED_FORMS)
        if why := cannot(form, runs, fitted, 1.0):
            raise RunsError(f"form {form} cannot be fitted to these runs: {why}")
        return form, "as asked"
    passed: list[str] = []
    for name, reason in _order(runs):
        why = cannot(name, runs, fitted, _PER_COEFFICIENT.get(name, _USUAL))
        if not why:
            return name, "; ".join([reason, *passed])
        passed.append(f"{name} is passed over: {why}")
    raise RunsError("no form can be fitted to these runs: " + "; ".join(passed))


def _order(runs: Runs) -> list[tuple[str, str]]:
    """Forms to try, and why each would be taken."""
    tokens = runs.has("tokens") and len(set(runs.given["tokens"].tolist())) > 1
    plas = (
        ("plas_tokens", "its terms are separable, and tokens vary")
        if tokens
        else ("plas", "its terms are separable")
    )
    shaped = [
        ("aspect", "few runs: size and tokens with an aspect ratio"),
        ("size_tokens", "no term of shape can be fitted"),
        ("size", "no term of shape or tokens can be fitted"),
    ]
    dense = runs.dense()
    if dense is None:
        note = "no column experts, so nothing is said of experts"
        return [
            ("width_depth", f"width, depth, size and tokens; {note}"),
            *((n, f"{r}; {note}") for n, r in shaped),
        ]
    if dense:
        return [("width_depth", "all models are dense"), *shaped]
    beyond = _beyond_plas(runs)
    experts = [
        ("comprehensive", beyond or "sizes and experts alone vary"),
        ("granular", beyond or "granularity varies"),
        ("routed", "experts vary, and little else"),
    ]
    return [*experts, plas, *shaped] if beyond else [plas, *experts, *shaped]


def _beyond_plas(runs: Runs) -> str:
    """What varies of experts that PLAS does not read."""
    if runs.has("shared") and len(set(runs.given["shared"].tolist())) > 1:
        return "shared experts vary, which PLAS does not read"
    if runs.has("top_k") and len(set(runs.given["top_k"].tolist())) > 2:
        return "top_k takes more than two values, and PLAS reads no granularity"
    return ""


def cannot(form: str, runs: Runs, fitted: Array, per_coefficient: float) -> str:
    """Why not, or nothing: a variable is missing or constant, tokens have no term, or rows are too few."""
    formula, columns = FORMS[form], runs.read(GRANULARITY.get(form)).given()
    if missing := runs.lacks(formula.variables):
        return f"the file has no {', '.join(missing)}"
    constant = [v for v in formula.variables if np.ptp(np.log1p(columns[v][fitted])) < 1e-12]
    if constant:
        value = columns[constant[0]][fitted][0]
        return f"its term of {constant[0]} needs values that differ, and all {int(fitted.sum())} rows have {value:g}"
    if "tokens" in columns and "tokens" not in formula.variables and np.ptp(columns["tokens"]) > 0:
        return "tokens vary and it has no term in them; take a form that has, or rows of one number of tokens"
    need = max(len(formula.coefficients) + 1, int(np.ceil(per_coefficient * len(formula.coefficients))))
    if int(fitted.sum()) < need:
        return f"{len(formula.coefficients)} coefficients ask for {need} rows or more, and {int(fitted.sum())} are fitted"
    return ""
