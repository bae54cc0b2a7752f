"""How many legal layouts each shape has, without listing them shape by shape.

A legal layout is a row of the layout space: degrees, their kinds, micro-batch, chunks, ZeRO level, named recompute
policy (choices by tensor are not counted) and offload that obey every rule of `costmodel.legal`, every constraint, and whose degrees the network holds. Frames are
listed once for each number of layers on a model that any tp cuts; which of them a shape allows, and what experts
and sharding make of them, is asked of the space itself on the few distinct degrees of all numbers together.
"""

from collections.abc import Mapping
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
from meshwright.optimizer.queue import concatenate
from meshwright.optimizer.space import Space, frames, with_experts, with_offload, with_sharding
from meshwright.search.architecture import Ends, model_of
from meshwright.search.shape import Ints, Shapes
from meshwright.search.trained.floors import replace_model


@dataclass(frozen=True)
class _Frames:
    """Distinct degrees of the legal frames of every number of layers, and how many frames of each number have them.

    Attributes:
        rows: in order of `key`, [F]. count: by layers, [F]; 0 where no frame of so many layers has them.
    """

    rows: Rows
    key: Ints
    count: Mapping[int, Ints]


@dataclass
class Pairs:
    """Counts legal layouts of shapes; remembers those of shapes that the rules cannot tell apart."""

    given: Setting
    shapes: Shapes
    ends: Ends
    wishes: tuple[Constraint, ...]

    def __post_init__(self) -> None:
        self._known: dict[tuple[Any, ...], Ints] = {}
        self._sharded: dict[tuple[int, int, bool], int] = {}

    def total(self) -> int:
        """Of all shapes together."""
        return sum(self.of(row) for row in range(len(self.shapes)))

    def of(self, row: int) -> int:
        """Of one shape."""
        model = model_of(self.shapes, row, self.ends)
        frame, kind = self._frames, model.kinds[0]
        tps = np.unique(frame.rows.tp)
        widths = (kind.ffn.width, kind.ffn.expert_width)
        cuts = tuple((width % tps == 0).tobytes() for width in widths)
        key = (kind.attention.heads, kind.attention.kv_heads, kind.ffn.experts, cuts)
        space = Space(replace_model(self.given, model), self.wishes)
        if key not in self._known:
            self._known[key] = self._ways(frame, space)
        rows = int((frame.count[model.layers] * self._known[key]).sum())
        return rows * int(len(space.policies) ** len(model.kinds))

    @cached_property
    def _frames(self) -> _Frames:
        numbers, of_row = np.unique(self.shapes.layers, return_index=True)
        listed = [self._list(int(row)) for row in of_row]
        rows = concatenate(listed)
        key, first, of = np.unique(_key(rows), return_index=True, return_inverse=True)
        ends = np.cumsum([0, *map(len, listed)])
        count = {
            int(n): np.bincount(of[ends[i] : ends[i + 1]], minlength=len(key)) for i, n in enumerate(numbers)
        }
        one = np.ones(len(first), np.int64)
        # Rules on what the rows share were asked when they were listed; the rest reads no stages and no micro-batches.
        return _Frames(rows[first].with_columns(pp=one, vpp=one, micro_batch=one), key, count)

    def _list(self, row: int) -> Rows:
        """Frames of a dense model of a shape's layers that every tp of any shape cuts."""
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
        return rows[np.array(fits, bool)[of.ravel()]] if len(rows) else rows

    def _ways(self, frame: _Frames, space: Space) -> Ints:
        """Ways to go on from each of the degrees, stages and policies aside, [F]."""
        out = np.zeros(len(frame.key), np.int64)
        rows = with_experts(space, frame.rows, Funnel())
        if not len(rows):
            return out
        rows = rows[best_comm(space.setting, rows).placeable("ep")]
        mixture = any(k.ffn.experts for k in space.setting.model.kinds)
        copies = (rows.edp > 1) & mixture
        _, first, of = np.unique(
            (rows.dp_replicate << 20 | rows.cp) << 1 | copies, return_index=True, return_inverse=True
        )
        splits = np.array([self._splits(space, rows[i : i + 1], bool(copies[i])) for i in first], np.int64)
        np.add.at(out, np.searchsorted(frame.key, _key(rows)), splits[of])
        return out

    def _splits(self, space: Space, row: Rows, copies: bool) -> int:
        """Splits of dp with a ZeRO level and what each may offload; they know of dp and cp, and whether other ranks
        of a stage hold the same experts."""
        key = (int(row.dp_replicate[0]), int(row.cp[0]), copies)
        if key not in self._sharded:
            rows = with_offload(space, row, Funnel())
            self._sharded[key] = len(with_sharding(space, rows, Funnel())[1]) if len(rows) else 0
        return self._sharded[key]


def _key(rows: Rows) -> Ints:
    """One number for what rules beyond a frame's own read: data, context and tensor degrees, sp."""
    return ((rows.dp_replicate << 20 | rows.cp) << 20 | rows.tp) << 1 | rows.sp
