"""Optima of PLAS (arXiv 2602.10377, theorems 5.1 to 5.3 and equations 12, 13) in closed form.

They explain a result ("memory-bound: rho* = ...") and judge a search where nothing is rounded; over a grid an exact
front is better. Each states the range in which it was derived and raises InputError outside.

A budget X in units of one layer's cost C = c + g / gqa + f r (plas.py) buys l = X / C layers, so the loss is

    kl (C / X)^al + Dt / (r^ar d^b2) + km (gqa / d)^am + floor,    Dt = kr rho^arho d^(b2 - b1) + kd.

Setting its derivatives to 0 gives `ffn_ratio_star` and `gqa_star`, both implicit in C; it is convex in log r and
log gqa, so in a box the clipped fixed point is the optimum. 5.3(b) is the exact one: the paper's own loses a division.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from meshwright.hardware.errors import InputError
from meshwright.search.plas import Column, LayerCost
from meshwright.search.shape import Floats

_ROUNDS = 500  # rounds shrink the error by at least the contraction that `shape_star` checks; 60 serve PLAS
_CLOSE = 1e-13


@dataclass(frozen=True)
class Coefficients:
    """Of the PLAS loss: kl/l^al + kr rho^arho/(r^ar d^b1) + kd/(r^ar d^b2) + km/d_m^am + floor."""

    kl: float
    al: float
    kr: float
    arho: float
    b1: float
    kd: float
    b2: float
    ar: float
    km: float
    am: float

    def __post_init__(self) -> None:
        for name in ("kl", "al", "kr", "arho", "kd", "ar", "km", "am"):  # b1 and b2 may have either sign
            value = getattr(self, name)
            _require(0 < value < np.inf, f"the closed forms need {name} > 0, and it is {value}")

    @classmethod
    def of(cls, coefficients: Mapping[str, float]) -> "Coefficients":
        """From a law's coefficients by name; others, such as the floor, move no optimum."""
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in coefficients]
        _require(
            not missing, f"the closed forms are of a law of PLAS' form, which needs {', '.join(missing)}"
        )
        return cls(**{name: coefficients[name] for name in names})


class Box(NamedTuple):
    """Least and most of a decision."""

    low: float
    high: float


FREE = Box(0.0, np.inf)


class ShapeStar(NamedTuple):
    """Optimum at a width: layers (real, not clipped), r and gqa."""

    layers: Floats
    ffn_ratio: Floats
    gqa: Floats


def latency_activation(law: Coefficients, least: float) -> float:
    """5.1, latency alone: rho* is the least on offer, since rho is in no latency and the loss rises with it."""
    _require(0 < least <= 1, f"the least activation is {least}; it is a share in (0, 1]")
    return least


def memory_activation(law: Coefficients, width: Column) -> Floats:
    """5.2, memory alone at fixed stored experts r / rho: the rho of least loss. Above 1 means dense.

    Needs arho > ar: else the loss falls with rho all the way and nothing turns it.
    """
    _require(law.arho > law.ar, f"5.2 needs arho > ar, and they are {law.arho} and {law.ar}")
    _require(np.min(width) > 0, "5.2 needs a width above 0")
    factor = law.ar * law.kd / ((law.arho - law.ar) * law.kr)
    return np.asarray(factor * np.asarray(width, dtype=np.float64) ** (law.b1 - law.b2)) ** (1 / law.arho)


def prefill_memory_activation(ffn_ratio: Column, gqa: Column, eta: Column, weight_bytes: float) -> Floats:
    """5.3(a), prefill and memory both bind: rho* = 3 eta b_w r / (a (2 - eta b_w) + 6 r).

    eta is the prefill budget in FLOP per token over the memory budget in bytes. Needs 0 < eta b_w < 2; at 2 the
    optimum is dense.
    """
    share = np.asarray(eta) * weight_bytes
    _require(
        bool(np.all((share > 0) & (share < 2))), f"5.3(a) needs 0 < eta b_w < 2, and it is {_worst(share, 2)}"
    )
    attention = _attention(ffn_ratio, gqa)
    return np.asarray(3 * share * ffn_ratio / (attention * (2 - share) + 6 * np.asarray(ffn_ratio)))


def decode_memory_activation(ffn_ratio: Column, gqa: Column, eta: Column, cache: Column) -> Floats:
    """5.3(b), decode and memory both bind, exact: rho* = 3 r eta / ((1 - eta) a + 3 r + delta).

    eta is the bytes that a decode step may read over the memory budget; `cache` is delta, what `cache_share` gives.
    Needs 0 < eta <= 1 + delta / (a + 3 r): at the upper end the optimum is dense, beyond it the memory is not filled.
    """
    attention = _attention(ffn_ratio, gqa)
    most = 1 + np.asarray(cache) / (attention + 3 * np.asarray(ffn_ratio))
    _require(bool(np.all(np.asarray(cache) >= 0)), "5.3(b) needs delta >= 0")
    # a budget that is just dense may lie a rounding above
    fits = (np.asarray(eta) > 0) & (eta <= most * (1 + 1e-12))
    _require(
        bool(np.all(fits)),
        f"5.3(b) needs 0 < eta <= 1 + delta/(a + 3 r) = {np.min(most):.4g}, and it is {_worst(eta, np.min(most))}",
    )
    return np.asarray(
        3 * np.asarray(ffn_ratio) * eta / ((1 - np.asarray(eta)) * attention + 3 * ffn_ratio + cache)
    )


