"""What is inside chips, what pods consist of, which axes wrap: parts of the topics flops, memory and collective."""

from collections.abc import Callable
from math import prod

from book_answers import Given, UnansweredError, Value, answers
from book_answers.roofline import chip_of, compute_rate, number
from meshwright.costmodel.roofline.inventory import pod
from meshwright.costmodel.roofline.operands import parse_operand
from meshwright.costmodel.working import Working
from meshwright.hardware import onchip
from meshwright.hardware.errors import ClusterError
from meshwright.hardware.inventory import max_hops, wraps
from meshwright.hardware.profile import book_chip, with_figures

KB = 1000  # of shared memory and registers, as the book multiplies them


def whole(given: Given, key: str) -> int:
    value = given.number(key)
    if not value.is_integer():
        raise UnansweredError(f"input {key!r} is {value:g}, not a whole number")
    return int(value)


# Matrix units.


def side(given: Given) -> int:
    """Of an MXU: '128x128'."""
    return int(str(given["mxu"]).split("x")[0])


@answers("flops", "flops_per_s_per_mxu")
def _one_mxu(given: Given) -> Value:
    return onchip.mxu_flop_per_s(side(given), given.number("clock_Hz"))


@answers("flops", "flops_per_s_chip")
def _mxus(given: Given) -> Value:
    return onchip.mxu_flop_per_s(side(given), given.number("clock_Hz"), whole(given, "mxus"))


@answers("flops", "flops_per_cycle_ratio")
def _larger_mxu(given: Given) -> Value:
    new, old = (onchip.mxu_flop_per_cycle(whole(given, key)) for key in ("mxu_side_new", "mxu_side_old"))
    return new / old


@answers("flops", "min_padded_dim")
def _padded(given: Given) -> Value:
    if given.has("mxu_side_new"):
        return onchip.padded(1, whole(given, "mxu_side_new"))
    if given.has("mxu"):
        return onchip.padded(1, side(given))
    return onchip.padded(1, onchip.tpu_units(chip_of(given).name).mxu_side.count)


@answers("flops", "flops_per_cycle_per_tc")
def _tensor_core(given: Given) -> Value:
    cores = whole(given, "sms"), whole(given, "tensor_cores_per_sm")
    return onchip.tensor_flop_per_cycle(compute_rate(given), *cores, given.number("clock_Hz"))


@answers("flops", "clock")
def _clock_of_mxus(given: Given) -> Value:
    return onchip.mxu_clock_hz(compute_rate(given), side(given), whole(given, "mxus"))


@answers("flops", "clock")
def _clock_of_alus(given: Given) -> Value:
    alus = whole(given, "cuda_cores") if given.has("cuda_cores") else whole(given, "alus")
    rate = given.number("vector_flops")
    return onchip.vector_clock_hz(rate, alus, fused=onchip.counts_fused(rate, alus))


# Vector units.


@answers("flops", "vpu_flops_per_s_per_core")
def _vpu(given: Given) -> Value:
    alus = onchip.tpu_alus(prod(given["lanes"]), whole(given, "alus_per_lane"))
    return onchip.vector_flop_per_s(alus, given.number("clock_Hz"))


@answers("flops", "mxu_over_vpu")
def _matrix_over_vector(given: Given) -> Value:
    cores = onchip.tpu_units(chip_of(given).name).cores.count
    return compute_rate(given) / (cores * float(_vpu(given)))


@answers("flops", "h100")
def _alus_of_h100(given: Given) -> Value:
    return onchip.gpu_alus(whole(given, "h100_sms"), whole(given, "subpartitions"), whole(given, "lanes"))


@answers("flops", "b200")
def _alus_of_b200(given: Given) -> Value:
    return onchip.gpu_alus(whole(given, "b200_sms"), whole(given, "subpartitions"), whole(given, "lanes"))


@answers("flops", "tpu_v5p")
def _alus_of_v5p(given: Given) -> Value:
    return onchip.tpu_units("v5p").vector_alus or 0


@answers("flops", "base")
def _at_base(given: Given) -> Value:
    return onchip.vector_flop_per_s(given.number("alus"), given.number("clock_Hz"))


@answers("flops", "boost")
def _at_boost(given: Given) -> Value:
    return onchip.vector_flop_per_s(given.number("alus"), given.number("boost_Hz"))


@answers("flops", "tensor_over_vector")
def _tensor_over_vector(given: Given) -> Value:
    """At boost; the GPU is the one named, or the one that has so many ALUs."""
    if given.has("flops_per_s_bf16") or given.has("chip"):
        return compute_rate(given) / float(_at_boost(given))
    chip = book_chip(onchip.gpu_with_alus(whole(given, "alus")))
    return chip.peak_flop_per_s("bf16") / float(_at_boost(given))


