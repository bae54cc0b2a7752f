"""The fastest policies of one stage with layers of several kinds, or with memory of its own on a host."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.policy_front import unbeaten
from meshwright.optimizer.multipliers import Policies, Prices, best_prices
from meshwright.optimizer.offers import Offer, Pick, Room, points_of
from meshwright.optimizer.pairs import LESS, of_one

Array = NDArray[Any]

# Policies of each kind among which a mix is looked for: ever more, and last all, unless those have more mixes than this.
_FEW = (6, 40)
_MOST = 4e6
_MANY = 512  # combinations of kinds beyond which beaten ones are sorted out


@dataclass(frozen=True)
class Best:
    """The fastest mix that was found: seconds (inf without one), pick of each kind; no mix takes less than `least_s`."""

    seconds: float
    picks: tuple[Pick, ...]
    least_s: float


def fastest_of(found: Sequence[Best]) -> Best:
    """Of the fastest mixes of several sorts."""
    best = min(found, key=lambda one: one.seconds)
    return replace(best, least_s=min(one.least_s for one in found))


def of_several(offers: Sequence[Offer], layers: Array, room: Room, hosting: int | None = None) -> Best:
    """Of one stage: for every number of bytes that the heaviest layer may need while it runs backward, the one with the
    least bound first.

    `hosting` is a kind of which some layer must keep something on its host; the bounds leave that aside.
    With as many policies as memory on a host may leave to choose from, looking at all mixes of several kinds would take too
    long; then `least_s` is below what was found.
    """
    best, least = Best(np.inf, (), np.inf), np.inf
    heaviest = np.unique(np.concatenate([o.working for o in offers]))
    left = room.for_saved(heaviest[None])[0]
    needed = sum(n * _least_within(o.device, o, heaviest) for n, o in zip(layers, offers, strict=True))
    bounds, prices = np.where(needed <= left, -np.inf, np.inf), None
    while bounds[at := int(np.argmin(bounds))] < best.seconds:
        light = [np.flatnonzero(o.working <= heaviest[at]) for o in offers]
        some = [o[x] for o, x in zip(offers, light, strict=True)]
        prices = _prices(some, layers, float(left[at]), float(room.host[0]), prices)
        bounds = np.maximum(bounds, _bounds(offers, layers, room, heaviest, left, prices))
        if bounds[at] < best.seconds:
            found = _within(some, layers, room, float(heaviest[at]), prices, best.seconds, hosting)
            least = min(least, found.least_s)
            if found.seconds < best.seconds:
                picks = zip(light, found.picks, strict=True)
                best = replace(found, picks=tuple((int(x[i]), int(x[j]), k) for x, (i, j, k) in picks))
        bounds[at] = np.inf
    return replace(best, least_s=min(least, best.seconds))


def _least_within(values: Array, offer: Offer, heaviest: Array) -> Array:
    """Least of a policy's values among policies that need at most so many bytes; inf where none does."""
    order = np.argsort(offer.working, kind="stable")
    least = np.append(np.inf, np.minimum.accumulate(values[order]))
    found: Array = least[np.searchsorted(offer.working[order], heaviest, side="right")]
    return found


def _bounds(
    offers: Sequence[Offer], layers: Array, room: Room, heaviest: Array, left: Array, prices: Prices
) -> Array:
    """Bounds at some prices where the heaviest layer needs so many bytes: some layer takes a policy that needs them."""
    least, more = np.zeros(len(heaviest)), np.full(len(heaviest), np.inf)
    for n, offer in zip(layers, offers, strict=True):
        cost = prices.cost(offer.seconds, offer.device, offer.host)
        own = _least_within(cost, offer, heaviest)
        level = np.searchsorted(heaviest, offer.working)
        np.minimum.at(more, level, cost - own[level])
        least += n * own
    bounds: Array = least + more - prices.of(left, float(room.host[0]))
    return bounds


def _prices(offers: Sequence[Offer], layers: Array, left: float, host: float, near: Prices | None) -> Prices:
    kinds = [Policies(n, o.seconds, o.device, o.host) for n, o in zip(layers.tolist(), offers, strict=True)]
    return best_prices(kinds, left, host, near)


def _within(
    offers: Sequence[Offer], layers: Array, room: Room, heavy: float, prices: Prices, known_s: float, hosting: int | None
) -> Best:  # fmt: skip
    """`of_several` where the heaviest layer may need `heavy` bytes, if faster than `known_s`.

    The bound of the prices, and a good mix, tell which policies a better one may use at all; the mixes of all kinds but one
    are then listed.
    """
    best = Best(known_s, (), np.inf)
    costs = [prices.cost(o.seconds, o.device, o.host) for o in offers]
    over = [cost - cost.min() for cost in costs]
    for few in (*_FEW, None):
        gap = best.seconds - prices.bound_s
        every = [np.flatnonzero(o <= gap * (2.0 - LESS) + 1e-15) for o in over]
        if few is None and _pairs(every, layers) > _MOST:
            return replace(best, least_s=prices.bound_s)
        kinds = enumerate(zip(offers, every, over, strict=True))
        some = [_first(o, x, over_, few, k == hosting) for k, (o, x, over_) in kinds]
        found = _among(offers, layers, room, some, over, gap, heavy, hosting)
        if found is not None and found[0] < best.seconds:
            best = Best(found[0], tuple(found[1]), np.inf)
        if all(len(x) == len(y) for x, y in zip(some, every, strict=True)):
            break
    return best


