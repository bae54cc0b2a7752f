"""How many legal layouts each shape has, without listing them shape by shape.

A legal layout is a row of the layout space: degrees, their kinds, micro-batch, chunks, ZeRO level, recompute and
offload that obey every rule of `costmodel.legal`, every constraint, and whose degrees the network holds. Frames are
listed once for each number of layers on a model that any tp cuts; which of them a shape allows, and what experts
and sharding make of them, is asked of the space itself on the few distinct degrees.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np

from meshwright.costmodel.model import Attention, Ffn
from meshwright.costmodel.placement import placeable
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.optimizer.bounds import best_comm
from meshwright.optimizer.constraints import Constraint
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.space import Space, frames, with_experts, with_sharding
from meshwright.search.architecture import Ends, model_of
from meshwright.search.shape import Ints, Shapes
from meshwright.search.trained.floors import replace_model


@dataclass(frozen=True)
class _Frames:
    """Distinct degrees of the legal frames of one number of layers, and how many frames have them."""

    rows: Rows
    count: Ints

    @cached_property
    def key(self) -> Ints:
        return _key(self.rows)


@dataclass
class Pairs:
    """Counts legal layouts of shapes; remembers those of shapes that the rules cannot tell apart."""

    given: Setting
    shapes: Shapes
    ends: Ends
    wishes: tuple[Constraint, ...]

    def __post_init__(self) -> None:
        self._frames: dict[int, _Frames] = {}
        self._known: dict[tuple[Any, ...], int] = {}
        self._sharded: dict[tuple[int, int], int] = {}

    def total(self) -> int:
        """Of all shapes together."""
        return sum(self.of(row) for row in range(len(self.shapes)))

    def of(self, row: int) -> int:
        """Of one shape."""
        model = model_of(self.shapes, row, self.ends)
        if model.layers not in self._frames:
            self._frames[model.layers] = self._list(model.layers, row)
        frame, kind = self._frames[model.layers], model.kinds[0]
        tps = np.unique(frame.rows.tp)
        widths = (kind.ffn.width, kind.ffn.expert_width)
        cuts = tuple((width % tps == 0).tobytes() for width in widths)
        key = (model.layers, kind.attention.heads, kind.attention.kv_heads, kind.ffn.experts, cuts)
        if key not in self._known:
            self._known[key] = self._count(frame, Space(replace_model(self.given, model), self.wishes))
        return self._known[key]

    def _list(self, layers: int, row: int) -> _Frames:
        """Frames of a dense model of so many layers that every tp of any shape cuts."""
        model = model_of(self.shapes, row, self.ends)
        wide = lcm(*np.unique(self.shapes.heads).tolist())
        kind = replace(
            model.kinds[0], attention=Attention(wide, wide, 1, 1), ffn=Ffn(wide, gated=True), weights=()
        )
        space = Space(replace_model(self.given, replace(model, kinds=(kind,))), self.wishes)
        rows = frames(space, Funnel(), space.batches)
        sizes = tuple(level.size for level in self.given.cluster.levels)
        degrees = np.stack([rows.dp, rows.tp, rows.cp, rows.pp], axis=1)
        distinct, of = np.unique(degrees, axis=0, return_inverse=True)
        fits = [
            placeable(tuple(sorted((d for d in row if d > 1), reverse=True)), sizes)
            for row in distinct.tolist()
        ]
        rows = rows[np.array(fits, bool)[of.ravel()]] if len(rows) else rows
        _, first, count = np.unique(_key(rows), return_index=True, return_counts=True)
        one = np.ones(len(first), np.int64)
        # Rules on what the rows share were asked above; the rest reads no stages and no micro-batches.
        return _Frames(rows[first].with_columns(pp=one, vpp=one, micro_batch=one), count)

    def _count(self, frame: _Frames, space: Space) -> int:
        rows = with_experts(space, frame.rows, Funnel())
        if not len(rows):
            return 0
        rows = rows[best_comm(space.setting, rows).placeable("ep")]
        frames_of = frame.count[np.searchsorted(frame.key, _key(rows))]
        ways = np.array([self._splits(space, rows[i : i + 1]) for i in range(len(rows))], np.int64)
        kinds = len(space.setting.model.kinds)
        return int((frames_of * ways).sum()) * len(space.offloads) * int(len(space.policies) ** kinds)

    def _splits(self, space: Space, row: Rows) -> int:
        """Splits of dp with a ZeRO level; they know of dp and cp only."""
        key = (int(row.dp_replicate[0]), int(row.cp[0]))
        if key not in self._sharded:
            self._sharded[key] = len(with_sharding(space, row, Funnel())[1])
        return self._sharded[key]


def _key(rows: Rows) -> Ints:
    """One number for what rules beyond a frame's own read: data, context and tensor degrees, sp."""
    return ((rows.dp_replicate << 20 | rows.cp) << 20 | rows.tp) << 1 | rows.sp
