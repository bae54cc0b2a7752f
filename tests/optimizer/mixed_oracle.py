"""Exhaustive search where layers of one kind may differ in policy: on every stage every pair of policies, every split.

Starts from the priced space of `exhaustive_oracle`, in which all layers of a kind agree: its rows tell what one layer
costs under each policy. Knows nothing of the optimizer; a mix is dropped only if another takes no longer and needs no
more bytes of any sort.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from exhaustive_oracle import Batch, Plan, PricedSpace, hosts_of
from numpy.typing import NDArray

from meshwright.costmodel.estimate import stage_counts
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.pipeline import in_flight, peaks, step_s
from meshwright.costmodel.tensors import HOST

Floats = NDArray[np.float64]
VISIBLE = ("tp", "cp", "pp", "ep", "dp_shard", "zero", "micro_batch", "vpp", "schedule")
MOST = 8  # plans of different visible kinds
Pick = tuple[int, int, int]  # policies i and j, layers of j


@dataclass(frozen=True)
class Mixes:
    """Ways of n layers of one kind: seconds, device, host, working bytes [W, 4], and what they are."""

    points: Floats
    picks: list[Pick]


def mixes_of(each: Floats, layers: int, must: bool = False) -> Mixes:
    """Of policies that cost `each` [P, 4] a layer, all pairs and splits that no other beats; where some layer `must` keep
    something on its host, those that keep something there are beaten only by others that do."""
    picks = [(i, i, 0) for i in range(len(each))]
    picks += [(i, j, k) for i in range(len(each)) for j in range(i) for k in range(1, layers)]
    points = np.array(
        [[*((layers - k) * each[i, :3] + k * each[j, :3]), max(each[i, 3], each[j, 3])] for i, j, k in picks]
    )
    kept: list[int] = []
    for at in np.lexsort(points.T[::-1]):
        no_more = (points[kept] <= points[at] * (1 + 1e-12)).all(axis=1)
        if must and points[at, 2] > 0:
            no_more &= points[kept, 2] > 0
        if not no_more.any():
            kept.append(int(at))
    return Mixes(points[kept], [picks[i] for i in kept])


@dataclass
class Mixed:
    """The answer: best plan, best with equal stages, and the best of visible kinds, ascending.

    With `every` also the best of each row, by its fields but policies.
    """

    best: Plan | None = None
    even: Plan | None = None
    kinds: dict[tuple[int, ...], float] = field(default_factory=dict)
    every: bool = False
    rows: dict[tuple[int, ...], float] = field(default_factory=dict)

    @property
    def ranked_s(self) -> tuple[float, ...]:
        return tuple(sorted(self.kinds.values())[:MOST])

    @property
    def cutoff_s(self) -> float:
        return self.ranked_s[-1] if len(self.ranked_s) == MOST else np.inf


def mixed(space: PricedSpace, capacity: float, every: bool = False) -> Mixed:
    """The answer of a priced space where every stage may mix two policies per layer kind."""
    answer, known = Mixed(every=every), {}  # type: tuple[Mixed, dict[Any, Mixes]]
    for batch in space.batches:
        if batch.seconds.size:
            for members in same_but_policies(space, batch):
                Placed(space, batch, members, known).search(answer, capacity)
    return answer


def same_but_policies(space: PricedSpace, batch: Batch) -> Iterator[NDArray[np.int64]]:
    rows = space.rows[batch.of]
    names = [n for n in rows.__dataclass_fields__ if n != "policies"]
    keys = np.stack([*(getattr(rows, n) for n in names), batch.placement_of], axis=1)
    _, inverse = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(inverse.ravel(), kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(inverse.ravel()[order])) + 1)


class Placed:
    """One placed row with all policies that its layers may have."""

    def __init__(self, space: PricedSpace, batch: Batch, members: NDArray[np.int64], known: dict[Any, Mixes]):
        self.space, self.batch, self.known = space, batch, known
        self.table, self.at = batch.table, int(members[0])
        assert self.table is not None
        rows = self.table.rows
        self.codes, self.each = [], []
        self.found: dict[tuple[int, bytes], tuple[Floats, list[tuple[Pick, ...]]]] = {}
        for k in range(rows.policies.shape[1]):
            codes, first = np.unique(rows.policies[members, k], return_index=True)
            of = members[first]
            memory = self.table.memory
            columns = (self.table.layer_s, memory.saved, memory.host_saved, memory.working)
            self.codes.append(codes)
            self.each.append(np.stack([c[of, k] for c in columns], axis=1))
        self.row = rows[self.at : self.at + 1]
        self.scale = space.setting.training.sequences / int(self.row.sequences[0])
        self.pp, self.head = int(self.row.pp[0]), int(self.row.last_stage[0])
        self.stages = np.arange(self.pp)[None, :]
        own = self.table.costs[self.at : self.at + 1]
        self.ends_s, self.ends = own.ends_s(self.stages)[0], own.ends_state(self.stages)[0]
        self.hidden_s = float(self.table.hidden_s[self.at])
        self.must = bool(space.must_host[batch.of[self.at]])

    def search(self, answer: Mixed, capacity: float) -> None:
        key = tuple(int(getattr(self.row, n)[0]) for n in VISIBLE)
        own = tuple(int(getattr(self.row, f.name)[0]) for f in fields(self.row) if f.name != "policies")
        for cut in self.batch.cuts:
            floor = self.scale * self.floor_s(cut)
            limit = min(answer.cutoff_s, answer.kinds.get(key, np.inf))
            if answer.every:
                limit = answer.rows.get(own, np.inf)
            even = len(set(cut)) == 1
            wanted = floor < limit or (even and (answer.even is None or floor < answer.even.seconds))
            if not wanted:
                continue
            ways = self.ways(cut, capacity)
            if not all(len(points) for points, _ in ways):
                continue
            bar = limit if not even or answer.even is None else max(limit, answer.even.seconds)
            bar = np.inf if even and answer.even is None else bar
            best = self.best(cut, [points for points, _ in ways], bar / self.scale)
            if best is None:
                continue
            seconds, places, host = best
            counts = self._counts(cut)
            mixes = tuple(self._told(counts[s], ways[s][1][places[s]]) for s in range(self.pp))
            placement = self.batch.placements[self.batch.placement_of[self.at]]
            plan = Plan(self.row, placement, cut, self.scale * seconds, 0.0, host, mixes)
            answer.rows[own] = min(plan.seconds, answer.rows.get(own, np.inf))
            if plan.seconds < answer.kinds.get(key, np.inf):
                answer.kinds[key] = plan.seconds
            if answer.best is None or plan.seconds < answer.best.seconds:
                answer.best = plan
            if even and (answer.even is None or plan.seconds < answer.even.seconds):
                answer.even = plan

    def floor_s(self, cut: tuple[int, ...]) -> float:
        """Step seconds of a cut with the fastest policies, whether they fit or not."""
        fastest = self.ends_s + self._counts(cut) @ np.array([e[:, 0].min() for e in self.each])
        return float(step_s(self.row, fastest.max(), fastest.sum(), self._once_s(cut), self.hidden_s)[0])

    def ways(self, cut: tuple[int, ...], capacity: float) -> list[tuple[Floats, list[tuple[Pick, ...]]]]:
        """Of each stage the ways that fit: (seconds, host bytes in flight, device bytes, whether some layer keeps something on
        its host) [W, 4], and picks by kind."""
        counts, held = self._counts(cut), in_flight(self.row, self.stages)[0]
        full = [
            [(float(f[0, s]), float(w[0, s])) for f, w in peaks(self.row, self.stages)]
            for s in range(self.pp)
        ]
        return [
            self._ways(s, counts[s], float(held[s]), full[s], float(self.ends[s]), s == self.head, capacity)
            for s in range(self.pp)
        ]

    def _counts(self, cut: tuple[int, ...]) -> Floats:
        """Layers of each kind on each stage, remembered by cut; [S, K]."""
        vpp = int(self.row.vpp[0])
        if (cut, vpp) not in self.known:
            schedule = "interleaved" if vpp > 1 else "1f1b"
            plain = Layout(pp=len(cut), vpp=vpp, schedule=schedule, layers_per_stage=cut)
            self.known[cut, vpp] = stage_counts(self.space.setting, [plain])[0][0]
        found: Floats = self.known[cut, vpp]
        return found

    def _once_s(self, cut: tuple[int, ...]) -> float:
        assert self.table is not None
        return float(self._row(self.table.once_s, cut).max())

    def _row(self, of: Any, cut: tuple[int, ...]) -> Floats:
        """One row of a function of the whole table, remembered by cut."""
        counts = self._counts(cut)
        key = (of.__name__, id(self.table), counts.tobytes())
        if key not in self.known:
            self.known[key] = of(self.stages, np.broadcast_to(counts, (len(self.batch.of), *counts.shape)))
        found: Floats = self.known[key][self.at]  # type: ignore[index]
        return found

    def _ways(
        self,
        stage: int,
        counts: Floats,
        held: float,
        full: list[tuple[float, float]],
        ends: float,
        last: bool,
        capacity: float,
    ) -> tuple[Floats, list[tuple[Pick, ...]]]:
        """Of one stage, remembered by its layers."""
        if (stage, counts.tobytes()) in self.found:
            return self.found[stage, counts.tobytes()]
        table, at = self.table, self.at
        assert table is not None
        found, picks = np.zeros((1, 4)), [()]  # type: tuple[Floats, list[tuple[Pick, ...]]]
        for k, n in enumerate(counts.astype(int).tolist()):
            key = (self.each[k].tobytes(), n, self.must)
            if n and key not in self.known:
                self.known[key] = mixes_of(self.each[k], n, self.must)
            some = self.known[key] if n else Mixes(np.zeros((1, 4)), [(0, 0, 0)])
            both = found[:, None] + some.points
            both[..., 3] = np.maximum(found[:, None, 3], some.points[:, 3])
            found, picks = both.reshape(-1, 4), [(*p, q) for p in picks for q in some.picks]
        working = found[:, 3] + float(table.costs.gathers[at])
        if stage == 0:
            working = np.maximum(working, float(table.costs.tower[at]))
        transient = np.maximum(working, float(table.costs.loss[at])) if last else working
        state = ends + float(counts @ table.costs.state[at])
        kept = float(counts @ table.costs.deferred[at])
        activations = np.max([flying * found[:, 1] + late * kept for flying, late in full], axis=0)
        device = state + activations + transient
        fits = device <= capacity
        some = [p for p, good in zip(picks, fits, strict=True) if good]
        hosts = np.array([self._hosts(counts, p) for p in some], float)
        columns = [found[fits, 0] + self.ends_s[stage], held * found[fits, 2], device[fits], hosts]
        self.found[stage, counts.tobytes()] = np.stack(columns, axis=1), some
        return self.found[stage, counts.tobytes()]

    def _hosts(self, counts: Floats, picks: tuple[Pick, ...]) -> bool:
        mixes = self._told(counts, picks)
        return any(code >> HOST for mix in mixes for code, _ in mix)

    def best(
        self, cut: tuple[int, ...], ways: list[Floats], limit_s: float
    ) -> tuple[float, list[int], float] | None:
        """(seconds, way of each stage, bytes on the fullest host) of the fastest that hosts hold, below a limit.

        Every combination of the ways of stages, [W, 4] each; those go early that no later stage mends.
        """
        row, once = self.row, self._once_s(cut)
        setting = self.space.setting
        room, pp = setting.cluster.host_memory_bytes, len(ways)
        placement = self.batch.placements[self.batch.placement_of[self.at]]
        shares = np.zeros((1, pp))
        if int(row.offload[0]) and room is not None:
            per_host = setting.cluster.devices_per_host or 1
            shares = np.array(hosts_of(placement, setting.cluster.levels, per_host, pp), float)

        host = shares @ self._row(self.table.host_state, cut)  # type: ignore[union-attr]
        hidden, spared = self.hidden_s, [_no_worse(w[:, [0, 1, 3]] * [1, 1, -self.must]) for w in ways]
        each = [w[kept] for w, kept in zip(ways, spared, strict=True)]
        rest = np.array([e.min(axis=0) for e in each])  # what later stages take at least
        slowest, total, kept = np.zeros(1), np.zeros(1), host[None, :]
        picks, hosts = np.zeros((1, 0), np.int64), np.zeros(1)
        for s in range(pp):
            slowest = np.maximum(slowest[:, None], each[s][:, 0]).ravel()
            total = (total[:, None] + each[s][:, 0]).ravel()
            hosts = np.maximum(hosts[:, None], each[s][:, 3]).ravel()
            kept = (kept[:, None] + each[s][None, :, 1:2] * shares[:, s]).reshape(len(total), -1)
            places = np.tile(np.arange(len(each[s])), len(picks))
            picks = np.column_stack([np.repeat(picks, len(each[s]), axis=0), places])
            later = rest[s + 1 :]
            top, all_s = np.maximum(slowest, later[:, 0].max(initial=0)), total + later[:, 0].sum()
            floor = step_s(row, top, all_s, once, hidden)
            # A billionth for sums in another order; of plans equally fast the first.
            good = floor < limit_s * (1 + 1e-9)
            if room is not None:
                good &= (kept + shares[:, s + 1 :] @ later[:, 1] <= room).all(axis=1)
            if self.must and s == pp - 1:
                good &= hosts > 0
            slowest, total, kept, picks, hosts = (x[good] for x in (slowest, total, kept, picks, hosts))
            if not len(picks):
                return None
        seconds = step_s(row, slowest, total, once, hidden)
        at = int(np.argmin(seconds))
        chosen = [spared[s][i] for s, i in enumerate(picks[at].tolist())]
        return float(seconds[at]), chosen, float(kept[at].max())

    def _told(self, counts: Floats, picks: tuple[Pick, ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
        out = []
        for k, n in enumerate(counts.astype(int).tolist()):
            i, j, more = picks[k]
            pairs = [(int(self.codes[k][i]), n - more), (int(self.codes[k][j]), more)]
            out.append(tuple((code, layers) for code, layers in pairs if layers))
        return tuple(out)


def _no_worse(points: Floats) -> list[int]:
    """Ways that none beats in seconds and host bytes."""
    kept: list[int] = []
    for at in np.lexsort(points.T[::-1]):
        if not (points[kept] <= points[at]).all(axis=1).any():
            kept.append(int(at))
    return kept
