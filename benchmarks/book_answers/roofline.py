"""Rooflines of operations and the balance of chips: topic roofline.

Rates that a case gives stand in for those of its chip in the book's profile.
"""

from collections.abc import Callable
from math import inf
from typing import Any

from book_answers import Given, UnansweredError, Value, answers
from meshwright.costmodel.roofline.attention import attention_intensity, critical_length, intensity_limit
from meshwright.costmodel.roofline.ceilings import source_rate
from meshwright.costmodel.roofline.intensity import (
    critical_batch,
    critical_intensity,
    dot_product,
    elementwise,
    most_apart,
    operator,
    overlap,
    seconds_at,
)
from meshwright.costmodel.roofline.inventory import pod, rate_ratio, ratios
from meshwright.costmodel.roofline.matmul import matmul
from meshwright.costmodel.roofline.operands import parse_dtype
from meshwright.costmodel.working import Working
from meshwright.hardware.chip import ELEMENT_BYTES, Chip
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.inventory import host_rate
from meshwright.hardware.profile import book_chip, load_profile, with_figures
from meshwright.hardware.units import parse_bytes_per_s

GB = 1e9
DTYPE_OF_BYTES = {4: "fp32", 2: "bf16", 1: "int8"}
PEAKS = {
    "flops_per_s_bf16": "bf16",
    "flops_per_s": "bf16",
    "ops_per_s_int8": "int8",
    "flops_per_s_fp8": "fp8",
}
RATES = {
    "hbm_Bps": "hbm_bytes_per_s", "hbm_Bps_per_chip": "hbm_bytes_per_s", "ici_one_way_Bps_per_link": "link_bytes_per_s",
    "ici_one_way_Bps": "link_bytes_per_s", "dcn_egress_Bps_per_chip": "egress_bytes_per_s",
    "pcie_Bps": "host_link_bytes_per_s",
}  # fmt: skip
SIZES = ("hbm_capacity_GB", "hbm_GB")


def chip_of(given: Given, key: str = "chip") -> Chip:
    """The chip with the book's figures, and those that the case gives."""
    try:
        chip = book_chip(str(given[key]))
    except MeshwrightError as error:
        raise UnansweredError(str(error)) from None
    peaks = {dtype: given.number(name) for name, dtype in PEAKS.items() if given.has(name)}
    figures: dict[str, Any] = {field: given.number(name) for name, field in RATES.items() if given.has(name)}
    for name in (size for size in SIZES if given.has(size)):
        figures["hbm_bytes"] = given.number(name) * GB
    if given.has("chips_per_host"):
        figures["chips_per_host"] = int(given.number("chips_per_host"))
    return with_figures(chip, peaks=peaks, **figures) if peaks or figures else chip


def number(working: Working, step: str) -> Value:
    """A step of a working; what it has not is not answered."""
    if step not in working.steps and step not in working.given:
        raise UnansweredError(f"no step {step}")
    return working[step]


def compute_rate(given: Given, dtype: str = "bf16") -> float:
    """C: as given, else the chip's."""
    for name, of in PEAKS.items():
        if of == dtype and given.has(name):
            return given.number(name)
    chip = chip_of(given)
    return chip.peak_flop_per_s(dtype) * chip.devices_per_chip


def memory_rate(given: Given) -> float:
    """W of the place that the case's keys name, else HBM of the chip."""
    for key in ("vmem_Bps", "pcie_Bps", "hbm_Bps", "hbm_Bps_per_chip"):
        if given.has(key):
            return given.number(key)
    return source_rate(chip_of(given), "hbm").per_s


def alpha(given: Given) -> float:
    """C/W of HBM at bf16."""
    if given.has("alpha_hbm"):
        return given.number("alpha_hbm")
    return critical_intensity(compute_rate(given), memory_rate(given))


def dtypes(given: Given) -> tuple[str, str]:
    """Of the weights in memory, and of the multiplication."""
    compute = str(given.get("compute", given.get("activations", "bf16")))
    return str(given.get("weights", compute if given.has("activations") else "bf16")), compute


# Topic roofline.


