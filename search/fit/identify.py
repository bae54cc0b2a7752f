"""What the runs do and do not say of each coefficient.

Prediction can be good where single coefficients are not known: terms trade against each other. A coefficient is
flagged where its interval is wide, where it lies at a bound, where it moves with another, or where it is free: other
values of it give the very same losses. It is not identified where it is free, or its interval is wide or at a bound,
or where it moves with one of which that holds: a bound that holds a floor at 0 makes the interval of the term it
trades with look narrow.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.search.fit.curve import Knobs
from meshwright.search.fit.free import NO_RANK, Trades
from meshwright.search.shape import Array, Floats

_PAIR = 0.95  # correlation from which two coefficients are one number
_FACTOR = 4.0  # between the ends of a wide interval of a scale
_SPAN = 1.0  # of an exponent or floor: its interval over its value
_NARROW = 1e-5  # span of an exponent or floor that is never wide: of one that is 0, no share can be taken
_BOUND = 1e-6  # of the range: at a bound
# What the closed forms of search/closed_forms.py read.
CLOSED_FORMS: Mapping[str, tuple[str, ...]] = {
    "rho* of memory": ("kr", "arho", "b1", "kd", "b2", "ar"),
    "r*": ("kl", "al", "kr", "arho", "b1", "kd", "b2", "ar"),
    "gqa*": ("kl", "al", "km", "am"),
}


@dataclass(frozen=True)
class Identified:
    """Of P coefficients.

    Attributes:
        intervals: of 95%.
        correlations: [P, P], as if none had a bound; of scales in the middle of the data.
        flags: in words, by name; none where all is well.
        unknown: those that are not identified. free: those of them that other values may replace at the same losses.
    """

    names: tuple[str, ...]
    intervals: Mapping[str, tuple[float, float]]
    correlations: Floats
    flags: Mapping[str, tuple[str, ...]]
    unknown: tuple[str, ...]
    free: tuple[str, ...]

    def pairs(self) -> tuple[tuple[str, str, float], ...]:
        """Coefficients that move together, the closest first."""
        p, c = len(self.names), self.correlations
        found = [(self.names[i], self.names[j], float(c[i, j])) for i in range(p) for j in range(i)]
        return tuple(sorted((f for f in found if abs(f[2]) > _PAIR), key=lambda f: -abs(f[2])))

    def low_confidence(self) -> dict[str, tuple[str, ...]]:
        """Closed forms that read coefficients that are not identified, and which; empty for a law of another form."""
        if not set(CLOSED_FORMS["r*"]) <= set(self.names):
            return {}
        read = {form: tuple(n for n in names if n in self.unknown) for form, names in CLOSED_FORMS.items()}
        return {form: names for form, names in read.items() if names}


def identify(
    knobs: Knobs,
    theta: Floats,
    jacobian: Floats,
    covariance: Floats,
    samples: Mapping[str, Floats],
    values: Mapping[str, float],
    traded: Trades,
) -> Identified:
    """samples: refits of every coefficient, by name. An interval holds all that `traded` reaches."""
    names, bound = knobs.names, at_bound(knobs, theta)
    unread = np.array([not traded.others.get(n, names) for n in names])
    correlations = _correlations(covariance)
    together = (np.abs(correlations) > _PAIR) & ~np.eye(len(theta), dtype=bool)
    intervals = {n: _interval(samples[n], traded.ends.get(n, ())) for n in names}
    free = np.isin(names, list(traded.others))
    wide = np.array(
        [_wide(bool(s), values[n], *intervals[n]) for n, s in zip(names, knobs.scale, strict=True)]
    )
    doubtful = wide | bound | unread | free
    unknown = doubtful | (together & doubtful).any(axis=1)
    flags = {
        name: tuple(
            told
            for told, holds in (
                ("no run reads it", unread[i]),
                (f"free: trades with {_and(traded.others.get(name, ()))}", free[i] and not unread[i]),
                ("at its bound", bound[i]),
                ("wide interval", wide[i]),
                (
                    f"moves with {_and(n for n, t in zip(names, together[i], strict=True) if t)}",
                    together[i].any() and not free[i],
                ),
            )
            if holds
        )
        for i, name in enumerate(names)
    }
    return Identified(
        names, intervals, correlations, flags,
        tuple(n for n, u in zip(names, unknown, strict=True) if u),
        tuple(n for n, f in zip(names, free, strict=True) if f),
    )  # fmt: skip


def at_bound(knobs: Knobs, theta: Floats) -> Array:
    """Which of the coefficients lie at an end of their range."""
    slack = _BOUND * (knobs.high - knobs.low)
    return np.asarray((theta <= knobs.low + slack) | (theta >= knobs.high - slack))


def covariance_of(jacobian: Floats, residuals: Floats, weights: Floats) -> Floats:
    """Of least squares near the optimum, as if no bound held: s^2 (J' W J)^-1; 0 of what no run reads.

    A direction along which no row moves has a variance that outweighs all others.
    """
    size = np.linalg.norm(jacobian, axis=0)
    read = size > NO_RANK * size.max()
    rows = np.sqrt(weights)[:, None] * jacobian[:, read] / size[read]
    _, values, vectors = np.linalg.svd(
        np.concatenate([rows, np.zeros((rows.shape[1],) * 2)]), full_matrices=False
    )
    apart = vectors.T / np.maximum(values, NO_RANK * values[0]) / size[read][:, None]
    left = max(len(residuals) - rows.shape[1], 1)
    found = np.zeros((len(read), len(read)))
    found[np.ix_(read, read)] = float((weights * residuals**2).sum()) / left * (apart @ apart.T)
    return found


def _interval(samples: Floats, ends: tuple[float, ...]) -> tuple[float, float]:
    low, high = (float(np.quantile(samples, q)) for q in (0.025, 0.975))
    return min((low, *ends)), max((high, *ends))


def _and(names: Iterable[str]) -> str:
    return " and ".join(names)


def _correlations(covariance: Floats) -> Floats:
    """0 between coefficients of which one has no spread: the fit is exact."""
    size = np.sqrt(np.diag(covariance))
    outer = np.outer(size, size)
    found = np.divide(covariance, outer, out=np.zeros_like(outer), where=outer > 0)
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)


def _wide(scale: bool, value: float, low: float, high: float) -> bool:
    """Of an interval whose ends are given."""
    if scale:
        return high > _FACTOR * low
    return high - low > max(_SPAN * abs(value), _NARROW)
