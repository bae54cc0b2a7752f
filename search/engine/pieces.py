"""A law's terms by what they read, so that tables of either side hold them.

Terms that read a number of parameters are joint: layers and both sides make it together. A joint part is bounded at the
corner of sizes where it is least, which takes that it rises or falls throughout in each size. That is checked on samples
of the question's own shapes, and a law that does neither is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.search.law import Law
from meshwright.search.law_columns import LawError
from meshwright.search.shape import Array

SIZES = ("parameters", "active_parameters")
OF_ATTENTION = {"kv_width", "gqa"}
OF_FFN = {"ffn_ratio", "activation", "experts", "top_k", "granularity", "shared_share"}

_NOISE = 1e-13  # relative, of floats that should be equal


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


def joint_pieces(split: Split, samples: Sequence[Mapping[str, Array]]) -> tuple[Piece, ...]:
    """The joint terms as one piece where their sum rises or falls throughout in each size, else one by one.

    samples: joint terms by name, at rising sizes along the first two of four axes.

    Errors: LawError where a term does neither.
    """
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
        for named in samples:
            total: Array = sum((named[n] for n in terms), np.zeros((1, 1, 1, 1)))
            steps = np.diff(total, axis=size) if total.shape[size] > 1 else np.zeros(1)
            noise = _NOISE * float(np.abs(total).max())
            down, up = down and bool((steps <= noise).all()), up and bool((steps >= -noise).all())
        if not down and not up:
            return None
        falls.append(down)
    return Piece(terms, (falls[0], falls[1]))
