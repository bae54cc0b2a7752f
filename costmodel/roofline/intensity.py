"""The roofline: how long an operation takes at most and at least, and what binds.

    t_math = FLOPs / C, t_source = bytes / W        at least the longest of them (all overlap), at most their sum
    compute bound when FLOPs / bytes > C / W        of a product with few rows B: when B > w C / (2 W)

x, w and out are bytes per element. FLOPs and bytes are those of the planner's operators (operators.py), rates those of
one chip (ceilings.py). Source: jax-ml/scaling-book, chapters 1, 2, 4 and 12.
"""

from collections.abc import Mapping, Sequence
from math import inf

from meshwright.costmodel.doors import ChipSource, check_positive, chip_of
from meshwright.costmodel.flops import product_bytes, product_flops
from meshwright.costmodel.roofline.ceilings import Ceiling, given_rate, peak, source_rate, vector_peak
from meshwright.costmodel.roofline.operands import Work, parse_dtype
from meshwright.costmodel.working import Step, Working
from meshwright.hardware.chip import ELEMENT_BYTES, Chip
from meshwright.hardware.errors import InputError, check_type


def lower_s(*seconds: float) -> float:
    """Everything overlaps: the longest part."""
    return max(seconds)


def upper_s(*seconds: float) -> float:
    """Nothing overlaps: the sum; never more than as many times the longest as there are parts."""
    return sum(seconds)


def most_apart(parts: int) -> float:
    """The upper bound over the lower one at most: all parts take equally long."""
    return upper_s(*[1.0] * parts) / lower_s(*[1.0] * parts)


def seconds_at(amount: float, per_s: float) -> float:
    """Seconds of FLOPs or bytes at a rate of one of them."""
    return amount / per_s


def critical_intensity(flop_per_s: float, bytes_per_s: float) -> float:
    """FLOPs per byte from which an operation is compute bound."""
    return flop_per_s / bytes_per_s


def critical_batch(w: float, flop_per_s: float, bytes_per_s: float) -> float:
    """Rows from which a product is compute bound if its weights are all that moves: w C / (2 W)."""
    return float(w * flop_per_s / (product_flops(1, 1, 1) * bytes_per_s))


def critical_batch_exact(
    k: float, n: float, flop_per_s: float, bytes_per_s: float, x: float = 2, w: float = 2, out: float = 2
) -> float:
    """Rows from which a [B, k] x [k, n] product is compute bound, with all three operands; infinite if never."""
    per_row = product_flops(1, k, n) / flop_per_s - product_bytes(1, k, n, x, 0, out) / bytes_per_s
    return float(product_bytes(0, k, n, x, w, out) / bytes_per_s / per_row) if per_row > 0 else inf


def product_intensity(m: float, k: float, n: float, x: float = 2, w: float = 2, out: float = 2) -> float:
    """FLOPs per byte of an [m, k] x [k, n] product."""
    return float(product_flops(m, k, n) / product_bytes(m, k, n, x, w, out))


def tiled_intensity(rows: float, cols: float, x: float = 2, w: float = 2) -> float:
    """FLOPs per byte of a product computed in output tiles: per tile, operands are read again and no output moves."""
    return product_intensity(rows, 1, cols, x, w, 0)


def attainable(intensity: float, flop_per_s: float, bytes_per_s: float) -> float:
    """FLOP/s at an intensity when all overlaps: the roofline."""
    return 1.0 / lower_s(1.0 / flop_per_s, 1.0 / intensity / bytes_per_s)


def overlap(seconds: Mapping[str, float]) -> Working:
    """Bounds from the seconds of each resource. Errors: InputError where there are none, or one is negative."""
    check_type("seconds", seconds, Mapping, "seconds by name, like {'t_math': 1.0, 't_comms': 1.0}")
    for name, value in seconds.items():
        check_type(name, value, (int, float), "seconds, like 1.0")
    if not seconds or not all(0 <= value < inf for value in seconds.values()):
        raise InputError("give at least one time, none below zero, like t_math=1 and t_comms=1")
    given = {name: Step(value, "s") for name, value in seconds.items()}
    return Working("bounds of an operation", given, bounds(seconds), binds(seconds))


