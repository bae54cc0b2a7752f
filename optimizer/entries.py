"""Shares that a stage may take: which units, with which policies, in how many seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.memory import ROUNDING_BYTES
from meshwright.costmodel.pipeline import in_flight, peaks
from meshwright.costmodel.stages import StageTable
from meshwright.costmodel.tensors import HOST
from meshwright.optimizer.bounds import SAFE
from meshwright.optimizer.cuts import Cuts
from meshwright.optimizer.host_mixes import within_hosts
from meshwright.optimizer.mixes import Mixed, fastest
from meshwright.optimizer.offers import Mix, Offer, Room

Array = NDArray[Any]


@dataclass(frozen=True)
class Entries:
    """Shares a stage may take. Arrays of shape [E]; `start` is -1 where units are alike and only length counts.

    Attributes:
        host: bytes that one device keeps on its host.
        mixes: (policy, layers) of every layer kind, by entry.
        whole: with memory on hosts to share, whether every way to do with less of it is among them.
        least: seconds that no mix of policies of the share beats; below `seconds` where not all were looked at.
    """

    stage: Array
    start: Array
    length: Array
    seconds: Array
    once: Array
    host: Array
    mixes: tuple[tuple[Mix, ...], ...] = field(default=(), compare=False)
    whole: bool = True
    least: Array = field(default_factory=lambda: np.zeros(0), compare=False)

    def __getitem__(self, index: Any) -> "Entries":
        mixes = tuple(self.mixes[e] for e in np.arange(len(self))[index].tolist())
        arrays = {
            n: getattr(self, n)[index]
            for n in ("stage", "start", "length", "seconds", "once", "host", "least")
        }
        return Entries(**arrays, mixes=mixes, whole=self.whole)

    @cached_property
    def hosting(self) -> Array:
        """Whether some layer of each share keeps something on its host, [E]."""
        codes = ([code for mix in mixes for code, _ in mix] for mixes in self.mixes)
        return np.array([any(code >> HOST for code in some) for some in codes], bool)

    @property
    def exact(self) -> bool:
        """Whether every share has the fastest of its mixes."""
        return bool((self.least >= self.seconds).all())

    def __len__(self) -> int:
        return len(self.stage)

    def arrays(self) -> tuple[Array, ...]:
        return self.stage, self.start, self.length, self.seconds, self.once, self.host


def entries_of(
    table: StageTable,
    cuts: Cuts,
    offers: Sequence[Offer],
    slowest: float,
    total: float,
    capacity: int,
    hosts: Array | None = None,
    shares_hosts: bool = False,
    hosting: bool = False,
) -> Entries:
    """Shares of a single row that fit the memory, take at most `slowest` seconds and lie on a complete cut.

    None where all stages of every cut take more than `total` seconds together.

    Each with its fastest policies. `hosts` are bytes that one device of each stage may keep on its host, [S]. If stages
    share hosts that may be too small, policies that keep less there by being slower are listed, too. With `hosting` each
    has, too, its fastest policies of those in which some layer keeps something there.
    """
    units = len(cuts.units)
    # Where units are alike a share is told by its length alone, as if it started at 0.
    start, stop = (x.ravel() for x in np.meshgrid(*(np.arange(units + 1),) * 2, indexing="ij"))
    shares = (start < stop) & (start == 0) if cuts.units.alike else start < stop
    start, stop = start[shares], stop[shares]
    least = _least_seconds(cuts, start, stop, slowest, capacity)
    if cuts.units.lengths is not None:
        least[:, ~cuts.units.lengths[stop - start - 1]] = np.inf
    if cuts.units.even:
        least[~_even_shares(cuts, start, stop)] = np.inf
    if not _within(_least_sum(cuts, start, stop, least), total):
        return no_entries()
    good = np.isfinite(least)
    stage, at = _windows(cuts, start, stop, good)
    counts = cuts.units.prefix[stop[at]] - cuts.units.prefix[start[at]]
    room = _room(table, cuts, stage, counts, capacity, hosts)
    ends_s = cuts.ends_s[0, stage]
    if shares_hosts:
        of, mixed, whole = within_hosts(offers, counts, room, slowest - ends_s, hosting)
        stage, at, counts, ends_s = stage[of], at[of], counts[of], ends_s[of]
    else:
        mixed, whole = fastest(offers, counts, room), True
        if hosting:
            mixed = mixed.and_also(fastest(offers, counts, room, hosting=True))
            stage, at, ends_s = (np.tile(x, 2) for x in (stage, at, ends_s))
            counts = np.tile(counts, (2, 1))
    seconds, bound = mixed.seconds + ends_s, mixed.least_s + ends_s
    keep = bound <= slowest
    exact = np.full_like(least, np.inf)
    np.minimum.at(exact, (stage[keep], at[keep]), bound[keep])
    if not _within(_least_sum(cuts, start, stop, exact), total):
        return no_entries()
    left = np.zeros_like(good)
    left[_windows(cuts, start, stop, np.isfinite(exact))] = True
    keep &= left[stage, at]
    return _priced(
        table, cuts, mixed, np.flatnonzero(keep), stage, start[at], stop[at], seconds, bound, counts, whole
    )


def no_entries() -> Entries:
    nothing, whole = np.zeros(0), np.zeros(0, np.int64)
    return Entries(whole, whole, whole, nothing, nothing, nothing, least=nothing)


def _priced(
    table: StageTable, cuts: Cuts, mixed: Mixed, keep: Array, stage: Array, start: Array, stop: Array,
    seconds: Array, bound: Array, counts: Array, whole: bool,
) -> Entries:  # fmt: skip
    """Entries of the shares that are kept."""
    if not len(keep):
        return no_entries()
    stage, counts = stage[keep], counts[keep]
    stages = stage[None, :]
    held = in_flight(table.rows, stages, table.longer(counts[None]))[0]
    return Entries(
        stage,
        np.full(len(keep), -1) if cuts.units.alike else start[keep],
        (stop - start)[keep],
        seconds[keep],
        table.once_s(stages, counts[None])[0],
        table.host_state(stages, counts[None])[0] + held * mixed.host[keep],
        tuple(mixed.mixes[e] for e in keep.tolist()),
        whole,
        bound[keep],
    )


def _room(
    table: StageTable, cuts: Cuts, stage: Array, counts: Array, capacity: int, hosts: Array | None
) -> Room:
    costs, stages, longer = table.costs, stage[None, :], table.longer(counts[None])
    # Half of what the estimate forgives, so that a plan that fills the memory to the byte is among them.
    room = capacity + ROUNDING_BYTES / 2 - costs.ends_state(stages)[0] - counts @ costs.state[0]
    beside = costs.beside(stages)[0]
    host = np.full(len(stage), np.inf)
    if hosts is not None:
        host = np.maximum(hosts[stage] - table.host_state(stages, counts[None])[0], -1.0)
        host = host / in_flight(table.rows, stages, longer)[0]
    held, late = (
        np.stack([x[0] for x in each], axis=1)
        for each in zip(*peaks(table.rows, stages, longer), strict=True)
    )
    kept = late * (counts @ costs.deferred[0])[:, None]
    return Room(room, held, kept, beside, host, float(costs.gathers[0]))


def _least_seconds(cuts: Cuts, start: Array, stop: Array, slowest: float, capacity: int) -> Array:
    """Seconds of each share, at least, on each stage of a single row, [S, shares]; inf beyond time and memory.

    With `optimizer.lines` where policies are open; see `optimizer.cuts`.
    """
    pp, lines, costs = int(cuts.rows.pp[0]), cuts.lines, cuts.costs
    counts = cuts.units.prefix[stop] - cuts.units.prefix[start]
    least = counts @ lines.least[0]  # [shares, G]
    state, saved = counts @ costs.state[0], counts @ lines.saved[0]
    of_stages = (cuts.ends_s, cuts.ends_bytes, cuts.held, cuts.late)
    ends_s, ends_bytes, held, late = (x[0, :pp, None] for x in of_stages)
    state = state + late * (counts @ costs.deferred[0])
    room = (capacity + 1.0) - ends_bytes
    if lines.working is not None:
        layers = counts.sum(axis=1)
        share = 1.0 / layers
        more = counts @ lines.working[0] - layers * cuts.lightest[0, :pp, None]
        state = state + share * np.maximum(more, 0.0)
        held = np.maximum(held - share, 1e-9)
    seconds = np.full(np.broadcast_shapes(state.shape, (pp, len(start))), np.inf)
    fits = (least[:, 0] + ends_s <= slowest) & (state + held * saved <= room)
    stage, share = np.nonzero(fits)
    held, state, room = (np.broadcast_to(x, seconds.shape)[stage, share] for x in (held, state, room))
    worth = lines.price[0] / held[:, None]
    found = (least[share] + worth * (state - room)[:, None]).max(axis=1) + ends_s[stage, 0]
    seconds[stage, share] = np.where(found <= slowest * (2.0 - SAFE), found, np.inf)
    return seconds


def _even_shares(cuts: Cuts, start: Array, stop: Array) -> Array:
    """Whether each share is that of a stage where all hold equally many units, [S, shares]."""
    pp, units = int(cuts.rows.pp[0]), len(cuts.units)
    at = 0 if cuts.units.alike else np.arange(pp)[:, None] * units // pp
    own: Array = ((stop - start) * pp == units) & (start == at)
    return np.broadcast_to(own, (pp, len(start)))


def _within(least: float, total: float) -> bool:
    """Whether some cut is there, and its stages take at most `total` seconds together."""
    return bool(np.isfinite(least)) and least <= total * (2.0 - SAFE)


def _least_sum(cuts: Cuts, start: Array, stop: Array, seconds: Array) -> float:
    """Least sum of the seconds of stages that hold all units in order; inf where none do. [S, shares]."""
    units = len(cuts.units)
    best = np.full(units + 1, np.inf)
    best[0] = 0.0
    for each in seconds:
        some = np.flatnonzero(np.isfinite(each))
        reached = np.full(units + 1, np.inf)
        if cuts.units.alike:  # a share is told by its length
            for share in some.tolist():
                length = int(stop[share])
                reached[length:] = np.minimum(reached[length:], best[: units + 1 - length] + each[share])
        else:
            np.minimum.at(reached, stop[some], best[start[some]] + each[some])
        best = reached
    return float(best[units])


def _windows(cuts: Cuts, start: Array, stop: Array, good: Array) -> tuple[Array, Array]:
    """(stage, share) of shares on some complete cut."""
    if cuts.units.alike:
        stage, length = _alike_windows(good)
        return stage, length - 1
    rows = [(start[g], stop[g] - start[g]) for g in good]
    stage, first, length = _reach_windows(rows, len(cuts.units))
    index = np.full((len(cuts.units) + 1,) * 2, -1)
    index[start, stop] = np.arange(len(start))
    return stage, index[first, first + length]


def _alike_windows(good: Array) -> tuple[Array, Array]:
    """(stage, length) of lengths, one to all units, that the other stages can complete to all units."""
    units = good.shape[1]
    some = good.any(axis=1)
    least = np.where(some, np.argmax(good, axis=1) + 1, units + 1)
    most = np.where(some, units - np.argmax(good[:, ::-1], axis=1), 0)
    length = np.arange(1, units + 1)
    room_most, room_least = units - (most.sum() - most), units - (least.sum() - least)
    stage, at = np.nonzero(good & (length >= room_most[:, None]) & (length <= room_least[:, None]))
    return stage, length[at]


def _reach_windows(rows: list[tuple[Array, Array]], units: int) -> tuple[Array, Array, Array]:
    """Keep shares on some complete path from unit 0 to the last."""
    forward = [np.zeros(units + 1, bool) for _ in range(len(rows) + 1)]
    forward[0][0] = True
    for s, (start, length) in enumerate(rows):
        forward[s + 1][(start + length)[forward[s][start]]] = True
    backward = [np.zeros(units + 1, bool) for _ in range(len(rows) + 1)]
    backward[-1][units] = True
    for s in range(len(rows) - 1, -1, -1):
        start, length = rows[s]
        backward[s][start[backward[s + 1][start + length]]] = True
    stage, starts, lengths = [], [], []
    for s, (start, length) in enumerate(rows):
        good = forward[s][start] & backward[s + 1][start + length]
        stage.append(np.full(int(good.sum()), s))
        starts.append(start[good])
        lengths.append(length[good])
    return np.concatenate(stage), np.concatenate(starts), np.concatenate(lengths)
