"""Settle one placed plan: the layers of its stages, proven by the program of `optimizer.program`."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.comm import PlacedComm
from meshwright.costmodel.hosts import HostShare, host_shares, stage_rooms
from meshwright.costmodel.layout import Placement
from meshwright.costmodel.offloads import OFFLOADS
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.hardware.errors import InputError, shown
from meshwright.hardware.numbers import is_number, is_whole, make_plain
from meshwright.optimizer.bounds import per_batch
from meshwright.optimizer.cuts import Cuts
from meshwright.optimizer.entries import Entries, entries_of, no_entries
from meshwright.optimizer.lines import lines_of
from meshwright.optimizer.menus import Menus
from meshwright.optimizer.offers import Mix, Offer, Offers
from meshwright.optimizer.program import CutResult, solve_cut
from meshwright.optimizer.proven import Proven, compared
from meshwright.optimizer.settled import Placed
from meshwright.optimizer.units import Units

Array = NDArray[Any]

# Prices of memory by which open policies are bounded.
_PRICES = 14
# Cutoffs tried one after the other, as multiples of a plan's bound: few shares lie near it.
_ROOM = (1.005, 1.05, 1.5, float("inf"))
_MOST = 2**31 - 1  # of whole numbers, the seed of the solver among them
# A cutoff within this multiple is tried at once.
_CLOSE = 1.02


@dataclass(frozen=True)
class SolveOptions:
    """Effort, in solver work rather than seconds: the same options give the same answer on any machine.

    Attributes:
        runner_ups: plans beside the best, each different in what a user sees.
        work_limit: deterministic CP-SAT work for one candidate.
        refinements: lots of candidates refined at most, for each lot of batch sizes; what is open then bounds the
            answer.
        batch_sizes: batches of a tolerance considered: the one asked for, and those with most divisors.
    """

    runner_ups: int = 3
    work_limit: float = 10.0
    seed: int = 0
    refinements: int = 2500
    batch_sizes: int = 16

    def __post_init__(self) -> None:
        make_plain(self)
        for name, least in (("runner_ups", 0), ("seed", 0), ("refinements", 1), ("batch_sizes", 1)):
            value = getattr(self, name)
            if not is_whole(value) or value < least:
                raise InputError(f"{name}={shown(value)} is not a whole number of at least {least}")
            if value > _MOST:
                raise InputError(f"{name}={shown(value)} is more than {_MOST}")
        limit = self.work_limit
        if not is_number(limit) or limit <= 0:
            raise InputError(f"work_limit={shown(self.work_limit)} is not a number above 0")


@dataclass(frozen=True)
class Found:
    """A solved candidate: one row, its placement, the layers of its stages and their policies.

    `value_s` and `bound_s` are for the nominal batch; `slack_s` is what rounding in the solver can hide. `mixes` has
    (policy, layers) of each kind by stage.
    """

    row: Rows
    placement: Placement
    lengths: tuple[int, ...]
    mixes: tuple[tuple[Mix, ...], ...]
    value_s: float
    bound_s: float
    slack_s: float


@dataclass(frozen=True)
class _Stages:
    """One placed row, ready to be cut."""

    table: StageTable
    cuts: Cuts
    plan: Placed
    offers: tuple[Offer, ...]
    hosts: tuple[HostShare, ...]

    @property
    def most_s(self) -> float:
        """Seconds that no step takes: every micro-batch through everything, with the slowest policies."""
        layers = self.cuts.units.prefix[-1]
        each = [float(o.seconds.max(initial=0.0)) for o in self.offers]
        slowest = float(layers @ np.array(each))
        rounds = float(self.table.rows.micro_batches[0]) + 1.0
        total = float(self.cuts.total_s[0]) + slowest
        return 1.01 * (rounds * total + float(self.table.once_most_s()[0]))


@dataclass
class Settler:
    """Settles plans of one question; remembers programs."""

    setting: Setting
    options: SolveOptions
    menus: Menus
    host_short: bool = False  # some plan that the devices hold overfills hosts
    unlisted: bool = False  # short hosts left some plan more mixes of policies than were looked at
    _known: dict[tuple[Any, ...], CutResult] = field(default_factory=dict)
    _proven: Proven = field(default_factory=Proven)
    _units_of: dict[tuple[int, int, int], Units] = field(default_factory=dict)

    def _units(self, row: Rows) -> Units:
        key = int(row.vpp[0]), int(row.pp[0]), int(row.schedule[0])
        if key not in self._units_of:
            self._units_of[key] = Units.of_rows(self.setting, row)
        return self._units_of[key]

    @cached_property
    def _offers(self) -> Offers:
        return Offers(self.setting, self.menus)

    def settle(self, plan: Placed, cutoff_s: float, bound_s: float) -> tuple[str, Found | None, float]:
        """(status, plan, bound) of one placed plan, in seconds of the nominal batch.

        `bound_s` is a bound on it, above `cutoff_s` it is of no use. The bound that comes back matters where the
        status is UNKNOWN or FEASIBLE, that is, where the work limit came first.
        """
        setting, row = self.setting, plan.rows
        table = StageTable.of(setting, row, PlacedComm(setting.network, plan.groups))
        units = self._units(row)
        offers, hosts = self._offers.of(plan), self.hosts(plan)
        if not all(map(len, offers)):
            return "INFEASIBLE", None, bound_s
        scale = float(per_batch(setting, row, np.ones(1))[0])
        like = None if hosts else compared(table, offers, units)
        if like is not None and self._proven.floor_s(*like) >= cutoff_s / scale:
            return "INFEASIBLE", None, bound_s
        lines = lines_of(self.menus, table, table.costs, np.zeros(1, np.int64), _PRICES)
        stages = _Stages(table, Cuts.of(table.costs, units, lines), plan, offers, hosts)
        result, entries = self._best_cut(stages, cutoff_s / scale, bound_s / scale)
        if like is not None and result.status in ("OPTIMAL", "INFEASIBLE"):
            self._proven.add(*like, min(result.value_s, cutoff_s / scale))
        bound = bound_s if result.status == "UNKNOWN" else result.bound_s * scale
        if not result.lengths:
            return result.status, None, bound
        size = setting.model.layers // len(units)
        lengths = tuple(n * size for n in result.lengths)
        mixes = tuple(entries.mixes[e] for e in result.chosen)
        slack = result.slack_s * scale
        found = Found(row, plan.placement, lengths, mixes, result.value_s * scale, bound, slack)
        return result.status, found, bound

    def hosts(self, plan: Placed) -> tuple[HostShare, ...]:
        """How stages share hosts; nothing where no host keeps anything."""
        cluster = self.setting.cluster
        if OFFLOADS[int(plan.rows.offload[0])] == "none" or cluster.host_memory_bytes is None:
            return ()
        return host_shares(cluster, plan.factors[0], plan.strides[0])

    def _best_cut(self, stages: _Stages, cutoff_s: float, bound_s: float) -> tuple[CutResult, Entries]:
        """Solve below the cutoff: first near the bound, since few entries lie there, then further up."""
        cuts = stages.cuts
        floor = float(cuts.least_slowest(self.setting.capacity_bytes, 3e-5)[0])
        if not np.isfinite(floor):
            return CutResult("INFEASIBLE", (), np.inf, np.inf, 0.0), no_entries()
        cutoff_s = min(cutoff_s, stages.most_s)
        for room in _ROOM:
            trial = cutoff_s if cutoff_s < _CLOSE * bound_s else min(cutoff_s, room * bound_s)
            result, entries = self._within(stages, trial, floor)
            if result.status != "INFEASIBLE" or trial == cutoff_s:
                break
        return result, entries

    def _within(self, stages: _Stages, trial_s: float, floor_s: float) -> tuple[CutResult, Entries]:
        """Solve with the entries that plans within some seconds can use."""
        cuts = stages.cuts
        rounds, share, beside = (float(x[0]) for x in cuts.weighted)
        total, hidden = float(cuts.total_s[0]), float(cuts.costs.hidden_s[0])
        # A share slower than this is on no plan within the cutoff; the margin is for what rounding hides.
        spare = max((trial_s + hidden - share * total) / rounds, floor_s) if rounds else trial_s
        slowest = spare * (1 + 1e-6)
        together = (trial_s * (1 + 1e-6) - rounds * floor_s - beside) / share
        result, entries = self._listed(stages, trial_s, floor_s, slowest, together, hosting=False)
        if not (result.chosen and self.menus.must_host(int(stages.table.rows.offload[0]))):
            return result, entries
        if entries.hosting[list(result.chosen)].any():
            return result, entries
        return self._listed(stages, trial_s, floor_s, slowest, together, hosting=True)

    def _listed(
        self, stages: _Stages, trial_s: float, floor_s: float, slowest: float, together: float, hosting: bool
    ) -> tuple[CutResult, Entries]:
        """Solve with shares that take at most `slowest` seconds; hosts count where they do not hold what is fastest."""
        entries = self._entries(stages, stages.offers, slowest, together, hosting=hosting)
        apart = self._solve(stages.cuts, entries, trial_s, floor_s, (), hosting)
        if not apart.chosen or _hold(stages.hosts, entries.host[list(apart.chosen)], self._host_bytes):
            return apart, entries
        self.host_short = True
        every = self._offers.of(stages.plan, host=True)
        if all(len(shares) == 1 for shares in stages.hosts):
            rooms = stage_rooms(stages.hosts, self._host_bytes, int(stages.table.rows.pp[0]))
            entries = self._entries(stages, every, slowest, together, rooms, hosting=hosting)
            return self._bounded(stages.cuts, entries, trial_s, floor_s, hosting)
        entries = self._entries(stages, every, slowest, together, shares_hosts=True, hosting=hosting)
        result = self._solve(stages.cuts, entries, trial_s, floor_s, stages.hosts, hosting)
        if entries.whole:
            return result, entries
        self.unlisted = True
        return _left_open(result, apart.bound_s), entries

    def _bounded(
        self, cuts: Cuts, entries: Entries, trial_s: float, floor_s: float, hosting: bool
    ) -> tuple[CutResult, Entries]:
        """Solve with the mixes that were found, and where those may not be the fastest, with the least they might take."""
        found = entries if entries.exact else entries[np.isfinite(entries.seconds)]
        result = self._solve(cuts, found, trial_s, floor_s, (), hosting)
        if entries.exact:
            return result, entries
        self.unlisted = True
        below = self._solve(cuts, replace(entries, seconds=entries.least), trial_s, floor_s, (), hosting)
        return below if below.status == "INFEASIBLE" else _left_open(result, below.bound_s), found

    @property
    def _host_bytes(self) -> float:
        return float(self.setting.cluster.host_memory_bytes or 0)

    def _entries(
        self,
        stages: _Stages,
        offers: tuple[Offer, ...],
        slowest: float,
        total: float,
        rooms: Array | None = None,
        shares_hosts: bool = False,
        *,
        hosting: bool,
    ) -> Entries:
        capacity = self.setting.capacity_bytes
        return entries_of(
            stages.table, stages.cuts, offers, slowest, total, capacity, rooms, shares_hosts, hosting
        )

    def _solve(
        self, cuts: Cuts, entries: Entries, cutoff_s: float, floor_s: float, hosts: tuple[HostShare, ...],
        hosting: bool,
    ) -> CutResult:  # fmt: skip
        """Solve, or recall: many placements of a row cost its stages the same."""
        row = cuts.rows
        counts = (int(getattr(row, n)[0]) for n in ("pp", "micro_batches", "vpp", "schedule"))
        numbers = (*counts, float(cuts.costs.hidden_s[0]), cutoff_s, floor_s)
        hosted = entries.hosting.tobytes() if hosting else b""
        key = (*numbers, hosts, hosted, *(a.tobytes() for a in entries.arrays()))
        if key not in self._known:
            effort = (self.options.work_limit, self.options.seed, hosting)
            self._known[key] = solve_cut(cuts, entries, cutoff_s, floor_s, hosts, self._host_bytes, *effort)
        return self._known[key]


def _left_open(result: CutResult, bound_s: float) -> CutResult:
    """What was solved to its end without everything in it; no plan takes less than `bound_s`."""
    status = {"OPTIMAL": "FEASIBLE", "INFEASIBLE": "UNKNOWN"}.get(result.status, result.status)
    return replace(result, status=status, bound_s=bound_s)


def _hold(hosts: tuple[HostShare, ...], kept: Array, room: float) -> bool:
    """Whether hosts of `room` bytes hold what one device of each stage keeps there."""
    return all(sum(count * kept[stage] for stage, count in shares) <= room for shares in hosts)
