"""Which policies the layers of a stage take: at most two per layer kind, the fastest that memory holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.optimizer.offers import Mix, Offer, Room, mix_of_pick
from meshwright.optimizer.pairs import of_one
from meshwright.optimizer.several import of_several

Array = NDArray[Any]


@dataclass(frozen=True)
class Mixed:
    """The fastest policies of stages, [E]: seconds (inf where nothing was found) and host bytes of all layers; `mixes` by
    kind. None takes less than `least_s`, which is less than `seconds` where looking at all took too long."""

    seconds: Array
    host: Array
    mixes: tuple[tuple[Mix, ...], ...]
    least_s: Array


def fastest(offers: Sequence[Offer], counts: Array, room: Room) -> Mixed:
    """The fastest mixes of stages with `counts` layers of each kind, [E, K]."""
    seconds, least = np.full((2, len(counts)), np.inf)
    host = np.zeros(len(counts))
    mixes: list[tuple[Mix, ...]] = [((),) * len(offers)] * len(counts)
    limited = bool(np.isfinite(room.host).any())
    present, of_entry = np.unique(counts > 0, axis=0, return_inverse=True)
    for group, kinds in enumerate(present):
        at = np.flatnonzero(of_entry.ravel() == group)
        some = np.flatnonzero(kinds)
        if len(some) == 1 and not limited:
            found = of_one(offers[some[0]], counts[at, some[0]], room[at], np.zeros((3, len(at))))
            seconds[at] = least[at] = found[0]
            for e, (i, j, k) in zip(at.tolist(), found[1], strict=True):
                offer, n = offers[some[0]], int(counts[e, some[0]])
                host[e] = (n - k) * offer.host[i] + k * offer.host[j]
                mixes[e] = tuple(
                    mix_of_pick(offer, n, i, j, k) if q == some[0] else () for q in range(len(offers))
                )
        else:
            for e in at.tolist():
                best = of_several([offers[k] for k in some.tolist()], counts[e, some], room[[e]])
                seconds[e], least[e] = best.seconds, best.least_s
                if not best.picks:
                    continue
                made: list[Mix] = [()] * len(offers)
                for k, (i, j, more) in zip(some.tolist(), best.picks, strict=True):
                    n = int(counts[e, k])
                    made[k] = mix_of_pick(offers[k], n, i, j, more)
                    host[e] += (n - more) * offers[k].host[i] + more * offers[k].host[j]
                mixes[e] = tuple(made)
    return Mixed(seconds, host, tuple(mixes), least)
