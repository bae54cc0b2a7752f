"""Where each parallel dimension sits on the network.

A dimension of degree d takes a factor of each level, the factors multiplying to d. Within a level dimensions
are ordered, inner to outer; the stride of a dimension on a torus axis is the product of the factors inside it.
The product of all factors on a level is the part of it that is used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, reduce
from itertools import permutations, product
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
        size: Ints = np.prod(self.factors, axis=-1)
        return size


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
    factors, strides = factors_and_strides(placements)
    return groups_of_arrays(factors, strides, ep, etp)


def factors_and_strides(placements: Sequence[Placement]) -> tuple[Ints, Ints]:
    """Factors and strides of every dimension on each level, one row per placement, [rows, dimensions, levels]."""
    factors = np.ones((len(placements), len(DIMENSIONS), len(placements[0])), np.int64)
    strides = np.ones_like(factors)
    for row, placement in enumerate(placements):
        for level, members in enumerate(placement):
            inside = 1
            for name, factor in members:
                factors[row, DIMENSIONS.index(name), level] = factor
                strides[row, DIMENSIONS.index(name), level] = inside
                inside *= factor
    return factors, strides


def groups_of_arrays(factors: Ints, strides: Ints, ep: Ints, etp: Ints) -> Groups:
    """Communicators from factors and strides of every dimension, [rows, dimensions, levels]."""
    named = {d: (factors[:, i], strides[:, i]) for i, d in enumerate(DIMENSIONS)}
    return _assemble({d: f for d, (f, _) in named.items()}, {d: s for d, (_, s) in named.items()}, ep, etp)


def one_group(degree: int, sizes: tuple[int, ...]) -> Group:
    """A degree alone on the network, on every split: what one communicator can have at best."""
    factors = _options(degree, sizes)
    return Group(factors, np.ones_like(factors))


def expert_copies(copies: int, ep: int, etp: int, sizes: tuple[int, ...]) -> Group:
    """Ranks that hold the same experts, on every split of a stage of copies * ep * etp ranks over the levels."""
    tp, stage = _options(etp, sizes), _options(copies * ep * etp, sizes)
    pairs = (stage[:, None, :] % tp[None, :, :] == 0).all(axis=2)
    of_stage, of_tp = np.nonzero(pairs)
    factors = np.ones((len(of_stage), len(DIMENSIONS), len(sizes)), np.int64)
    factors[:, DIMENSIONS.index("tp")] = tp[of_tp]
    factors[:, DIMENSIONS.index("dp_shard")] = stage[of_stage] // tp[of_tp]
    one = np.ones(len(factors), np.int64)
    groups = groups_of_arrays(factors, np.ones_like(factors), one * ep, one * etp)
    return groups.edp[groups.ep.size == ep]


def network_keys(groups: Groups, levels: tuple[Level, ...]) -> list[bytes]:
    """One key per row; rows with the same key load the network alike.

    Collectives know a torus axis by its properties alone, so axes that share them may change places.
    """
    parts = [getattr(groups, name) for name in Groups.__dataclass_fields__]
    factors = np.stack([g.factors for g in parts], axis=2)  # [R, levels, groups]
    strides = np.where(factors > 1, np.stack([g.strides for g in parts], axis=2), 1)
    columns = np.concatenate([factors, strides], axis=2)
    alike: dict[Level, list[int]] = {}
    for index, level in enumerate(levels):
        alike.setdefault(replace(level, name="" if isinstance(level, TorusAxis) else level.name), []).append(
            index
        )
    for axes in alike.values():
        if len(axes) > 1:
            for row in columns:
                row[axes] = row[axes][np.lexsort(row[axes].T)]
    return [row.tobytes() for row in columns]


def _assemble(factors: dict[str, Ints], strides: dict[str, Ints], ep: Ints, etp: Ints) -> Groups:
    stage = reduce(np.multiply, [factors[d] for d in DIMENSIONS if d != "pp"])
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


@cache
def _options(degree: int, sizes: tuple[int, ...]) -> Ints:
    """`splits` as an array."""
    return np.array(splits(degree, sizes), np.int64).reshape(-1, len(sizes))


@lru_cache(maxsize=4096)
def joint_splits(degrees: tuple[int, ...], sizes: tuple[int, ...]) -> Ints:
    """Every way to split all degrees over the levels together, none overfull; [N, dimensions, levels].

    `degrees` are in the order of DIMENSIONS. Splits that keep the usual nesting (tp innermost, each dimension as
    far in as it fits) come first.
    """
    return _joint_splits(degrees, sizes)[0]


@lru_cache(maxsize=16384)
def _joint_splits(degrees: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Ints, Ints]:
    """`joint_splits` and what it uses of each level, [N, levels]; many lists of degrees begin alike."""
    if not degrees:
        return np.zeros((1, 0, len(sizes)), np.int64), np.ones((1, len(sizes)), np.int64)
    out, used = _joint_splits(degrees[:-1], sizes)
    options = _options(degrees[-1], sizes)
    if degrees[-1] > 1:
        total = used[:, None, :] * options[None, :, :]
        fits = np.ones(total.shape[:2], bool)
        for level, size in enumerate(sizes):
            fits &= total[:, :, level] <= size
        before, option = np.nonzero(fits)
        out, added, used = out[before], options[option], total[before, option]
    else:
        added = np.ones_like(used)
    out = np.concatenate([out, added[:, None, :]], axis=1)
    for array in (out, used):
        array.flags.writeable = False  # shared by every caller
    return out, used


def nestings(factors: Ints) -> list[Ints]:
    """Strides of the dimensions on one torus axis under every order of those that are on it, usual order first."""
    present = [i for i in range(len(DIMENSIONS)) if factors[i] > 1]
    return [strides_of(factors, order) for order in permutations(present)]


def innermost(factors: Ints) -> list[Ints]:
    """Least strides on one torus axis for every choice of the innermost dimension: the others lie beyond it."""
    present = [i for i in range(len(DIMENSIONS)) if factors[i] > 1]
    choices = []
    for first in present:
        strides = np.where(factors > 1, factors[first], 1)
        strides[first] = 1
        choices.append(strides)
    return choices or [np.ones_like(factors)]


def strides_of(factors: Ints, order: tuple[int, ...]) -> Ints:
    """Strides of the dimensions on one level when they nest in this order, inner to outer."""
    out = np.ones(len(factors), np.int64)
    inside = 1
    for i in order:
        out[i] = inside
        inside *= int(factors[i])
    return out


def placement_of(factors: Ints, strides: Ints) -> Placement:
    """The placement with these factors and strides, [dimensions, levels] each."""
    out = []
    for level in range(factors.shape[1]):
        members = [(int(strides[i, level]), d, int(factors[i, level])) for i, d in enumerate(DIMENSIONS)]
        out.append(tuple((d, f) for _, d, f in sorted(m for m in members if m[2] > 1)))
    return tuple(out)


def least_strides(factors: Ints, torus: Sequence[int]) -> Ints:
    """Of splits [N, dimensions, levels]: 1 on torus axes, whose order is open; elsewhere the usual order, since no
    rate inside a switched tier depends on it."""
    strides = np.ones_like(factors)
    for level in set(range(factors.shape[2])) - set(torus):
        inside = np.cumprod(factors[:, :, level], axis=1) // factors[:, :, level]
        strides[:, :, level] = np.where(factors[:, :, level] > 1, inside, 1)
    return strides


def orders(factors: Ints, levels: tuple[Level, ...]) -> Ints:
    """Strides under every order of one split [dimensions, levels]: all on torus axes, the usual one in tiers."""
    choices = [
        nestings(factors[:, i]) if isinstance(level, TorusAxis) else nestings(factors[:, i])[:1]
        for i, level in enumerate(levels)
    ]
    return np.stack([np.stack(columns, axis=1) for columns in product(*choices)])


def enumerate_placements(degrees: dict[str, int], levels: tuple[Level, ...]) -> Iterator[Placement]:
    """Every placement of the degrees: all splits over the levels, and on torus axes all orders."""
    for row in joint_splits(tuple(degrees[d] for d in DIMENSIONS), tuple(level.size for level in levels)):
        for strides in orders(row, levels):
            yield placement_of(row, strides)


@cache
def placeable(degrees: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether all degrees fit the levels together."""
    if not degrees:
        return True
    for split in splits(degrees[0], sizes):
        left = tuple(size // factor for size, factor in zip(sizes, split, strict=True))
        if placeable(degrees[1:], left):
            return True
    return False


def unplaceable(layout: Layout, levels: tuple[Level, ...]) -> str:
    """Why a layout that no placement holds cannot be laid over these levels."""
    shape = " x ".join(f"{level.name} {level.size}" for level in levels)
    named = ", ".join(f"{d}={getattr(layout, d)}" for d in DIMENSIONS if getattr(layout, d) > 1)
    return f"{named} cannot be laid over {shape}: each level must hold a whole factor of every degree"


def check_placement(layout: Layout, levels: tuple[Level, ...]) -> None:
    """Raises LayoutError unless the placement holds the layout's degrees on these levels."""
    if len(layout.placement) != len(levels):
        raise LayoutError(
            f"placement has {len(layout.placement)} of the {len(levels)} levels of the network; give one each, innermost "
            f"first: {', '.join(level.name for level in levels)}"
        )
    product = dict.fromkeys(DIMENSIONS, 1)
    for level, members in zip(levels, layout.placement, strict=True):
        used = 1
        for at, (name, factor) in enumerate(members):
            if name not in product or factor < 1:
                raise LayoutError(
                    f"placement puts {name}={factor} on {level.name}; dimensions are {', '.join(product)}"
                )
            if name in (other for other, _ in members[:at]):
                raise LayoutError(
                    f"placement puts {name} twice on {level.name}; give its whole factor there once"
                )
            product[name] *= factor
            used *= factor
        if used > level.size:
            raise LayoutError(
                f"placement uses {used} of the {level.size} on level {level.name}; place less of it there"
            )
    for name, value in product.items():
        if value != getattr(layout, name):
            raise LayoutError(
                f"placement multiplies {name} to {value}, the layout says {getattr(layout, name)}; make them one"
            )
