"""Policies that the layers of a stage may take, and what the stage leaves them.

Only policies matter that no other beats in seconds and in bytes saved on the device: bytes saved less are bytes needed
more while a layer runs backward, and every layer is in flight at least once.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.comm import PlacedComm
from meshwright.costmodel.memory import transient
from meshwright.costmodel.policy_front import unbeaten
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.costmodel.tensors import HOST, OPEN
from meshwright.optimizer.menus import Menus
from meshwright.optimizer.settled import Placed

Array = NDArray[Any]
Mix = tuple[tuple[int, int], ...]  # (policy, layers) of one kind
Pick = tuple[int, int, int]  # policies i and j, and how many layers take j
# Of a row's decisions, those that a layer's seconds and bytes do not depend on beside `splits` and the groups.
_ELSEWHERE = {"dp_replicate", "dp_shard", "zero", "pp", "vpp", "schedule", "sequences", "policies"}
_SHAPE = ("splits", *(f.name for f in fields(Rows) if f.name not in _ELSEWHERE))


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

    @property
    def hosts(self) -> Array:
        """Whether each keeps something on the host."""
        keeps: Array = self.codes >> HOST > 0
        return keeps

    def unbeaten(self, host: bool = False, hosting: bool = False) -> "Offer":
        """Those that no other beats, in host bytes too if `host`; fewest device bytes first.

        With `hosting` also those that keep something on the host that no other of these beats.
        """
        columns = np.stack([self.seconds, self.device, self.host * host], axis=1)
        order = np.lexsort(columns.T[::-1])
        kept = order[unbeaten(columns[order])]
        if hosting:
            order = order[self.hosts[order]]
            kept = np.union1d(kept, order[unbeaten(columns[order])])
        return self[kept[np.lexsort((self.seconds[kept], self.device[kept]))]]


@dataclass
class Offers:
    """Policies of each layer kind on placed rows, priced by the cost model; remembers what prices them."""

    setting: Setting
    menus: Menus
    _known: dict[tuple[Any, ...], Offer] = field(default_factory=dict)

    def of(self, plan: Placed, host: bool = False) -> tuple[Offer, ...]:
        """Of a placed row: those that no other beats, in host bytes too if `host`; where some layer must keep something on
        its host, also the best of those that do."""
        return tuple(self._of(plan, kind, host) for kind in range(plan.rows.policies.shape[1]))

    def _of(self, plan: Placed, kind: int, host: bool) -> Offer:
        key = kind, host, *_priced_by(plan, kind)
        if key not in self._known:
            hosting = self.menus.must_host(int(plan.rows.offload[0]))
            self._known[key] = self._priced(plan, kind).unbeaten(host, hosting)
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
        room: bytes beside ends and state. beside: while the vision tower or the loss runs; 0 on stages without.
        held, kept: micro-batches in flight, and bytes of weight gradients still to run, when stages are fullest, [E, peaks].
        host: bytes that all layers of a stage may keep on the host per micro-batch; inf where that is no matter.
        gathers: bytes of the row, a scalar.
    """

    room: Array
    held: Array
    kept: Array
    beside: Array
    host: Array
    gathers: float

    def __getitem__(self, index: Any) -> "Room":
        room, held, kept, beside, host = (
            x[index] for x in (self.room, self.held, self.kept, self.beside, self.host)
        )
        return Room(room, held, kept, beside, host, self.gathers)

    def times(self, count: int) -> "Room":
        """A single stage so many times."""
        some = np.zeros(count, np.int64)
        return self[some]

    def for_saved(self, working: Array) -> Array:
        """Bytes that all layers of each stage may save per micro-batch where the heaviest needs `working`, [E, ...]."""
        extra = working.shape[1:]
        flat = working.reshape(len(self.room), -1)
        taken = transient(flat, np.full(len(flat), self.gathers), self.beside[:, None])
        room, peaks = self.room[:, None] - taken, zip(self.held.T, self.kept.T, strict=True)
        each = [(room - kept[:, None]) / held[:, None] for held, kept in peaks]
        left: Array = (each[0] if len(each) == 1 else np.min(each, axis=0)).reshape(len(self.room), *extra)
        return left


def mix_of_pick(offer: Offer, layers: int, i: int, j: int, k: int) -> Mix:
    pairs = ((int(offer.codes[i]), layers - k), (int(offer.codes[j]), k))
    return tuple((code, n) for code, n in pairs if n)


def points_of(offer: Offer, layers: int, picks: list[Pick] | Array) -> Array:
    """Seconds, bytes on the device, on the host, and working, of mixes; [picks, 4]."""
    i, j, k = np.asarray(picks).T
    columns = [(layers - k) * x[i] + k * x[j] for x in (offer.seconds, offer.device, offer.host)]
    heavy = np.maximum(offer.working[i], np.where(k > 0, offer.working[j], 0.0))
    return np.stack([*columns, heavy], axis=1)
