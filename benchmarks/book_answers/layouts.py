"""Layouts and lengths of training runs on a torus: questions of the topic training-layout.

Where a case leaves out what its chapter says of the model it trains (parameters, tokens), the model is known by its F.
"""

from math import ceil, prod

from book_answers import Given, UnansweredError, Value, answers
from book_answers.bounds import (
    degrees,
    fsdp,
    layer,
    mix_s_per_byte,
    mixed,
    peak,
    pod_of,
    sides,
    slice_batch,
    tp_limit,
)
from book_answers.counts import flag, whole
from meshwright.costmodel.limits import run_time as run
from meshwright.costmodel.limits.thresholds import best_tensor_ways, nearest_powers

TOPIC = "training-layout"
SEQ_LEN = 4096  # of the LLaMA models that the chapters train
# Parameters and tokens of the models that chapter 6 trains, by F.
TRAINED = {28672: (70e9, 15e12), 53248: (405e9, 15e12)}


def params(given: Given) -> float:
    return given.number("params") if given.has("params") else known(given)[0]


def tokens(given: Given) -> float:
    return given.number("tokens") if given.has("tokens") else known(given)[1]


def known(given: Given) -> tuple[float, float]:
    found = TRAINED.get(round(given.number("F")))
    if found is None:
        raise UnansweredError("neither parameters nor tokens, and no model of the book has this F")
    return found


def batch(given: Given) -> float:
    """Tokens of a step."""
    for key in ("B", "batch_tokens"):
        if given.has(key):
            return given.number(key)
    sequences = given.number("sequences" if given.has("sequences") else "batch_sequences")
    return sequences * seq_len(given)


def seq_len(given: Given) -> float:
    return next((given.number(key) for key in ("seq", "seq_len") if given.has(key)), SEQ_LEN)


def sequences(given: Given) -> float:
    return batch(given) / seq_len(given)


def chips(given: Given) -> float:
    """That the case trains on: stated, by the degrees of its layout, or as many as its batch keeps busy."""
    for key in ("gpus", "chips", "N"):
        if given.has(key):
            return given.number(key)
    if given.has("layout"):
        return float(prod(degrees(given).values()))
    ways = [given.number(key) for key in ("X", "Y", "TP", "PP", "DP", "EP") if given.has(key)]
    if ways:
        return prod(ways)
    if given.has("pods"):
        return given.number("pods") * pod_chips(given)
    if given.has("pod"):
        return pod_chips(given)
    return batch(given) / fsdp(given, round(given.number("axes", 3)))


def pod_chips(given: Given) -> float:
    return float(prod(sides(given, "pod"))) if given.has("pod") else pod_of(given)


# Length of a run


def total_flops(given: Given) -> float:
    return (
        given.number("total_flops")
        if given.has("total_flops")
        else run.step_flops(params(given), tokens(given))
    )


def effective(given: Given) -> float:
    return run.effective_flop_per_s(chips(given), peak(given), given.number("mfu"))


def seconds(given: Given) -> float:
    if given.has("days_on_8960"):
        return given.number("days_on_8960") * run.DAY_S * 8960 / chips(given)
    return run.train_s(total_flops(given), chips(given), peak(given), given.number("mfu"))


@answers(TOPIC, "total_flops", "flops")
def flops(given: Given) -> Value:
    return total_flops(given)


@answers(TOPIC, "effective_rate")
def effective_rate(given: Given) -> Value:
    return effective(given)


@answers(TOPIC, "seconds")
def run_seconds(given: Given) -> Value:
    return seconds(given)


@answers(TOPIC, "days")
def days(given: Given) -> Value:
    return seconds(given) / run.DAY_S


@answers(TOPIC, "years")
def years(given: Given) -> Value:
    return seconds(given) / run.DAY_S / run.YEAR_DAYS


@answers(TOPIC, "step_time")
def step_time(given: Given) -> Value:
    return run.train_s(
        run.step_flops(params(given), batch(given)), chips(given), peak(given), given.number("mfu")
    )


# Chips and batches


@answers(TOPIC, "chips", "gpus", "chips_used")
def used(given: Given) -> Value:
    return chips(given)


@answers(TOPIC, "chips_idle")
def idle(given: Given) -> Value:
    return pod_chips(given) - chips(given)


@answers(TOPIC, "pod_chips")
def of_pod(given: Given) -> Value:
    return pod_chips(given)


@answers(TOPIC, "pods")
def pods(given: Given) -> Value:
    """Whole pods that FSDP x TP keeps busy where F is given; else the pods that the batch fills with FSDP."""
    if given.has("F"):
        return whole_pods(given)
    return chips(given) / pod_chips(given)


def whole_pods(given: Given) -> int:
    return max(1, int(batch(given) / mixed(given) / pod_chips(given)))


@answers(TOPIC, "tokens_per_pod")
def tokens_per_pod(given: Given) -> Value:
    return batch(given) / (given.number("pods") if given.has("pods") else whole_pods(given))


@answers(TOPIC, "tokens_per_chip_two_pods")
def on_two_pods(given: Given) -> Value:
    return batch(given) / (2 * pod_chips(given))


