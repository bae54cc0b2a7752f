"""Rooflines, products, what is inside chips, inventories: topics roofline, matmul and parts of flops, memory, collective.

Rates that a case gives stand in for those of its chip in the book's profile.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from book_answers import Given, UnansweredError, Value, answers
from meshwright.costmodel.attention import attention_intensity, critical_length, intensity_limit
from meshwright.costmodel.ceilings import source_rate
from meshwright.costmodel.inventory import pod, rate_ratio, ratios
from meshwright.costmodel.matmul import matmul
from meshwright.costmodel.operands import Product, parse_operand, parse_product
from meshwright.costmodel.roofline import (
    critical_batch,
    critical_intensity,
    dot_product,
    elementwise,
    most_apart,
    operator,
    overlap,
    product_intensity,
    seconds_at,
    tiled_intensity,
)
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


def text_of(given: Given) -> str:
    """The product of a case: as 'op', or x and w, with w turned where it is written [out, in]."""
    if given.has("op") and "[" in str(given["op"]):
        return str(given["op"])
    x, w = parse_operand(str(given["x"])), parse_operand(str(given["w"]))
    if x.dims[-1] != w.dims[0] and w.dims[-1] == x.dims[-1]:
        return f"{x} x {w.dtype}[{','.join((w.dims[-1], *w.dims[:-1]))}]"
    return f"{x} x {w}"


def sizes_of(text: str, given: Mapping[str, Any], **more: int) -> dict[str, int]:
    """Sizes of the product's named dimensions that the case gives."""
    product: Product = parse_product(text)
    names = {d for d in (*product.x.dims, *product.w.dims) if not d.isdigit()}
    found = {name: int(given[name]) for name in names if name in given}
    return found | {name: size for name, size in more.items() if name in names}


def product_of(given: Given, **more: int) -> Working:
    """Roofline of the case's product."""
    text = text_of(given)
    rate = {"bytes_per_s": memory_rate(given)} if given.has("vmem_Bps") or given.has("pcie_Bps") else {}
    return matmul(text, chip_of(given), sizes=sizes_of(text, given, **more), **rate)


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
        working = product_of(given)
        exact = "critical_batch_exact"
        return number(working, exact if exact in working.steps else "critical_batch")
    weights, compute = dtypes(given)
    return critical_batch(ELEMENT_BYTES[weights], compute_rate(given, compute), memory_rate(given))


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


# Topic matmul: one product on one chip.


@answers("matmul", "intensity")
def _product_intensity(given: Given) -> Value:
    if given.has("bm", "bn"):
        size = given.number("dtype_bytes", 2)
        return tiled_intensity(given.number("bm"), given.number("bn"), size, size)
    if given.has("B", "D", "F", "dtype_bytes"):
        sizes = (given.number(key) for key in ("B", "D", "F"))
        return product_intensity(*sizes, *[given.number("dtype_bytes")] * 3)
    text = text_of(given)
    return parse_product(text, sizes_of(text, given)).work.intensity


@answers("matmul", "critical_intensity_int8")
def _critical_int8(given: Given) -> Value:
    return critical_intensity(compute_rate(given, "int8"), memory_rate(given))


@answers("matmul", "ops_per_token")
def _per_token(given: Given) -> Value:
    text = text_of(given)
    return parse_product(text, sizes_of(text, given, B=1)).work.flops


@answers("matmul", "weight_bytes")
def _weight_bytes(given: Given) -> Value:
    text = text_of(given)
    return parse_product(text, sizes_of(text, given, B=1)).weight_bytes


def _at_batch(batch: int, step: str) -> Callable[[Given], Value]:
    return lambda given: number(product_of(given, B=batch), step)


for _batch in (64, 512):
    answers("matmul", f"t_{_batch}")(_at_batch(_batch, "t_lower"))
    answers("matmul", f"bytes_{_batch}")(_at_batch(_batch, "bytes"))


def _square(given: Given, size: int) -> Working:
    """A square product at that width, with the dtypes that the case names."""
    weights, compute = dtypes(given)
    return matmul(f"{compute}[B,D] x {weights}[D,F]", chip_of(given), sizes={"D": size, "F": size})


for _size in (1024, 4096):
    answers("matmul", f"crit_batch_{_size}")(
        lambda given, size=_size: number(_square(given, size), "critical_batch_exact")
    )
answers("matmul", "ratio_1024_to_asymptote_120")(
    lambda given: number(_square(given, 1024), "exact_over_asymptote")
)


@answers("matmul", "t")
def _time(given: Given) -> Value:
    """On cores whose rate is given: compute alone."""
    text = text_of(given)
    rate = given.number("flops_per_s_per_core") * given.number("cores")
    return seconds_at(parse_product(text, sizes_of(text, given)).work.flops, rate)
