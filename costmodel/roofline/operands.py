"""Products as people write them: 'bf16[4096,8192] x int8[8192,28672]', with numbers or letters for dimensions.

    x[batch.., rows.., k] x w[batch.., k, cols..]      the last dimension of x meets w's first after shared ones
    x[..] x w[..] -> out[..]                           by name: what both have and the output has not is summed

Errors: InputError naming what does not fit and what to write instead.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import get_args

from meshwright.costmodel.doors import check_text, check_whole
from meshwright.costmodel.flops import product_bytes, product_flops
from meshwright.hardware.chip import ELEMENT_BYTES, Dtype
from meshwright.hardware.errors import InputError, UnknownNameError, check_type
from meshwright.hardware.numbers import check_fields
from meshwright.hardware.units import parse_count

_ALIASES = {
    "f32": "fp32", "float32": "fp32", "bfloat16": "bf16", "f16": "fp16", "float16": "fp16", "f8": "fp8",
    "float8": "fp8", "f4": "fp4", "float4": "fp4", "s8": "int8", "i8": "int8", "s4": "int4", "i4": "int4",
}  # fmt: skip
_OPERAND = re.compile(r"\s*(\w*)\s*\[([^\[\]]*)\]\s*", re.ASCII)
_EXAMPLE = "write it like 'bf16[4096,8192] x bf16[8192,28672]'"
_MOST = 10**12  # elements of one dimension; a slip of the pen beyond


@dataclass(frozen=True)
class Operand:
    """An array: dtype and dimensions, each a number or a name."""

    dtype: str
    dims: tuple[str, ...]

    @property
    def element_bytes(self) -> float:
        return ELEMENT_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(self.dims)}]"


@dataclass(frozen=True)
class Work:
    """What an operation does: FLOPs, and bytes that it reads and writes."""

    flops: float
    bytes: float

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class Product:
    """A product with its dimensions told apart; None where a name has no size.

    Attributes:
        batch: what both operands and the output have: one product each.
        rows, contracted, cols: as of an [rows, contracted] x [contracted, cols] product.
    """

    x: Operand
    w: Operand
    out: Operand
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    contracted: tuple[str, ...]
    cols: tuple[str, ...]
    sizes: Mapping[str, int]

    def size(self, dims: tuple[str, ...]) -> int | None:
        """Elements of these dimensions together; 1 of none."""
        known = [size_of(d, self.sizes) for d in dims]
        if None in known:
            return None
        size = prod(k for k in known if k is not None)
        if size > _MOST**2:
            raise InputError(
                f"dimensions {','.join(dims)} hold more than {float(_MOST**2):.0e} elements; check them"
            )
        return size

    @property
    def element_bytes(self) -> tuple[float, float, float]:
        """Of x, w and the output."""
        return self.x.element_bytes, self.w.element_bytes, self.out.element_bytes

    @property
    def work(self) -> Work:
        """FLOPs, and bytes of all three arrays. Errors: InputError where a dimension has no size."""
        m, k, n, many = self._sized()
        return Work(many * product_flops(m, k, n), many * product_bytes(m, k, n, *self.element_bytes))

    @property
    def weight_bytes(self) -> float:
        """Bytes of w. Errors: as `work`."""
        _, k, n, many = self._sized()
        return float(many * product_bytes(0, k, n, *self.element_bytes))

    def _sized(self) -> tuple[int, int, int, int]:
        found = [self.size(dims) for dims in (self.rows, self.contracted, self.cols, self.batch)]
        m, k, n, many = (size or 0 for size in found)  # none is zero where it is known
        if not m * k * n * many:
            names = dict.fromkeys((*self.x.dims, *self.w.dims))
            unknown = next(d for d in names if size_of(d, self.sizes) is None)
            raise InputError(f"dimension {unknown} has no size; give it, like {unknown}=4096")
        return m, k, n, many


def unsharded_columns(product: Product, ways: int) -> int:
    """Columns of the whole product of which one of `ways` shards was seen, as a profile shows it."""
    cols = product.size(product.cols)
    if cols is None:
        raise InputError(f"dimension {product.cols[0]} has no size; give it, like {product.cols[0]}=4096")
    return cols * ways


def parse_dtype(name: str) -> str:
    """Errors: UnknownNameError."""
    check_text("dtype", name, "bf16")
    found = _ALIASES.get(name.lower(), name.lower())
    if found not in get_args(Dtype):
        raise UnknownNameError("dtype", name, get_args(Dtype))
    return found


def parse_sizes(text: str) -> dict[str, int]:
    """'B=240,D=8192' or 'B=4Ki'. Errors: InputError, UnitError."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
            raise InputError(f"cannot read size {part.strip()[:40]!r}; write sizes like 'B=240,D=8192'")
        if name in sizes:
            raise InputError(f"size {name} is given twice; keep one")
        sizes[name] = parse_count(value)
    return sizes


def size_of(dim: str, sizes: Mapping[str, int]) -> int | None:
    """A dimension's size: the number itself, or the name's."""
    return int(dim) if dim.isdigit() else sizes.get(dim)


