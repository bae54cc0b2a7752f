"""What is made least, as tables of one width: the loss of a law, or a cost.

A score is `fixed(l) + ffn(l, f) + scale(l) attention(a) + joint(l, f, a)`, and the value asked for rises with it. Law
terms fall into these by what they read (`law.formula.reads`); those that read a number of parameters are the joint
ones, as layers and both sides make it together. A joint part is bounded from the least and most parameters that an
option of attention can add: at the corner where it is least, which takes that it rises or falls throughout in each
size. That is checked on samples of the question's own shapes, and a law that does neither is refused.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from meshwright.search.engine.parts import ACTIVATIONS, LAW_SIZES
from meshwright.search.engine.table import Table
from meshwright.search.law import Law
from meshwright.search.law_columns import Column, Columns, LawError
from meshwright.search.shape import Array, Floats, Ints

T = TypeVar("T")
SIZES = ("parameters", "active_parameters")
OF_ATTENTION = {"kv_width", "gqa"}
OF_FFN = {"ffn_ratio", "activation", "experts", "top_k", "granularity", "shared_share"}
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


@dataclass(frozen=True)
class Piece:
    """Joint terms that move together.

    Attributes:
        falls: by size, whether the piece falls as it grows; else it rises.
    """

    terms: tuple[str, ...]
    falls: tuple[bool, bool]


@dataclass(frozen=True)
class Split:
    """A law's terms by what they read.

    Raises:
        LawError: a term reads attention together with layers, feed-forward or sizes, so no table holds it.
    """

    law: Law
    tokens: float | None

    @cached_property
    def joint(self) -> tuple[str, ...]:
        return tuple(n for n, read in self.law.formula.reads.items() if set(read) & set(SIZES))

    @cached_property
    def of_attention(self) -> tuple[str, ...]:
        mixed = OF_FFN | {"layers", *SIZES}
        out = []
        for name, read in self.law.formula.reads.items():
            if set(read) & OF_ATTENTION:
                if set(read) & mixed:
                    raise LawError(
                        f"term {name} of law {self.law.name} reads {', '.join(read)}: attention together with the "
                        "rest, which no table holds; list the grid instead"
                    )
                out.append(name)
        return tuple(out)

    @cached_property
    def of_ffn(self) -> tuple[str, ...]:
        """Terms without attention and sizes."""
        return tuple(n for n in self.law.formula.reads if n not in (*self.joint, *self.of_attention))


class Loss(Objective):
    """The loss of a law; the score is what its terms sum to, log10 of the loss for some forms."""

    def __init__(self, table: Table, split: Split, pieces: Sequence[Piece]) -> None:
        super().__init__(table)
        self.split, self.law, self.pieces = split, split.law, pieces
        a = self.law.columns(table.attention_shapes)
        f = self.law.columns(table.ffn_shapes)
        self.at = replace(
            Columns(),
            width=np.asarray(table.width),
            tokens=split.tokens,
            **{name: getattr(a, name) for name in OF_ATTENTION},
            **{name: getattr(f, name) for name in OF_FFN},
        )

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
        at = replace(self.at, **{n: _taken(getattr(self.at, n), ffn) for n in OF_FFN})
        terms = self._joint_terms(at, np.asarray(layers), sizes)
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
        at = replace(self.at, **{n: _taken(getattr(self.at, n), ffn) for n in OF_FFN})
        return self._joint_terms(at, column, self._sizes(column, ffn, added))

    def _sizes(self, layers: Array, ffn: Array | slice, added: Sequence[Array]) -> tuple[Floats, ...]:
        """Parameters as the law counts them, where attention adds so many to each size in a layer."""
        return tuple(
            self.table.ends[name] + layers * (self.table.ffn[name][ffn] + more)
            for name, more in zip(LAW_SIZES, added, strict=True)
        )

    def _joint_terms(self, at: Columns, layers: Array, sizes: Sequence[Floats]) -> dict[str, Array]:
        return self._terms(replace(at, layers=layers, **dict(zip(SIZES, sizes, strict=True))))

    def _terms(self, at: Columns) -> dict[str, Array]:
        """Terms by name; sizes of 1 where a caller reads none of the joint ones."""
        missing = {name: 1.0 for name in SIZES if getattr(at, name) is None}
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
    together = _moves(split.joint, samples)
    return (
        (together,) if together is not None else tuple(_alone(split, name, samples) for name in split.joint)
    )


def _alone(split: Split, term: str, samples: Sequence[Mapping[str, Array]]) -> Piece:
    piece = _moves((term,), samples)
    if piece is None:
        raise LawError(
            f"term {term} of law {split.law.name} neither rises nor falls throughout with the number of parameters "
            "on this grid, so nothing bounds it; list the grid instead"
        )
    return piece


def _moves(terms: tuple[str, ...], samples: Sequence[Mapping[str, Array]]) -> Piece | None:
    """The piece, where all samples move one way along each size."""
    falls = []
    for size in (0, 1):
        down = up = True
        for terms_at in samples:
            total: Array = sum((terms_at[n] for n in terms), np.zeros((1,) * 4))
            steps = np.diff(
                np.broadcast_to(total, np.broadcast_shapes(total.shape, (_SAMPLES, _SAMPLES, 1, 1))),
                axis=size,
            )
            noise = 1e-13 * float(np.abs(total).max())
            down, up = down and bool((steps <= noise).all()), up and bool((steps >= -noise).all())
        if not down and not up:
            return None
        falls.append(down)
    return Piece(terms, (falls[0], falls[1]))


def _spread(values: Sequence[T], most: int) -> list[T]:
    """At most so many, the ends among them."""
    at = np.unique(np.linspace(0, len(values) - 1, min(most, len(values))).astype(np.int64))
    return [values[i] for i in at.tolist()]
