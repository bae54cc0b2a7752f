"""Mixtures of experts: questions of the topic moe, but for what a ragged exchange is worth."""

from math import ceil, prod

import numpy as np

from book_answers import Given, UnansweredError, Value, answers
from book_answers.counts import chip_of, hbm_bytes, met_params, model_of, of_book, whole, word
from book_answers.memory import memory_of, state
from meshwright.costmodel.counting import counts
from meshwright.costmodel.limits.thresholds import block_work, expert_width_needed, switched_network
from meshwright.costmodel.roofline.intensity import critical_batch, critical_intensity
from meshwright.costmodel.roofline.operands import parse_dtype
from meshwright.costmodel.serving.server import chips_for, chips_of, smallest_slice
from meshwright.hardware.chip import ELEMENT_BYTES
from meshwright.hardware.profile import book_chip

RUNNING_EXAMPLE = "v5e"
GPUS_PER_NODE = 8
MANY = GPUS_PER_NODE * 2**30  # GPUs: far more than experts that a token meets


@answers("moe", "active")
def active_params(given: Given) -> Value:
    return of_book(model_of(given)).active


@answers("moe", "total_over_dense")
def total_over_dense(given: Given) -> Value:
    return of_book(model_of(given)).params / of_book(model_of(given, dense=True)).params


@answers("moe", "active_over_dense_below")
def active_over_dense(given: Given) -> Value:
    """Its limit, where everything is in the feed-forward part: k times what the dense model has."""
    return given.number("k")


@answers("moe", "flops_per_token")
def moe_flops_per_token(given: Given) -> Value:
    """Mixtures are met in chapters on inference; a run's tokens would ask for training."""
    return counts.rule_flops(met_params(given), training=given.has("tokens"))


@answers("moe", "sparsity")
def sparsity(given: Given) -> Value:
    return counts.sparsity(given.number("E"), given.number("k"))


@answers("moe", "critical_batch")
def moe_critical_batch(given: Given) -> Value:
    """Without an intensity or a chip: on the one of the book's chapters on inference."""
    weights = ELEMENT_BYTES[parse_dtype(word(given, "weights", "bf16"))]
    compute = word(given, "compute", "bf16")
    if given.has("alpha_hbm") and compute == "bf16":
        dense = critical_batch(weights, given.number("alpha_hbm"), 1.0)
    elif given.has("alpha_hbm") and not given.has("chip"):
        raise UnansweredError(f"the intensity is that of bf16, and a chip's {compute} rate is not given")
    else:
        chip = book_chip(word(given, "chip", RUNNING_EXAMPLE))
        dense = critical_batch(weights, chip.peak_flop_per_s(compute), chip.hbm_bytes_per_s)
    return dense * float(sparsity(given))


def weight_bytes(given: Given, dtype: str) -> float:
    int8 = given.number("param_bytes_int8")
    return state(int8, parameters=ELEMENT_BYTES[dtype])


@answers("moe", "bytes_per_chip")
def bytes_per_chip(given: Given) -> Value:
    devices = prod(given["slice"])
    if given.has("Y", "Z") and given.number("Y") * given.number("Z") != devices:
        raise UnansweredError("Y and Z do not make the slice")
    return state(given.number("param_bytes_int8"), 3, devices, parameters=1)


@answers("moe", "t_load")
def t_load(given: Given) -> Value:
    return float(bytes_per_chip(given)) / chip_of(given).hbm_bytes_per_s


@answers("moe", "free_hbm_per_chip")
def free_hbm_per_chip(given: Given) -> Value:
    return hbm_bytes(given) - float(bytes_per_chip(given))


@answers("moe", "min_chips_int8")
def min_chips_int8(given: Given) -> Value:
    return ceil(chips_for(weight_bytes(given, "int8"), memory_of(hbm_bytes(given))))


@answers("moe", "min_chips_bf16")
def min_chips_bf16(given: Given) -> Value:
    return ceil(chips_for(weight_bytes(given, "bf16"), memory_of(hbm_bytes(given))))


@answers("moe", "min_slice_int8")
def min_slice_int8(given: Given) -> Value:
    shape = smallest_slice(chip_of(given), float(min_chips_int8(given)))
    if shape is None:
        raise UnansweredError("no slice is large enough")
    return chips_of(shape)


# Experts over nodes of GPUs


def alpha_of(given: Given) -> float:
    """FLOP per byte of a node's way out: of one GPU's peak, as the book has it."""
    for key in ("alpha_node", "alpha"):
        if given.has(key):
            return given.number(key)
    return critical_intensity(given.number("flops_per_s"), given.number("node_egress_Bps"))


def width_needed(alpha: float, gpus: int, top_k: int) -> float:
    """F of an expert from which its products outlast the exchange."""
    if gpus <= GPUS_PER_NODE or gpus % GPUS_PER_NODE:
        raise UnansweredError(f"{gpus} GPUs are not several nodes")
    network = switched_network(1.0, 1.0, GPUS_PER_NODE, gpus // GPUS_PER_NODE)
    return expert_width_needed(alpha, network, np.array(network.sizes), top_k)


def threshold(quantity: str, gpus: int) -> None:
    @answers("moe", quantity)
    def needed(given: Given) -> Value:
        return width_needed(alpha_of(given), gpus, 8)


for _quantity, _gpus in (("Z16_k8_F_threshold", 16), ("Z64_k8_F_threshold", 64), ("large_F_threshold", MANY)):
    threshold(_quantity, _gpus)


@answers("moe", "t_math")
def expert_math_s(given: Given) -> Value:
    """Of the B tokens that the group holds together, forward."""
    block = block_work(given.number("flops_per_s"), whole(given, "D"), whole(given, "F"))
    return block.math_s * given.number("B") * given.number("k") / given.number("Z")


@answers("moe", "t_comms")
def expert_exchange_s(given: Given) -> Value:
    """At the F that is needed an exchange takes as long as the products."""
    needed = width_needed(alpha_of(given), whole(given, "Z"), whole(given, "k"))
    return float(expert_math_s(given)) * needed / given.number("F")


@answers("moe", "compute_bound")
def experts_hide_exchange(given: Given) -> Value:
    return given.number("F") > width_needed(alpha_of(given), whole(given, "Z"), whole(given, "k"))


@answers("moe", "tokens_per_gpu")
def tokens_per_gpu(given: Given) -> Value:
    """From which on data parallelism over nodes hides its gradients, of which all experts' are reduced."""
    if given.has("B"):
        raise UnansweredError("a batch over a number of GPUs that is not given")
    return float(sparsity(given)) * alpha_of(given)
