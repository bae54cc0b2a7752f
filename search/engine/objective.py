"""What is made least, as tables of one width: the loss of a law, or a cost.

A score is `fixed(l) + ffn(l, f) + scale(l) attention(a) + joint(l, f, a)`, and the value asked for rises with it. The
joint part is bounded from the least and most parameters that an option of attention can add (`engine.pieces`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from meshwright.search.engine.parts import ACTIVATIONS, LAW_SIZES
from meshwright.search.engine.pieces import OF_ATTENTION, OF_FFN, SIZES, Piece, Split, joint_pieces
from meshwright.search.engine.table import Table
from meshwright.search.law_columns import Column, Columns
from meshwright.search.shape import Array, Floats, Ints

T = TypeVar("T")
_SAMPLES = 5  # along a size, at every shape sampled
_SAMPLED = 4096  # options of feed-forward at most, over all tables


class Objective(ABC):
    """A score on one table."""

    def __init__(self, table: Table) -> None:
        self.table = table

    @abstractmethod
    def separable(self, layers: Ints) -> Floats:
        """fixed + ffn, [L, F]."""

    @property
    @abstractmethod
    def attention(self) -> Floats:
        """[A]."""

    def scale(self, layers: Ints) -> Floats:
        """[L]."""
        return np.ones(len(layers))

    @abstractmethod
    def joint_least(self, layers: Ints, lowest: Floats, highest: Floats) -> Floats | float:
        """Below the joint part, [L, F], where attention adds between `lowest` and `highest` parameters, [L, F]."""

    @abstractmethod
    def joint(self, layers: int, ffn: Array, attention: Array) -> Floats | float:
        """The joint part of options that broadcast."""

    def value(self, score: Array) -> Floats:
        """What the score stands for."""
        return np.asarray(score)


class Cost(Objective):
    """A resource, or its negative where the most is asked for (sign -1)."""

    def __init__(self, table: Table, resource: str, sign: int) -> None:
        super().__init__(table)
        self.resource, self.sign = resource, sign

    def separable(self, layers: Ints) -> Floats:
        layer = layers[:, None] * self.table.ffn[self.resource]
        return np.asarray(self.sign * (self.table.ends[self.resource] + layer))

    @property
    def attention(self) -> Floats:
        return np.asarray(self.sign * self.table.attention[self.resource])

    def scale(self, layers: Ints) -> Floats:
        return layers.astype(float)

    def joint_least(self, layers: Ints, lowest: Floats, highest: Floats) -> Floats | float:
        if self.resource != "memory_bytes":
            return 0.0
        beside = self.table.attention[ACTIVATIONS]
        wide = np.maximum(self.table.ffn[ACTIVATIONS], beside.min() if self.sign > 0 else beside.max())
        return np.asarray(self.sign * wide)

    def joint(self, layers: int, ffn: Array, attention: Array) -> Floats | float:
        if self.resource != "memory_bytes":
            return 0.0
        beside = self.table.attention[ACTIVATIONS][attention]
        return np.asarray(self.sign * np.maximum(self.table.ffn[ACTIVATIONS][ffn], beside))


class Loss(Objective):
    """The loss of a law; the score is what its terms sum to, log10 of the loss for some forms."""

    def __init__(self, table: Table, split: Split, pieces: Sequence[Piece]) -> None:
        super().__init__(table)
        self.split, self.law, self.pieces = split, split.law, pieces
        read: dict[str, Any] = {"width": np.asarray(table.width), "tokens": split.tokens}
        for names, shapes in ((OF_ATTENTION, table.attention_shapes), (OF_FFN, table.ffn_shapes)):
            columns = self.law.columns(shapes)
            read |= {name: getattr(columns, name) for name in names}
        self.at = Columns(**read)

    def separable(self, layers: Ints) -> Floats:
        terms = self._terms(replace(self.at, layers=layers[:, None]))
        total: Floats = sum((terms[n] for n in self.split.of_ffn), np.zeros(1))
        return np.broadcast_to(total, (len(layers), len(self.table.ffn_shapes)))

    @cached_property
    def attention(self) -> Floats:
        terms = self._terms(replace(self.at, layers=np.ones(1)))
        total: Floats = sum((terms[n] for n in self.split.of_attention), np.zeros(1))
        return np.broadcast_to(total, (len(self.table.attention_shapes),))

    def joint_least(self, layers: Ints, lowest: Floats, highest: Floats) -> Floats | float:
        if not self.pieces:
            return 0.0
        column, every, corners = layers[:, None], slice(None), {}
        for falls in {piece.falls for piece in self.pieces}:
            added = [highest if fall else lowest for fall in falls]
            corners[falls] = self._joint_terms(self.at, column, self._sizes(column, every, added))
        return sum((corners[p.falls][n] for p in self.pieces for n in p.terms), np.zeros(1))

    def joint(self, layers: int, ffn: Array, attention: Array) -> Floats | float:
        if not self.pieces:
            return 0.0
        added = self.table.attention["params"][attention]
        sizes = self._sizes(np.asarray(layers), ffn, (added, added))
        terms = self._joint_terms(self._at(ffn), np.asarray(layers), sizes)
        return sum((terms[n] for p in self.pieces for n in p.terms), np.zeros(1))

    def value(self, score: Array) -> Floats:
        return np.asarray(self.law.formula.joined({"score": score}))

    def sampled(self, layers: Ints, ffn: Ints) -> dict[str, Array]:
        """The joint terms with attention between its least and its most parameters, for each size by itself:
        [size 0, size 1, L, F]."""
        params = self.table.attention["params"]
        steps = np.linspace(params.min(), params.max(), _SAMPLES)
        added = (steps[:, None, None, None], steps[:, None, None])
        column = layers[:, None]
        return self._joint_terms(self._at(ffn), column, self._sizes(column, ffn, added))

    def _at(self, ffn: Array) -> Columns:
        """What the law reads, of some feed-forward options."""
        some: dict[str, Any] = {n: _taken(getattr(self.at, n), ffn) for n in OF_FFN}
        return replace(self.at, **some)

    def _sizes(self, layers: Array, ffn: Array | slice, added: Sequence[Array]) -> tuple[Floats, ...]:
        """Parameters as the law counts them, where attention adds so many to each size in a layer."""
        return tuple(
            self.table.ends[name] + layers * (self.table.ffn[name][ffn] + more)
            for name, more in zip(LAW_SIZES, added, strict=True)
        )

    def _joint_terms(self, at: Columns, layers: Array, sizes: Sequence[Floats]) -> dict[str, Array]:
        named: dict[str, Any] = dict(zip(SIZES, sizes, strict=True))
        return self._terms(replace(at, layers=layers, **named))

    def _terms(self, at: Columns) -> dict[str, Array]:
        """Terms by name; sizes of 1 where a caller reads none of the joint ones."""
        missing: dict[str, Any] = {name: 1.0 for name in SIZES if getattr(at, name) is None}
        return self.law.terms(replace(at, **missing))


def _taken(column: Column, rows: Array) -> Column:
    return None if column is None else np.asarray(column)[rows]


def pieces_of(split: Split, tables: Sequence[Table]) -> tuple[Piece, ...]:
    """The joint terms as one piece where their sum rises or falls throughout in each size, else one by one.

    Tried on up to 9 widths, three depths, and feed-forward options spread over each table.

    Errors: LawError where a term does neither.
    """
    if not split.joint:
        return ()
    samples = []
    for table in _spread(tables, 9):
        layers = np.array(sorted({*_spread(sorted(table.layers.tolist()), 3)}))
        ffn = np.array(_spread(range(len(table.ffn_shapes)), _SAMPLED // 9))
        samples.append(Loss(table, split, ()).sampled(layers, ffn))
    return joint_pieces(split, samples)


def _spread(values: Sequence[T], most: int) -> list[T]:
    """At most so many, the ends among them."""
    at = np.unique(np.linspace(0, len(values) - 1, min(most, len(values))).astype(np.int64))
    return [values[i] for i in at.tolist()]
