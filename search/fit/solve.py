"""The fit itself: Huber loss on the log of the loss, bounded, from many starts.

Starts are screened by least squares; the best of them are brought to the end with the Huber loss.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.hardware.errors import MissingExtraError
from meshwright.search.fit.curve import Curve
from meshwright.search.shape import Array, Floats

DELTA = 1e-3  # of the Huber loss, in log(loss)
_SCREENED, _KEPT = 60, 5  # evaluations of a start before the best are chosen; how many go on
_LONG, _AGAIN = 3000, 300  # evaluations of the last stretch; of a refit from the optimum


@dataclass(frozen=True)
class Solution:
    """Of the starts brought to the end.

    Attributes:
        cost: sum of weighted Huber losses. near: where those ended that ended at this cost. ended: how many there were.
    """

    theta: Floats
    cost: float
    near: tuple[Floats, ...]
    ended: int


def solve(curve: Curve, losses: Floats, weights: Floats, starts: int, rng: np.random.Generator) -> Solution:
    """Best of so many starts.

    Errors: MissingExtraError without scipy.
    """
    screened = []
    for _ in range(starts):
        first = _start(curve, losses, rng)
        screened.append(_settle(curve, losses, _squares(weights), first, _SCREENED))
    screened.sort(key=lambda found: found[1])  # stable: of equal ones the first drawn
    ended = [_settle(curve, losses, _huber(weights), theta, _LONG) for theta, _ in screened[:_KEPT]]
    theta, cost = min(ended, key=lambda found: found[1])
    near = tuple(one for one, other in ended if other <= cost * (1 + 1e-4) + 1e-12)
    return Solution(theta, cost, near, len(ended))


def again(curve: Curve, losses: Floats, weights: Floats, theta: Floats) -> Floats:
    """Refit from an optimum, with other weights."""
    return _settle(curve, losses, _huber(weights), theta, _AGAIN, 1e-9)[0]


def held(curve: Curve, losses: Floats, theta: Floats, knob: int) -> Floats:
    """Least squares from a point with one knob held where it is."""
    free = np.arange(len(theta)) != knob
    return _settle(curve, losses, _squares(np.ones(len(losses))), theta, _AGAIN, free=free)[0]


Robust = Callable[[Floats], Floats]


def _settle(
    curve: Curve, losses: Floats, robust: Robust, theta: Floats, most: int, tolerance: float = 1e-14,
    free: Array | None = None,
) -> tuple[Floats, float]:  # fmt: skip
    """free: mask of the knobs that may move; all where it is not given."""
    try:
        from scipy.optimize import least_squares  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("fit-law", "fit") from None
    wanted, knobs = np.log(losses), curve.knobs
    mask = np.ones(len(theta), dtype=bool) if free is None else free

    def whole(moved: Floats) -> Floats:
        full = theta.copy()
        full[mask] = moved
        return full

    inside = np.clip(theta, *_margin(knobs.low, knobs.high))
    found = least_squares(
        lambda t: curve.follow(whole(t))[0] - wanted,
        inside[mask],
        lambda t: curve.follow(whole(t))[1][:, mask],
        bounds=(knobs.low[mask], knobs.high[mask]),
        x_scale="jac",
        loss=robust,
        f_scale=DELTA,
        max_nfev=most,
        ftol=tolerance,
        xtol=tolerance,
        gtol=tolerance,
    )
    return whole(found.x), float(found.cost)


def _margin(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """A start strictly inside its bounds."""
    step = 1e-9 * (high - low)
    return low + step, high - step


def _squares(weights: Floats) -> Robust:
    """Value and derivatives of z, what a robust loss takes of z = (residual / delta)^2."""
    return lambda z: np.array([weights * z, weights, np.zeros_like(z)])


def _huber(weights: Floats) -> Robust:
    """z up to 1, then 2 sqrt(z) - 1."""

    def robust(z: Floats) -> Floats:
        small = z <= 1
        root = np.sqrt(np.where(small, 1.0, z))
        return np.array(
            [
                weights * np.where(small, z, 2 * root - 1),
                weights * np.where(small, 1.0, 1 / root),
                weights * np.where(small, 0.0, -0.5 / root**3),
            ]
        )

    return robust


def _start(curve: Curve, losses: Floats, rng: np.random.Generator) -> Floats:
    """Exponents, floor and free numbers at random; then each scale so that its part of the loss is a random share."""
    knobs = curve.knobs
    theta = np.array([rng.uniform(*ends) if ends[0] < ends[1] else ends[0] for ends in knobs.start])
    theta = np.clip(theta, *_margin(knobs.low, knobs.high))
    scales = np.flatnonzero(knobs.scale)
    theta[scales] = knobs.low[scales]
    mean = float(losses.mean())
    for i in scales:
        without = np.exp(curve.follow(theta)[0]).mean()
        theta[i] = 0.0
        adds = float(np.exp(curve.follow(theta)[0]).mean() - without)
        share = mean * np.exp(rng.uniform(np.log(0.01), np.log(0.6)))
        theta[i] = np.log(share / adds) if adds > 0 else 0.0
    return np.asarray(np.clip(theta, *_margin(knobs.low, knobs.high)))


def resampled(groups: Array, weights: Floats, rng: np.random.Generator) -> Floats:
    """Weights of a bootstrap sample that draws whole groups."""
    of = np.unique(groups, return_inverse=True)[1].reshape(-1)
    counts = np.bincount(rng.integers(0, of.max() + 1, of.max() + 1), minlength=of.max() + 1)
    return np.asarray(weights * counts[of])
