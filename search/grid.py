"""Grids of shapes: axes and legality rules in a YAML file, listed as columns with a funnel.

A file names its rules; a row that breaks several is counted at the first in the file's order. Every rule reads one
side of a layer beside the width, attention or feed-forward, so a product of any size is known by its sides
(`sides_of`); only a small one is listed.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from meshwright.hardware.errors import InputError, UnknownNameError
from meshwright.hardware.figures import Strict, load_yaml
from meshwright.search.architecture import Ends
from meshwright.search.shape import Ints, Shapes

_DATA = Path(__file__).parent / "data" / "grids"
_MOST_ROWS = 20_000_000  # about 2 GB of columns
_MOST_VALUES = 100_000  # of an axis

Mask = NDArray[np.bool_]
Rule = Callable[[Shapes], Mask]
Size = Annotated[int, Field(ge=1, le=10**7, strict=True)]
Ratio = Annotated[float, Field(gt=0, lt=1e3, allow_inf_nan=False)]


class Span(Strict):
    """An axis by its ends: from, from + step, ... up to `to`, which counts where a step meets it."""

    first: int | float = Field(alias="from", gt=-1, le=10**7, allow_inf_nan=False)
    last: int | float = Field(alias="to", le=10**7, allow_inf_nan=False)
    step: int | float = Field(1, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.last < self.first:
            raise ValueError(f"to {self.last:g} is below from {self.first:g}")
        if self.count > _MOST_VALUES:
            raise ValueError(
                f"{self.count:,} values, more than the {_MOST_VALUES:,} of an axis; take a larger step"
            )
        return self

    @property
    def count(self) -> int:
        return math.floor((self.last - self.first) / self.step * (1 + 1e-12) + 1e-9) + 1

    def values(self) -> tuple[int | float, ...]:
        """Decimal steps stay decimal: 0.1 + 2 * 0.1 is 0.3."""
        return tuple(v if isinstance(v, int) else round(v, 12) for v in self._steps())

    def _steps(self) -> list[int | float]:
        return [self.first + i * self.step for i in range(self.count)]


def _spelled(axis: Any) -> Any:
    """The values of a span; anything else as it is."""
    return Span.model_validate(axis).values() if isinstance(axis, Mapping) else axis


def _spelled_whole(axis: Any) -> Any:
    """The same, of whole numbers."""
    values = _spelled(axis)
    if isinstance(axis, Mapping) and not all(isinstance(value, int) for value in values):
        raise ValueError("from, to and step of this axis are whole numbers")
    return values


Spelled = BeforeValidator(_spelled)
Whole = BeforeValidator(_spelled_whole)


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


# Which side of a layer a rule reads beside the width; none reads both, or the layers.
SIDE_OF: Mapping[str, Literal["attention", "ffn"]] = {
    "heads_fill_width": "attention",
    "kv_heads_divide_heads": "attention",
    "top_k_within_experts": "ffn",
    "whole_expert_width": "ffn",
    "shared_beside_experts": "ffn",
    "distinct": "attention",
}
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
        layers, width, head_dim, kv_heads, shared, ffn_ratio: values, or {from, to, step}.
        kv_heads: numbers, or 'heads' for as many as there are heads.
        experts: pairs [experts, chosen per token]; [1, 1] is dense.
        shared: experts that every token meets beside the chosen ones.
        vocab, tied: of the embedding and the head around every shape.
        rules: names in RULES, in the order in which they are counted.
    """

    source: str
    note: str = ""
    layers: Annotated[tuple[Size, ...], Whole, Field(min_length=1)]
    width: Annotated[tuple[Size, ...], Whole, Field(min_length=1)]
    head_dim: Annotated[tuple[Size, ...], Whole, Field(min_length=1)]
    kv_heads: Annotated[tuple[Size | Literal["heads"], ...], Whole, Field(min_length=1)]
    ffn_ratio: Annotated[tuple[Ratio, ...], Spelled, Field(min_length=1)]
    experts: tuple[tuple[Size, Size], ...] = Field(min_length=1)
    shared: Annotated[tuple[Annotated[int, Field(ge=0, le=10**4, strict=True)], ...], Whole,
                      Field(min_length=1)] = (0,)  # fmt: skip
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
        for rule, broken in self._breaks():
            if rule not in self.rules:
                raise ValueError(f"{broken}; add the rule {rule}")
        return self

    def _breaks(self) -> Iterator[tuple[str, str]]:
        """(rule that keeps it out, what no model can be) of the axes' combinations: nothing of it is rounded away."""
        for experts, chosen in self.experts:
            if chosen > experts:
                yield "top_k_within_experts", f"experts {[experts, chosen]} chooses more than there are"
        if any(self.shared) and any(experts == 1 for experts, _ in self.experts):
            yield "shared_beside_experts", "shared experts stand beside a dense part too"
        whole = [(w, h) for w in self.width for h in self.head_dim if w % h == 0]
        for width, size in ((w, h) for w in self.width for h in self.head_dim if w % h):
            yield "heads_fill_width", f"width {width} is not whole heads of {size}"
            break
        for heads, kv in ((w // h, kv) for w, h in whole for kv in self.kv_heads if kv != "heads"):
            if heads % int(kv):
                yield "kv_heads_divide_heads", f"{heads} heads are not a multiple of {kv} kv heads"
                break
        ratios, widths = np.array(self.ffn_ratio), np.array(self.width)
        for met in sorted({k + s for e, k in self.experts for s in self.shared if e > 1 or s == 0}):
            channels = np.multiply.outer(widths, ratios) / met
            odd = np.argwhere(np.abs(channels - np.rint(channels)) >= 1e-6)
            if len(odd):
                at = f"width {widths[odd[0][0]]} times ratio {ratios[odd[0][1]]:g}"
                yield (
                    "whole_expert_width",
                    f"{at} is not whole channels of {met} experts" if met > 1 else f"{at} is no whole number",
                )
                break

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


@dataclass(frozen=True)
class Side:
    """Legal options of one side of a layer at every width, the other side and the layers held at some value.

    Attributes:
        shapes: options, width by width in the grid's order of widths.
        width_at: [O] which width of the grid. place: [O] position among the options of a width in a listing.
    """

    shapes: Shapes
    width_at: Ints
    place: Ints

    def __len__(self) -> int:
        return len(self.place)

    def kept(self, mask: Mask) -> "Side":
        return Side(self.shapes[mask], self.width_at[mask], self.place[mask])

    def per_width(self, widths: int) -> Ints:
        """Options of every width."""
        return np.bincount(self.width_at, minlength=widths)


@dataclass(frozen=True)
class Sides:
    """A grid by its sides: a legal shape is a width, a number of layers and an option of each side at that width.

    Attributes:
        removed: shapes that each rule removed, as `Listing` counts them.
    """

    attention: Side
    ffn: Side
    removed: Mapping[str, int]

    def pairs(self, widths: int) -> int:
        """Pairs of options, over all widths."""
        return _pairs(widths, self.attention, self.ffn)


def sides_of(grid: Grid) -> Sides:
    """The sides under the grid's rules, in the order of the file."""
    sides = {"attention": _attention_side(grid), "ffn": _ffn_side(grid)}
    removed = {}
    for name in grid.rules:
        before, side = _pairs(len(grid.width), **sides), sides[SIDE_OF[name]]
        sides[SIDE_OF[name]] = side.kept(RULES[name](side.shapes))
        removed[name] = len(grid.layers) * (before - _pairs(len(grid.width), **sides))
    return Sides(**sides, removed=removed)


def _pairs(widths: int, attention: Side, ffn: Side) -> int:
    counts = zip(attention.per_width(widths).tolist(), ffn.per_width(widths).tolist(), strict=True)
    return sum(a * f for a, f in counts)


def _attention_side(grid: Grid) -> Side:
    at, head_dim, kv_heads = _crossed(range(len(grid.width)), grid.head_dim, _kv_axis(grid))
    width = np.array(grid.width)[at]
    shapes = _shapes(np.ones_like(width), width, head_dim, kv_heads, np.ones(len(width)), (1, 1), 0)
    return Side(shapes, at, np.arange(len(at)) % (len(grid.head_dim) * len(grid.kv_heads)))


def _ffn_side(grid: Grid) -> Side:
    at, pair, shared, ratio = _crossed(
        range(len(grid.width)), range(len(grid.experts)), grid.shared, grid.ffn_ratio
    )
    width = np.array(grid.width)[at]
    pairs = np.array(grid.experts, dtype=np.int64)[pair].T
    shapes = _shapes(np.ones_like(width), width, width, np.ones_like(width), ratio, pairs, shared)
    return Side(shapes, at, np.arange(len(at)) % (len(grid.experts) * len(grid.shared) * len(grid.ffn_ratio)))


def _product(grid: Grid) -> Shapes:
    """Every combination; the last axis varies fastest."""
    layers, width, head_dim, kv_heads, pair, shared, ratio = _crossed(
        grid.layers, grid.width, grid.head_dim, _kv_axis(grid), range(len(grid.experts)), grid.shared,
        grid.ffn_ratio,
    )  # fmt: skip
    pairs = np.array(grid.experts, dtype=np.int64)[pair].T
    return _shapes(layers, width, head_dim, kv_heads, ratio, pairs, shared)


def _crossed(*axes: Any) -> list[NDArray[Any]]:
    return [c.ravel() for c in np.meshgrid(*(np.array(axis) for axis in axes), indexing="ij")]


def _kv_axis(grid: Grid) -> list[int]:
    return [0 if kv == "heads" else kv for kv in grid.kv_heads]


def _shapes(
    layers: Any, width: Any, head_dim: Any, kv_heads: Any, ratio: Any, pairs: Any, shared: Any
) -> Shapes:
    """Columns of sizes; kv_heads 0 stands for as many as heads, which are width // head_dim, at least 1."""
    heads = np.maximum(width // head_dim, 1)
    whole = {"experts": pairs[0], "top_k": pairs[1], "shared": shared}
    return Shapes(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=np.where(kv_heads == 0, heads, kv_heads),
        head_dim=head_dim,
        ffn_ratio=ratio.astype(np.float64),
        **{name: np.broadcast_to(column, width.shape) for name, column in whole.items()},
    )
