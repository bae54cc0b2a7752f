"""Prices of memory at which the policies of a stage's layers give the best bound: Lagrange's multipliers.

Each layer takes the policy that is cheapest at the prices. What that costs, less the price of the memory there is, no mix
of policies that the memory holds can beat, whatever the prices are; the best prices are found by bisection of the one for
the device inside a search of the one for the host, in whose logarithm the bound has one peak.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Prices are looked for from the one beyond which only the leanest policies are taken, down by this factor; the device's until
# it is known so well, around one that is near by this factor; the host's in so many steps, in fewer near one.
_RANGE, _CLOSE, _NEAR, _HOST_STEPS, _NEAR_STEPS = 1e-12, 1.0 + 1e-3, 8.0, 18, 8
_GOLDEN = (5.0**0.5 - 1.0) / 2.0


@dataclass(frozen=True)
class Policies:
    """Policies of one kind, [P] each, and how many layers take one."""

    layers: float
    seconds: Array
    device: Array
    host: Array

    @cached_property
    def device_step(self) -> float:
        """The least difference of bytes saved on the device, inf where there is none."""
        return _step(self.device)

    @cached_property
    def host_step(self) -> float:
        """The same of bytes kept on the host."""
        return _step(self.host)


@dataclass(frozen=True)
class Prices:
    """Seconds per byte on the device and on the host, and seconds that no mix beats."""

    device: float
    host: float
    bound_s: float

    def cost(self, seconds: Array, device: Array, host: Array) -> Array:
        """Seconds of policies with the price of the memory that they take, [P] each."""
        cost: Array = seconds + self.device * device + self.host * host
        return cost

    def of(self, device: Array | float, host: float) -> Array | float:
        """Price of so many bytes; of a host without a limit they cost nothing."""
        return self.device * device + (self.host * host if self.host else 0.0)


def best_prices(kinds: Sequence[Policies], device: float, host: float, near: Prices | None = None) -> Prices:
    """The best prices where all layers together may save so many bytes on the device, and keep so many on the host (may
    be inf); `near` are those of a like question."""
    best, kept = _at(kinds, device, host, 0.0, (_RANGE, 1.0))
    if kept <= host:
        return best
    last = best

    def at(price: float) -> Prices:
        nonlocal last
        # What is paid for the host changes little of what the device's memory is worth.
        low, high = last.device / _NEAR, last.device * _NEAR
        top = _top(kinds, float(np.exp(price)))
        share = (max(low / top, _RANGE), min(high / top, 1.0)) if 0 < last.device < top else (_RANGE, 1.0)
        last = _at(kinds, device, host, float(np.exp(price)), share)[0]
        return last

    top = np.log(max(float(np.ptp(k.seconds)) / k.host_step for k in kinds) or 1.0)
    low, high, steps = top + np.log(_RANGE), top, _HOST_STEPS
    if near is not None and near.host:
        low, high = np.log(near.host) - np.log(_NEAR), np.log(near.host) + np.log(_NEAR)
        steps = _NEAR_STEPS
    return max(best, _peak(at, low, high, steps), key=_bound)


def _bound(prices: Prices) -> float:
    return prices.bound_s


def _peak(at: Callable[[float], Prices], low: float, high: float, steps: int) -> Prices:
    """The best of a function with one peak, by golden section."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    one, other = at(left), at(right)
    best = max(one, other, key=_bound)
    for _ in range(steps):
        if one.bound_s > other.bound_s:
            high, right, other = right, left, one
            left = high - _GOLDEN * (high - low)
            one = at(left)
        else:
            low, left, one = left, right, other
            right = low + _GOLDEN * (high - low)
            other = at(right)
        best = max(best, one, other, key=_bound)
    return best


def _at(
    kinds: Sequence[Policies], device: float, host: float, host_price: float, share: tuple[float, float]
) -> tuple[Prices, float]:
    """(the best price of the device's memory at one of the host's, bytes on the host at it), by bisection.

    `share` is where to look, as shares of the price beyond which only the leanest policies are taken.
    """
    best, saved, kept = _priced(kinds, device, host, 0.0, host_price)
    if saved <= device:
        return best, kept
    top = _top(kinds, host_price)
    low, high = top * share[0], top * share[1]
    while high > low * _CLOSE:
        middle, saved, on_host = _priced(kinds, device, host, (low * high) ** 0.5, host_price)
        if middle.bound_s > best.bound_s:
            best, kept = middle, on_host
        if saved <= device:
            high = middle.device
        else:
            low = middle.device
    return best, kept


def _priced(
    kinds: Sequence[Policies], device: float, host: float, device_price: float, host_price: float
) -> tuple[Prices, float, float]:
    """(prices with their bound, bytes on the device, on the host) where each layer takes the cheapest policy."""
    bound_s = -device_price * device - (host_price * host if host_price else 0.0)
    saved = kept = 0.0
    for kind in kinds:
        cost = kind.seconds + device_price * kind.device
        if host_price:
            cost = cost + host_price * kind.host
        pick = int(cost.argmin())
        bound_s += kind.layers * float(cost[pick])
        saved += kind.layers * float(kind.device[pick])
        kept += kind.layers * float(kind.host[pick])
    return Prices(device_price, host_price, bound_s), saved, kept


def _top(kinds: Sequence[Policies], host_price: float) -> float:
    """A price of the device's memory at which every kind takes its leanest policies: all that it could save in time, for the
    least that it could in bytes."""
    each = (float(np.ptp(k.seconds + host_price * k.host)) / k.device_step for k in kinds)
    return max(max(each), 1e-300)


def _step(size: Array) -> float:
    distinct = np.unique(size)
    return float(np.diff(distinct).min()) if len(distinct) > 1 else np.inf