@answers(TOPIC, "tokens_per_chip", "tokens_per_gpu")
def per_chip(given: Given) -> Value:
    return batch(given) / chips(given)


@answers(TOPIC, "batch_in_examples_section", "batch_in_dp_section")
def in_tokens(given: Given) -> Value:
    return batch(given)


@answers(TOPIC, "sequences")
def of_batch(given: Given) -> Value:
    return sequences(given)


@answers(TOPIC, "max_fsdp_chips")
def fsdp_chips(given: Given) -> Value:
    """Without context parallelism one sequence a chip; else as many as FSDP keeps busy."""
    if given.has("context_parallel") and not flag(given, "context_parallel"):
        return sequences(given)
    return batch(given) / fsdp(given)


@answers(TOPIC, "max_mixed_chips")
def mixed_chips(given: Given) -> Value:
    return batch(given) / mixed(given)


@answers(TOPIC, "fsdp_min_batch")
def least_batch(given: Given) -> Value:
    return chips(given) * fsdp(given)


@answers(TOPIC, "fsdp_compute_bound")
def fsdp_enough(given: Given) -> Value:
    return batch(given) >= chips(given) * fsdp(given)


@answers(TOPIC, "mixed_tokens_per_chip", "mixed_bound")
def mixed_threshold(given: Given) -> Value:
    return mixed(given)


@answers(TOPIC, "dcn_bound")
def between_pods(given: Given) -> Value:
    return slice_batch(given)


@answers(TOPIC, "compute_bound")
def enough(given: Given) -> Value:
    """FSDP x TP inside every pod, data parallelism between pods."""
    inside = batch(given) / chips(given) >= mixed(given)
    if not given.has("pods") or given.number("pods") == 1:
        return inside
    return inside and batch(given) / given.number("pods") >= float(slice_batch(given))


@answers(TOPIC, "max_tp_per_axis")
def tp_on_an_axis(given: Given) -> Value:
    return tp_limit(given)


# The best FSDP x TP


def best_ways(given: Given, devices: float, step_tokens: float) -> float:
    """X of so many chips. Rates cancel in it: a case may leave them out."""
    if not (given.has("chip") or given.has("alpha_ici") or given.has("flops_per_s", "W_bidir_Bps")):
        given = Given({**given.inputs, "alpha_ici": 1.0}, given.unit)
    x, y = mix_s_per_byte(given)
    return devices / float(best_tensor_ways(layer(given, D=1), x, y, step_tokens / devices))


def rounded(given: Given) -> tuple[int, int]:
    """X and Y as the book rounds."""
    devices = chips(given)
    return nearest_powers(best_ways(given, devices, batch(given)), int(devices))


@answers(TOPIC, "X_opt")
def x_opt(given: Given) -> Value:
    return best_ways(given, chips(given), batch(given))


@answers(TOPIC, "X_opt_per_pod")
def x_opt_of_a_pod(given: Given) -> Value:
    return best_ways(given, pod_chips(given), batch(given) / given.number("pods"))


@answers(TOPIC, "X", "X_chosen")
def x_rounded(given: Given) -> Value:
    return rounded(given)[0]


@answers(TOPIC, "Y", "Y_chosen", "tensor_parallel")
def y_rounded(given: Given) -> Value:
    return rounded(given)[1]


@answers(TOPIC, "data_parallel")
def data(given: Given) -> Value:
    """Of X as much as the sequences allow; the rest cuts them. Of a layout of all GPUs, what TP and PP leave."""
    if given.has("TP") or given.has("PP"):
        return data_ranks(given)
    return rounded(given)[0] // context(given)


def data_ranks(given: Given) -> int:
    """Whole copies of the model's TP x PP among all devices, of which any other dimension would take some."""
    if any(given.has(key) for key in ("EP", "X", "Y", "layout", "context", "context_parallel")):
        raise UnansweredError("another dimension than TP and PP")
    devices = next((whole(given, key) for key in ("gpus", "chips", "N") if given.has(key)), None)
    if devices is None or not (given.has("TP") and given.has("PP")):
        raise UnansweredError("the devices, TP or PP are not given")
    ranks, rest = divmod(devices, max(1, whole(given, "TP") * whole(given, "PP")))
    if rest or not ranks:
        raise UnansweredError("TP x PP does not divide the devices")
    if given.has("DP") and whole(given, "DP") != ranks:
        raise UnansweredError("DP x TP x PP is not the devices")
    return ranks


@answers(TOPIC, "sequence_parallel")
def context_ways(given: Given) -> Value:
    return context(given)


def context(given: Given) -> int:
    apart, _ = nearest_powers(sequences(given), rounded(given)[0])
    return ceil(rounded(given)[0] / apart)


# Data and context parallelism


@answers(TOPIC, "tokens_per_shard")
def per_shard(given: Given) -> Value:
    return batch(given) / (given.number("data") * given.number("context"))


@answers(TOPIC, "seq_tokens_per_chip")
def of_a_sequence(given: Given) -> Value:
    return seq_len(given) / given.number("context")


@answers(TOPIC, "sequences_per_data_shard")
def sequences_per_shard(given: Given) -> Value:
    return sequences(given) / given.number("data")
