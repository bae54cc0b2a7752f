"""A form as a curve over fixed rows: free numbers in, log of the loss and its derivatives out.

A form whose terms are powers is linear in the logarithms of its scales and in its exponents: term j of row i is
exp(sum_p M[j, i, p] theta_p). M is read off the form itself, at unit coefficients, so no formula stands here twice.
Columns are divided by their geometric means first: a scale is then the size of its term in the middle of the data,
and hardly correlates with the exponents. Other forms are followed as they are, their derivatives by a complex step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from meshwright.search.law_columns import Columns
from meshwright.search.law_forms import FORMS, Array, Form
from meshwright.search.shape import Floats

EXPONENTS = (-1.0, 3.0)  # bounds of every exponent
_SCALES = {
    "plas": ("kl", "kr", "kd", "km"),
    "plas_tokens": ("kl", "kr", "kd", "km", "kD"),
    "width_depth": ("A", "B", "C", "D"),
    "size_tokens": ("A", "B"),
    "size": ("A",),
    "aspect": ("A", "B", "g"),
    "sparsity": ("a", "b", "c", "d"),
    "granular": ("g", "a", "b", "dense_a", "dense_b"),
    "comprehensive": ("a", "b", "c", "e", "f", "k", "h"),
    "routed": (),
}
# Coefficients that are neither scale, exponent nor floor: bounds, and where starts are drawn.
_FREE = {
    "comprehensive": {"m": (-1e3, 1e3, -5.0, 5.0), "n": (-1e3, 1e3, -5.0, 5.0)},
    "routed": {
        "a": (-1.0, 1.0, -0.15, -0.02),
        "b": (-1.0, 1.0, -0.3, 0.0),
        "c": (-0.2, 0.2, -0.01, 0.02),
        "d": (-2.0, 5.0, 0.5, 2.0),
        "e_start": (1.001, 19.0, 1.1, 6.0),
        "e_max": (20.0, 1e4, 60.0, 800.0),
    },
}
FITTED_FORMS = tuple(_SCALES)
POWERS = ("plas", "plas_tokens", "width_depth", "size_tokens", "size", "aspect", "sparsity")
_NO_FLOOR = 1e-6  # of the least loss
_STEP = 1e-30  # of the complex step: no difference is taken, so it may be this small


@dataclass(frozen=True)
class Knobs:
    """The free numbers of a form: names, bounds, which are logs of scales, where exponents and free ones start."""

    names: tuple[str, ...]
    scale: Array
    low: Floats
    high: Floats
    start: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, name: str, least_loss: float, logs: tuple[float, float]) -> "Knobs":
        """logs: bounds of the logarithm of a scale."""
        scales, free = _SCALES[name], _FREE.get(name, {})
        bounds: list[tuple[float, ...]] = []
        for c in FORMS[name].coefficients:
            if c in scales:
                bounds.append((*logs, 0.0, 0.0))
            elif c == "floor":
                bounds.append((1e-9 * least_loss, least_loss, 0.0, least_loss))
            else:
                bounds.append(free.get(c, (*EXPONENTS, -0.2, 1.2)))
        low, high, first, last = np.array(bounds).T
        names = FORMS[name].coefficients
        return cls(names, np.isin(names, scales), low, high, tuple(zip(first, last, strict=True)))

    def plain(self, found: Mapping[str, float]) -> dict[str, float]:
        """A floor that its bound keeps just above 0 is 0."""
        most = dict(zip(self.names, self.high.tolist(), strict=True))
        return {c: 0.0 if c == "floor" and v < _NO_FLOOR * most[c] else v for c, v in found.items()}


class Curve(Protocol):
    """What the solver follows."""

    @property
    def knobs(self) -> Knobs: ...

    def follow(self, theta: Floats) -> tuple[Floats, Floats]:
        """Log of the loss [R] and its derivatives [R, P]."""
        ...

    def coefficients(self, theta: Floats) -> dict[str, float]:
        """The form's own coefficients."""
        ...