@answers("roofline", "critical_intensity", "hardware_intensity")
def _critical(given: Given) -> Value:
    if given.has("vector_flops"):
        return critical_intensity(given.number("vector_flops"), memory_rate(given))
    return alpha(given)


@answers("roofline", "critical_intensity_low", "stated_low")
def _vmem(given: Given) -> Value:
    """What an operation needs per byte of VMEM: HBM's need over the ratio of the two rates."""
    return critical_intensity(alpha(given), given.number("vmem_over_hbm_bw"))


@answers("roofline", "critical_intensity_vpu")
def _vector(given: Given) -> Value:
    rate = given.number("vpu_flops_per_s_per_core") * given.number("cores")
    return critical_intensity(rate, memory_rate(given))


@answers(("roofline", "matmul"), "critical_batch")
def _critical_batch(given: Given) -> Value:
    if given.has("x", "w"):
        raise UnansweredError("of a product with shapes")
    weights, compute = dtypes(given)
    return critical_batch(
        ELEMENT_BYTES[parse_dtype(weights)], compute_rate(given, compute), memory_rate(given)
    )


@answers("roofline", "bf16")
def _bf16(given: Given) -> Value:
    return critical_batch(2, compute_rate(given), memory_rate(given))


@answers("roofline", "int8_weights_bf16_compute", "int8_weights_bf16_flops")
def _int8_weights(given: Given) -> Value:
    return critical_batch(1, compute_rate(given), memory_rate(given))


@answers("roofline", "int8_weights_int8_compute", "int8_int8")
def _int8(given: Given) -> Value:
    return critical_batch(1, compute_rate(given, "int8"), memory_rate(given))


@answers("roofline", "beta_times_alpha_with_int8_rate")
def _beta(given: Given) -> Value:
    weights, compute = dtypes(given)
    working = matmul(f"{compute}[B,D] x {weights}[D,F]", chip_of(given))
    return number(working, "critical_batch_beta_rule")


@answers("roofline", "T_compute_bound", "T")
def _length(given: Given) -> Value:
    if given.get("G_large"):
        return critical_length(alpha(given), inf)
    return critical_length(alpha(given), given.number("G", 1))


@answers("roofline", "T_compute_bound_mha_G1")
def _length_of_many_heads(given: Given) -> Value:
    return critical_length(alpha(given), 1)


@answers("roofline", "intensity")
def _intensity(given: Given) -> Value:
    if given.get("op") == "dot":
        return dot_product(given.number("N"), dtype_of(given)).intensity
    if given.has("vector_flops"):
        return elementwise(1, dtype_of(given)).intensity
    keys = given.number("S_equals_T") if given.has("S_equals_T") else given.number("S")
    queries = keys if given.has("S_equals_T") else given.number("T")
    return attention_intensity(queries, keys, group_of(given), given.number("dtype_bytes", 2))


@answers("roofline", "prefill")
def _prefill(given: Given) -> Value:
    return attention_intensity(given.number("T_prefill"), given.number("S"), group_of(given))


@answers("roofline", "generate")
def _generate(given: Given) -> Value:
    return attention_intensity(given.number("T_generate", 1), given.number("S"), group_of(given))


@answers("roofline", "limit")
def _limit(given: Given) -> Value:
    return intensity_limit(group_of(given), given.number("dtype_bytes", 2))


def group_of(given: Given) -> float:
    """Query heads per key-value head."""
    if not given.has("G") and str(given.get("heads", "")).startswith("multi-head"):
        return 1.0
    return given.number("G")


def dtype_of(given: Given) -> str:
    size = given.number("dtype_bytes", 2)
    if size not in DTYPE_OF_BYTES:
        raise UnansweredError(f"no dtype of {size:g} bytes")
    return DTYPE_OF_BYTES[int(size)]


@answers("roofline", "t_math")
def _t_math(given: Given) -> Value:
    return seconds_at(given.number("flops"), compute_rate(given))


def _overlap(given: Given) -> Working:
    return overlap({"t_math": given.number("t_math_s"), "t_comms": given.number("t_comms_s")})


