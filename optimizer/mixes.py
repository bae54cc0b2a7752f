"""Which policies the layers of a stage take: at most two per layer kind, the fastest that memory holds.

Only policies matter that no other beats in seconds and in bytes saved on the device: bytes saved less are bytes needed
more while a layer runs backward, and every layer is in flight at least once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.comm import PlacedComm
from meshwright.costmodel.memory import transient
from meshwright.costmodel.policy_front import unbeaten
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.costmodel.tensors import OPEN
from meshwright.optimizer.menus import Menus
from meshwright.optimizer.settled import Placed

Array = NDArray[Any]
Mix = tuple[tuple[int, int], ...]  # (policy, layers) of one kind
_SHAPE = ("micro_batch", "cp", "cp_kind", "tp", "sp", "ep", "etp", "offload", "splits")
LESS = 1.0 - 1e-12  # room that rounding of sums may take
AT_ONCE = 1 << 21  # numbers in one table of pairs
_MANY = 512  # combinations of kinds beyond which beaten ones are sorted out


@dataclass(frozen=True)
class Offer:
    """Policies that layers of one kind may take, on one placed row; [P] each.

    Attributes:
        seconds: of a layer per micro-batch. device, host: bytes saved. working: bytes while it runs backward.
    """

    codes: Array
    seconds: Array
    device: Array
    host: Array
    working: Array

    def __getitem__(self, index: Any) -> "Offer":
        return Offer(*(getattr(self, n)[index] for n in ("codes", "seconds", "device", "host", "working")))

    def __len__(self) -> int:
        return len(self.codes)

    def unbeaten(self, host: bool = False) -> "Offer":
        """Those that no other beats, in host bytes too if `host`; fewest device bytes first."""
        columns = np.stack([self.seconds, self.device, self.host * host], axis=1)
        order = np.lexsort(columns.T[::-1])
        kept = order[unbeaten(columns[order])]
        return self[kept[np.lexsort((self.seconds[kept], self.device[kept]))]]


@dataclass
class Offers:
    """Policies of each layer kind on placed rows, priced by the cost model; remembers what prices them."""

    setting: Setting
    menus: Menus
    _known: dict[tuple[Any, ...], Offer] = field(default_factory=dict)

    def of(self, plan: Placed, host: bool = False) -> tuple[Offer, ...]:
        """Of a placed row: those that no other beats, in host bytes too if `host`."""
        return tuple(self._of(plan, kind, host) for kind in range(plan.rows.policies.shape[1]))

    def _of(self, plan: Placed, kind: int, host: bool) -> Offer:
        key = kind, host, *_priced_by(plan, kind)
        if key not in self._known:
            self._known[key] = self._priced(plan, kind).unbeaten(host)
        return self._known[key]

    def _priced(self, plan: Placed, kind: int) -> Offer:
        rows = plan.rows
        if rows.policies[0, kind] & OPEN:
            rows = self.menus.of(rows, kind).chosen_rows(rows, kind, np.ones((1, 1), bool))
        groups = plan[np.zeros(len(rows), np.int64)].groups
        table = StageTable.of(self.setting, rows, PlacedComm(self.setting.network, groups))
        memory = table.memory
        costs = table.layer_s, memory.saved, memory.host_saved, memory.working
        return Offer(rows.policies[:, kind], *(x[:, kind] for x in costs))


def _priced_by(plan: Placed, kind: int) -> tuple[Any, ...]:
    """Everything that a layer's seconds and bytes depend on beside its policy; under ZeRO-2 and 3 its sharding too."""
    rows, groups = plan.rows, plan.groups
    shape = (*(int(getattr(rows, n)[0]) for n in _SHAPE), int(rows.policies[0, kind]))
    names = ("tp", "cp", "ep", "shard", "edp") if rows.zero[0] >= 2 else ("tp", "cp", "ep")
    placed = tuple(getattr(getattr(groups, n), x)[0].tobytes() for n in names for x in ("factors", "strides"))
    return *shape, int(rows.zero[0]) if rows.zero[0] >= 2 else 0, placed


@dataclass(frozen=True)
class Room:
    """What stages leave their layers; [E] each.

    Attributes:
        room: bytes beside ends and state. last: whether the stage is the last.
        held, kept: micro-batches in flight, and bytes of weight gradients still to run, when stages are fullest, [E, peaks].
        host: bytes that all layers of a stage may keep on the host per micro-batch; inf where that is no matter.
        gathers, loss: bytes of the row, scalars.
    """

    room: Array
    held: Array
    kept: Array
    last: Array
    host: Array
    gathers: float
    loss: float

    def __getitem__(self, index: Any) -> "Room":
        room, held, kept, last, host = (
            x[index] for x in (self.room, self.held, self.kept, self.last, self.host)
        )
        return Room(room, held, kept, last, host, self.gathers, self.loss)

    def times(self, count: int) -> "Room":
        """A single stage so many times."""
        some = np.zeros(count, np.int64)
        return self[some]

    def for_saved(self, working: Array) -> Array:
        """Bytes that all layers of each stage may save per micro-batch where the heaviest needs `working`, [E, ...]."""
        extra = working.shape[1:]
        flat = working.reshape(len(self.room), -1)
        one = np.array([self.gathers]), np.array([self.loss])
        taken = transient(
            flat, np.repeat(one[0], len(flat)), np.repeat(one[1], len(flat)), self.last[:, None]
        )
        room, peaks = self.room[:, None] - taken, zip(self.held.T, self.kept.T, strict=True)
        each = [(room - kept[:, None]) / held[:, None] for held, kept in peaks]
        left: Array = (each[0] if len(each) == 1 else np.min(each, axis=0)).reshape(len(self.room), *extra)
        return left