def cache_share(context: Column, gqa: Column, width: Column, weight_bytes: float, kv_bytes: float) -> Floats:
    """delta of 5.3(b): cached bytes read per step and layer in units of d^2 b_w."""
    return np.asarray(2.0 * context * kv_bytes / (np.asarray(gqa) * width * weight_bytes))


def depth(budget: Column, cost: LayerCost, ffn_ratio: Column, gqa: Column) -> Floats:
    """l* = budget / cost of a layer, in the same unit (FLOP or bytes); falls as d^-2."""
    _require(np.min(budget) > 0, "a budget must be above 0")
    return np.asarray(budget / cost.total(ffn_ratio, gqa))


def ffn_ratio_star(
    law: Coefficients, width: Column, activation: Column, budget: Column, cost: LayerCost, total: Column
) -> Floats:
    """(12), implicit: r* where one layer costs `total`."""
    sparse = law.kr * np.asarray(activation) ** law.arho * np.asarray(width, float) ** (law.b2 - law.b1)
    gain = law.ar * (sparse + law.kd) / np.asarray(width, float) ** law.b2
    return np.asarray((gain / (_depth_price(law, budget, total) * cost.feed_forward)) ** (1 / (law.ar + 1)))


def gqa_star(law: Coefficients, width: Column, budget: Column, cost: LayerCost, total: Column) -> Floats:
    """(13), implicit: gqa* where one layer costs `total`."""
    price = _depth_price(law, budget, total) * (cost.keys_values + cost.cache)
    return np.asarray((price * np.asarray(width, float) ** law.am / (law.am * law.km)) ** (1 / (law.am + 1)))


def shape_star(
    law: Coefficients,
    width: Column,
    activation: Column,
    budget: Column,
    cost: LayerCost,
    *,
    ffn_ratio: Box = FREE,
    gqa: Box = FREE,
) -> ShapeStar:
    """The optimum over depth, r and gqa at a width and a budget that binds: (12) and (13) solved by fixed point.

    What leaves its box is clipped, and the other is solved again beside it. A round shrinks errors by |al - 1| over
    1 + min(ar, am) at least; needs that below 1.
    """
    shrink = abs(law.al - 1) / (1 + min(law.ar, law.am))
    _require(shrink < 1, f"the fixed point needs |al - 1| < 1 + min(ar, am), and al is {law.al}")
    for name, box in (("ffn_ratio", ffn_ratio), ("gqa", gqa)):
        _require(0 <= box.low <= box.high and box.high > 0, f"the box of {name} is {box.low} to {box.high}")
    _require(np.min(width) > 0, "a width must be above 0")
    _require(np.min(budget) > 0, "a budget must be above 0")
    _require(bool(np.all((np.asarray(activation) > 0) & (np.asarray(activation) <= 1))), "rho is in (0, 1]")
    r = np.clip(np.ones(np.broadcast(width, activation, budget).shape), *ffn_ratio)
    g = np.clip(np.ones_like(r), *gqa)
    for _ in range(_ROUNDS):
        total = cost.total(r, g)
        next_r = np.clip(ffn_ratio_star(law, width, activation, budget, cost, total), *ffn_ratio)
        next_g = np.clip(gqa_star(law, width, budget, cost, total), *gqa)
        moved = np.max(np.abs(np.log([next_r / r, next_g / g])))
        r, g = next_r, next_g
        if moved < _CLOSE:
            return ShapeStar(depth(budget, cost, r, g), r, g)
    raise InputError(f"r* and gqa* still move by {moved:.1e} after {_ROUNDS} rounds; give a narrower box")


def _depth_price(law: Coefficients, budget: Column, total: Column) -> Floats:
    """Loss per unit of a layer's cost: d/dC of kl (C / X)^al."""
    return np.asarray(
        law.al * law.kl * np.asarray(total, float) ** (law.al - 1) / np.asarray(budget, float) ** law.al
    )


def _attention(ffn_ratio: Column, gqa: Column) -> Floats:
    """a = 2 + 2 / gqa."""
    _require(bool(np.all(np.asarray(ffn_ratio) > 0)), "a rho* needs r > 0")
    _require(bool(np.all(np.asarray(gqa) > 0)), "a rho* needs gqa > 0")
    return np.asarray(2 + 2 / np.asarray(gqa))


def _worst(values: Column, most: float) -> str:
    """The value that is furthest out, for an error."""
    flat = np.ravel(values)
    return f"{flat[np.argmax(np.abs(flat - most / 2))]:.4g}"


def _require(holds: bool | np.bool_, rule: str) -> None:
    if not holds:
        raise InputError(rule)