answers("roofline", "t_lower")(lambda given: _overlap(given)["t_lower"])
answers("roofline", "t_upper")(lambda given: _overlap(given)["t_upper"])
answers("roofline", "max_ratio_upper_lower")(lambda given: most_apart(len(_overlap(given).given)))


def _sum_of(length: int) -> Callable[[Given], Value]:
    """Seconds of adding two arrays of that many elements."""

    def read(given: Given) -> Value:
        work = elementwise(length, dtype_of(given))
        rates = {"flop_per_s": given.number("vector_flops"), "bytes_per_s": memory_rate(given)}
        return operator(work, chip_of(given), **rates)["t_lower"]

    return read


answers("roofline", "t_65536", "measured_65536")(_sum_of(65536))
answers("roofline", "t_2_30", "measured_2_30")(_sum_of(2**30))


# Spec rows: totals of a pod, and where a chip's rates balance.


def _of_pod(step: str) -> Callable[[Given], Value]:
    return lambda given: number(pod(chip_of(given), int(given.number("pod_chips", 1))), step)


for _quantity, _step in {
    "alpha_hbm_bf16": "alpha_hbm_bf16",
    "alpha_hbm_fp8": "alpha_hbm_fp8",
    "alpha_hbm_int8": "alpha_hbm_int8",
    "alpha_ici_bidir_1_axis": "alpha_network",
    "alpha_dcn": "alpha_dcn",
    "hbm_full_read_time": "t_read_hbm",
    "pod_chips": "chips",
    "pod_hosts": "hosts",
    "pod_flops_per_s": "flops_per_s_bf16",
    "pod_hbm": "hbm_total",
}.items():
    answers("roofline", _quantity)(_of_pod(_step))


@answers("roofline", "host_dcn")
def _host_nic(given: Given) -> Value:
    return parse_bytes_per_s(f"{given.number('host_dcn_Gbps'):g} Gbit/s")


@answers("roofline", "dcn_per_chip")
def _nic_share(given: Given) -> Value:
    return host_rate(float(_host_nic(given)), int(given.number("chips_per_host")))


def _pair(given: Given, key: str, second: str) -> Chip:
    """A chip under its own name: [FLOP/s, B/s] or [FLOP/s, GB]."""
    flop_per_s, other = given[key]
    figures = {"hbm_bytes_per_s": other} if second == "rate" else {"hbm_bytes": other * GB}
    return with_figures(book_chip(key), peaks={"bf16": flop_per_s}, **figures)


for _key in ("h100", "b200", "h200"):
    for _quantity, _step in {"fp16": "alpha_hbm_bf16", "fp8": "alpha_hbm_fp8"}.items():
        answers("roofline", f"{_key}_{_quantity}")(
            lambda given, key=_key, step=_step: number(pod(_pair(given, key, "rate"), 1), step)
        )


def _two(given: Given) -> Working:
    """Two chips side by side, the first over the second."""
    keys = [key for key, value in given.items() if isinstance(value, list)]
    if len(keys) != 2:
        raise UnansweredError("needs two chips")
    return ratios(_pair(given, keys[0], "size"), _pair(given, keys[1], "size"))


answers("roofline", "flops_ratio")(lambda given: _two(given)["flops"])
answers("roofline", "hbm_ratio")(lambda given: _two(given)["hbm"])


@answers("roofline", "ratio")
def _ratio(given: Given) -> Value:
    """HBM over the host link where its rate is given, else the cache of a GPU over HBM."""
    chip = chip_of(given)
    if given.has("pcie_Bps"):
        return rate_ratio(chip, "hbm", "host")
    if chip.family == "tpu":
        raise UnansweredError("no second rate")
    return rate_ratio(chip, "l2", "hbm")


answers("roofline", "tpu_fraction")(lambda given: load_profile("book").reached["tpu"].high)
answers("roofline", "gpu_fraction_low")(lambda given: load_profile("book").reached["nvidia"].low)
answers("roofline", "gpu_fraction_high")(lambda given: load_profile("book").reached["nvidia"].high)