def dot_product(length: float, dtype: str = "bf16") -> Work:
    """The dot product of two vectors; its intensity tends to 1 / bytes per element."""
    check_positive(length=length)
    return Work(2.0 * length - 1.0, ELEMENT_BYTES[parse_dtype(dtype)] * (2.0 * length + 1.0))


def elementwise(length: float, dtype: str = "bf16", operands: int = 2, flops: float = 1.0) -> Work:
    """An elementwise operation that reads `operands` arrays and writes one."""
    check_positive(length=length, operands=operands, flops=flops)
    return Work(flops * length, ELEMENT_BYTES[parse_dtype(dtype)] * (operands + 1.0) * length)


def operator(
    work: Work,
    chip: ChipSource,
    *,
    dtype: str = "bf16",
    vector: bool = False,
    source: str = "hbm",
    name: str = "operation",
    flop_per_s: float | None = None,
    bytes_per_s: float | None = None,
) -> Working:
    """Roofline of any operation of which FLOPs and bytes are known.

    `vector` takes the rate of the vector units instead of the matrix units'; `flop_per_s` and `bytes_per_s` stand for
    the chip's. Errors: InputError, MissingFigureError.
    """
    chip = chip_of(chip)
    check_type("work", work, Work, "a Work(flops, bytes), like dot_product(4096)")
    check_positive(flops=work.flops, bytes=work.bytes, flop_per_s=flop_per_s, bytes_per_s=bytes_per_s)
    if flop_per_s is not None:
        math = Ceiling("peak", flop_per_s, "given")
    else:
        math = vector_peak(chip) if vector else peak(chip, parse_dtype(dtype))
    move = source_rate(chip, source) if bytes_per_s is None else given_rate(source, bytes_per_s)
    seconds = {"t_math": seconds_at(work.flops, math.per_s), "t_memory": seconds_at(work.bytes, move.per_s)}
    given = {
        "C": Step(math.per_s, "FLOP/s", note=f"{math.name}: {math.note}"),
        "W": Step(move.per_s, "B/s", note=f"{move.name}: {move.note}"),
        "flops": Step(work.flops, "FLOP"),
        "bytes": Step(work.bytes, "B"),
    }
    steps = {
        "intensity": Step(work.intensity, "FLOP/B", "flops / bytes"),
        "critical_intensity": Step(critical_intensity(math.per_s, move.per_s), "FLOP/B", "C / W"),
        "t_math": Step(seconds["t_math"], "s", "flops / C"),
        "t_memory": Step(seconds["t_memory"], "s", "bytes / W"),
        **bounds(seconds),
        "share_of_peak": Step(seconds["t_math"] / lower_s(*seconds.values()), "ratio", "t_math / t_lower"),
    }
    notes = (devices_note(chip),) if chip.devices_per_chip > 1 else ()
    return Working(f"{name} on {chip.title}, from {move.name}", given, steps, binds(seconds), notes)


def bounds(seconds: Mapping[str, float]) -> dict[str, Step]:
    """The steps that every roofline ends with."""
    least, most = lower_s(*seconds.values()), upper_s(*seconds.values())
    names = ", ".join(seconds)
    return {
        "t_lower": Step(least, "s", f"max({names})", "everything overlaps"),
        "t_upper": Step(most, "s", " + ".join(seconds), "nothing overlaps"),
        "upper_over_lower": Step(
            most / least if least else 1.0,
            "ratio",
            "t_upper / t_lower",
            f"never above {most_apart(len(seconds)):g}",
        ),
    }


def binds(seconds: Mapping[str, float]) -> str:
    """Which resource takes longest, and by how much."""
    words = {"t_math": "compute", "t_memory": "memory", "t_link": "the link", "t_hbm": "HBM"}
    ranked: Sequence[tuple[str, float]] = sorted(seconds.items(), key=lambda item: -item[1])
    (first, longest), *others = ranked
    name = words.get(first, first)
    if not others:
        return f"{name} binds"
    second, next_s = others[0]
    if longest == next_s:
        return f"{name} and {words.get(second, second)} take equally long"
    much = f"{longest / next_s:,.3g} times as long as" if next_s else "against nothing of"
    return f"{name} binds, {much} {words.get(second, second)}"


def devices_note(chip: Chip) -> str:
    """For chips that a program sees as several devices."""
    return f"rates are of the whole chip; a program sees {chip.devices_per_chip} devices with an equal part of them each"
