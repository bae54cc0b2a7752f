"""Tables of cost for the whole-program reference: what a layer, an end of the model and a stage cost, in whole numbers.

A mesh lists every combination of decisions whose products are whole (degrees fit the devices, the batch is micro-batches,
factors of the network multiply to degrees); it knows none of the other rules. On it the cost model prices layers and ends.
A table is then keyed by as few decisions as tell its numbers apart.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import lcm, prod

import numpy as np
from exhaustive_oracle import DEGREES, hosts_of, placements_of
from numpy.typing import NDArray
from tensor_oracle import Listed

from meshwright.costmodel.comm import PlacedComm
from meshwright.costmodel.layout import OFFLOADS, Placement
from meshwright.costmodel.pipeline import in_flight, peaks
from meshwright.costmodel.placement import groups_of
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.hardware.network import TorusAxis

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Domains = Mapping[str, Sequence[int]]

FREE = ("zero", "reshard", "cp_kind", "sp", "vpp", "schedule", "offload")  # no product binds them
APART = ("pp", "vpp", "sequences", "micro_batches")  # decisions that a layer's cost does not depend on
TICKS = 20_000_000  # in the least time that one micro-batch takes


def factor(degree: str, level: int) -> str:
    """Name of the decision how much of a degree lies on a level."""
    return f"{degree} on {level}"


def stride(degree: str, level: int) -> str:
    """Name of how far apart neighbours of a degree are on a level; 1 where it is not on it."""
    return f"{degree} apart on {level}"


@dataclass(frozen=True)
class Mesh:
    """R combinations of decisions: by name [R], and where each is placed."""

    columns: dict[str, Ints]
    placements: list[Placement]
    placement_of: Ints

    def __len__(self) -> int:
        return len(self.placement_of)


def mesh(setting: Setting, domains: Domains) -> Mesh:
    """Every combination of values whose products are whole."""
    levels, free = setting.cluster.levels, list(product(*(domains[n] for n in FREE)))
    known: dict[Placement, int] = {}
    bound: list[tuple[int, ...]] = []
    for degrees in product(*(domains[d] for d in DEGREES)):
        if prod(degrees) > setting.cluster.devices:
            continue
        tp, cp, shard, replicate, _ = degrees
        dp, stage = shard * replicate, tp * cp * shard * replicate
        batches = [
            (n, b, n // (dp * b))
            for n in domains["sequences"]
            for b in domains["micro_batch"]
            if n % (dp * b) == 0
        ]
        experts = [(e, t) for e in domains["ep"] for t in domains["etp"] if stage % (e * t) == 0]
        places = [known.setdefault(p, len(known)) for p in placements_of(degrees, levels)]
        bound += [(*degrees, *b, *e, p) for b in batches for e in experts for p in places]
    whole = np.array([(*b, *f) for b in bound for f in free], np.int64).reshape(-1, 11 + len(FREE))
    names = (*DEGREES, "sequences", "micro_batch", "micro_batches", "ep", "etp", "", *FREE)
    columns = {n: whole[:, i] for i, n in enumerate(names) if n}
    of, placements = whole[:, names.index("")], list(known)
    for at, level in enumerate(levels):
        for d in DEGREES:
            factors = np.array([dict(p[at]).get(d, 1) for p in placements], np.int64)
            columns[factor(d, at)] = factors[of]
            if isinstance(level, TorusAxis):
                columns[stride(d, at)] = np.array([_stride(d, p[at]) for p in placements], np.int64)[of]
    return Mesh(columns, placements, of)


def _stride(degree: str, members: tuple[tuple[str, int], ...]) -> int:
    inside = 1
    for name, size in members:
        if name == degree:
            return inside
        inside *= size
    return 1


@dataclass(frozen=True)
class Table:
    """Numbers that decisions tell: rows of (values of `keys`, numbers)."""

    keys: tuple[str, ...]
    tuples: list[tuple[int, ...]]


def keyed(columns: Mapping[str, Ints], numbers: Ints) -> Table:
    """The numbers [R, N] by as few decisions as tell them apart, found by leaving out one after the other."""
    random = np.random.default_rng(0)

    def hashed(column: Ints) -> NDArray[np.uint64]:
        values, code = np.unique(column, axis=0, return_inverse=True)
        return random.integers(0, 2**63, len(values), np.uint64)[code.ravel()]

    each = {n: hashed(c) for n, c in columns.items() if len(c) and (c != c[0]).any()}
    told, key = hashed(numbers), np.zeros(len(numbers), np.uint64)
    for one in each.values():
        key = key + one

    def enough(keys: NDArray[np.uint64]) -> bool:
        return len(np.unique(keys)) == len(np.unique(keys + told))

    assert enough(key), "the mesh leaves out a decision on which a cost depends"
    kept = list(each)
    for name in list(each):
        if enough(key - each[name]):
            key = key - each[name]
            kept.remove(name)
    _, first = np.unique(key, return_index=True)
    rows = np.column_stack([*(columns[n][first] for n in kept), numbers[first]])
    return Table(tuple(kept), [tuple(r) for r in rows.tolist()])


@dataclass(frozen=True)
class LayerCosts:
    """What layers of one kind cost: which class a decision is of, and (class, policy, ticks, bytes on the device, on the
    host, working) of each."""

    classes: Table
    of_policy: list[tuple[int, ...]]
    codes: tuple[int, ...]


class Costs:
    """All tables of one question over a mesh."""

    def __init__(self, setting: Setting, listed: Listed, mesh: Mesh) -> None:
        self.setting, self.mesh, self._listed = setting, mesh, listed
        self.kinds, self.layers = len(setting.model.kinds), setting.model.layers
        self.stages = int(mesh.columns["pp"].max(initial=1))
        self.cap = setting.capacity_bytes
        self._priced = [self._policies(k) for k in range(self.kinds)]
        least = [float(np.nanmin(costs[..., 0], initial=np.inf)) for _, costs, _ in self._priced]
        per_batch = sum(n * s for n, s in zip(setting.model.layers_by_kind, least, strict=True))
        self.tick_s = per_batch / TICKS if np.isfinite(per_batch) else 1.0

    def _rows(self, of: Ints) -> Rows:
        names = [n for n in Rows.__dataclass_fields__ if n != "policies"]
        none = np.zeros((len(of), self.kinds), np.int64)
        return Rows(**{n: self.mesh.columns[n][of] for n in names}, policies=none)

    def _table(self, of: Ints, rows: Rows) -> StageTable:
        """Stage table of mesh rows `of`, whose decisions are `rows`."""
        where = self.mesh.placement_of[of]
        pairs = np.stack([where, rows.ep, rows.etp], axis=1)
        distinct, group = np.unique(pairs, axis=0, return_inverse=True)
        places = [self.mesh.placements[p] for p in distinct[:, 0]]
        groups = groups_of(places, distinct[:, 1], distinct[:, 2])[group.ravel()]
        return StageTable.of(self.setting, rows, PlacedComm(self.setting.network, groups))

    @cached_property
    def _stage_table(self) -> StageTable:
        every = np.arange(len(self.mesh))
        return self._table(every, self._rows(every))

    def _ticks(self, seconds: Floats) -> Ints:
        return np.rint(seconds / self.tick_s).astype(np.int64)

    def _bytes(self, held: Floats) -> Ints:
        """Rounded up; what passes the device by itself counts as just passing it."""
        return np.ceil(np.minimum(held, self.cap + 1) - 1e-6).astype(np.int64)

    def _host(self, held: Floats) -> Ints:
        room = self.setting.cluster.host_memory_bytes or 0
        return np.ceil(np.minimum(held, room + 1) - 1e-6).astype(np.int64)

    def _policies(self, kind: int) -> tuple[tuple[int, ...], Floats, Ints]:
        """(codes, costs of a layer [U, codes, 4] or NaN where not allowed, which of the U each mesh row has)."""
        names = [n for n in self.mesh.columns if n not in APART]
        columns = np.stack([self.mesh.columns[n] for n in names], axis=1)
        _, first, inverse = np.unique(columns, axis=0, return_index=True, return_inverse=True)
        rows, pairs = self._rows(first), []
        for u in range(len(first)):
            pairs += [(u, code) for code in self._allowed(rows[u : u + 1], kind)]
        codes = tuple(sorted({code for _, code in pairs}))
        at = np.array([u for u, _ in pairs], np.int64)
        chosen = np.zeros((len(at), self.kinds), np.int64)
        chosen[:, kind] = [code for _, code in pairs]
        costs = np.full((len(first), len(codes), 4), np.nan)
        if len(at):
            table = self._table(first[at], rows[at].with_columns(policies=chosen))
            memory = table.memory
            priced = (table.layer_s, memory.saved, memory.host_saved, memory.working)
            column = [codes.index(code) for _, code in pairs]
            costs[at, column] = np.stack([c[:, kind] for c in priced], axis=1)
        return codes, costs, inverse.ravel()

    def _allowed(self, row: Rows, kind: int) -> Iterator[int]:
        """Policies of a row's layers of one kind: with activations on the host also such as keep nothing there, where
        layers may differ."""
        host = "activations" in OFFLOADS[int(row.offload[0])].split("+")
        yield from self._listed.of(row, kind, host).tolist()
        if host and self.setting.framework.chooses:
            yield from self._listed.of(row, kind, False).tolist()

    def layer(self, kind: int) -> LayerCosts:
        codes, costs, of = self._priced[kind]
        if not codes:
            return LayerCosts(Table((), []), [], ())
        allowed = ~np.isnan(costs[..., 0])
        known = np.nan_to_num(costs)
        whole = [
            self._ticks(known[..., 0]),
            self._bytes(known[..., 1]),
            self._host(known[..., 2]),
            self._bytes(known[..., 3]),
        ]
        blocks = np.where(allowed[..., None], np.stack(whole, axis=-1), -1)
        classes, of_class = np.unique(blocks.reshape(len(costs), -1), axis=0, return_inverse=True)
        listed = classes.reshape(len(classes), len(codes), 4)
        of_policy = [
            (c, p, *listed[c, p].tolist())
            for c in range(len(listed))
            for p in range(len(codes))
            if listed[c, p, 0] >= 0
        ]
        return LayerCosts(keyed(self.mesh.columns, of_class.ravel()[of][:, None]), of_policy, codes)

    def ends(self) -> Table:
        """Ticks of embedding, head and sends per micro-batch, and of what the schedule hides per step."""
        c = self._stage_table.costs
        return keyed(
            self.mesh.columns, self._ticks(np.stack([c.first_s, c.last_s, c.hop_s, c.hidden_s], axis=1))
        )

    def state(self) -> Table:
        """Bytes of embedding, head, gathered weights, a vision tower, the loss; then by kind of a layer's state and late gradients."""
        c = self._stage_table.costs
        ends = np.stack([c.first_bytes, c.last_bytes, c.gathers, c.tower, c.loss], axis=1)
        return keyed(self.mesh.columns, self._bytes(np.concatenate([ends, c.state, c.deferred], axis=1)))

    def host_state(self) -> Table:
        """Bytes of state on the host: embedding, head, a layer of each kind."""
        m = self._stage_table.memory
        ends = np.stack([m.host_first, m.host_last], axis=1)
        return keyed(self.mesh.columns, self._host(np.concatenate([ends, m.host_state], axis=1)))

    @cached_property
    def parts(self) -> int:
        """Parts of a micro-batch in which micro-batches in flight are counted."""
        return lcm(2, *np.unique(self.mesh.columns["vpp"]).tolist())

    def flight(self) -> Table:
        """By stage the parts of micro-batches in flight, then by fullest moment those held and those kept late."""
        rows, stages = self._stage_table.rows, np.arange(self.stages)[None, :]
        moments = [x for pair in peaks(rows, stages) for x in pair]
        moments += [np.zeros_like(moments[0])] * (4 - len(moments))
        used = stages < rows.pp[:, None]
        each = [np.where(used, x, 0.0) for x in (in_flight(rows, stages), *moments)]
        return keyed(self.mesh.columns, np.rint(self.parts * np.concatenate(each, axis=1)).astype(np.int64))

    def once(self) -> tuple[Table, list[list[tuple[int, ...]]]]:
        """(class of decisions; by stage rows of class, layers of each kind, ticks once per step)."""
        by_kind = self.setting.model.layers_by_kind
        vectors = [v for v in product(*(range(n + 1) for n in by_kind)) if sum(v)]
        stages = np.repeat(np.arange(self.stages), len(vectors))[None, :]
        counts = np.tile(np.array(vectors, float), (self.stages, 1))[None]
        counts = np.broadcast_to(counts, (len(self.mesh), *counts.shape[1:]))
        table = self._stage_table
        seconds = np.where(stages < table.rows.pp[:, None], table.once_s(stages, counts), 0.0)
        classes, of = np.unique(self._ticks(seconds), axis=0, return_inverse=True)
        blocks = classes.reshape(len(classes), self.stages, len(vectors))
        nothing = (0,) * self.kinds
        listed = [
            [(c, *nothing, 0) for c in range(len(blocks))]
            + [(c, *v, int(b[s, i])) for c, b in enumerate(blocks) for i, v in enumerate(vectors)]
            for s in range(self.stages)
        ]
        return keyed(self.mesh.columns, of.reshape(-1, 1)), listed

    def hosts(self) -> tuple[Table, int]:
        """(by host, of those that differ, and stage how many devices of the stage it has; hosts)."""
        cluster = self.setting.cluster
        pairs = np.stack([self.mesh.placement_of, self.mesh.columns["pp"]], axis=1)
        distinct, of = np.unique(pairs, axis=0, return_inverse=True)
        found = [
            hosts_of(self.mesh.placements[p], cluster.levels, cluster.devices_per_host or 1, pp)
            for p, pp in distinct.tolist()
        ]
        most = max(map(len, found), default=0)
        shares = np.zeros((len(found), most, self.stages), np.int64)
        for i, hosts in enumerate(found):
            for h, counts in enumerate(hosts):
                shares[i, h, : len(counts)] = counts
        return keyed(self.mesh.columns, shares.reshape(len(found), -1)[of.ravel()]), most
