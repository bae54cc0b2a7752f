"""Ways of stages to keep less on their hosts by being slower, where hosts cannot hold what is fastest."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.optimizer.mixes import AT_ONCE, Mix, Mixed, Offer, Pick, Room, mix_of_pick, points_of

Array = NDArray[Any]


def within_hosts(
    offers: Sequence[Offer], counts: Array, room: Room, within_s: Array
) -> tuple[Array, Mixed, bool]:
    """(stage of each, mixes, whether these are all): ways of stages to be slower and keep less on the host.

    Args:
        counts: layers of each kind, [E, K]. within_s: seconds that the layers of each stage may take, [E].
    """
    of: list[int] = []
    seconds: list[float] = []
    host: list[float] = []
    mixes: list[tuple[Mix, ...]] = []
    whole, known = True, {}
    for e in range(len(counts)):
        some = np.flatnonzero(counts[e] > 0).tolist()
        for k in some:
            if (k, counts[e, k]) not in known:
                known[k, counts[e, k]] = _every(offers[k], int(counts[e, k]))
        lists = [known[k, counts[e, k]] for k in some]
        if np.prod([len(x) for x in lists]) > AT_ONCE:
            whole = False
            lists = [_every(offers[k].unbeaten(), int(counts[e, k]), offers[k]) for k in some]
        points = np.zeros((1, 4))
        which: Array = np.zeros((1, 0), np.int64)
        for k, picks in zip(some, lists, strict=True):
            own = points_of(offers[k], int(counts[e, k]), picks)
            both = points[:, None] + own
            both[..., 3] = np.maximum(points[:, None, 3], own[:, 3])
            points = both.reshape(-1, 4)
            places = np.tile(np.arange(len(picks)), len(which))
            which = np.concatenate([np.repeat(which, len(picks), axis=0), places[:, None]], axis=1)
        one = room[[e]].times(len(points))
        fits = (points[:, 1] <= one.for_saved(points[:, 3:])[:, 0]) & (points[:, 0] <= within_s[e])
        left = np.flatnonzero(fits)
        left = left[np.lexsort((points[left, 2], points[left, 0]))]
        least = np.inf
        for at in left.tolist():
            if points[at, 2] < least:
                least = points[at, 2]
                of.append(e)
                seconds.append(float(points[at, 0]))
                host.append(float(points[at, 2]))
                made: list[Mix] = [()] * len(offers)
                for k, picks, place in zip(some, lists, which[at].tolist(), strict=True):
                    made[k] = mix_of_pick(offers[k], int(counts[e, k]), *picks[place])
                mixes.append(tuple(made))
    return np.array(of, np.int64), Mixed(np.array(seconds), np.array(host), tuple(mixes)), whole


def _every(offer: Offer, layers: int, among: Offer | None = None) -> list[Pick]:
    """Every mix of the policies of an offer, told by their places in `among`."""
    places = range(len(offer))
    if among is not None:
        places = [among.codes.tolist().index(code) for code in offer.codes.tolist()]  # type: ignore[assignment]
    pairs = [(i, j) for i in places for j in places if i < j]
    return [(i, i, 0) for i in places] + [(i, j, k) for i, j in pairs for k in range(1, layers)]
