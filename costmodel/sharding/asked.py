"""A question about sharded products: what is computed, on which mesh, what may be chosen; and one product's local part."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product as combinations_of
from math import prod

from meshwright.costmodel.flops import product_bytes, product_flops
from meshwright.costmodel.sharding.mesh import Mesh
from meshwright.costmodel.sharding.parse import Contraction, Sharded, arrays_of, size_of
from meshwright.costmodel.sharding.reshard import Move, reshard
from meshwright.hardware.errors import InputError, check_type, shown
from meshwright.hardware.numbers import is_number, make_plain

Places = Mapping[str, tuple[str, ...]]  # mesh axes by dimension


@dataclass(frozen=True)
class Machine:
    """What computes: a mesh, and the rates of one device; infinite where a rate should not count.

    Errors: InputError for a rate that is not above zero.
    """

    mesh: Mesh
    flop_per_s: float
    hbm_bytes_per_s: float

    def __post_init__(self) -> None:
        make_plain(self)
        check_type("mesh", self.mesh, Mesh, "a Mesh, as parse_mesh gives it")
        for name in ("flop_per_s", "hbm_bytes_per_s"):
            rate = getattr(self, name)
            if not is_number(rate, infinite=True) or not rate > 0:
                raise InputError(f"{name}={shown(rate)} of a machine is no rate; give a number above 0")


@dataclass(frozen=True)
class Asked:
    """Products, in order, and what may be chosen.

    Attributes:
        element_bytes: of every array.
        free: arrays that may be stored in any sharding.
        like: arrays that must be stored as another one is.
        memory_bytes: of one device, at most; None for no cap.
        overlap: whether communication runs under the products.
        exact: whether collectives count only what must move, or (X - 1) / X as 1.
        idle_too: use mesh axes for the products that no array is written with, too.
    """

    products: tuple[Contraction, ...]
    sizes: Mapping[str, float]
    machine: Machine
    element_bytes: float = 2.0
    free: frozenset[str] = frozenset()
    like: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: float | None = None
    overlap: bool = True
    exact: bool = True
    idle_too: bool = False
    _paths: dict[tuple[Sharded, Sharded], tuple[tuple[Move, ...], float]] = field(
        default_factory=dict, compare=False
    )

    def bytes(self, array: Sharded) -> float:
        """Of the whole array."""
        return array.elements(self.sizes) * self.element_bytes

    def held(self, array: Sharded) -> float:
        """Bytes of it on one device."""
        ways = self.machine.mesh.ways
        return self.bytes(array) / prod(ways[a] for a in array.split)

    def path(self, start: Sharded, goal: Sharded) -> tuple[tuple[Move, ...], float]:
        """Moves from one sharding to another, and their seconds."""
        if (start, goal) not in self._paths:
            mesh, size = self.machine.mesh, self.bytes(start)
            moves = reshard(start, goal, mesh, size, self.exact)
            seconds = sum(move.seconds(mesh, size, self.exact) for move in moves)
            self._paths[start, goal] = moves, seconds
        return self._paths[start, goal]

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Mesh axes that may cut a dimension: those that a written array uses, or all where arrays are free."""
        ways = self.machine.mesh.ways
        written = {a for array in arrays_of(self.products) for a in (*array.split, *array.partial)}
        return tuple(a for a in ways if ways[a] > 1 and (self.idle_too or self.free or a in written))

    @cached_property
    def alike(self) -> tuple[tuple[str, ...], ...]:
        """Sets of mesh axes of equal ways on whole levels of equal rate that no array is written with."""
        mesh = self.machine.mesh
        written = {a for array in arrays_of(self.products) for a in array.split}
        found: dict[object, list[str]] = {}
        for axis in self.axes:
            on = [i for i, ways in enumerate(mesh.groups[axis].factors) if ways > 1]
            if axis not in written and len(on) == 1 and mesh.network.levels[on[0]].size == mesh.ways[axis]:
                level = replace(mesh.network.levels[on[0]], name="")
                found.setdefault((level, mesh.network.rate(on[0]), mesh.network.beyond(on[0])), []).append(
                    axis
                )
        return tuple(tuple(axes) for axes in found.values() if len(axes) > 1)

    @cached_property
    def made(self) -> frozenset[str]:
        """Arrays that a product makes and a later one takes."""
        taken = {a.name for p in self.products for a in (p.x, p.w)}
        return frozenset(p.out.name for p in self.products if p.out.name in taken)


@dataclass(frozen=True)
class Local:
    """One product on one device."""

    places: Places
    flops: float
    hbm_bytes: float
    t_math: float
    t_hbm: float

    @property
    def seconds(self) -> float:
        return max(self.t_math, self.t_hbm)


def locals_of(asked: Asked, product: Contraction) -> Iterator[Local]:
    """Every assignment of mesh axes to the product's dimensions that cuts them evenly."""
    ways, axes = asked.machine.mesh.ways, asked.axes
    given = [(d, a) for array in (product.x, product.w, product.out) for d in array.dims for a in array.on(d)]
    for choice in combinations_of((None, *product.dims), repeat=len(axes)):
        places = {
            dim: tuple(
                sorted(
                    (a for a, d in zip(axes, choice, strict=True) if d == dim), key=_nesting(given, dim, axes)
                )
            )
            for dim in product.dims
        }
        if all(size_of(d, asked.sizes) % prod(ways[a] for a in on) == 0 for d, on in places.items()):
            yield local_product(asked, product, places)


def local_product(asked: Asked, product: Contraction, places: Places) -> Local:
    """One product on one device, its dimensions cut over the mesh axes of `places`."""
    ways, machine = asked.machine.mesh.ways, asked.machine
    local = {d: size_of(d, asked.sizes) / prod(ways[a] for a in places[d]) for d in product.dims}
    batch = prod(local[d] for d in product.batch)
    m = prod(local[d] for d in product.x.dims if d not in product.w.dims)
    k = prod(local[d] for d in product.summed)
    n = prod(local[d] for d in product.w.dims if d not in product.x.dims)
    flops = batch * product_flops(m, k, n)
    moved = batch * product_bytes(m, k, n, *[asked.element_bytes] * 3)
    return Local(places, flops, moved, flops / machine.flop_per_s, moved / machine.hbm_bytes_per_s)


def _nesting(given: Sequence[tuple[str, str]], dim: str, axes: Sequence[str]) -> Callable[[str], int]:
    """Axes of one dimension nest as the arrays that are written have it, then in the mesh's order."""
    seen = [a for d, a in given if d == dim] + list(axes)
    return seen.index
