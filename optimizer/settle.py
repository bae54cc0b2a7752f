"""Settle one placed plan: the layers of its stages, proven by the program of `optimizer.program`."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from meshwright.costmodel.comm import PlacedComm
from meshwright.costmodel.layout import OFFLOADS, Placement
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.hardware.errors import InputError, shown
from meshwright.optimizer.bounds import best_comm, per_batch
from meshwright.optimizer.cuts import Cuts, Units
from meshwright.optimizer.hosts import HostShare, host_shares
from meshwright.optimizer.program import CutResult, Entries, entries_of, solve_cut
from meshwright.optimizer.settled import Placed

# Cutoffs tried one after the other, as multiples of a plan's bound: few shares lie near it.
_ENDLESS = 2**62  # bytes that every share fits
_ROOM = (1.001, 1.02, 1.5, float("inf"))


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
        for name, least in (("runner_ups", 0), ("seed", 0), ("refinements", 1), ("batch_sizes", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name}={shown(value)} is not a whole number of at least {least}")
        if not isinstance(self.work_limit, int | float) or not 0 < self.work_limit < float("inf"):
            raise InputError(f"work_limit={shown(self.work_limit)} is not a number above 0")


@dataclass(frozen=True)
class Found:
    """A solved candidate: one row, its placement, the layers of its stages.

    `value_s` and `bound_s` are for the nominal batch; `slack_s` is what rounding in the solver can hide.
    """

    row: Rows
    placement: Placement
    lengths: tuple[int, ...]
    value_s: float
    bound_s: float
    slack_s: float


@dataclass
class Settler:
    """Settles plans of one question; remembers programs, and which rows no sharing of hosts can hold."""

    setting: Setting
    options: SolveOptions
    _hold: dict[tuple[Any, ...], bool] = field(default_factory=dict)
    _known: dict[tuple[Any, ...], CutResult] = field(default_factory=dict)

    def settle(self, plan: Placed, cutoff_s: float, bound_s: float) -> tuple[str, Found | None, float, float]:
        """(status, plan, bound, free bound) of one placed plan, in seconds of the nominal batch.

        `bound_s` is a bound on it, above `cutoff_s` it is of no use. The bound that comes back matters where the
        status is UNKNOWN or FEASIBLE, that is, where the work limit came first. The free bound holds for every plan
        that differs in policies alone and whose layers take as long or longer, whatever memory they need; 0 if unknown.
        """
        setting, row = self.setting, plan.rows
        units = Units.of(setting, int(row.vpp[0]))
        table = StageTable.of(setting, row, PlacedComm(setting.network, plan.groups))
        cuts = Cuts.of(table.costs, units)
        scale = float(per_batch(setting, row, np.ones(1))[0])
        result = self._best_cut(table, cuts, self.hosts(plan), cutoff_s / scale, bound_s / scale)
        bound = bound_s if result.status == "UNKNOWN" else result.bound_s * scale
        least = cutoff_s if result.status == "INFEASIBLE" else bound - result.slack_s * scale
        free = least if result.free and result.status in ("OPTIMAL", "INFEASIBLE") else 0.0
        if not result.lengths:
            return result.status, None, bound, free
        size = setting.model.layers // len(units)
        lengths = tuple(n * size for n in result.lengths)
        found = Found(row, plan.placement, lengths, result.value_s * scale, bound, result.slack_s * scale)
        return result.status, found, bound, free

    def hosts_hold(self, plan: Placed) -> bool:
        """Whether some cut keeps what is offloaded within the hosts' memory, however slow."""
        hosts = self.hosts(plan)
        if not hosts:
            return True
        key = (*(tuple(getattr(plan.rows, f.name).ravel().tolist()) for f in fields(plan.rows)), hosts)
        if key not in self._hold:
            setting, row = self.setting, plan.rows
            table = StageTable.of(setting, row, best_comm(setting, row))
            cuts = Cuts.of(table.costs, Units.of(setting, int(row.vpp[0])))
            entries = entries_of(table, cuts, float(cuts.total_s[0]) * 2, setting.capacity_bytes)
            result = self._solve(cuts, entries, self._ceiling(table, cuts), 0.0, hosts)
            self._hold[key] = result.status != "INFEASIBLE"
        return self._hold[key]

    def hosts(self, plan: Placed) -> tuple[HostShare, ...]:
        """How stages share hosts; nothing where no host keeps anything."""
        cluster = self.setting.cluster
        if OFFLOADS[int(plan.rows.offload[0])] == "none" or cluster.host_memory_bytes is None:
            return ()
        sizes = tuple(level.size for level in cluster.levels)
        return host_shares(plan.factors[0], plan.strides[0], sizes, cluster.devices_per_host or 1)

    def _best_cut(
        self, table: StageTable, cuts: Cuts, hosts: tuple[HostShare, ...], cutoff_s: float, bound_s: float
    ) -> CutResult:
        """Solve below the cutoff: first near the bound, since few entries lie there, then further up."""
        row = table.rows
        most, total = float(cuts.total_s[0]), float(cuts.total_s[0]) / float(row.vpp[0])
        rounds = float(row.micro_batches[0]) - 1.0 / float(row.vpp[0])
        floor = min(float(cuts.least_slowest(self.setting.capacity_bytes, 1e-5)[0]), most)
        cutoff_s = min(cutoff_s, self._ceiling(table, cuts))
        for room in _ROOM:
            trial = min(cutoff_s, room * bound_s)
            # A share slower than this is on no plan within the cutoff; the margin is for what rounding hides.
            slowest = most if rounds == 0 else min(most, max((trial - total) / rounds, floor))
            entries = entries_of(table, cuts, slowest * (1 + 1e-6), self.setting.capacity_bytes)
            result = self._solve(cuts, entries, trial, floor, hosts)
            if result.status != "INFEASIBLE" or trial == cutoff_s:
                break
        if hosts:
            return result
        return replace(
            result, free=len(entries_of(table, cuts, slowest * (1 + 1e-6), _ENDLESS)) == len(entries)
        )

    def _ceiling(self, table: StageTable, cuts: Cuts) -> float:
        """Seconds that no cut takes: every micro-batch through everything."""
        rounds = float(table.rows.micro_batches[0]) + 1.0
        return 1.01 * (rounds * float(cuts.total_s[0]) + float(table.once_most_s()[0]))

    def _solve(
        self, cuts: Cuts, entries: Entries, cutoff_s: float, floor_s: float, hosts: tuple[HostShare, ...]
    ) -> CutResult:
        """Solve, or recall: many placements of a row cost its stages the same."""
        row, arrays = cuts.rows, (getattr(entries, f.name) for f in fields(entries))
        numbers = (int(row.pp[0]), int(row.micro_batches[0]), int(row.vpp[0]), cutoff_s, floor_s)
        key = (*numbers, hosts, *(a.tobytes() for a in arrays))
        if key not in self._known:
            memory = float(self.setting.cluster.host_memory_bytes or 0)
            effort = (self.options.work_limit, self.options.seed)
            self._known[key] = solve_cut(cuts, entries, cutoff_s, floor_s, hosts, memory, *effort)
        return self._known[key]
