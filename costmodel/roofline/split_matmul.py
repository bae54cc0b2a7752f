"""A product whose contraction is split over chips: each makes a partial output, which all must then sum.

    t_math = 2 m k n / (N C), t_comms = all-reduce of the output            compute bound from some k on, whatever m and n

On two neighbours each sends its whole partial output over one link, so k / 2 FLOPs per byte: compute bound when
k > 2 C / W. The all-reduce is the planner's. Source: jax-ml/scaling-book, chapter 1.
"""

from collections.abc import Mapping

import numpy as np

from meshwright.costmodel.collectives import Network, duration, reduce_loads
from meshwright.costmodel.doors import ChipSource, check_positive, check_whole, chip_of
from meshwright.costmodel.flops import product_bytes, product_flops
from meshwright.costmodel.roofline.ceilings import Ceiling, cited, peak
from meshwright.costmodel.roofline.intensity import binds, bounds, critical_intensity, seconds_at
from meshwright.costmodel.roofline.matmul import wider
from meshwright.costmodel.roofline.operands import parse_product
from meshwright.costmodel.working import Step, Working, told
from meshwright.hardware.chip import Chip, Torus
from meshwright.hardware.errors import InputError
from meshwright.hardware.network import Level, SwitchTier, TorusAxis


def split_matmul(
    text: str,
    chip: ChipSource,
    ways: int,
    *,
    sizes: Mapping[str, int] | None = None,
    flop_per_s: float | None = None,
    link_bytes_per_s: float | None = None,
    out_bytes: float | None = None,
) -> Working:
    """Compute against the sum of partial outputs, without latency.

    Args:
        text, sizes: as of `matmul`; dimensions may be open, the balance does not need rows and columns.
        ways: chips on one line of the torus, or in one switched domain.
        flop_per_s, link_bytes_per_s: instead of the chip's; one way.
        out_bytes: per element of the partial outputs, if not the output's own.

    Errors: InputError for shapes that do not fit or a k that does not divide.
    """
    chip = chip_of(chip)
    check_whole(ways=ways)
    check_positive(flop_per_s=flop_per_s, link_bytes_per_s=link_bytes_per_s, out_bytes=out_bytes)
    product = parse_product(text, sizes)
    if ways < 2:
        raise InputError(f"a contraction split {ways} ways needs no sum; split it at least 2 ways")
    m, k, n = (product.size(dims) for dims in (product.rows, product.contracted, product.cols))
    if k is not None and k % ways:
        raise InputError(f"the contracted size {k:,} does not split {ways} ways; use a divisor of it")
    dtype = wider(product)
    math = peak(chip, dtype) if flop_per_s is None else Ceiling(f"{dtype} peak", flop_per_s, "given")
    link = _link(chip) if link_bytes_per_s is None else Ceiling("link", link_bytes_per_s, "given")
    per_element = product.out.element_bytes if out_bytes is None else out_bytes
    # Rows and columns multiply both sides alike, so one of each stands for those that are open.
    rows, cols = m or 1, n or 1
    partial = product_bytes(rows, 0, cols, 0, 0, per_element)
    comms = _sum_s(chip, ways, link.per_s, partial)
    one = seconds_at(product_flops(rows, 1, cols), ways * math.per_s)
    given = {
        "C": Step(math.per_s, "FLOP/s", note=math.note),
        "W": Step(link.per_s, "B/s", note=f"{link.name}, one way: {link.note}"),
        "N": Step(ways, note="chips that share the contraction"),
        "out": Step(per_element, "B", note="per element of the partial outputs"),
    }
    alpha = critical_intensity(math.per_s, link.per_s)
    steps = {
        "critical_intensity": Step(alpha, "FLOP/B", "C / W"),
        "critical_k": Step(comms / one, "elements", "k at which t_math = t_comms", "whatever m and n are"),
    }
    verdict = f"the sum of partial outputs binds below k = {told(comms / one)}, compute from there on"
    if k is not None:
        on_link = comms * link.per_s
        intensity = product_flops(rows, k, cols) / ways / on_link
        steps["intensity"] = Step(intensity, "FLOP/B", "2 m k n / N / bytes on a link")
    if m is not None and k is not None and n is not None:
        seconds = {"t_math": one * k, "t_comms": comms}
        steps["t_math"] = Step(seconds["t_math"], "s", "2 m k n / (N C)")
        steps["t_comms"] = Step(comms, "s", "all-reduce of out m n")
        steps |= bounds(seconds)
        verdict = binds(seconds)
    question = f"{product.x} x {product.w} in {dtype}, contraction split over {ways} x {chip.title}"
    return Working(question, given, steps, verdict, ("latency is left out",))


def _link(chip: Chip) -> Ceiling:
    if isinstance(chip.scale_up, Torus):
        return Ceiling("ICI link", chip.scale_up.per_link_one_way.si, cited(chip.scale_up.per_link_one_way))
    return Ceiling(
        chip.scale_up.kind, chip.scale_up.per_chip_one_way.si, cited(chip.scale_up.per_chip_one_way)
    )


def _sum_s(chip: Chip, ways: int, rate: float, total_bytes: float) -> float:
    """Seconds of the all-reduce over a line of a torus, or inside a switched domain."""
    torus = isinstance(chip.scale_up, Torus)
    level: Level = TorusAxis("x", ways, rate, False, 0.0) if torus else SwitchTier("nvlink", ways, rate, 0.0)
    network = Network((level,), (1.0,))
    return float(duration(reduce_loads(network, total_bytes, np.array([ways]), np.array([1]))))
