"""Which policies the layers of a stage take: at most two per layer kind, the fastest that memory holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.optimizer.offers import Mix, Offer, Room, mix_of_pick
from meshwright.optimizer.pairs import of_one
from meshwright.optimizer.several import Best, fastest_of, of_several

Array = NDArray[Any]


@dataclass(frozen=True)
class Mixed:
    """The fastest policies of stages, [E]: seconds (inf where nothing was found) and host bytes of all layers; `mixes` by
    kind. None takes less than `least_s`, which is less than `seconds` where looking at all took too long."""

    seconds: Array
    host: Array
    mixes: tuple[tuple[Mix, ...], ...]
    least_s: Array

    def and_also(self, other: "Mixed") -> "Mixed":
        arrays = zip(
            (self.seconds, self.host, self.least_s), (other.seconds, other.host, other.least_s), strict=True
        )
        seconds, host, least = (np.concatenate(pair) for pair in arrays)
        return Mixed(seconds, host, self.mixes + other.mixes, least)


def fastest(offers: Sequence[Offer], counts: Array, room: Room, hosting: bool = False) -> Mixed:
    """The fastest mixes of stages with `counts` layers of each kind, [E, K]; `hosting` of those in which some layer keeps
    something on its host."""
    seconds, least = np.full((2, len(counts)), np.inf)
    host = np.zeros(len(counts))
    mixes: list[tuple[Mix, ...]] = [((),) * len(offers)] * len(counts)
    limited = bool(np.isfinite(room.host).any())
    present, of_entry = np.unique(counts > 0, axis=0, return_inverse=True)
    for group, kinds in enumerate(present):
        at = np.flatnonzero(of_entry.ravel() == group)
        some = np.flatnonzero(kinds)
        if len(some) == 1 and not limited:
            others = np.zeros((3, len(at)))
            found, picks = of_one(offers[some[0]], counts[at, some[0]], room[at], others, hosting)
            best = [
                Best(took, (pick,) if took < np.inf else (), took)
                for took, pick in zip(found.tolist(), picks, strict=True)
            ]
        else:
            of_kinds = [offers[k] for k in some.tolist()]
            which = range(len(some)) if hosting else (None,)
            best = [
                fastest_of([of_several(of_kinds, counts[e, some], room[[e]], kind) for kind in which])
                for e in at.tolist()
            ]
        for e, one in zip(at.tolist(), best, strict=True):
            seconds[e], least[e] = one.seconds, one.least_s
            if not one.picks:
                continue
            made: list[Mix] = [()] * len(offers)
            for k, (i, j, more) in zip(some.tolist(), one.picks, strict=True):
                n = int(counts[e, k])
                made[k] = mix_of_pick(offers[k], n, i, j, more)
                host[e] += (n - more) * offers[k].host[i] + more * offers[k].host[j]
            mixes[e] = tuple(made)
    return Mixed(seconds, host, tuple(mixes), least)
