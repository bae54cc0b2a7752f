"""What the fitted losses leave free: coefficients that can be changed together while every fitted loss stays the same.

Where the derivatives of the losses by the coefficients are short of rank, some coefficients trade against each other
exactly: a term of two coefficients and a floor, say, over a variable of two values. A refit from the optimum stays
where it is, so its spread says nothing of them; they are walked to the ends of what keeps the losses. Other starts that
ended at the same losses with other coefficients (two terms that changed places) say the same.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.search.fit.curve import Curve
from meshwright.search.fit.solve import held
from meshwright.search.law_columns import Columns
from meshwright.search.law_forms import Form
from meshwright.search.shape import Array, Floats

NO_RANK = 1e-8  # of the largest singular value or column. Measured: short of rank 1e-16, otherwise above 1e-6
_MOVES = 1e-3  # share of a direction from which a coefficient takes part in it
_SAME = 1e-6  # of log(loss): no fitted loss changed
_STEP = 1e-4
_HALVINGS = 8
_BETWEEN = 14  # points of a walk between its ends: a scale may be least in between


@dataclass(frozen=True)
class Trades:
    """Coefficients that are free, and for each the others it trades with and the ends of what keeps the losses."""

    others: Mapping[str, tuple[str, ...]]
    ends: Mapping[str, tuple[float, float]]


def trades(curve: Curve, theta: Floats, near: Iterable[Floats] = ()) -> Trades:
    """At an optimum; `near` are other ends of the fit.

    Errors: MissingExtraError without scipy.
    """
    fitted, names = curve.follow(theta)[0], curve.knobs.names
    twins = [t for t in near if np.abs(curve.follow(t)[0] - fitted).max() < _SAME]
    points, rows, ends, walked = (
        [theta, *twins],
        [_moved(curve, theta, twin) for twin in twins],
        [theta],
        set(),
    )
    for at in ends:  # grows: where a term has gone, its exponent is free as well
        directions = null_directions(curve.follow(at)[1])
        rows += [_moved(curve, at + _STEP * one, at - _STEP * one) / (2 * _STEP) for one in directions]
        for i in np.flatnonzero((np.abs(directions) > _MOVES).any(axis=0)):
            if i not in walked:
                walked.add(i)
                found = _walk(curve, at, fitted, directions[np.abs(directions[:, i]).argmax()], int(i))
                points += found
                ends += [found[0], found[-1]]
    moved: Array = np.asarray(np.array(rows).reshape(-1, len(names)) > _MOVES)
    others = {
        names[i]: tuple(names[j] for j in np.flatnonzero(moved[moved[:, i]].any(axis=0)) if j != i)
        for i in np.flatnonzero(moved.any(axis=0))
    }
    values = [curve.coefficients(point) for point in points]
    return Trades(others, {n: (min(v[n] for v in values), max(v[n] for v in values)) for n in others})


def null_directions(jacobian: Floats) -> Floats:
    """[K, P] directions along which no row moves; a coefficient that none reads is one by itself. jacobian: [R, P]."""
    size = np.linalg.norm(jacobian, axis=0)
    read = size > NO_RANK * size.max()
    scaled = jacobian[:, read] / size[read]
    # As many singular values as coefficients, however few the rows.
    values, vectors = np.linalg.svd(np.concatenate([scaled, np.zeros((scaled.shape[1],) * 2)]))[1:]
    found = np.zeros((int((values <= NO_RANK * values[0]).sum()), len(size)))
    found[:, read] = vectors[values <= NO_RANK * values[0]] / size[read]
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return np.concatenate([found, np.eye(len(size))[~read]])


def _moved(curve: Curve, to: Floats, start: Floats) -> Floats:
    """How far each of the form's own coefficients goes: by ratio where it is a scale."""
    a, b = (np.array([curve.coefficients(t)[n] for n in curve.knobs.names]) for t in (to, start))
    size = np.where(curve.knobs.scale, np.maximum(np.abs(a), np.abs(b)), 1.0)
    return np.asarray(np.abs(np.divide(a - b, size, out=np.zeros_like(a), where=size > 0)))


def _walk(curve: Curve, theta: Floats, fitted: Floats, along: Floats, i: int) -> list[Floats]:
    """Points that keep the losses, over all that knob i reaches: its ends by halving the way to its bounds."""
    knobs = curve.knobs

    def kept(at: Floats, goal: float) -> Floats | None:
        guess = np.clip(at + along * (goal - at[i]) / along[i], knobs.low, knobs.high)
        guess[i] = goal
        new = held(curve, np.exp(fitted), guess, i)
        return new if np.abs(curve.follow(new)[0] - fitted).max() < _SAME else None

    def end(bound: float) -> Floats:
        at, goal, far = theta, bound, bound
        for _ in range(_HALVINGS):
            if (new := kept(at, goal)) is None:
                far = goal
            elif goal == bound:
                return new
            else:
                at = new
            goal = (float(at[i]) + far) / 2
        return at

    first, last = end(float(knobs.low[i])), end(float(knobs.high[i]))
    inside = np.linspace(first[i], last[i], _BETWEEN + 2)[1:-1] if first[i] < last[i] else ()
    return [first, *(new for goal in inside if (new := kept(theta, float(goal))) is not None), last]


def few_values(form: Form, curve: Curve, columns: Columns) -> Iterator[tuple[str, Array, tuple[str, ...]]]:
    """Variables with fewer different values than a term of theirs has coefficients, counting what is constant.

    Gives the variable, its values and those coefficients.
    """
    at = columns.given()
    middle = curve.coefficients(np.array([(low + high) / 2 for low, high in curve.knobs.start]))
    touched = {c: _touched(form, middle, at, c) for c in form.coefficients}
    constant = {term for term, reads in form.reads.items() if not reads}
    for variable in form.variables:
        own = {term for term, reads in form.reads.items() if reads == (variable,)}
        names = tuple(c for c, terms in touched.items() if (terms and terms <= own) or terms & constant)
        values = np.unique(at[variable])
        if any(touched[c] <= own for c in names) and len(values) < len(names):
            yield variable, values, names


def _touched(form: Form, coefficients: Mapping[str, float], at: Mapping[str, Array], name: str) -> set[str]:
    """Terms that a coefficient changes."""
    plain = form.terms(coefficients, at)
    other = form.terms({**coefficients, name: coefficients[name] * 1.1 + 0.01}, at)
    return {term for term in plain if np.any(plain[term] != other[term])}