@dataclass(frozen=True)
class Mixed:
    """The fastest policies of stages, [E]: seconds (inf where nothing fits) and host bytes of all layers; `mixes` by kind."""

    seconds: Array
    host: Array
    mixes: tuple[tuple[Mix, ...], ...]


def fastest(offers: Sequence[Offer], counts: Array, room: Room) -> Mixed:
    """The fastest mixes of stages with `counts` layers of each kind, [E, K]."""
    seconds, host = np.full(len(counts), np.inf), np.zeros(len(counts))
    mixes: list[tuple[Mix, ...]] = [((),) * len(offers)] * len(counts)
    present, of_entry = np.unique(counts > 0, axis=0, return_inverse=True)
    for group, kinds in enumerate(present):
        at = np.flatnonzero(of_entry.ravel() == group)
        some = np.flatnonzero(kinds)
        if len(some) == 1:
            found = _of_one(offers[some[0]], counts[at, some[0]], room[at], np.zeros((3, len(at))))
            seconds[at] = found[0]
            for e, (i, j, k) in zip(at.tolist(), found[1], strict=True):
                offer, n = offers[some[0]], int(counts[e, some[0]])
                host[e] = (n - k) * offer.host[i] + k * offer.host[j]
                mixes[e] = tuple(
                    mix_of_pick(offer, n, i, j, k) if q == some[0] else () for q in range(len(offers))
                )
        else:
            for e in at.tolist():
                best = _of_several([offers[k] for k in some.tolist()], counts[e, some], room[[e]])
                if best is None:
                    continue
                seconds[e], picks = best
                made: list[Mix] = [()] * len(offers)
                for k, (i, j, more) in zip(some.tolist(), picks, strict=True):
                    n = int(counts[e, k])
                    made[k] = mix_of_pick(offers[k], n, i, j, more)
                    host[e] += (n - more) * offers[k].host[i] + more * offers[k].host[j]
                mixes[e] = tuple(made)
    return Mixed(seconds, host, tuple(mixes))


def mix_of_pick(offer: Offer, layers: int, i: int, j: int, k: int) -> Mix:
    pairs = ((int(offer.codes[i]), layers - k), (int(offer.codes[j]), k))
    return tuple((code, n) for code, n in pairs if n)


Pick = tuple[int, int, int]  # policies i and j, and how many layers take j


