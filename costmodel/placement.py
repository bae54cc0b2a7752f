"""Where each parallel dimension sits on the network.

A dimension of degree d takes a factor of each level, the factors multiplying to d. Within a level dimensions
are ordered, inner to outer; the stride of a dimension on a torus axis is the product of the factors inside it.
The product of all factors on a level is the part of it that is used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.layout import DIMENSIONS, Layout, Placement
from meshwright.hardware.errors import LayoutError
from meshwright.hardware.network import Level, TorusAxis

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Factors and strides of one communicator, shape [rows, levels]."""

    factors: Ints
    strides: Ints

    def __getitem__(self, rows: Any) -> "Group":
        return Group(self.factors[rows], self.strides[rows])

    @property
    def size(self) -> Ints:
        return np.prod(self.factors, axis=-1)


@dataclass(frozen=True)
class Groups:
    """Communicators of every row, by what they carry.

    Attributes:
        tp, cp, pp, dp_replicate: the dimension of that name.
        shard: dp_shard and cp together, over which ZeRO acts.
        ep: expert parallel ranks, the innermost of a stage.
        edp: ranks that hold the same experts.
    """

    tp: Group
    cp: Group
    pp: Group
    dp_replicate: Group
    shard: Group
    ep: Group
    edp: Group

    def __getitem__(self, rows: Any) -> "Groups":
        return Groups(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


def groups_of(placements: Sequence[Placement], ep: Ints, etp: Ints) -> Groups:
    """Communicators for a list of placements, one per row.

    Expert ranks fill the stage from its innermost level outwards; with etp = tp the tp ranks are inside an
    expert and ep fills the rest.
    """
    rows, levels = len(placements), len(placements[0])
    factors = {d: np.ones((rows, levels), np.int64) for d in DIMENSIONS}
    strides = {d: np.ones((rows, levels), np.int64) for d in DIMENSIONS}
    for row, placement in enumerate(placements):
        for level, members in enumerate(placement):
            inside = 1
            for name, factor in members:
                factors[name][row, level] = factor
                strides[name][row, level] = inside
                inside *= factor
    return _assemble(factors, strides, ep, etp)


def alone(degrees: dict[str, Ints], best: dict[str, Ints], ep: Ints, etp: Ints) -> Groups:
    """Communicators of rows whose dimensions each sit at `best[dimension]` with stride 1.

    Not a placement: each dimension is where it would be fastest by itself, which no joint placement beats.
    """
    levels = next(iter(best.values())).shape[-1]
    one = np.ones((len(ep), levels), np.int64)
    group = {d: Group(best[d], one) for d in ("tp", "cp", "pp", "dp_replicate", "shard", "ep", "edp")}
    return Groups(**group)


def _assemble(factors: dict[str, Ints], strides: dict[str, Ints], ep: Ints, etp: Ints) -> Groups:
    stage = np.prod([factors[d] for d in DIMENSIONS if d != "pp"], axis=0)
    # The stage's ranks on a level have stride 1 unless pipeline stages lie inside them.
    pp_inside = np.ones_like(stage)
    for d in DIMENSIONS:
        if d != "pp":
            outside = (factors["pp"] > 1) & (factors[d] > 1) & (strides[d] > strides["pp"])
            pp_inside = np.where(outside, factors["pp"], pp_inside)
    inner = np.where((etp > 1)[:, None], factors["tp"], 1)
    room = stage // inner
    ep_factors = np.ones_like(stage)
    rest = ep.astype(np.int64).copy()
    for level in range(stage.shape[1]):
        ep_factors[:, level] = np.gcd(rest, room[:, level])
        rest //= ep_factors[:, level]
    # A remainder that does not fit makes the row unplaceable: its group is smaller than ep.
    expert = Group(ep_factors, pp_inside * inner)
    copies = Group(room // ep_factors, pp_inside * inner * ep_factors)
    single = {d: Group(factors[d], strides[d]) for d in ("tp", "cp", "pp", "dp_replicate")}
    return Groups(**single, shard=_join(factors, strides), ep=expert, edp=copies)


def _join(factors: dict[str, Ints], strides: dict[str, Ints]) -> Group:
    """dp_shard and cp as one communicator; its stride counts only the ranks of other dimensions between."""
    product = factors["dp_shard"] * factors["cp"]
    effective = np.ones_like(product)
    for mine, other in (("dp_shard", "cp"), ("cp", "dp_shard")):
        inside = np.where(strides[mine] > strides[other], factors[other], 1)
        between = np.maximum(strides[mine] // np.where(strides[mine] % inside == 0, inside, 1), 1)
        effective = np.where(factors[mine] > 1, np.maximum(effective, between), effective)
    return Group(product, effective)


@cache
def splits(degree: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Every way to write `degree` as a product of one factor per level, none above its size.

    Splits that fill inner levels come first, so that they win ties.
    """
    if not sizes:
        return ((),) if degree == 1 else ()
    out = []
    for factor in range(min(degree, sizes[0]), 0, -1):
        if degree % factor == 0:
            out += [(factor, *rest) for rest in splits(degree // factor, sizes[1:])]
    return tuple(out)


def enumerate_placements(degrees: dict[str, int], levels: tuple[Level, ...]) -> Iterator[Placement]:
    """Every placement of the degrees: all factors, and on torus axes all orders.

    The order inside a switched tier changes no rate, so one is given there. The usual nesting (tp innermost,
    each dimension as far in as it fits) comes first.
    """
    sizes = tuple(level.size for level in levels)
    names = [d for d in DIMENSIONS if degrees[d] > 1]
    for factors in _joint(tuple(degrees[d] for d in names), sizes):
        yield from _ordered(names, factors, levels, 0, ())


def _joint(degrees: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """One split per degree such that no level overflows."""
    if not degrees:
        yield ()
        return
    for split in splits(degrees[0], sizes):
        left = tuple(size // factor for size, factor in zip(sizes, split, strict=True))
        for rest in _joint(degrees[1:], left):
            yield (split, *rest)


def _ordered(
    names: list[str], factors: tuple[tuple[int, ...], ...], levels: tuple[Level, ...], index: int, done: Placement
) -> Iterator[Placement]:
    if index == len(levels):
        yield done
        return
    members = [(n, f[index]) for n, f in zip(names, factors, strict=True) if f[index] > 1]
    orders = permutations(members) if isinstance(levels[index], TorusAxis) else (tuple(members),)
    for order in orders:
        yield from _ordered(names, factors, levels, index + 1, (*done, tuple(order)))


def unplaceable(layout: Layout, levels: tuple[Level, ...]) -> str:
    """Why a layout that no placement holds cannot be laid over these levels."""
    shape = " x ".join(f"{level.name} {level.size}" for level in levels)
    named = ", ".join(f"{d}={getattr(layout, d)}" for d in DIMENSIONS if getattr(layout, d) > 1)
    return f"{named} cannot be laid over {shape}: each level must hold a whole factor of every degree"


def check_placement(layout: Layout, levels: tuple[Level, ...]) -> None:
    """Raises LayoutError unless the placement holds the layout's degrees on these levels."""
    if len(layout.placement) != len(levels):
        raise LayoutError(f"placement has {len(layout.placement)} levels, the network {len(levels)}")
    product = dict.fromkeys(DIMENSIONS, 1)
    for level, members in zip(levels, layout.placement, strict=True):
        used = 1
        for name, factor in members:
            if name not in product or factor < 1:
                raise LayoutError(f"placement puts {name}={factor} on {level.name}; dimensions are {', '.join(product)}")
            product[name] *= factor
            used *= factor
        if used > level.size:
            raise LayoutError(f"placement uses {used} of the {level.size} on level {level.name}")
    for name, value in product.items():
        if value != getattr(layout, name):
            raise LayoutError(f"placement multiplies {name} to {value}, the layout says {getattr(layout, name)}")
