"""Roofline of a matrix product: time, what binds, and the number of rows from which it is compute bound.

    [m, k] x [k, n] with x, w, out bytes per element: 2 m k n FLOPs, x m k + w k n + out m n bytes

Formulas: roofline.py and operators.py; the reading of a product: operands.py. Source: jax-ml/scaling-book,
chapters 1, 2 and 7.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isclose

from meshwright.costmodel.doors import ChipSource, check_positive, check_whole, chip_of
from meshwright.costmodel.flops import product_bytes, product_flops
from meshwright.costmodel.roofline.ceilings import (
    LINKS,
    Ceiling,
    given_rate,
    mxu_multiples,
    peak,
    source_rate,
)
from meshwright.costmodel.roofline.intensity import (
    binds,
    bounds,
    critical_batch,
    critical_batch_exact,
    critical_intensity,
    devices_note,
    lower_s,
    tiled_intensity,
    upper_s,
)
from meshwright.costmodel.roofline.operands import Product, parse_dtype, parse_product
from meshwright.costmodel.working import Step, Value, Working
from meshwright.hardware.chip import Chip
from meshwright.hardware.errors import InputError, shown
from meshwright.hardware.onchip import TpuUnits, padded, units_of
from meshwright.hardware.units import human_bytes

NEVER = "never"
_MOST_ROWS = 10**7  # of a table
ROWS = (1, 8, 32, 64, 128, 256, 512, 1024, 4096)


def matmul(
    text: str,
    chip: ChipSource,
    *,
    weights: str | None = None,
    compute: str | None = None,
    source: str = "hbm",
    sizes: Mapping[str, int] | None = None,
    rows: Sequence[int] = ROWS,
    tile: tuple[int, int] | None = None,
    flop_per_s: float | None = None,
    bytes_per_s: float | None = None,
) -> Working:
    """Roofline of one product on one chip.

    Args:
        chip: or its name.
        text: as 'bf16[B,8192] x bf16[8192,28672]'; the second array is the weights.
        weights: their dtype, instead of the one in the text.
        compute: the dtype whose peak counts; the wider of the two operands' if not given.
        source: where the operands come from; from `host`, `network` and `dcn` only the weights do.
        sizes: of named dimensions. With an open number of rows the answer is a table over `rows`.
        tile: rows and columns of an output tile, to tell its intensity.
        flop_per_s, bytes_per_s: instead of the chip's.

    Errors: InputError for shapes and dtypes that do not fit, MissingFigureError for rates that no source gives.
    """
    chip = chip_of(chip)
    check_positive(flop_per_s=flop_per_s, bytes_per_s=bytes_per_s)
    _check_rows(rows)
    if tile is not None:
        _check_tile(tile)
    product = _with_weights(parse_product(text, sizes), weights)
    dtype = wider(product) if compute is None else parse_dtype(compute)
    math = peak(chip, dtype) if flop_per_s is None else Ceiling(f"{dtype} peak", flop_per_s, "given")
    move = source_rate(chip, source) if bytes_per_s is None else given_rate(source, bytes_per_s)
    asked = _Matmul(product, chip, math, move, source, dtype)
    return asked.working(tile, rows)


@dataclass(frozen=True)
class _Matmul:
    """One question about a product, with its rates; `source` is a name of SOURCES."""

    product: Product
    chip: Chip
    math: Ceiling
    move: Ceiling
    source: str
    dtype: str

    @property
    def link(self) -> bool:
        return self.source in LINKS

    @property
    def hbm(self) -> Ceiling:
        return source_rate(self.chip, "hbm")

    def working(self, tile: tuple[int, int] | None, rows: Sequence[int]) -> Working:
        p = self.product
        sized = {name: p.size(dims) for name, dims in self._dims().items()}
        m, k, n, many = (sized[name] for name in ("m", "k", "n", "products"))
        steps = self._critical(k, n)
        table: tuple[Mapping[str, Value], ...] = ()
        verdict = self._turn(steps) if m is None else ""
        if k is not None and n is not None and many is not None:
            if m is None:
                table = tuple(self._row(b, k, n, many) for b in self._far_enough(rows))
            else:
                seconds = self._seconds(m, k, n, many)
                steps = self._sized(m, k, n, many, seconds) | steps
                verdict = binds(seconds) + self._by_batch(m, steps)
        if tile is not None:
            x, w, _ = self.product.element_bytes
            note = "operands read again for every tile, output not counted"
            value = tiled_intensity(*tile, x, w)
            steps["tile_intensity"] = Step(value, "FLOP/B", "2 bm bn / (x bm + w bn)", note)
        return Working(self._question(), self._given(sized), steps, verdict, self._notes(sized), table)

    def _far_enough(self, rows: Sequence[int]) -> list[int]:
        """Rows on by fours until the weights no longer bind."""
        out = [int(row) for row in rows]
        turn = critical_batch(self.product.w.element_bytes, self.math.per_s, self.move.per_s)
        while out[-1] < turn < _MOST_ROWS:
            out.append(4 * out[-1])
        return out

    def _dims(self) -> dict[str, tuple[str, ...]]:
        p = self.product
        return {"products": p.batch, "m": p.rows, "k": p.contracted, "n": p.cols}

    def _question(self) -> str:
        p, title = self.product, self.chip.title
        return f"{p.x} x {p.w} -> {p.out} in {self.dtype} on {title}, from {self.move.name}"

    def _given(self, sized: Mapping[str, int | None]) -> dict[str, Step]:
        given = {
            "C": Step(self.math.per_s, "FLOP/s", note=self.math.note),
            "W": Step(self.move.per_s, "B/s", note=f"{self.move.name}: {self.move.note}"),
        }
        if self.link:
            given["W_hbm"] = Step(self.hbm.per_s, "B/s", note=self.hbm.note)
        for name, dims in self._dims().items():
            if dims or name != "products":
                shown = " x ".join(dims) or "1"
                value = sized[name]
                given[name] = Step("open" if value is None else value, note=shown)
        arrays = (self.product.x, self.product.w, self.product.out)
        for name, array, size in zip(("x", "w", "out"), arrays, self.product.element_bytes, strict=True):
            given[name] = Step(size, "B", note=f"per element of {array}")
        return given

    def _seconds(self, m: float, k: float, n: float, many: float) -> dict[str, float]:
        flops = many * product_flops(m, k, n)
        moved = many * product_bytes(m, k, n, *self.product.element_bytes)
        out = {"t_math": flops / self.math.per_s}
        if self.link:
            weights = many * product_bytes(0, k, n, *self.product.element_bytes)
            return out | {"t_link": weights / self.move.per_s, "t_hbm": moved / self.hbm.per_s}
        return out | {"t_memory": moved / self.move.per_s}

    def _sized(self, m: int, k: int, n: int, many: int, seconds: Mapping[str, float]) -> dict[str, Step]:
        x, w, out = self.product.element_bytes
        flops = many * product_flops(m, k, n)
        weights = many * product_bytes(0, k, n, x, w, out)
        moved = weights if self.link else many * product_bytes(m, k, n, x, w, out)
        each = "products " if many > 1 else ""
        steps = {
            "flops": Step(flops, "FLOP", f"2 {each}m k n"),
            "weight_bytes": Step(weights, "B", f"w {each}k n"),
            "bytes": Step(moved, "B", f"w {each}k n" if self.link else f"{each}(x m k + w k n + out m n)"),
            "intensity": Step(flops / moved, "FLOP/B", "flops / bytes"),
            "critical_intensity": Step(
                critical_intensity(self.math.per_s, self.move.per_s), "FLOP/B", "C / W"
            ),
        }
        formulas = {"t_math": "flops / C", "t_memory": "bytes / W", "t_link": "bytes / W"}
        formulas["t_hbm"] = "(x m k + w k n + out m n) / W_hbm"
        for name, value in seconds.items():
            steps[name] = Step(value, "s", formulas[name])
        steps |= bounds(seconds)
        steps["share_of_peak"] = Step(
            seconds["t_math"] / lower_s(*seconds.values()), "ratio", "t_math / t_lower"
        )
        return steps | self._padding(m, k, n, many, seconds["t_math"])

    def _padding(self, m: int, k: int, n: int, many: int, t_math: float) -> dict[str, Step]:
        multiples = mxu_multiples(self.chip)
        if multiples is None:
            return {}
        rows, side = multiples
        full = many * product_flops(padded(m, rows), padded(k, side), padded(n, side)) / self.math.per_s
        if full == t_math:
            return {}
        note = f"the matrix unit takes rows by {rows}, k and n by {side}"
        return {"t_math_padded": Step(full, "s", "2 m k n / C, padded", note)}

    def _critical(self, k: int | None, n: int | None) -> dict[str, Step]:
        x, w, out = self.product.element_bytes
        batch = critical_batch(w, self.math.per_s, self.move.per_s)
        per = " per product" if self.product.batch else ""
        steps = {"critical_batch": Step(batch, "tokens", "w C / (2 W)", f"rows{per}; weights alone move")}
        if k is not None and n is not None and not self.link:
            exact = critical_batch_exact(k, n, self.math.per_s, self.move.per_s, x, w, out)
            steps["critical_batch_exact"] = Step(
                NEVER if exact == inf else exact,
                "" if exact == inf else "tokens",
                "w k n / (2 k n W / C - x k - out n)",
                f"rows{per}; all three operands move",
            )
            if exact < inf:
                steps["exact_over_asymptote"] = Step(
                    exact / batch, "ratio", "critical_batch_exact / critical_batch"
                )
        beta = w / x * critical_intensity(self.math.per_s, self.move.per_s)
        if not isclose(beta, batch):
            note = "the book's rule of thumb; right only where C is the bf16 rate"
            steps["critical_batch_beta_rule"] = Step(beta, "tokens", "w / x * C / W", note)
        return steps

    def _row(self, m: int, k: int, n: int, many: int) -> dict[str, Value]:
        seconds = self._seconds(m, k, n, many)
        least = lower_s(*seconds.values())
        times = {f"{name} us": value * 1e6 for name, value in seconds.items()}
        reached = many * product_flops(m, k, n) / least
        return {
            "m": m, **times, "t_lower us": least * 1e6, "t_upper us": upper_s(*seconds.values()) * 1e6,
            "TFLOP/s": reached / 1e12, "of peak": reached / self.math.per_s,
        }  # fmt: skip

    def _by_batch(self, m: int, steps: Mapping[str, Step]) -> str:
        if self.product.batch and not self.product.rows:
            return "; every example has weights of its own, so no batch makes it compute bound"
        exact = steps.get("critical_batch_exact", steps["critical_batch"]).value
        if isinstance(exact, str):
            return "; no number of rows makes it compute bound"
        return f"; it is compute bound from {_count(exact)} rows and has {m:,}"

    def _turn(self, steps: Mapping[str, Step]) -> str:
        """From which number of rows on compute binds, where that number is open."""
        place = "the link" if self.link else "memory" if self.source == "hbm" else self.move.name
        if (exact := steps.get("critical_batch_exact")) is None:
            rows = steps["critical_batch"].value
            return f"{place} binds below {_count(float(rows))} rows, compute from there on; weights alone counted"
        if isinstance(exact.value, str):
            return f"{place} binds at any number of rows"
        return f"{place} binds below {_count(exact.value)} rows, compute from there on"

    def _notes(self, sized: Mapping[str, int | None]) -> tuple[str, ...]:
        notes = []
        if self.chip.devices_per_chip > 1:
            notes.append(devices_note(self.chip))
        if self.link:
            notes.append(f"only the weights come over {self.move.name}; x and the output are in HBM")
        notes += self._fit(sized)
        if None in sized.values():
            notes.append(f"give sizes for more, like --sizes {','.join(self._open())}")
        return tuple(notes)

    def _fit(self, sized: Mapping[str, int | None]) -> list[str]:
        units = units_of(self.chip.name)
        if self.source != "vmem" or None in sized.values():
            return []
        vmem = units.vmem if isinstance(units, TpuUnits) else None
        held = self.product.work.bytes
        if vmem is None or held <= vmem.si:
            return []
        return [
            f"the arrays take {human_bytes(held)} and VMEM holds {vmem.text}: not all of them can come from it"
        ]

    def _open(self) -> list[str]:
        dims = dict.fromkeys((*self.product.x.dims, *self.product.w.dims))
        return [f"{d}=..." for d in dims if not d.isdigit() and d not in self.product.sizes]


def _check_rows(rows: Sequence[int]) -> None:
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
        raise InputError(f"rows is {shown(rows)}; give the rows of a table, at least one, like (1, 64, 4096)")
    for row in rows:
        check_whole(rows=row)


def _check_tile(tile: tuple[int, int]) -> None:
    if not isinstance(tile, Sequence) or isinstance(tile, str) or len(tile) != 2:
        raise InputError(f"tile is {shown(tile)}; give its rows and columns, like (256, 256)")
    for side in tile:
        check_whole(tile=side)


def _count(rows: float) -> str:
    return f"{rows:,.4g}" if rows < 1e4 else f"{rows:,.0f}"


def _with_weights(product: Product, dtype: str | None) -> Product:
    return product if dtype is None else replace(product, w=replace(product.w, dtype=parse_dtype(dtype)))


def wider(product: Product) -> str:
    """The compute dtype: narrower operands are widened to the other's."""
    x, w = product.x, product.w
    if x.element_bytes == w.element_bytes and x.dtype != w.dtype:
        raise InputError(
            f"{x.dtype} and {w.dtype} are equally wide: say in which the product is computed, "
            f"like --compute {x.dtype}"
        )
    return x.dtype if x.element_bytes >= w.element_bytes else w.dtype
