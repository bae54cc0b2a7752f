"""Candidates as columns: one row per layout, one array per decision.

A single estimate is a table of one row, so every formula has one implementation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.lanes import Lanes
from meshwright.costmodel.layout import CP_KINDS, Layout
from meshwright.costmodel.offloads import OFFLOADS
from meshwright.costmodel.schedules import ALL, SCHEDULES
from meshwright.costmodel.setting import Setting

Ints = NDArray[np.int64]
# Whether each offload class keeps a kind of tensor on the host.
_AWAY = {
    what: np.array([what in offload.split("+") for offload in OFFLOADS])
    for what in ("optimizer", "gradients", "parameters", "activations")
}
_SMALL = 1 << 20  # up to here a table of all values is cheaper than a sort


_SCHEDULE_COLUMNS = {
    name: np.array([getattr(s, name) for s in ALL])
    for name in ("splits", "turns", "hides_weight", "hides_forward")
}
_LEAST_ROUNDS = np.array([s.least_rounds for s in ALL])


def of_schedule(name: str, schedule: Ints) -> NDArray[Any]:
    """An attribute of the schedule of each row; `schedule` are indices into SCHEDULES."""
    values: NDArray[Any] = _SCHEDULE_COLUMNS[name][schedule]
    return values


def least_micro_batches(schedule: Ints, pp: Ints) -> Ints:
    """Micro-batches that a schedule needs."""
    least: Ints = _LEAST_ROUNDS[schedule, 0] * pp - _LEAST_ROUNDS[schedule, 1]
    return least


def distinct_values(values: Ints) -> tuple[Ints, Ints]:
    """(distinct values ascending, index of each value among them): `np.unique` without sorting a long column."""
    if not len(values) or values.min() < 0 or values.max() > _SMALL:
        unique, inverse = np.unique(values, return_inverse=True)
        return unique, inverse
    seen = np.zeros(int(values.max()) + 1, bool)
    seen[values] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[values]


@dataclass(frozen=True)
class Rows:
    """Decisions of R candidates; every array has shape [R], `policies` [R, lanes] (`costmodel.lanes`).

    `cp_kind`, `schedule` and `offload` are indices into CP_KINDS, SCHEDULES and OFFLOADS, `policies` codes of
    `costmodel.tensors`, which say of every tensor where it goes; `reshard` and `sp` are 0 or 1. Everything else means
    what it means in `Layout`.
    """

    dp_replicate: Ints
    dp_shard: Ints
    zero: Ints
    reshard: Ints
    cp: Ints
    cp_kind: Ints
    tp: Ints
    sp: Ints
    pp: Ints
    vpp: Ints
    schedule: Ints
    ep: Ints
    etp: Ints
    micro_batch: Ints
    sequences: Ints
    policies: Ints
    offload: Ints

    def __len__(self) -> int:
        return len(self.tp)

    def __getitem__(self, index: Any) -> "Rows":
        """Rows at an index array or mask."""
        return Rows(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def with_columns(self, **columns: Ints) -> "Rows":
        return Rows(**{f.name: columns.get(f.name, getattr(self, f.name)) for f in fields(self)})

    @staticmethod
    def of(layouts: Sequence[Layout], setting: Setting) -> "Rows":
        """Columns of given layouts."""

        def column(pick: Any) -> Ints:
            return np.array([pick(x) for x in layouts], np.int64)

        direct: Mapping[str, Ints] = {
            name: column(lambda x, name=name: getattr(x, name))
            for name in (
                "dp_replicate",
                "dp_shard",
                "zero",
                "cp",
                "tp",
                "pp",
                "vpp",
                "ep",
                "etp",
                "micro_batch",
            )
        }
        return Rows(
            **direct,
            cp_kind=column(lambda x: CP_KINDS.index(x.cp_kind)),
            reshard=column(lambda x: int(x.reshard)),
            sp=column(lambda x: int(x.sp)),
            schedule=column(lambda x: SCHEDULES.index(x.schedule)),
            sequences=column(lambda x: x.sequences or setting.training.sequences),
            policies=Lanes.of(setting.model, layouts).policies,
            offload=column(lambda x: OFFLOADS.index(x.offload)),
        )

    @property
    def dp(self) -> Ints:
        return self.dp_replicate * self.dp_shard

    @property
    def stage_devices(self) -> Ints:
        return self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def devices(self) -> Ints:
        return self.stage_devices * self.pp

    @property
    def edp(self) -> Ints:
        """Copies of an expert inside a stage."""
        return self.stage_devices // (self.ep * self.etp)

    @property
    def shard(self) -> Ints:
        """Ranks over which ZeRO acts."""
        return self.dp_shard * self.cp

    @property
    def micro_batches(self) -> Ints:
        return self.sequences // (self.dp * self.micro_batch)

    @property
    def spread(self) -> Ints:
        """Ways the residual stream is split over tp."""
        return np.where(self.sp > 0, self.tp, 1)

    @property
    def splits(self) -> NDArray[np.bool_]:
        """Whether weight gradients run apart from input gradients."""
        return of_schedule("splits", self.schedule)

    @property
    def last_stage(self) -> Ints:
        """The stage that holds the head."""
        return np.where(of_schedule("turns", self.schedule), 0, self.pp - 1)

    def offloads(self, what: str) -> NDArray[np.bool_]:
        """Whether each row keeps `what` (one word of an offload class) in host memory; of activations its policies say
        which."""
        return _AWAY[what][self.offload]

    def tokens(self, seq_len: int) -> Ints:
        """Tokens of one micro-batch in one tp group."""
        return self.micro_batch * seq_len // self.cp