def _pairs(every: Sequence[Array], layers: Array) -> float:
    """How many mixes of all kinds there are at most, with the main kind's numbers of layers left out."""
    pairs = np.array([len(x) * (len(x) + 1) / 2 for x in every])
    rest = np.delete(pairs * np.maximum(layers - 1, 1), np.argmax(layers))
    return float(pairs[np.argmax(layers)] * rest.prod())


def _among(
    offers: Sequence[Offer], layers: Array, room: Room, some: Sequence[Array], over: Sequence[Array], gap: float, heavy: float,
    hosting: int | None,
) -> tuple[float, list[Pick]] | None:  # fmt: skip
    """The best with some policies of each kind, and mixes of the others that cost at most `gap` more than the bound."""
    main = int(np.argmax(layers))
    rest, limited = [k for k in range(len(offers)) if k != main], bool(np.isfinite(room.host).any())
    lists = [_listed(offers[k], some[k], over[k], int(layers[k]), gap, limited, k == hosting) for k in rest]
    points, which = _combined([offers[k] for k in rest], layers[rest], lists, limited)
    if not len(points):
        return None
    base = points[:, 0]
    others = np.stack([points[:, 1], points[:, 2], np.full(len(base), heavy)])
    many, own = room.times(len(base)), np.full(len(base), layers[main])
    seconds, picks = of_one(offers[main][some[main]], own, many, others, main == hosting)
    at = int(np.argmin(base + seconds))
    if not np.isfinite(base[at] + seconds[at]):
        return None
    i, j, k = picks[at]
    chosen: list[Pick] = [(0, 0, 0)] * len(offers)
    chosen[main] = int(some[main][i]), int(some[main][j]), k
    for position, kind in enumerate(rest):
        chosen[kind] = lists[position][which[at][position]]
    return float(base[at] + seconds[at]), chosen


def _first(offer: Offer, among: Array, over: Array, few: int | None, hosting: bool) -> Array:
    """Of some policies the few that cost least at the prices, and those that are leanest, with `hosting` also a few that keep
    something on the host; all where `few` is None."""
    if few is None or len(among) <= few + 2:
        return among
    cheap = among[np.argsort(over[among], kind="stable")[:few]]
    if hosting:
        hosts = among[offer.hosts[among]]
        cheap = np.union1d(cheap, hosts[np.argsort(over[hosts], kind="stable")[:few]])
    lean = [among[int(np.argmin(x[among]))] for x in (offer.device, offer.host)]
    return np.union1d(cheap, lean)


def _listed(
    offer: Offer, keep: Array, over: Array, layers: int, gap: float, limited: bool, hosting: bool
) -> list[Pick]:
    """Mixes of some policies that cost at most `gap` more than the cheapest at the multiplier; `hosting` of those that keep
    something on the host."""
    good = offer.hosts if hosting else np.ones(len(offer), bool)
    picks: list[Pick] = [(int(i), int(i), 0) for i in keep.tolist() if good[i] and layers * over[i] <= gap]
    for i, j in combinations(keep.tolist(), 2):
        if not (good[i] or good[j]):
            continue
        if limited or good[i] != good[j] or offer.seconds[i] > offer.seconds[j]:
            picks += [
                (i, j, k)
                for k in range(1, layers)
                if (layers - k) * over[i] + k * over[j] <= gap * (2 - LESS)
            ]
    return picks


def _combined(
    offers: Sequence[Offer], layers: Array, lists: Sequence[list[Pick]], limited: bool
) -> tuple[Array, list[tuple[int, ...]]]:
    """(seconds, bytes on the device, and on the host [C, 3]; pick of each kind) of combinations of mixes.

    Bytes on the host count where they are `limited`, else they are 0.
    """
    points, which = np.zeros((1, 3)), [()]  # type: tuple[Array, list[tuple[int, ...]]]
    for offer, n, picks in zip(offers, layers.tolist(), lists, strict=True):
        if not picks:
            return np.zeros((0, 3)), []
        own = points_of(offer, n, picks)[:, :3] * [1, 1, limited]
        points = (points[:, None] + own).reshape(-1, 3)
        order = np.arange(len(points))
        if len(points) > _MANY:
            order = np.lexsort(points.T[::-1])
            order = order[unbeaten(points[order])]
        points, which = points[order], [(*which[at // len(picks)], at % len(picks)) for at in order.tolist()]
    return points, which