def curve_of(name: str, columns: Columns, losses: Floats) -> Curve:
    """The curve of a form over rows; `losses` bound the floor."""
    at = {
        v: np.broadcast_to(c, losses.shape) for v, c in columns.given().items() if v in FORMS[name].variables
    }
    least, most = float(losses.min()), float(np.log(losses.max()))
    if name in POWERS:
        return PowerCurve.of(name, at, Knobs.of(name, least, (most - 25.0, most + 5.0)))
    return DirectCurve(FORMS[name], at, Knobs.of(name, least, (-60.0, 80.0)))


@dataclass(frozen=True)
class PowerCurve:
    """A sum of products of powers."""

    form: Form
    knobs: Knobs
    middle: Mapping[str, Array]
    design: Floats  # [terms, R, P]
    home: Mapping[str, str]  # of each scale, the term that it alone scales

    @classmethod
    def of(cls, name: str, at: Mapping[str, Array], knobs: Knobs) -> "PowerCurve":
        form = FORMS[name]
        middle = {v: np.exp(np.log(c).mean()) for v, c in at.items()}
        scaled = {v: c / middle[v] for v, c in at.items()}
        rows = next(iter(at.values())).shape
        plain = {c: 1.0 if s or c == "floor" else 0.0 for c, s in zip(knobs.names, knobs.scale, strict=True)}

        def logs(changed: Mapping[str, float]) -> dict[str, Array]:
            terms = form.terms({**plain, **changed}, scaled)
            return {t: np.log(np.broadcast_to(v, rows)) for t, v in terms.items()}

        flat = logs({})
        by_knob = [logs({c: np.e if plain[c] else 1.0}) for c in knobs.names]
        design = np.array([[one[t] - flat[t] for one in by_knob] for t in flat]).transpose(0, 2, 1)
        touched = {
            c: [t for t in flat if np.any(one[t] != flat[t])]
            for c, one in zip(knobs.names, by_knob, strict=True)
        }
        scales = [c for c, s in zip(knobs.names, knobs.scale, strict=True) if s]
        home = {
            c: next(t for t in touched[c] if not any(t in touched[o] for o in scales if o != c))
            for c in scales
        }
        return cls(form, knobs, middle, design, home)

    def follow(self, theta: Floats) -> tuple[Floats, Floats]:
        inner, by = self._inner(theta)
        terms = np.exp(np.einsum("jip,p->ji", self.design, inner))
        total = terms.sum(axis=0)
        return np.log(total), np.einsum("ji,jip->ip", terms / total, self.design) * by

    def coefficients(self, theta: Floats) -> dict[str, float]:
        found = dict(zip(self.knobs.names, theta.tolist(), strict=True))
        unit = {c: 1.0 if c in self.home or c == "floor" else v for c, v in found.items()}
        terms = self.form.terms(unit, self.middle)
        scales = {c: float(np.exp(found[c]) / terms[t]) for c, t in self.home.items()}
        return self.knobs.plain({**found, **scales})

    def _inner(self, theta: Floats) -> tuple[Floats, Floats]:
        """The floor as a logarithm, and what its derivative is divided by."""
        inner, by = theta.copy(), np.ones(len(theta))
        if "floor" in self.knobs.names:
            i = self.knobs.names.index("floor")
            inner[i], by[i] = np.log(theta[i]), 1 / theta[i]
        return inner, by


@dataclass(frozen=True)
class DirectCurve:
    """Any form; its functions are analytic in their coefficients."""

    form: Form
    at: Mapping[str, Array]
    knobs: Knobs

    def follow(self, theta: Floats) -> tuple[Floats, Floats]:
        steps = theta + 1j * _STEP * np.eye(len(theta))
        columns = {
            c: np.exp(v) if s else v
            for c, s, v in zip(self.knobs.names, self.knobs.scale, steps.T[:, :, None], strict=True)
        }
        terms = self.form.terms(columns, self.at)
        total = np.broadcast_to(sum(terms.values()), (len(theta), *next(iter(self.at.values())).shape))
        log = total * np.log(10) if self.form.log10 else np.log(np.where(total.real > 0, total, 1e-300))
        return log[0].real, log.imag.T / _STEP

    def coefficients(self, theta: Floats) -> dict[str, float]:
        pairs = zip(self.knobs.names, self.knobs.scale, theta, strict=True)
        return self.knobs.plain({c: float(np.exp(v) if s else v) for c, s, v in pairs})
