"""Arrays and their shardings in the scaling book's notation.

    A[I_X,J]                  dimension I is split over mesh axis X, J is whole
    A[I_XY,J]  A[I_{XY},J]    over X and Y together, X outermost; axes of longer names: I_{data,model}
    A[I,J]{U_X}               partial sums over X, still to be added up
    bf16[1024_X,4096]         with sizes and a dtype instead of names
    A[I_X,J] @ B[J,K] -> C[I_X,K]      a product: what A and B share and C has not is summed
    A[I_X,J] -> A[I,J_X]               one array from one sharding to another
    In @ Win[D,F] -> H[B,F]; ...       several products, one after the other

Errors: LayoutError, InputError, UnknownNameError, each with what to write instead.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from meshwright.costmodel.roofline.operands import parse_dtype
from meshwright.hardware.chip import ELEMENT_BYTES
from meshwright.hardware.errors import InputError, LayoutError, UnknownNameError, check_type

_ARRAY = re.compile(
    r"(?P<name>[A-Za-z]\w*)\s*(?:\[(?P<dims>[^\[\]]*)\])?\s*(?:\{\s*U_(?P<partial>[\w{},]+)\s*\})?", re.ASCII
)
_DIM = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9]*|\d+)(?:_(?:\{(?P<braced>[\w,]+)\}|(?P<axes>\w+)))?", re.ASCII
)
_COMMA = re.compile(r",(?![^{]*\})")  # not inside braces
_EXAMPLE = "write it like 'A[I_X,J] @ B[J,K] -> C[I_X,K]'"
_NUMBERS = "write sizes as numbers, like bf16[8192,28672]"
_LONGEST = 1000


@dataclass(frozen=True)
class Sharded:
    """An array and where its parts are.

    Attributes:
        dims: names, or sizes where the array is written with numbers.
        axes: mesh axes of each dimension, outermost first.
        partial: mesh axes whose devices hold terms of a sum.
    """

    name: str
    dims: tuple[str, ...]
    axes: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = ",".join(
            d + (f"_{spelled(a)}" if a else "") for d, a in zip(self.dims, self.axes, strict=True)
        )
        return f"{self.name}[{text}]" + (f"{{U_{spelled(self.partial)}}}" if self.partial else "")

    @property
    def split(self) -> tuple[str, ...]:
        """All mesh axes that split a dimension."""
        return tuple(axis for axes in self.axes for axis in axes)

    def on(self, dim: str) -> tuple[str, ...]:
        """Mesh axes that split a dimension; none where the array does not have it."""
        return self.axes[self.dims.index(dim)] if dim in self.dims else ()

    def placed(self, axes: Mapping[str, tuple[str, ...]], partial: Sequence[str] = ()) -> "Sharded":
        """The same array, each dimension over the axes given for it."""
        return replace(self, axes=tuple(axes.get(d, ()) for d in self.dims), partial=tuple(partial))

    def elements(self, sizes: Mapping[str, float]) -> float:
        """Of the whole array. Errors: InputError for a dimension without a size."""
        return prod(size_of(d, sizes, self.name) for d in self.dims)

    @property
    def bytes(self) -> float:
        """Of an array written with its dtype and sizes, like bf16[1024,4096]. Errors: InputError for letters."""
        if letters := [d for d in self.dims if not d.isdigit()]:
            raise InputError(f"dimension {letters[0]} of {self.name} has no size; {_NUMBERS}")
        return ELEMENT_BYTES[parse_dtype(self.name)] * self.elements({})


def spelled(axes: Sequence[str]) -> str:
    """Mesh axes as a subscript: XY, or {data,model}."""
    return "".join(axes) if all(len(a) == 1 for a in axes) else f"{{{','.join(axes)}}}"


def size_of(dim: str, sizes: Mapping[str, float], where: str = "") -> float:
    """Errors: InputError where nobody gives the size."""
    if dim.isdigit():
        return int(dim)
    if dim not in sizes:
        raise InputError(f"dimension {dim} of {where} has no size; give it, like --sizes {dim}=8192")
    return sizes[dim]


def parse_array(text: str, mesh: Sequence[str] = ()) -> Sharded:
    """'A[I_X,J]' or 'bf16[1024_X,4096_Y]{U_Z}'; without a mesh every letter of a subscript is an axis."""
    match = _ARRAY.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None or match["dims"] is None:
        raise InputError(f"cannot read array {text.strip()[:60]!r}; {_example(text)}")
    dims, axes = [], []
    for part in _COMMA.split(match["dims"]) if match["dims"].strip() else ():
        found = _DIM.fullmatch(part.strip())
        if found is None:
            raise InputError(
                f"cannot read dimension {part.strip()[:40]!r} of {text.strip()[:60]!r}; {_example(text)}"
            )
        dims.append(found["name"])
        axes.append(_axes(found["braced"] or found["axes"] or "", mesh))
    partial = _axes((match["partial"] or "").strip("{}"), mesh)
    array = Sharded(match["name"], tuple(dims), tuple(axes), partial)
    if len(set(dims)) < len(dims) and not all(d.isdigit() for d in dims):
        raise InputError(f"{array} has a dimension twice; give the two different names")
    _check_once(array)
    return array


def _example(text: str) -> str:
    """How to write what somebody tried to: an array of numbers, or one of names."""
    return _NUMBERS if re.match(r"\s*(?:[bfu]\w*\d+|\w+\[\s*\d|int\d+)", text) else _EXAMPLE


def parse_whole(text: str, way_out: str = "") -> Sharded:
    """'bf16[1024,4096]' where a whole array is meant. Errors: InputError for one that is split, too."""
    array = parse_array(text)
    if split := (*array.split, *array.partial):
        plain = f"{array.name}[{','.join(array.dims)}]"
        raise InputError(
            f"{array} is split over {spelled(split)}, which says nothing here; write the whole array {plain}"
            + (f" and {way_out}" if way_out else "")
        )
    return array


def _axes(text: str, mesh: Sequence[str]) -> tuple[str, ...]:
    """XY as X and Y, longest names first."""
    if not text:
        return ()
    if "," in text or text in mesh:
        names = tuple(text.split(","))
    elif mesh:
        longest = sorted(mesh, key=len, reverse=True)
        names = tuple(re.findall("|".join(map(re.escape, longest)) + r"|\w", text))
    else:
        names = tuple(text)
    for name in names:
        if mesh and name not in mesh:
            raise UnknownNameError("mesh axis", name, mesh, "the mesh has no other")
    return names


def _check_once(array: Sharded) -> None:
    """A device holds one block of an array, so an axis can tell apart the blocks of one dimension only."""
    used = (*array.split, *array.partial)
    twice = next((a for a in used if used.count(a) > 1), None)
    if twice is None:
        return
    held = [d for d, axes in zip(array.dims, array.axes, strict=True) if twice in axes]
    if twice in array.partial and held:
        raise LayoutError(
            f"{array}: axis {twice} holds partial sums and splits {held[0]} too; reduce-scatter them: drop {{U_{twice}}}"
        )
    first = held[0] if held else "it"
    other = held[1] if len(held) > 1 else "the same dimension"
    raise LayoutError(
        f"{array}: axis {twice} splits {first} and {other}; an axis may be used once in an array: "
        f"drop it from one, or use another axis there"
    )


@dataclass(frozen=True)
class Contraction:
    """x times w gives out; dimensions told apart by who has them."""

    x: Sharded
    w: Sharded
    out: Sharded

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.x.dims, *self.w.dims)))

    @property
    def summed(self) -> tuple[str, ...]:
        return tuple(d for d in self.x.dims if d in self.w.dims and d not in self.out.dims)

    @property
    def batch(self) -> tuple[str, ...]:
        """Dimensions of all three: one product each."""
        return tuple(d for d in self.x.dims if d in self.w.dims and d in self.out.dims)


def parse_statements(text: str, mesh: Sequence[str]) -> tuple[Contraction, ...] | tuple[Sharded, Sharded]:
    """Products in order, or one array in two shardings."""
    check_type("sharding", text, str, "a string like 'A[I_X,J] @ B[J,K] -> C[I_X,K]'", InputError)
    if len(text) > _LONGEST:
        raise InputError(f"a sharding of {len(text):,} letters is too long; {_EXAMPLE}")
    known: dict[str, Sharded] = {}
    products: list[Contraction] = []
    for statement in filter(str.strip, text.split(";")):
        sides = re.split(r"->|→", statement)
        factors = re.split(r"\s*(?:@|·|×|\*)\s*", sides[0].strip())
        if len(sides) > 2 or len(factors) > 2 or (len(factors) == 1 and len(sides) == 1):
            raise InputError(f"cannot read {statement.strip()[:80]!r}; {_EXAMPLE}, or 'A[I_X,J] -> A[I,J_X]'")
        arrays = [_known_or_read(f, known, mesh) for f in factors]
        known |= _named(arrays, known)
        if len(factors) == 1:
            if products or ";" in text.strip().strip(";"):
                raise InputError("an array and its other sharding stand alone; ask them one by one")
            return _same_array(arrays[0], parse_array(sides[1], mesh))
        out = parse_array(sides[1], mesh) if len(sides) == 2 else _natural(arrays[0], arrays[1])
        if out.name in known:
            raise InputError(
                f"{out} is made by a product, and {known[out.name]} has its name already; give the output a name of "
                f"its own, like -> {_unused(known)}[{','.join(out.dims)}]"
            )
        products.append(_product(arrays[0], arrays[1], out))
        known[out.name] = out
    if not products:
        raise InputError(f"nothing to shard in {text[:80]!r}; {_EXAMPLE}")
    return tuple(products)


def _known_or_read(text: str, known: Mapping[str, Sharded], mesh: Sequence[str]) -> Sharded:
    """An array, written out or, where an earlier statement made it, by its name."""
    return known[text.strip()] if text.strip() in known else parse_array(text, mesh)


def _named(arrays: Sequence[Sharded], known: Mapping[str, Sharded]) -> dict[str, Sharded]:
    """Arrays by name. Raises InputError where two that differ share one: they would be priced as the first."""
    found = dict(known)
    for array in arrays:
        if found.setdefault(array.name, array) != array:
            raise InputError(
                f"{found[array.name]} and {array} are two arrays of one name; call one of them {_unused(found)}, or "
                f"write both alike"
            )
    return found


def _unused(known: Mapping[str, Sharded]) -> str:
    return next(letter for letter in "DEFGHLMNPQRSTUVW" if letter not in known)


def _same_array(a: Sharded, b: Sharded) -> tuple[Sharded, Sharded]:
    if a.dims != b.dims:
        raise InputError(
            f"{a} and {b} have different dimensions; an array keeps its own, write {b.name}[{','.join(a.dims)}]"
        )
    if b.partial:
        raise LayoutError(f"{b}: partial sums are no target; write the array that they add up to")
    return a, b


def _product(x: Sharded, w: Sharded, out: Sharded) -> Contraction:
    if out.partial:
        raise LayoutError(f"{out}: partial sums are no target; write the array that they add up to")
    for array, other in ((x, w), (w, x)):
        lost = [d for d in array.dims if d not in other.dims and d not in out.dims]
        if lost:
            raise InputError(
                f"dimension {lost[0]} of {array} is neither in {other} nor in the output {out}; add it to one of them"
            )
    if strange := [d for d in out.dims if d not in (*x.dims, *w.dims)]:
        raise InputError(f"dimension {strange[0]} of the output {out} is in neither {x} nor {w}; drop it")
    return Contraction(x, w, out)


def _natural(x: Sharded, w: Sharded) -> Sharded:
    """The output where none is written: what is not summed keeps its sharding.

    Raises LayoutError where one axis would split two dimensions of it.
    """
    dims = [d for d in (*x.dims, *w.dims) if (d in x.dims) != (d in w.dims)]
    axes = {d: (x if d in x.dims else w).on(d) for d in dims}
    used = [a for found in axes.values() for a in found]
    if clash := next((a for a in used if used.count(a) > 1), None):
        mine, other = [d for d in dims if clash in axes[d]][:2]
        ways = " or ".join(
            str(
                Sharded(
                    "C",
                    tuple(dims),
                    tuple(tuple(a for a in axes[d] if a != clash or d == keep) for d in dims),
                )
            )
            for keep in (mine, other)
        )
        raise LayoutError(
            f"axis {clash} splits {mine} of {x} and {other} of {w}, so the output would be split by it twice; "
            f"gather one first: write the output as {ways}"
        )
    return Sharded("C", tuple(dims), tuple(axes[d] for d in dims))


def check_divides(array: Sharded, sizes: Mapping[str, float], ways: Mapping[str, int]) -> None:
    """Raises LayoutError where the shards of a dimension would not be equal."""
    for dim, axes in zip(array.dims, array.axes, strict=True):
        parts = prod(ways[a] for a in axes)
        size = size_of(dim, sizes, array.name)
        if size % parts:
            near = int(-(-size // parts) * parts)
            raise LayoutError(
                f"{array}: {dim}={size:g} does not divide over {'x'.join(axes)}={parts}; "
                f"pad it to {near}, or use fewer ways"
            )


def arrays_of(products: Sequence[Contraction]) -> Iterator[Sharded]:
    """Every array once, in order of appearance."""
    seen: dict[str, Sharded] = {}
    for product in products:
        for array in (product.x, product.w, product.out):
            seen.setdefault(array.name, array)
    yield from seen.values()