def parse_operand(text: str) -> Operand:
    """'bf16[4096,8192]'."""
    match = _OPERAND.fullmatch(text)
    if match is None:
        raise InputError(f"cannot read array {text.strip()[:60]!r}; {_EXAMPLE}")
    dtype, inside = match.groups()
    if not dtype:
        raise InputError(f"array {text.strip()[:60]!r} has no dtype; write it like bf16[{inside}]")
    dims = tuple(d.strip() for d in inside.split(",")) if inside.strip() else ()
    for dim in dims:
        if not re.fullmatch(r"[A-Za-z]\w*|\d+", dim, re.ASCII):
            raise InputError(
                f"cannot read dimension {dim[:40]!r} of {text.strip()[:60]!r}; give a number or a name"
            )
        if dim.isdigit() and not 0 < int(dim) <= _MOST:
            raise InputError(f"dimension {dim[:40]} of {text.strip()[:60]!r} is not from 1 to {_MOST:,}")
    return Operand(parse_dtype(dtype), dims)


def parse_product(text: str, sizes: Mapping[str, int] | None = None) -> Product:
    """Read a product; `sizes` are those of named dimensions. The output has x's dtype unless it is written."""
    check_text("product", text, "bf16[4096,8192] x bf16[8192,28672]")
    arrow = re.split(r"->|→", text)
    operands = re.split(r"(?<=\])\s*(?:x|X|@|\*|×|·)\s*(?=\w*\[)", arrow[0])
    if len(arrow) > 2 or len(operands) != 2:
        raise InputError(f"cannot read product {text[:80]!r}: it needs two arrays; {_EXAMPLE}")
    x, w = (parse_operand(part) for part in operands)
    if not x.dims or not w.dims:
        raise InputError(f"product {text[:80]!r} has an array without dimensions; {_EXAMPLE}")
    check_type("sizes", sizes, (Mapping, type(None)), "sizes by name, like {'B': 240}")
    given = dict(sizes or {})
    _check_sizes(given, (*x.dims, *w.dims))
    out = parse_operand(arrow[1]) if len(arrow) == 2 else None
    for array in (a for a in (x, w, out) if a is not None):
        names = [d for d in array.dims if not d.isdigit()]
        if len(set(names)) < len(names):
            raise InputError(f"{array} has a dimension twice; give each its own name")
    if out is not None and not any(d.isdigit() for d in (*x.dims, *w.dims, *out.dims)):
        return _named(x, w, out, given)
    readings = list(_positional(x, w, given))
    if not readings and out is not None and all(len(set(a.dims)) == len(a.dims) for a in (x, w, out)):
        return _named(x, w, out, given)  # numbers that are all different are as good as names
    if not readings:
        raise InputError(_mismatch(x, w))
    if len(readings) > 1 and len(w.dims) > 2:
        raise InputError(
            f"{x} x {w} can be read in {len(readings)} ways; name the dimensions and the output, like "
            f"'{x.dtype}[B,D] x {w.dtype}[B,D,F] -> {x.dtype}[B,F]'"
        )
    return _with_output(readings[0], out)


def _check_sizes(sizes: Mapping[str, int], dims: tuple[str, ...]) -> None:
    for name, size in sizes.items():
        if name not in dims:
            raise InputError(
                f"size {name}={size} names no dimension; the product has {', '.join(dict.fromkeys(dims))}"
            )
        check_whole(**{f"size {name}": size})
        if not 0 < size <= _MOST:
            raise InputError(f"size {name}={size} is not from 1 to {_MOST:,}")


def _named(x: Operand, w: Operand, out: Operand, sizes: Mapping[str, int]) -> Product:
    shared = [d for d in x.dims if d in w.dims]
    for operand in (x, w):
        lost = [d for d in operand.dims if d not in shared and d not in out.dims]
        if lost:
            raise InputError(
                f"dimension {lost[0]} of {operand} is neither in the other array nor in the output {out}; "
                f"add it to one of them"
            )
    if strange := [d for d in out.dims if d not in (*x.dims, *w.dims)]:
        raise InputError(f"dimension {strange[0]} of the output {out} is in neither {x} nor {w}; drop it")
    return Product(
        x, w, out,
        batch=tuple(d for d in shared if d in out.dims),
        rows=tuple(d for d in x.dims if d not in shared),
        contracted=tuple(d for d in shared if d not in out.dims),
        cols=tuple(d for d in w.dims if d not in shared),
        sizes=sizes,
    )  # fmt: skip


def _positional(x: Operand, w: Operand, sizes: Mapping[str, int]) -> Iterator[Product]:
    """Every reading with that many leading dimensions shared."""
    for many in range(min(len(x.dims), len(w.dims))):
        if x.dims[:many] == w.dims[:many] and x.dims[-1] == w.dims[many]:
            batch, rows, cols = x.dims[:many], x.dims[many:-1], w.dims[many + 1 :]
            out = Operand(x.dtype, (*batch, *rows, *cols))
            yield Product(x, w, out, batch, rows, x.dims[-1:], cols, sizes)


def _with_output(product: Product, out: Operand | None) -> Product:
    if out is None:
        return product
    if out.dims != product.out.dims:
        raise InputError(
            f"{product.x} x {product.w} makes {product.out}, not {out}; write the output so, or leave it out"
        )
    return replace(product, out=out)


def _mismatch(x: Operand, w: Operand) -> str:
    what = f"the last dimension of {x} is {x.dims[-1]} and the first of {w} is {w.dims[0]}: they must be the same"
    if len(w.dims) == 2 and w.dims[1] == x.dims[-1]:
        turned = Operand(w.dtype, w.dims[::-1])
        return f"{what}; the second array looks transposed, write {turned}"
    if len(x.dims) == 2 and x.dims[0] == w.dims[0]:
        turned = Operand(x.dtype, x.dims[::-1])
        return f"{what}; the first array looks transposed, write {turned}"
    return f"{what}; write the product as [rows, k] x [k, columns]"