def _of_one(offer: Offer, layers: Array, room: Room, others: Array) -> tuple[Array, list[Pick]]:
    """(least seconds, pick) of stages, [E].

    Of two policies as many layers take the faster as memory allows.

    Args:
        others: bytes saved on the device, kept on the host, and working, of layers of other kinds; [3, E].
    """
    entries, limited = len(layers), bool(np.isfinite(room.host).any())
    seconds, picks = np.full(entries, np.inf), [(0, 0, 0)] * entries
    i, j = np.triu_indices(len(offer))  # i saves less
    # A policy that saves less in less time stands alone, unless it is for want of hosts.
    useful = (i == j) | (offer.seconds[i] > offer.seconds[j]) | limited
    i, j = i[useful], j[useful]
    alone, faster = i == j, offer.seconds[j] < offer.seconds[i]
    block = max(1, AT_ONCE // max(1, len(i)))
    for start in range(0, entries, block):
        e = np.arange(start, min(start + block, entries))
        saved, kept, working = others[:, e, None]
        n, each = layers[e, None], room[e]
        heavy = np.maximum(np.maximum(offer.working[i], offer.working[j])[None, :], working)
        most, least = _layers_within(
            each.for_saved(heavy) * LESS - saved, offer.device[i], offer.device[j], n
        )
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


def _of_several(offers: Sequence[Offer], layers: Array, room: Room) -> tuple[float, list[Pick]] | None:
    """(least seconds, picks) of one stage with layers of several kinds; None where nothing fits.

    A bound by Lagrange's multiplier for the bytes, and a good mix, tell which policies a better one may use at all;
    the mixes of all kinds but one are then listed.
    """
    main = int(np.argmax(layers))
    rest = [k for k in range(len(offers)) if k != main]
    lightest = max(float(o.working.min()) for o in offers)
    left = float(room.for_saved(np.array([[lightest]]))[0, 0])
    slopes = np.unique(np.concatenate([_slopes(o) for o in offers]))
    values = [
        sum(n * (o.seconds + mu * o.device).min() for n, o in zip(layers, offers, strict=True)) - mu * left
        for mu in slopes.tolist()
    ]
    if sum(n * o.device.min() for n, o in zip(layers, offers, strict=True)) > left:
        return None
    best = int(np.argmax(values))
    bound, mu = float(values[best]), float(slopes[best])
    over = [o.seconds + mu * o.device - (o.seconds + mu * o.device).min() for o in offers]

    def of(keep: Sequence[Array], gap: float) -> tuple[float, list[Pick]] | None:
        """The best with some policies of each kind and mixes of the others that cost at most `gap` more than the bound."""
        limited = bool(np.isfinite(room.host).any())
        lists = [_listed(offers[k], keep[k], over[k], int(layers[k]), gap, limited) for k in rest]
        points, which = _combined([offers[k] for k in rest], layers[rest], lists)
        if not len(points):
            return None
        some, base = keep[main], points[:, 0]
        many, own = room.times(len(base)), np.full(len(base), layers[main])
        seconds, picks = _of_one(offers[main][some], own, many, points[:, 1:].T)
        at = int(np.argmin(base + seconds))
        if not np.isfinite(base[at] + seconds[at]):
            return None
        i, j, k = picks[at]
        chosen: list[Pick] = [(0, 0, 0)] * len(offers)
        chosen[main] = int(some[i]), int(some[j]), k
        for position, kind in enumerate(rest):
            chosen[kind] = lists[position][which[at][position]]
        return float(base[at] + seconds[at]), chosen

    few = [np.argsort(o, kind="stable")[:6] for o in over]
    lean = [np.union1d(f, [int(np.argmin(o.device))]) for f, o in zip(few, offers, strict=True)]
    good = of(lean, np.inf)
    gap = np.inf if good is None else good[0] - bound
    every = [np.flatnonzero(o <= gap * (2.0 - LESS) + 1e-15) for o in over]
    found = of(every, gap)
    return good if found is None or (good is not None and good[0] <= found[0]) else found


def _slopes(offer: Offer) -> Array:
    """Seconds per byte between neighbours of the lower hull of a kind's policies, and 0."""
    order = np.lexsort((offer.seconds, offer.device))
    hull: list[int] = []
    for i in order.tolist():
        while len(hull) > 1 and _above(offer, hull[-2], hull[-1], i):
            hull.pop()
        if not hull or offer.seconds[i] < offer.seconds[hull[-1]]:
            hull.append(i)
    d, s = offer.device[hull], offer.seconds[hull]
    step = np.diff(d)
    return np.append(0.0, -np.diff(s)[step > 0] / step[step > 0])


def _above(offer: Offer, a: int, b: int, c: int) -> bool:
    d, s = offer.device, offer.seconds
    return bool((s[b] - s[a]) * (d[c] - d[a]) >= (s[c] - s[a]) * (d[b] - d[a]))


def _listed(offer: Offer, keep: Array, over: Array, layers: int, gap: float, limited: bool) -> list[Pick]:
    """Mixes of some policies that cost at most `gap` more than the cheapest at the multiplier."""
    picks: list[Pick] = [(int(i), int(i), 0) for i in keep.tolist() if layers * over[i] <= gap]
    for i, j in combinations(keep.tolist(), 2):
        if limited or offer.seconds[i] > offer.seconds[j]:
            picks += [
                (i, j, k)
                for k in range(1, layers)
                if (layers - k) * over[i] + k * over[j] <= gap * (2 - LESS)
            ]
    return picks


def _combined(
    offers: Sequence[Offer], layers: Array, lists: Sequence[list[Pick]]
) -> tuple[Array, list[tuple[int, ...]]]:
    """(seconds, bytes on the device, on the host, and working [C, 4]; pick of each kind) of combinations of mixes."""
    points, which = np.zeros((1, 4)), [()]  # type: tuple[Array, list[tuple[int, ...]]]
    for offer, n, picks in zip(offers, layers.tolist(), lists, strict=True):
        if not picks:
            return np.zeros((0, 4)), []
        own = points_of(offer, n, picks)
        both = points[:, None] + own
        both[..., 3] = np.maximum(points[:, None, 3], own[:, 3])
        points = both.reshape(-1, 4)
        order = np.arange(len(points))
        if len(points) > _MANY:
            order = np.lexsort(points.T[::-1])
            order = order[unbeaten(points[order])]
        points, which = points[order], [(*which[at // len(picks)], at % len(picks)) for at in order.tolist()]
    return points, which


def points_of(offer: Offer, layers: int, picks: list[Pick]) -> Array:
    """Seconds, bytes on the device, on the host, and working, of mixes; [picks, 4]."""
    i, j, k = np.array(picks).T
    columns = [(layers - k) * x[i] + k * x[j] for x in (offer.seconds, offer.device, offer.host)]
    heavy = np.maximum(offer.working[i], np.where(k > 0, offer.working[j], 0.0))
    return np.stack([*columns, heavy], axis=1)