# Pods and hosts.


def _pod(given: Given) -> Working:
    """Totals of the case's pod, its hosts as given."""
    chips = prod(given["pod"]) if given.has("pod") else whole(given, "chips")
    chip = chip_of(given)
    if given.has("host"):
        chip = with_figures(chip, chips_per_host=prod(given["host"]))
    return pod(chip, chips)


def _of_pod(step: str, *needed: str) -> Callable[[Given], Value]:
    def read(given: Given) -> Value:
        if not any(given.has(key) for key in needed):
            raise UnansweredError(f"input {needed[0]!r} is missing")
        return number(_pod(given), step)

    return read


for _quantity, _step in {
    "chips": "chips",
    "hosts": "hosts",
    "tensorcores": "cores",
    "flops_per_s": "flops_per_s_bf16",
    "hbm_total": "hbm_total",
}.items():
    answers("memory", _quantity)(_of_pod(_step, "pod"))
for _quantity, _step in {
    "hbm_bw_total": "hbm_bytes_per_s",
    "flops_total": "flops_per_s_bf16",
    "host_dram": "host_memory",
    "hosts": "hosts",
    "hbm_total": "hbm_total",
}.items():
    answers("memory", _quantity)(_of_pod(_step, "chips"))


@answers("memory", "hbm_Bps")
def _hbm_rate(given: Given) -> Value:
    return chip_of(given).memory.bandwidth.si


@answers("memory", "host_bw")
def _host_link(given: Given) -> Value:
    link = chip_of(given).host_link
    if link is None:
        raise UnansweredError("no host link")
    return link.si


# Memories inside chips.


@answers("memory", "vreg_bytes_per_core")
def _registers(given: Given) -> Value:
    return onchip.register_bytes(whole(given, "vregs"), prod(given["shape"]), whole(given, "bytes"))


@answers("memory", "vreg_bytes_chip")
def _all_registers(given: Given) -> Value:
    return onchip.sm_bytes(whole(given, "cores"), given.number("vreg_bytes_per_core"))


@answers("memory", "bytes_per_sm")
def _sm_registers(given: Given) -> Value:
    one = onchip.register_bytes(whole(given, "registers_per_subpartition"), 1, whole(given, "bytes"))
    return onchip.sm_bytes(whole(given, "subpartitions"), one)


@answers("memory", "warps_at_256_registers")
def _warps(given: Given) -> Value:
    one = onchip.resident_warps(
        whole(given, "registers_per_subpartition"), whole(given, "registers_per_thread"), whole(given, "warp")
    )
    return whole(given, "subpartitions") * one


@answers("memory", "smem")
def _shared(given: Given) -> Value:
    return onchip.sm_bytes(whole(given, "sms"), given.number("smem_kB") * KB)


@answers("memory", "smem_plus_registers")
def _shared_and_registers(given: Given) -> Value:
    return onchip.sm_bytes(
        whole(given, "sms"), given.number("smem_kB") * KB, given.number("registers_kB") * KB
    )


def _shape(given: Given) -> tuple[int, ...]:
    """Of an array that is to be laid out in tiles."""
    if given.has("shape"):
        return tuple(int(d) for d in given["shape"])
    return tuple(int(d) for d in parse_operand(str(given["array"])).dims)


@answers("memory", "padded_elements")
def _tiled(given: Given) -> Value:
    return onchip.padded_elements(_shape(given), [int(t) for t in given["tile"]])


@answers("memory", "expansion")
def _expansion(given: Given) -> Value:
    return float(_tiled(given)) / prod(_shape(given))


# Axes.


def _axis_size(given: Given) -> int:
    """Devices along one axis: devices alone are one, beside `wrap`, which is of an axis."""
    if given.has("axis"):
        return whole(given, "axis")
    if not given.has("wrap") or any(given.has(key) for key in ("axes", "slice", "x", "y", "z")):
        raise UnansweredError("no axis is given")
    return whole(given, "devices")


def _wraps(axis: int) -> Callable[[Given], Value]:
    def read(given: Given) -> Value:
        try:
            return wraps(chip_of(given), tuple(int(d) for d in given["slice"]))[axis]
        except (ClusterError, IndexError) as error:
            raise UnansweredError(str(error)) from None

    return read


for _axis in range(3):
    answers("collective", f"wrap_axis_{_axis}")(_wraps(_axis))
answers("collective", "max_hops_ring")(lambda given: max_hops(_axis_size(given), True))
answers("collective", "max_hops_line")(lambda given: max_hops(_axis_size(given), False))
