"""What keeps every fitted loss the same is found, said, and lies in the intervals; what does not is not called so."""

import numpy as np
import pytest

from meshwright.search.fit.answer import working
from meshwright.search.fit.curve import curve_of
from meshwright.search.fit.fit import fit_law
from meshwright.search.fit.free import few_values, null_directions
from meshwright.search.fit.runs import Runs, RunsError
from meshwright.search.law import load_law
from meshwright.search.law_forms import FORMS

PLAS = dict(load_law("plas-10b").coefficients) | {"km": 0.6, "am": 0.2, "floor": 2.1}
SIZES = {"A": 300.0, "a": 0.31, "B": 1200.0, "b": 0.33, "floor": 1.5}


def made(runs, form, values, noise=0.0, **changed):
    runs = Runs(dict(runs.given) | changed)
    at = runs.read().given()
    loss = FORMS[form].joined(FORMS[form].terms(values, at))
    return Runs(
        dict(runs.given) | {"loss": loss + noise * np.random.default_rng(5).standard_normal(len(runs))}
    )


def two(values, low, high):
    """Every other row of a column."""
    return np.where(np.arange(len(values)) % 2, low, high)


def traded(values, term, at, scale, exponent, other):
    """Another exponent of a term over two values, and the scale and floor that keep both sums."""
    one, two_ = at
    wanted = [values[scale] / x ** values[exponent] for x in at]
    scaled = (wanted[0] - wanted[1]) / (one**-other - two_**-other)
    return values | {
        scale: scaled,
        exponent: other,
        "floor": values["floor"] + wanted[0] - scaled * one**-other,
    }


CASES = {
    "two widths of keys": ("plas", PLAS, {"n_kv": (1, 4)}, ("kv", (128, 512), "km", "am", 0.4)),
    "two depths": ("plas", PLAS, {"l": (8, 24)}, ("depth", (8, 24), "kl", "al", 1.2)),
    "two numbers of tokens": ("size_tokens", SIZES, {"tokens": (1e10, 1e11)}, ("tokens", (1e10, 1e11), "B", "b", 0.35)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "noise"),
    [
        *((case, 0.0) for case in CASES),
        ("two numbers of tokens", 0.01),
        *(pytest.param(case, 0.01, marks=pytest.mark.full) for case in ("two widths of keys", "two depths")),
    ],
)
def test_two_values_do_not_tell_a_term_from_the_floor(case, noise, plas_runs):
    form, values, changed, trade = CASES[case]
    runs = plas_runs(rows=120)
    runs = made(runs, form, values, noise, **{n: two(runs.loss, *ends) for n, ends in changed.items()})
    other = traded(values, *trade)
    at = runs.read().given()
    if not noise:  # the other coefficients make the same losses: an oracle without derivatives
        assert FORMS[form].joined(FORMS[form].terms(other, at)) == pytest.approx(runs.loss, rel=1e-12)
    fit = fit_law(runs, form, bootstrap=4, starts=8)
    wanted = {trade[2], trade[3], "floor"}
    assert set(fit.identified.free) == wanted <= set(fit.identified.unknown)
    for name in wanted:
        low, high = fit.identified.intervals[name]
        assert high > low + 0.05 * abs(low)
        if not noise:  # the least of a scale may lie between two points of a walk
            assert (
                low * 0.98 <= min(values[name], other[name]) and max(values[name], other[name]) <= high * 1.02
            )
        assert fit.identified.flags[name][0].startswith("free: trades with ")
    notes = " ".join(working(fit).notes)
    assert (
        f"takes 2 values ({trade[1][0]:g}, {trade[1][1]:g}) in the fitted runs, too few to tell {trade[2]}, "
        in notes
    )
    assert "do not identify" in working(fit).binds


def test_a_product_that_does_nothing_trades_with_what_it_multiplies(plas_runs):
    """(A/N^a + B/D^b + floor) (1 + g (d/l)^0): only the four's products with 1 + g are fixed."""
    runs = plas_runs(rows=80)
    tokens = np.random.default_rng(1).choice([5e9, 1e10, 3e10, 1e11], 80)
    fit = fit_law(
        made(runs, "aspect", SIZES | {"g": 0.0, "c": 0.6}, tokens=tokens), "aspect", bootstrap=0, starts=10
    )
    assert {"A", "B", "g", "floor"} <= set(fit.identified.unknown)
    for name in ("A", "B", "floor"):
        low, high = fit.identified.intervals[name]
        assert low < 0.1 * SIZES[name] and high == pytest.approx(SIZES[name], rel=1e-4)


