"""Grids of shapes: axes and legality rules in a YAML file, listed as columns with a funnel.

A file names its rules; a row that breaks several is counted at the first in the file's order.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from meshwright.hardware.errors import InputError, UnknownNameError
from meshwright.hardware.figures import Strict, load_yaml
from meshwright.search.architecture import Ends
from meshwright.search.shape import Shapes

_DATA = Path(__file__).parent / "data" / "grids"
_MOST_ROWS = 20_000_000  # about 2 GB of columns

Mask = NDArray[np.bool_]
Rule = Callable[[Shapes], Mask]
Size = Annotated[int, Field(ge=1, le=10**7, strict=True)]
Ratio = Annotated[float, Field(gt=0, lt=1e3)]


def _heads_fill_width(s: Shapes) -> Mask:
    """head_dim divides the width: heads * head_dim == width."""
    return np.asarray(s.heads * s.head_dim == s.width, dtype=np.bool_)


def _kv_heads_divide_heads(s: Shapes) -> Mask:
    """Each KV head serves the same number of heads."""
    return np.asarray(s.heads % s.kv_heads == 0, dtype=np.bool_)


def _distinct(s: Shapes) -> Mask:
    """A shape that two values of an axis spell is kept once: 'heads' may equal a number beside it."""
    columns = np.stack([getattr(s, f.name) for f in fields(s)], axis=1)
    first = np.unique(columns, axis=0, return_index=True)[1]
    kept = np.zeros(len(s), dtype=np.bool_)
    kept[first] = True
    return kept


def _top_k_within_experts(s: Shapes) -> Mask:
    """A token meets no more experts than there are."""
    return np.asarray(s.top_k <= s.experts, dtype=np.bool_)


def _shared_beside_experts(s: Shapes) -> Mask:
    """Only a mixture has shared experts."""
    return np.asarray((s.shared == 0) | (s.experts > 1), dtype=np.bool_)


def _whole_expert_width(s: Shapes) -> Mask:
    """Each expert, r * width over those that a token meets, has a whole number of channels."""
    channels = s.ffn_ratio * s.width / (s.top_k + s.shared)
    return np.asarray((np.abs(channels - np.rint(channels)) < 1e-6) & (channels >= 0.5), dtype=np.bool_)


RULES: Mapping[str, Rule] = {
    "heads_fill_width": _heads_fill_width,
    "kv_heads_divide_heads": _kv_heads_divide_heads,
    "top_k_within_experts": _top_k_within_experts,
    "whole_expert_width": _whole_expert_width,
    "shared_beside_experts": _shared_beside_experts,
    "distinct": _distinct,
}


AXES = ("layers", "width", "head_dim", "kv_heads", "experts", "shared", "ffn_ratio")


class Grid(Strict):
    """Axes of a search and the rules that a shape must obey.

    Attributes:
        kv_heads: numbers, or 'heads' for as many as there are heads.
        experts: pairs [experts, chosen per token]; [1, 1] is dense.
        shared: experts that every token meets beside the chosen ones.
        vocab, tied: of the embedding and the head around every shape.
        rules: names in RULES, in the order in which they are counted.
    """

    source: str
    note: str = ""
    layers: tuple[Size, ...] = Field(min_length=1)
    width: tuple[Size, ...] = Field(min_length=1)
    head_dim: tuple[Size, ...] = Field(min_length=1)
    kv_heads: tuple[Size | Literal["heads"], ...] = Field(min_length=1)
    ffn_ratio: tuple[Ratio, ...] = Field(min_length=1)
    experts: tuple[tuple[Size, Size], ...] = Field(min_length=1)
    shared: tuple[Annotated[int, Field(ge=0, le=10**4, strict=True)], ...] = Field((0,), min_length=1)
    vocab: Size
    tied: bool
    rules: tuple[str, ...]

    @model_validator(mode="after")
    def _sound(self) -> Self:
        for rule in self.rules:
            if rule not in RULES:
                raise ValueError(f"{rule!r} is no rule; known: {', '.join(RULES)}")
        for axis in (*AXES, "rules"):
            values = getattr(self, axis)
            if len(set(values)) != len(values):
                raise ValueError(f"{axis} names a value twice")
        return self

    @property
    def size(self) -> int:
        """Rows before any rule."""
        return math.prod(len(getattr(self, axis)) for axis in AXES)

    @property
    def ends(self) -> Ends:
        return Ends(self.vocab, self.tied)


@dataclass(frozen=True)
class Listing:
    """The legal shapes of a grid.

    Attributes:
        listed: rows before any rule.
        removed: rows that each rule removed, in order; listed - sum(removed) == len(shapes).
    """

    shapes: Shapes
    listed: int
    removed: Mapping[str, int]


def grid_names() -> tuple[str, ...]:
    """Names of the grids that ship with the package."""
    return tuple(sorted(path.stem for path in _DATA.glob("*.yaml")))


def load_grid(name: str | Path) -> Grid:
    """A shipped grid by name, or a file that ends in .yaml."""
    if str(name) in grid_names():
        return load_yaml(_DATA / f"{name}.yaml", Grid)
    if Path(name).suffix in (".yaml", ".yml"):
        return load_yaml(Path(name), Grid)
    raise UnknownNameError("grid", str(name), grid_names(), "or a file that ends in .yaml")


def list_shapes(grid: Grid, limits: Mapping[str, Rule] | None = None) -> Listing:
    """All shapes that obey the grid's rules, then the limits given by name (memory of a device, ...).

    Errors: InputError where the grid has more rows than columns can hold.
    """
    if grid.size > _MOST_ROWS:
        raise InputError(
            f"the grid has {grid.size:,} rows, more than the {_MOST_ROWS:,} that are listed; shorten an axis"
        )
    shapes, removed = _product(grid), {}
    for name, rule in {**{name: RULES[name] for name in grid.rules}, **(limits or {})}.items():
        kept = rule(shapes)
        removed[name] = int(len(shapes) - kept.sum())
        shapes = shapes[kept]
    return Listing(shapes, grid.size, removed)


def _product(grid: Grid) -> Shapes:
    """Every combination; the last axis varies fastest. 'heads' is width // head_dim, at least 1."""
    kv_axis = [0 if kv == "heads" else kv for kv in grid.kv_heads]
    pairs = range(len(grid.experts))
    axes = (grid.layers, grid.width, grid.head_dim, kv_axis, pairs, grid.shared, grid.ffn_ratio)
    layers, width, head_dim, kv_heads, pair, shared, ratio = (
        column.ravel() for column in np.meshgrid(*(np.array(axis) for axis in axes), indexing="ij")
    )
    heads = np.maximum(width // head_dim, 1)
    experts, top_k = np.array(grid.experts, dtype=np.int64)[pair].T
    return Shapes(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=np.where(kv_heads == 0, heads, kv_heads),
        head_dim=head_dim,
        ffn_ratio=ratio.astype(np.float64),
        experts=experts,
        top_k=top_k,
        shared=shared,
    )
