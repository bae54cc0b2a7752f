"""Exhaustive search: every layout, every cut into stages, every placement, each priced by the cost model.

Knows nothing of the optimizer. Loops over degrees are plain and nested, placements are listed here again, hosts
are found by walking the devices one by one. Only the price of a complete plan comes from the cost model.
Limits are those of the stated space: micro-batches equal, sp wherever tp (unless asked), other schedules only if asked,
a cp kind only where cp > 1 (with cp = 1 all kinds are one), and of policies without a name those that no other beats.
Here policies are alike on all stages; `mixed_oracle` gives every stage its own where the framework can.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from itertools import permutations, product

import numpy as np
from independent_rules import Candidate, broken, legal, may_offload, must_host, stage_sizes
from numpy.typing import NDArray
from tensor_oracle import Listed

from meshwright.costmodel.comm import PlacedComm
from meshwright.costmodel.estimate import stage_counts, step_seconds
from meshwright.costmodel.layout import CP_KINDS, OFFLOADS, Layout, Placement
from meshwright.costmodel.placement import groups_of
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.schedules import SCHEDULES
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.costmodel.tensors import HOST
from meshwright.hardware.network import Level, TorusAxis

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Degrees = tuple[int, int, int, int, int]  # in the order of DEGREES
DEGREES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")


@dataclass(frozen=True)
class Wishes:
    """The user's constraints as plain Python: on a candidate, on each kind's policy, on the offload class.

    Attributes:
        asks_schedule, asks_sp: whether other schedules and sp=false are in the space at all.
    """

    candidate: Callable[[Candidate], bool] = lambda x: True
    policy: Callable[[str], bool] = lambda p: True
    offload: Callable[[str], bool] = lambda o: True
    asks_schedule: bool = False
    asks_sp: bool = False


def candidates(setting: Setting, wishes: Wishes) -> Iterator[Candidate]:
    """All legal candidates, by loops over everything that could be one."""
    devices, layers = setting.cluster.devices, setting.model.layers
    experts = any(k.ffn.experts for k in setting.model.kinds)
    for sequences in setting.training.sequence_range:
        for tp, cp, dp_shard, dp_replicate, pp in _products(devices):
            if pp > layers or sequences % (dp_shard * dp_replicate):
                continue
            for micro_batch in range(1, sequences // (dp_shard * dp_replicate) + 1):
                for vpp, schedule, sp in _variants(layers, pp, tp, wishes):
                    simplest = Candidate(
                        dp_replicate,
                        dp_shard,
                        0,
                        cp,
                        "ring",
                        tp,
                        sp,
                        pp,
                        vpp,
                        schedule,
                        1,
                        1,
                        micro_batch,
                        sequences,
                    )
                    if set(broken(setting, simplest)) - {"well formed"}:
                        continue  # no choice of what is still open mends a rule that this breaks
                    stage = simplest.stage_devices
                    for zero, cp_kind, ep, etp in product(
                        (0, 1, 2, 3),
                        CP_KINDS if cp > 1 else ("ring",),
                        range(1, stage + 1) if experts else (1,),
                        {1, tp} if experts else (1,),
                    ):
                        for reshard in (True, False) if zero == 3 else (True,):
                            x = simplest._replace(zero=zero, cp_kind=cp_kind, ep=ep, etp=etp, reshard=reshard)
                            if legal(setting, x) and wishes.candidate(x):
                                yield x


@cache
def _products(devices: int) -> tuple[Degrees, ...]:
    """All five degrees with a product of at most `devices`."""
    out = []
    for tp in range(1, devices + 1):
        for cp in range(1, devices // tp + 1):
            for shard in range(1, devices // (tp * cp) + 1):
                for replicate in range(1, devices // (tp * cp * shard) + 1):
                    for pp in range(1, devices // (tp * cp * shard * replicate) + 1):
                        out.append((tp, cp, shard, replicate, pp))
    return tuple(out)


def _variants(layers: int, pp: int, tp: int, wishes: Wishes) -> Iterator[tuple[int, str, bool]]:
    """(vpp, schedule, sp)."""
    schedules = [(1, "1f1b")]
    if pp > 1:
        schedules += [(v, "interleaved") for v in range(2, layers + 1)]
        further = ((1, "gpipe"), (1, "zb_h1"), (1, "zb_h2"), (2, "dualpipev"))
        schedules += further if wishes.asks_schedule else ()
    for vpp, schedule in schedules:
        yield vpp, schedule, True
        if wishes.asks_sp and tp > 1:
            yield vpp, schedule, False


def priced_offloads(setting: Setting, wishes: Wishes) -> list[str]:
    """Offload classes of the space for which the cluster states every figure."""
    cluster = setting.cluster
    if cluster.host_memory_bytes is None or cluster.chip.host_link_bytes_per_s is None:
        return [o for o in ("none",) if wishes.offload(o)]
    priced = (o for o in OFFLOADS if cluster.cpu_update_params_per_s or "optimizer" not in o)
    return [o for o in priced if wishes.offload(o)]


def all_rows(setting: Setting, wishes: Wishes, by_tensor: bool = True) -> Rows:
    """Candidates with every policy of each kind and every offload class; named policies only if not `by_tensor`."""
    found = list(candidates(setting, wishes))
    names = Candidate._fields
    coded = [
        (*x[:4], CP_KINDS.index(x.cp_kind), *x[5:9], SCHEDULES.index(x.schedule), *x[10:]) for x in found
    ]
    base = np.array(coded, np.int64).reshape(len(found), len(names))
    kinds = len(setting.model.kinds)
    none = np.zeros((len(found), kinds), np.int64)
    columns = {n: base[:, i] for i, n in enumerate(names)}
    rows = Rows(**columns, policies=none, offload=np.zeros(len(found), np.int64))
    offloads = priced_offloads(setting, wishes)
    listed = Listed(setting, wishes.policy, by_tensor)
    of, policies, chosen = [], [], []
    for i in range(len(found)):
        for offload in (o for o in offloads if may_offload(setting, found[i], o)):
            host = "activations" in offload
            # Where layers may differ, one that keeps nothing on the host may stand beside one that does.
            plain = [False] if host and by_tensor and setting.framework.chooses else []
            ways = [
                [c for h in (host, *plain) for c in listed.of(rows[i : i + 1], k, h).tolist()]
                for k in range(kinds)
            ]
            each = list(product(*ways))
            of += [i] * len(each)
            policies += each
            chosen += [OFFLOADS.index(offload)] * len(each)
    return rows[np.array(of, np.int64)].with_columns(
        policies=np.array(policies, np.int64).reshape(len(of), kinds), offload=np.array(chosen, np.int64)
    )


def cuts_of(setting: Setting, pp: int, vpp: int, schedule: str) -> list[tuple[int, ...]]:
    """Every way to share the layers over pp stages."""
    sizes = stage_sizes(setting, pp, vpp, schedule)
    return [c for c in product(sizes, repeat=pp) if sum(c) == setting.model.layers]


@cache
def placements_of(degrees: Degrees, levels: tuple[Level, ...]) -> tuple[Placement, ...]:
    """Every placement, level by level outwards: what each degree takes here, in every order on a torus axis."""
    if not levels:
        return ((),) if all(d == 1 for d in degrees) else ()
    level, out = levels[0], []
    for factors in product(*(range(1, d + 1) for d in degrees)):
        if np.prod(factors) > level.size or any(d % f for d, f in zip(degrees, factors, strict=True)):
            continue
        left: Degrees = tuple(d // f for d, f in zip(degrees, factors, strict=True))  # type: ignore[assignment]
        here = [(n, f) for n, f in zip(DEGREES, factors, strict=True) if f > 1]
        orders = permutations(here) if isinstance(level, TorusAxis) else [tuple(here)]
        outside = placements_of(left, levels[1:])
        out += [(order, *rest) for order in orders for rest in outside]
    return tuple(out)


@cache
def hosts_of(
    placement: Placement, levels: tuple[Level, ...], per_host: int, pp: int
) -> tuple[tuple[int, ...], ...]:
    """For each host that differs: how many of its devices work for each stage.

    Devices are numbered along the levels, innermost fastest; consecutive ones share a host. Every device is
    visited once.
    """
    counts: dict[int, list[int]] = {}
    spots = []  # per level: (position on it, part of the stage number) of every used place
    stages_inside = 1
    for members in placement:
        places = []
        for digits in product(*(range(f) for _, f in reversed(members))):
            position, stride, stage = 0, 1, 0
            for (name, factor), digit in zip(members, reversed(digits), strict=True):
                position += digit * stride
                stride *= factor
                stage += digit * stages_inside if name == "pp" else 0
            places.append((position, stage))
        stages_inside *= dict(members).get("pp", 1)
        spots.append(places)
    for chosen in product(*spots):
        number, block = 0, 1
        for (position, _), level in zip(chosen, levels, strict=True):
            number += position * block
            block *= level.size
        counts.setdefault(number // per_host, [0] * pp)[sum(stage for _, stage in chosen)] += 1
    return tuple(sorted({tuple(c) for c in counts.values()}))


@dataclass(frozen=True)
class Batch:
    """Priced plans of one pp and vpp: rows with their placements, times cuts.

    Attributes:
        of: index of each placed row into the rows of the space, [N].
        seconds: for the nominal batch, [N, cuts].
        device_bytes: of the fullest stage, [N, cuts]. host_bytes: of the fullest host, [N, cuts].
    """

    of: Ints
    placements: list[Placement]
    placement_of: Ints
    cuts: list[tuple[int, ...]]
    seconds: Floats
    device_bytes: Floats
    host_bytes: Floats
    table: StageTable | None = None


@dataclass(frozen=True)
class Plan:
    """One complete plan."""

    row: Rows
    placement: Placement
    lengths: tuple[int, ...]
    seconds: float
    device_bytes: float
    host_bytes: float
    # (policy, layers) of each kind by stage, where stages may differ.
    mixes: tuple[tuple[tuple[tuple[int, int], ...], ...], ...] = ()


@dataclass(frozen=True)
class PricedSpace:
    """Everything there is, priced once: any capacity can be asked for afterwards."""

    setting: Setting
    rows: Rows
    batches: list[Batch]
    must_host: Bools  # rows that are plans only with a layer that keeps something on its host

    @property
    def plans(self) -> int:
        return sum(b.seconds.size for b in self.batches)

    def allowed(self, batch: Batch, capacity: float) -> Bools:
        host = self.setting.cluster.host_memory_bytes
        fits = (batch.device_bytes <= capacity) & (batch.host_bytes <= (np.inf if host is None else host))
        hosts = ~self.must_host | (self.rows.policies >> HOST > 0).any(axis=1)
        return fits & hosts[batch.of, None]

    def best(self, capacity: float) -> Plan | None:
        """The fastest plan that fits; None if none does."""
        return self._least(capacity, lambda b, fits: np.where(fits, b.seconds, np.inf))

    def best_even(self, capacity: float) -> Plan | None:
        """The fastest plan whose stages all hold the same number of layers."""
        return self._least(
            capacity,
            lambda b, fits: np.where(fits & [len(set(c)) == 1 for c in b.cuts], b.seconds, np.inf),
        )

    def leanest(self) -> Plan | None:
        """The plan that needs least device memory."""
        return self._least(np.inf, lambda b, fits: np.where(fits, b.device_bytes, np.inf))

    def least_bytes_at(self, seconds: float) -> float:
        """Least device memory of the plans that take at most `seconds`."""
        near = ((b, self.allowed(b, np.inf) & (b.seconds <= seconds)) for b in self.batches if b.seconds.size)
        return min((float(b.device_bytes[some].min(initial=np.inf)) for b, some in near), default=np.inf)

    def least_bytes_of(self, plan: Plan) -> float:
        """Least device memory of the plans that differ from one in policies alone."""
        least, own = np.inf, (*_but_policies(plan.row)[0], plan.placement)
        for b in self.batches:
            if b.seconds.size and plan.lengths in b.cuts:
                rows = _but_policies(self.rows[b.of])
                like = [(*r, b.placements[p]) == own for r, p in zip(rows, b.placement_of, strict=True)]
                least = min(least, b.device_bytes[like, b.cuts.index(plan.lengths)].min(initial=np.inf))
        return float(least)

    def best_of_rows(self, capacity: float) -> Floats:
        """Least seconds of each row over its placements and cuts; inf where none fits."""
        out = np.full(len(self.rows), np.inf)
        for b in self.batches:
            if b.seconds.size:
                np.minimum.at(out, b.of, np.where(self.allowed(b, capacity), b.seconds, np.inf).min(axis=1))
        return out

    def _least(self, capacity: float, score: Callable[[Batch, Bools], Floats]) -> Plan | None:
        best: tuple[float, Batch, int, int] | None = None
        for b in self.batches:
            if not b.seconds.size:
                continue
            scores = score(b, self.allowed(b, capacity))
            n, c = np.unravel_index(int(np.argmin(scores)), scores.shape)
            if np.isfinite(scores[n, c]) and (best is None or scores[n, c] < best[0]):
                best = (float(scores[n, c]), b, int(n), int(c))
        if best is None:
            return None
        _, b, n, c = best
        return Plan(
            self.rows[b.of[n : n + 1]], b.placements[b.placement_of[n]], b.cuts[c],
            float(b.seconds[n, c]), float(b.device_bytes[n, c]), float(b.host_bytes[n, c]),
        )  # fmt: skip


def _but_policies(rows: Rows) -> list[tuple[int, ...]]:
    names = [f.name for f in fields(rows) if f.name != "policies"]
    return list(zip(*(getattr(rows, n).tolist() for n in names), strict=True))


def price_everything(setting: Setting, wishes: Wishes) -> PricedSpace:
    rows = all_rows(setting, wishes)
    batches = []
    depths = np.stack([rows.pp, rows.vpp, rows.schedule], axis=1)
    for one in np.unique(depths, axis=0):
        index, (pp, vpp, code) = np.flatnonzero((depths == one).all(axis=1)), one.tolist()
        batches.append(_price(setting, rows, index, cuts_of(setting, pp, vpp, SCHEDULES[code])))
    must = np.array([must_host(setting, o, priced_offloads(setting, wishes)) for o in OFFLOADS])
    return PricedSpace(setting, rows, batches, must[rows.offload])


def _price(setting: Setting, rows: Rows, index: Ints, cuts: list[tuple[int, ...]]) -> Batch:
    levels = setting.cluster.levels
    known: dict[tuple[Placement, int, int], int] = {}  # communicators depend on no more than these
    keys = np.stack([getattr(rows, n)[index] for n in (*DEGREES, "ep", "etp")], axis=1)
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    options = []
    for *degrees, ep, etp in distinct.tolist():
        listed = placements_of(tuple(degrees), levels)
        options.append([known.setdefault((p, ep, etp), len(known)) for p in listed])
    many = np.array([len(o) for o in options])[inverse.ravel()]
    of = np.repeat(index, many)
    group = np.array([g for i in inverse.ravel() for g in options[i]], np.int64)
    placements = [p for p, _, _ in known]
    if not len(of):
        none = np.zeros((0, len(cuts)))
        return Batch(of, placements, group, cuts, none, none, none)
    ep, etp = (np.array([k[i] for k in known]) for i in (1, 2))
    groups = groups_of(placements, ep, etp)
    # Experts fill the innermost ranks exactly, or there is no such plan.
    whole = (groups.ep.size == ep)[group]
    of, group = of[whole], group[whole]
    placed = rows[of]
    table = StageTable.of(setting, placed, PlacedComm(setting.network, groups[group]))
    scale = setting.training.sequences / placed.sequences
    seconds, device, host = (np.zeros((len(of), len(cuts))) for _ in range(3))
    away = placed.offload > 0
    pp, vpp = int(placed.pp[0]), int(placed.vpp[0])
    for c, cut in enumerate(cuts):
        schedule = "interleaved" if vpp > 1 else "1f1b"
        one, stages = stage_counts(setting, [Layout(pp=pp, vpp=vpp, schedule=schedule, layers_per_stage=cut)])
        counts = np.broadcast_to(one, (len(of), *one.shape[1:]))
        seconds[:, c] = scale * step_seconds(table, stages, counts)
        device[:, c] = table.stage_bytes(stages, counts).max(axis=1)
        if away.any():
            host[:, c] = _fullest_host(setting, placements, group, table.host_bytes(stages, counts), pp)
    return Batch(of, placements, group, cuts, seconds, device, host, table)


def _fullest_host(
    setting: Setting, placements: list[Placement], group: Ints, stage_bytes: Floats, pp: int
) -> Floats:
    """Bytes on the fullest host of each placed row, from those that one device of each stage keeps there."""
    cluster, out = setting.cluster, np.zeros(len(group))
    for g in np.unique(group):
        members = np.array(hosts_of(placements[g], cluster.levels, cluster.devices_per_host or 1, pp), float)
        at = group == g
        out[at] = (stage_bytes[at] @ members.T).max(axis=1)
    return out
