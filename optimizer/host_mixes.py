"""Ways of stages to keep less on their hosts by being slower, where hosts cannot hold what is fastest."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.optimizer.mixes import Mixed
from meshwright.optimizer.offers import Mix, Offer, Room, mix_of_pick, points_of
from meshwright.optimizer.pairs import AT_ONCE

Array = NDArray[Any]


def within_hosts(
    offers: Sequence[Offer], counts: Array, room: Room, within_s: Array, hosting: bool
) -> tuple[Array, Mixed, bool]:
    """(stage of each, mixes, whether these are all): ways of stages to be slower and keep less on the host.

    Args:
        counts: layers of each kind, [E, K]. within_s: seconds that the layers of each stage may take, [E].
        hosting: whether also to list the best of those ways in which some layer keeps something on its host.
    """
    of: list[int] = []
    seconds: list[float] = []
    host: list[float] = []
    mixes: list[tuple[Mix, ...]] = []
    whole, known = True, {}  # type: tuple[bool, dict[tuple[int, int], tuple[Array, Array]]]
    for e in range(len(counts)):
        some = np.flatnonzero(counts[e] > 0).tolist()
        for k in some:
            if (k, counts[e, k]) not in known:
                known[k, counts[e, k]] = _every(offers[k], int(counts[e, k]))
        lists = [known[k, counts[e, k]] for k in some]
        if np.prod([len(picks) for picks, _ in lists]) > AT_ONCE:
            whole = False
            lists = [_every(offers[k].unbeaten(hosting=hosting), int(counts[e, k]), offers[k]) for k in some]
        points, hosted = np.zeros((1, 4)), np.zeros(1, bool)
        which: Array = np.zeros((1, 0), np.int64)
        for k, (picks, own) in zip(some, lists, strict=True):
            hosted = (hosted[:, None] | _hosted(offers[k], picks)).ravel()
            both = points[:, None] + own
            both[..., 3] = np.maximum(points[:, None, 3], own[:, 3])
            points = both.reshape(-1, 4)
            places = np.tile(np.arange(len(picks)), len(which))
            which = np.concatenate([np.repeat(which, len(picks), axis=0), places[:, None]], axis=1)
        one = room[[e]].times(len(points))
        fits = (points[:, 1] <= one.for_saved(points[:, 3:])[:, 0]) & (points[:, 0] <= within_s[e])
        left = np.flatnonzero(fits)
        left = left[np.lexsort((points[left, 2], points[left, 0]))]
        chosen = _ever_fewer(left, points[:, 2])
        if hosting:
            chosen = np.union1d(chosen, _ever_fewer(left[hosted[left]], points[:, 2]))
        for at in chosen.tolist():
            of.append(e)
            seconds.append(float(points[at, 0]))
            host.append(float(points[at, 2]))
            made: list[Mix] = [()] * len(offers)
            for k, (picks, _), place in zip(some, lists, which[at].tolist(), strict=True):
                made[k] = mix_of_pick(offers[k], int(counts[e, k]), *picks[place].tolist())
            mixes.append(tuple(made))
    took = np.array(seconds)
    return np.array(of, np.int64), Mixed(took, np.array(host), tuple(mixes), took), whole


def _hosted(offer: Offer, picks: Array) -> Array:
    """Whether some layer of each mix keeps something on its host, [picks]."""
    i, j, more = picks.T
    some: Array = offer.hosts[i] | (offer.hosts[j] & (more > 0))
    return some


def _ever_fewer(ways: Array, kept: Array) -> Array:
    """Of ways in the order of their seconds those that keep less on the host than all before."""
    least = np.append(np.inf, np.minimum.accumulate(kept[ways]))[: len(ways)]
    fewer: Array = ways[kept[ways] < least]
    return fewer


def _every(offer: Offer, layers: int, among: Offer | None = None) -> tuple[Array, Array]:
    """(policies i and j and how many layers take j [picks, 3], as `points_of`) of every mix of the policies of an offer, told
    by their places in `among`."""
    places = np.arange(len(offer))
    if among is not None:
        known = among.codes.tolist()
        places = np.array([known.index(code) for code in offer.codes.tolist()])
    one, other = np.triu_indices(len(places), 1)
    more = np.arange(1, layers)
    alone = np.stack([places, places, np.zeros_like(places)], axis=1)
    pairs = np.stack(
        [np.repeat(places[one], len(more)), np.repeat(places[other], len(more)), np.tile(more, len(one))],
        axis=1,
    )
    picks = np.concatenate([alone, pairs])
    return picks, points_of(offer if among is None else among, layers, picks)
