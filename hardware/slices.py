"""Which TPU slices exist, and which of their axes close into rings.

Source of shapes and rules: data/slices.yaml (a table Google publishes with MaxText) and, for whole cubes
that the table leaves out, the rule behind it: optical switches join 4x4x4 cubes, so any shape whose
sides are multiples of 4 can be wired, up to the pod.
"""

from dataclasses import dataclass
from functools import cache
from math import log, prod

from meshwright.hardware.chip import Chip, Torus
from meshwright.hardware.errors import ClusterError
from meshwright.hardware.figures import DATA, Confidence, Strict, load_yaml

Shape = tuple[int, ...]


class Generation(Strict):
    """Listed shapes of one generation, keyed by the number in the slice name."""

    name_counts: str
    per_chip: int
    shapes: dict[int, str]


class SliceTable(Strict):
    source: str
    confidence: Confidence
    generations: dict[str, Generation]


@dataclass(frozen=True)
class Slice:
    """One legal slice: shape as Google writes it, wrap flag per axis, and what to tell the user."""

    shape: Shape
    wraps: tuple[bool, ...]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "x".join(map(str, self.shape))


@cache
def slice_table() -> SliceTable:
    return load_yaml(DATA / "slices.yaml", SliceTable)


@cache
def listed_shapes(chip_name: str) -> dict[Shape, Shape]:
    """Sorted dims -> dims as Google writes them (2x2x1 is not ascending)."""
    shapes = slice_table().generations[chip_name].shapes.values()
    written = [tuple(int(d) for d in text.split("x")) for text in shapes]
    return {tuple(sorted(shape)): shape for shape in written}


def wrap_flags(torus: Torus, shape: Shape) -> tuple[bool, ...]:
    """Which axes are rings. v5e, v6e: an axis of 16. v4, v5p, TPU7x: all, once made of whole cubes.

    Errors: ClusterError where no source states the rule.
    """
    if torus.wraps == "not stated":
        raise ClusterError(f"no source says which axes of a slice {_text(shape)} wrap on this {torus.kind}")
    if torus.wraps == "axis of 16":
        return tuple(size == 16 for size in shape)
    return (_whole_cubes(shape),) * len(shape)


def find_slice(chip: Chip, torus: Torus, dims: Shape) -> Slice:
    """The slice with these dims in any order.

    Errors: ClusterError naming what exists nearby.
    """
    _check_listed(chip)
    ascending = tuple(sorted(dims))
    listed = listed_shapes(chip.name)
    if ascending in listed:
        shape = listed[ascending]
        return Slice(shape, wrap_flags(torus, shape), _size_notes(chip, torus, prod(shape)))
    pod = torus.pod_chips.count
    if torus.wraps == "whole cubes" and len(dims) == 3 and _whole_cubes(dims) and prod(dims) <= pod:
        note = (
            f"{chip.name}:{_text(ascending)} is not in Google's list of slices; accepted because its sides "
            f"are multiples of 4 and it has at most {pod:,} chips"
        )
        return Slice(ascending, wrap_flags(torus, ascending), (note, *_size_notes(chip, torus, prod(dims))))
    raise ClusterError(_no_such_slice(chip, torus, dims))


def shape_of_cloud_size(chip: Chip, size: int) -> tuple[Shape, str]:
    """The shape behind a cloud name such as v5p-128, and the sentence that says what it counts.

    Errors: ClusterError naming the neighbouring sizes.
    """
    _check_listed(chip)
    table = slice_table().generations[chip.name]
    name = f"{chip.name}-{size}"
    if size not in table.shapes:
        below = max((s for s in table.shapes if s < size), default=None)
        above = min((s for s in table.shapes if s > size), default=None)
        found = [f"{chip.name}-{s} ({table.shapes[s]})" for s in (below, above) if s is not None]
        near = (
            f"the neighbours are {found[0]} and {found[1]}"
            if len(found) > 1
            else f"the nearest is {found[0]}"
        )
        raise ClusterError(
            f"no slice is called {name} (the number counts {table.name_counts}); {near}; "
            f"or write the shape in chips, like {chip.name}:{next(reversed(table.shapes.values()))}"
        )
    text = table.shapes[size]
    chips = size // table.per_chip
    counted = f"{size} {table.name_counts}" if table.per_chip > 1 else f"{size} chips"
    equals = f" = {chips} chips" if table.per_chip > 1 else ""
    shape = tuple(int(d) for d in text.split("x"))
    return shape, f"{name} names {counted}{equals}: read as {chip.name}:{text}"


def _check_listed(chip: Chip) -> None:
    known = slice_table().generations
    if chip.name not in known:
        raise ClusterError(
            f"no source lists the slices of {chip.title}, nor which of their axes wrap; "
            f"slices are known of {', '.join(known)}"
        )


def _whole_cubes(shape: Shape) -> bool:
    return all(size % 4 == 0 for size in shape)


def _size_notes(chip: Chip, torus: Torus, chips: int) -> tuple[str, ...]:
    largest = torus.largest_job_chips
    if largest is None or chips <= largest.count:
        return ()
    note = (
        f"{chip.name}: Google's page gives {largest.count:,} chips as the largest single job "
        f"({largest.note}); this slice has {chips:,}"
    )
    return (note,)


def _no_such_slice(chip: Chip, torus: Torus, dims: Shape) -> str:
    asked = f"{chip.name}:{_text(dims)}"
    near = ", ".join(f"{chip.name}:{_text(s)}" for s in _nearby(chip, torus, dims))
    if len(dims) != torus.dims:
        return f"{asked} does not exist: {chip.name} is a {torus.dims}D torus; nearby: {near}"
    if torus.wraps == "axis of 16":
        every = ", ".join(_text(s) for s in listed_shapes(chip.name).values())
        return (
            f"{asked} does not exist: {chip.name} slices are {every}; nearby: {near}; "
            f"join slices with {chip.name}:16x16*2"
        )
    small = ", ".join(_text(s) for s in listed_shapes(chip.name).values() if not _whole_cubes(s))
    return (
        f"{asked} does not exist: {chip.name} slices are {small}, or whole 4x4x4 cubes (each side a "
        f"multiple of 4, at most {torus.pod_chips.count:,} chips); nearby: {near}"
    )


def _nearby(chip: Chip, torus: Torus, dims: Shape, count: int = 4) -> list[Shape]:
    """Legal shapes closest in size and form (log distance per sorted side)."""
    listed = list(listed_shapes(chip.name).values())
    if len(dims) != torus.dims:
        return sorted(listed, key=lambda s: abs(log(prod(s) / prod(dims))))[:count]
    want = sorted(dims)

    def distance(shape: Shape) -> float:
        return sum(abs(log(a / b)) for a, b in zip(sorted(shape), want, strict=True))

    return sorted(listed, key=distance)[:count]


def _text(dims: Shape) -> str:
    return "x".join(map(str, dims))