def test_terms_that_may_change_places_are_free(plas_runs):
    """Where width is 64 times depth, A/w^a + B/l^b may change places: no derivative shows it, other starts do."""
    runs = plas_runs(rows=90)
    layers = np.random.default_rng(2).choice([8, 12, 16, 24, 32, 48], 90)
    tokens = np.random.default_rng(3).choice([5e9, 1e10, 3e10, 1e11], 90)
    values = {
        "A": 400.0,
        "a": 1.1,
        "B": 1.5,
        "b": 0.3,
        "C": 300.0,
        "c": 0.4,
        "D": 1200.0,
        "d": 0.33,
        "floor": 1.0,
    }
    runs = made(runs, "width_depth", values, l=layers, d=64.0 * layers, tokens=tokens)
    fit = fit_law(runs, "width_depth", bootstrap=0, starts=30)
    assert {"A", "a", "B", "b"} <= set(fit.identified.free)
    low, high = fit.identified.intervals["a"]
    assert low == pytest.approx(0.3, rel=1e-3) and high == pytest.approx(1.1, rel=1e-3)


def test_a_term_that_is_nothing_has_no_exponent(plas_runs):
    fit = fit_law(made(plas_runs(rows=120), "plas", PLAS | {"km": 0.0}), "plas", bootstrap=0, starts=8)
    assert {"km", "am"} <= set(fit.identified.unknown)
    low, high = fit.identified.intervals["am"]
    assert high - low > 1


def test_runs_that_say_all_leave_nothing_free(plas_runs, law_runs):
    for runs, form in ((plas_runs(), "plas"), (law_runs("abnar"), "sparsity")):
        fit = fit_law(runs, form, bootstrap=0, starts=10)
        assert fit.identified.free == () and fit.few == ()


@pytest.mark.parametrize("seed", range(8))
def test_null_directions_by_their_rank(seed):
    rng = np.random.default_rng(seed)
    columns, rank = int(rng.integers(2, 9)), int(rng.integers(1, 5))
    rank = min(rank, columns)
    jacobian = rng.standard_normal((30, rank)) @ rng.standard_normal((rank, columns))
    jacobian = jacobian * np.exp(rng.uniform(-6, 6, columns))
    found = null_directions(jacobian)
    assert len(found) == columns - rank
    assert jacobian @ found.T == pytest.approx(0, abs=1e-9 * np.abs(jacobian).max())
    unread = np.concatenate([jacobian, np.zeros((30, 1))], axis=1)
    assert null_directions(unread)[-1].tolist() == [0] * columns + [1]
    assert len(null_directions(rng.standard_normal((3, 7)))) == 4  # fewer rows than coefficients


def test_few_values_by_hand(plas_runs):
    runs = plas_runs(rows=40)
    for given, names in (((1, 4), {"kv_width": ("km", "am", "floor")}), ((1, 2, 4), {})):
        kv = np.asarray(given)[np.arange(40) % len(given)]
        columns = Runs(dict(runs.given) | {"n_kv": kv}).read()
        found = few_values(FORMS["plas"], curve_of("plas", columns, runs.loss), columns)
        assert {variable: told for variable, _, told in found} == names


def test_two_numbers_of_experts_do_not_give_their_effective_number(law_runs):
    runs = law_runs("clark-sbase", rows=80)
    experts = two(runs.loss, 1, 8)
    runs = made(runs, "routed", load_law("clark-sbase").coefficients, experts=experts)
    fit = fit_law(runs, "routed", bootstrap=0, starts=4)
    assert {"b", "c", "d", "e_start", "e_max"} <= set(fit.identified.free)


def test_losses_that_say_nothing(law_runs):
    runs = law_runs("besiroglu", rows=40)
    with pytest.raises(RunsError) as caught:
        fit_law(Runs(dict(runs.given) | {"loss": np.full(40, 3.0)}))
    assert (
        str(caught.value) == "all 32 rows to be fitted have the loss 3; a law is fitted to losses that differ"
    )
    with pytest.raises(RunsError, match=r"^the name of the law is ' '; give a word"):
        fit_law(runs, name=" ")


def test_what_is_as_good_is_not_called_better_and_a_missing_score_is_explained(law_runs):
    runs = law_runs("besiroglu", rows=60)
    split = np.array(["fit"] * 58 + ["held_out"] * 2)
    loss = np.concatenate([runs.loss[:58], runs.loss[57:58], runs.loss[57:58]])
    notes = " ".join(
        working(
            fit_law(Runs(dict(runs.given) | {"loss": loss}, split), "aspect", bootstrap=0, starts=5)
        ).notes
    )
    assert "no R2 of held out: its 2 rows have one and the same loss" in notes
    assert "0.0000 against 0.0000" not in notes
