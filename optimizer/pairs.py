"""The fastest two policies for layers of one kind, for many stages at once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.optimizer.offers import Offer, Pick, Room

Array = NDArray[Any]

LESS = 1.0 - 1e-12  # of a sum, for what rounding may take
AT_ONCE = 1 << 21  # numbers in one table of pairs


def of_one(
    offer: Offer, layers: Array, room: Room, others: Array, hosting: bool = False
) -> tuple[Array, list[Pick]]:
    """(least seconds, pick) of stages, [E].

    Of two policies as many layers take the faster as memory allows.

    Args:
        others: bytes saved on the device, kept on the host, and working, of layers of other kinds; [3, E].
        hosting: whether some layer must keep something on its host.
    """
    entries, limited = len(layers), bool(np.isfinite(room.host).any())
    seconds, picks = np.full(entries, np.inf), [(0, 0, 0)] * entries
    i, j = np.triu_indices(len(offer))  # i saves less
    # A policy that saves less in less time stands alone, unless it is for want of hosts, or of what is to be on them.
    useful = (i == j) | (offer.seconds[i] > offer.seconds[j]) | limited
    if hosting:
        useful = (useful | (offer.hosts[i] != offer.hosts[j])) & (offer.hosts[i] | offer.hosts[j])
    i, j = i[useful], j[useful]
    if not len(i):
        return seconds, picks
    alone, faster = i == j, offer.seconds[j] < offer.seconds[i]
    block = max(1, AT_ONCE // max(1, len(i)))
    for start in range(0, entries, block):
        e = np.arange(start, min(start + block, entries))
        saved, kept, working = others[:, e, None]
        n, each = layers[e, None], room[e]
        heavy = np.maximum(np.maximum(offer.working[i], offer.working[j])[None, :], working)
        most, least = _layers_within(each.for_saved(heavy) - saved, offer.device[i], offer.device[j], n)
        if limited:
            left = np.where(np.isfinite(each.host), each.host * LESS, np.inf)[:, None] - kept
            most_host, least_host = _layers_within(left, offer.host[i], offer.host[j], n)
            most, least = np.minimum(most, most_host), np.maximum(least, least_host)
        more = np.where(alone, 0.0, np.where(faster, np.minimum(most, n - 1), np.maximum(least, 1)))
        fits = (more >= least) & (more <= most) & (alone | ((more > 0) & (more < n)))
        took = np.where(fits, n * offer.seconds[i] + more * (offer.seconds[j] - offer.seconds[i]), np.inf)
        best = took.argmin(axis=1)
        rows = np.arange(len(e))
        seconds[e] = took[rows, best]
        for r, b in enumerate(best.tolist()):
            picks[start + r] = int(i[b]), int(j[b]), int(more[r, b]) if fits[r, b] else 0
    return seconds, picks


def _layers_within(left: Array, i: Array, j: Array, n: Array) -> tuple[Array, Array]:
    """Most and least of n layers that may take j bytes where the others take i; -1 and n + 1 where none may, [E, pairs]."""
    spare, step = left - n * i, j - i
    with np.errstate(divide="ignore", invalid="ignore"):
        number = spare / step
    most = np.where(step > 0, np.floor(number), np.where((step < 0) | (spare >= 0), n, -1.0))
    least = np.where(step < 0, np.ceil(number), np.where((step > 0) | (spare >= 0), 0.0, n + 1.0))
    return most, np.where(step < 0, np.maximum(least, 0.0), least)
