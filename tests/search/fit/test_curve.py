"""Curves are the forms themselves: values through the form's own coefficients, derivatives against differences."""

import itertools

import numpy as np
import pytest

from meshwright.search.fit.choose import GRANULARITY
from meshwright.search.fit.curve import _SCALES, FITTED_FORMS, POWERS, curve_of
from meshwright.search.fit.free import Trades
from meshwright.search.fit.identify import covariance_of, identify
from meshwright.search.fit.solve import _start, resampled
from meshwright.search.law_forms import FORMS

MADE_BY = {"routed": "clark-sbase", "granular": "krajewski", "comprehensive": "zhao"}


def curves(form, law_runs, plas_runs):
    runs = law_runs(MADE_BY[form], rows=40) if form in MADE_BY else plas_runs(rows=40)
    columns = runs.read(GRANULARITY.get(form))
    return curve_of(form, columns, runs.loss), columns.given(), runs.loss


def test_every_form_can_be_fitted():
    assert set(FITTED_FORMS) == set(FORMS)
    for form, scales in _SCALES.items():
        assert set(scales) <= set(FORMS[form].coefficients)


@pytest.mark.parametrize("form", FITTED_FORMS)
def test_a_curve_is_its_form(form, law_runs, plas_runs):
    curve, at, losses = curves(form, law_runs, plas_runs)
    rng = np.random.default_rng(0)
    starts = (_start(curve, losses, rng) for _ in range(100))
    sound = (t for t in starts if np.isfinite(curve.follow(t)[0]).all() and curve.follow(t)[0].min() > -600)
    for theta in itertools.islice(sound, 5):  # signed coefficients may make a loss that is none
        assert ((theta > curve.knobs.low) & (theta < curve.knobs.high)).all()
        log, slope = curve.follow(theta)
        loss = FORMS[form].joined(FORMS[form].terms(curve.coefficients(theta), at))
        assert np.exp(log) == pytest.approx(np.broadcast_to(loss, losses.shape), rel=1e-9)
        for i in range(len(theta)):
            step = 1e-6 * max(abs(theta[i]), 1e-3)
            up, down = (curve.follow(theta + s * step * np.eye(len(theta))[i])[0] for s in (1, -1))
            assert slope[:, i] == pytest.approx((up - down) / (2 * step), rel=1e-4, abs=1e-7), (
                curve.knobs.names[i]
            )


@pytest.mark.parametrize("form", POWERS)
def test_terms_of_powers_are_linear_in_what_is_fitted(form, law_runs, plas_runs):
    """The log of every term, between two sets of coefficients, lies midway in the middle."""
    curve, at, losses = curves(form, law_runs, plas_runs)
    rng = np.random.default_rng(1)
    ends = [_start(curve, losses, rng) for _ in range(2)]
    ends = [np.where(np.array(curve.knobs.names) == "floor", losses.min() / 2, e) for e in ends]
    terms = [FORMS[form].terms(curve.coefficients(t), at) for t in (*ends, np.mean(ends, axis=0))]
    for name in terms[0]:
        one, other, middle = (np.log(t[name]) for t in terms)
        assert middle == pytest.approx((one + other) / 2, abs=1e-9), name


def test_a_bootstrap_draws_whole_models():
    groups, rng = np.array([7, 7, 3, 3, 3, 1]), np.random.default_rng(0)
    drawn = np.array([resampled(groups, np.ones(6), rng) for _ in range(200)])
    assert (drawn[:, 0] == drawn[:, 1]).all() and (drawn[:, 2] == drawn[:, 4]).all()
    assert (drawn[:, [0, 2, 5]].sum(axis=1) == 3).all()
    assert drawn.mean(axis=0) == pytest.approx(np.ones(6), abs=0.2)


def test_what_is_flagged(law_runs):
    """Two knobs that do the same, one at its bound, one that no row reads, one with a wide interval."""
    runs = law_runs("besiroglu", rows=30)
    curve = curve_of("size_tokens", runs.read(), runs.loss)
    knobs, names = curve.knobs, curve.knobs.names
    theta = np.array([0.0, 0.35, 0.0, 0.37, knobs.low[4]])
    rng = np.random.default_rng(0)
    jacobian = rng.standard_normal((30, 5))
    jacobian[:, 1] = jacobian[:, 0] + 1e-3 * jacobian[:, 1]
    jacobian[:, 2] = 0
    traded = Trades({"B": ()}, {"B": (0.5, 2.0)})
    values = dict(zip(names, (1.0, 0.35, 1.0, 0.37, 0.0), strict=True))
    samples = {n: np.array([v, v * 1.01]) for n, v in values.items()} | {"b": np.array([0.1, 0.9])}
    covariance = covariance_of(jacobian, np.full(30, 0.01), np.ones(30))
    found = identify(knobs, theta, jacobian, covariance, samples, values, traded)
    assert found.flags == {
        "A": ("moves with a",), "a": ("moves with A",), "B": ("no run reads it",), "b": ("wide interval",),
        "floor": ("at its bound",),
    }  # fmt: skip
    assert found.unknown == ("B", "b", "floor")
    assert [p[:2] for p in found.pairs()] == [("a", "A")]
    assert found.low_confidence() == {}
