"""What devices hold: questions of the topics kvcache and memory, but for what a pod consists of."""

import re
from math import ceil, floor, prod

from book_answers import Given, UnansweredError, Value, answers
from book_answers.counts import element_bytes, hbm_bytes, of_book, whole
from meshwright.costmodel.counting import counts
from meshwright.costmodel.counting.activations import (
    BOOK_POLICIES,
    BOOK_WIDTHS,
    checkpoint_bytes,
    saved_by,
    training_ratio,
)
from meshwright.costmodel.counting.kvcache import cache_bytes, without
from meshwright.costmodel.framework import load_framework
from meshwright.costmodel.model import ModelSpec, Shard, Weight
from meshwright.costmodel.serving.server import Served, Server, chips_for, most_sequences
from meshwright.costmodel.sharding.parse import parse_array
from meshwright.costmodel.textbook import textbook_model

GPUS_PER_NODE = 8

# Caches


def cached(given: Given) -> ModelSpec:
    """The model of a cache: its width is K H, KH, or NH where all heads are cached."""
    for key in ("KH", "NH"):
        if given.has(key):
            return textbook_model(1, 1, whole(given, "L"), 1, 1, whole(given, key), 1)
    heads = whole(given, "N") if given.has("N") else whole(given, "K")
    return textbook_model(1, 1, whole(given, "L"), heads, whole(given, "K"), whole(given, "H"), 1)


def cache_of_tokens(given: Given, tokens: float) -> float:
    if given.has("kv_per_token"):
        return given.number("kv_per_token") * tokens
    return cache_bytes(cached(given), tokens, element_bytes(given))


def length(given: Given) -> float:
    return given.number("T") if given.has("T") else given.number("S")


@answers("kvcache", "bytes_per_token", "gqa_bytes_per_token")
def cache_of_token(given: Given) -> Value:
    return cache_of_tokens(given, 1)


@answers("kvcache", "mha_bytes_per_token")
def cache_of_token_ungrouped(given: Given) -> Value:
    if not given.has("N"):
        raise UnansweredError("query heads are not given")
    return cache_bytes(without(cached(given), "grouped heads"), 1, element_bytes(given))


@answers(("params", "moe"), "kv_bytes_per_token_int8")
def cache_of_token_int8(given: Given) -> Value:
    return cache_bytes(cached(given), 1, 1)


@answers("kvcache", "bytes")
def cache_of_what_is_given(given: Given) -> Value:
    tokens = length(given) if given.has("T") or given.has("S") else 1
    return cache_of_tokens(given, tokens) * given.number("batch", 1.0)


@answers("kvcache", "per_sequence")
def cache_of_sequence(given: Given) -> Value:
    return cache_of_tokens(given, length(given))


@answers("kvcache", "batch_total")
def cache_of_batch(given: Given) -> Value:
    return cache_of_tokens(given, length(given)) * given.number("batch")


@answers("kvcache", "kv_reduction")
def kv_reduction(given: Given) -> Value:
    heads, kv_heads = (("q_heads", "kv_heads"), ("N", "K"))[given.has("N", "K")]
    model = textbook_model(1, 1, 1, whole(given, heads), whole(given, kv_heads), 1, 1)
    return cache_bytes(without(model, "grouped heads"), 1, 1) / cache_bytes(model, 1, 1)


@answers("kvcache", "chips")
def chips_of_cache(given: Given) -> Value:
    held = float(cache_of_batch(given)) + given.number("params_bytes", 0.0)
    return chips_for(held, memory_of(given.number("hbm_B")))


@answers("kvcache", "sequences_exceeding_params")
def sequences_exceeding_params(given: Given) -> Value:
    """Without the parameters' bytes: bf16, of layers that all heads span and that have F = 4D without a gate."""
    if given.has("params_bytes"):
        held = given.number("params_bytes")
    else:
        width = whole(given, "K") * whole(given, "H")
        layers = textbook_model(width, 4 * width, whole(given, "L"), 1, 1, width, 1, gated=False)
        held = state(of_book(layers).params, parameters=2)
    return floor(held / float(cache_of_sequence(given))) + 1


# State


def memory_of(size_bytes: float) -> Server:
    """A device of which only the memory matters."""
    return Server(1, 0.0, 0.0, size_bytes)


def state(params: float, level: int = 0, ways: int = 1, **each: float) -> float:
    """Bytes on one device, `each` per parameter."""
    return sum(counts.state_bytes(each, params, level, ways).values())


def bytes_each(given: Given) -> dict[str, float]:
    """Bytes of parameters, optimizer and gradients; the book's where the case does not give them."""
    if given.has("bytes_per_param"):
        return {"parameters": given.number("bytes_per_param")}
    each = {
        part: given.number(f"{short}_bytes", counts.BOOK_STATE[part])
        for part, short in (("parameters", "param"), ("optimizer", "optimizer"))
    }
    return each | ({"gradients": given.number("grad_bytes")} if given.has("grad_bytes") else {})


def params_of(given: Given) -> float:
    return given.number("params")


def layers_of(given: Given) -> ModelSpec:
    """Layers of which only D and F are given (N counts chips here): gated, heads together as wide as D."""
    width = whole(given, "D")
    ffn = whole(given, "F") if given.has("F") else round(given.number("F_over_D") * width)
    return textbook_model(width, ffn, whole(given, "L"), 1, 1, width, 1)


def about(given: Given) -> float:
    """Parameters, or those of the layers: for sums that activations rule, and for answers of yes and no."""
    return params_of(given) if given.has("params") else of_book(layers_of(given)).params


@answers("memory", "bytes_per_param")
def bytes_per_param(given: Given) -> Value:
    given["param_bytes"]
    return state(1, **bytes_each(given))


@answers("memory", "max_params_pure_dp")
def max_params_pure_dp(given: Given) -> Value:
    return counts.most_params(hbm_bytes(given), bytes_each(given))


@answers("memory", "params")
def params_bytes(given: Given) -> Value:
    return state(params_of(given), parameters=bytes_each(given)["parameters"])


@answers("memory", "optimizer")
def optimizer_bytes(given: Given) -> Value:
    return state(params_of(given), optimizer=bytes_each(given)["optimizer"])


@answers("memory", "params_plus_optimizer")
def params_plus_optimizer(given: Given) -> Value:
    return state(params_of(given), **bytes_each(given))


def under_zero(level: int) -> None:
    @answers("memory", f"zero{level}_per_chip")
    def per_chip(given: Given) -> Value:
        ways = whole(given, "shards") if given.has("shards") else whole(given, "chips")
        return state(params_of(given), level, ways, **bytes_each(given))


for _level in (1, 2, 3):
    under_zero(_level)


@answers("memory", "pure_dp_fits")
def pure_dp_fits(given: Given) -> Value:
    return about(given) <= counts.most_params(hbm_bytes(given), bytes_each(given))


# Activations


@answers("memory", "checkpoints", "activations")
def activations(given: Given) -> Value:
    """A stated number of tensors of width D; where F is given, the products of the feed-forward part."""
    tokens = given.number("B") if given.has("B") else given.number("tokens")
    if not (given.has("F") or given.has("F_over_D")):
        return checkpoint_bytes(tokens, whole(given, "L"), given.number("D"), widths_of(given))
    if given.has("checkpoints") and not names_feed_forward(given["checkpoints"]):
        raise UnansweredError(f"checkpoints {given['checkpoints']!r} are none that are known")
    policy = BOOK_POLICIES["mlp products"]
    return saved_by(policy, layers_of(given), load_framework("jax"), 1).saved_bytes * tokens


def names_feed_forward(checkpoints: object) -> bool:
    """Whether a case means the outputs of gate, up and down: as the number 3, widths, or in words."""
    if isinstance(checkpoints, str):
        return any(mark in checkpoints.lower() for mark in ("matmul", "mlp", "ffw", "2f", "three"))
    return checkpoints == 3 or (
        isinstance(checkpoints, list) and sorted(map(str, checkpoints)) == ["D", "F", "F"]
    )


def widths_of(given: Given) -> float:
    """Tensors of width D saved per layer."""
    for key in ("checkpoints_per_layer", "saved_per_layer", "checkpoints"):
        if given.has(key):
            return given.number(key)
    raise UnansweredError("what is saved is not given")


@answers("memory", "total")
def total_bytes(given: Given) -> Value:
    return state(about(given), **bytes_each(given)) + float(activations(given))


@answers("memory", "per_chip")
def per_chip(given: Given) -> Value:
    devices = given.number("chips") if given.has("chips") else given.number("N")
    if given.has("total_bytes"):
        return given.number("total_bytes") / devices
    return float(total_bytes(given)) / devices


@answers("memory", "per_chip_4_checkpoints")
def per_chip_4_checkpoints(given: Given) -> Value:
    held = checkpoint_bytes(given.number("B"), whole(given, "L"), given.number("D"), 4)
    return (state(params_of(given), **bytes_each(given)) + held) / given.number("chips")


@answers("memory", "train_flops_multiplier_over_6ND")
def train_flops_multiplier(given: Given) -> Value:
    """All of forward is repeated where the block's input is saved, nothing where everything is."""
    repeated = {BOOK_WIDTHS["block input"]: 1.0, BOOK_WIDTHS["none"]: 0.0}.get(int(widths_of(given)))
    if repeated is None:
        raise UnansweredError("what is repeated depends on the model")
    return training_ratio(repeated)


@answers("memory", "sequences")
def sequences(given: Given) -> Value:
    tokens = given.number("B") if given.has("B") else given.number("tokens")
    return tokens / given.number("seq")


# Arrays and what fits


@answers("memory", "bytes")
def bytes_of(given: Given) -> Value:
    if given.has("params"):
        return state(params_of(given), **bytes_each(given))
    if given.has("array"):
        return parse_array(str(given["array"])).bytes
    if not given.has("L"):  # one tensor
        return checkpoint_bytes(given.number("tokens"), 1, given.number("D"), 1, element_bytes(given))
    widths, layers = widths_of(given), whole(given, "L")
    return checkpoint_bytes(given.number("tokens"), layers, given.number("D"), widths, element_bytes(given))


# What a case on copies of an array names; with any other key its ratio is of something else.
REPLICATED = {"array", "A", "mesh", "sharding", "dtype_bytes"}


@answers("memory", "ratio")
def copies(given: Given) -> Value:
    """Bytes on all devices of a mesh over those of the array: along an axis that does not cut it, it is copied."""
    mesh = given["mesh"]
    if set(given) - REPLICATED or not isinstance(mesh, dict):
        raise UnansweredError("not an array on a mesh alone")
    named = [key for key in ("sharding", "array", "A") if given.has(key)]
    if not named or named[-2:] == ["array", "A"]:
        raise UnansweredError("not one array")
    # Its sharding alone decides: written in brackets or bare, dimensions that are not cut as dots.
    text = re.sub(r",?\s*(\.\.\.|…)", "", str(given[named[0]])).strip()
    text = text if "[" in text else f"[{text}]"
    held = parse_array(f"A{text}" if text.startswith("[") else text, list(mesh))
    ways = {str(axis): whole(Given(mesh), axis) for axis in mesh}
    if min(ways.values(), default=0) < 1:
        raise UnansweredError("no mesh")
    if held.partial:
        raise UnansweredError("partial sums are no copies")
    if strange := set(held.split) - set(ways):
        raise UnansweredError(f"the mesh has no axis {min(strange)}")
    return prod(ways.values()) // prod(ways[axis] for axis in held.split)


@answers("memory", "weight_bytes_each")
def weight_bytes_each(given: Given) -> Value:
    matrix = Weight("w", whole(given, "D"), whole(given, "F"), Shard.COLUMN)
    return state(matrix.params, parameters=element_bytes(given))


@answers("memory", "activation_bytes")
def activation_bytes(given: Given) -> Value:
    return checkpoint_bytes(given.number("B"), 1, given.number("D"), 1, element_bytes(given))


@answers("memory", "bytes_per_chip_4way_tp")
def bytes_per_chip_4way_tp(given: Given) -> Value:
    """Of the two matrices of a plain block."""
    block = textbook_model(whole(given, "D"), whole(given, "F"), 1, 1, 1, 1, 1, gated=False)
    matrices = counts.parts_of(block, 1)["mlp"].params
    return state(matrices, 3, 4, parameters=element_bytes(given))


@answers("memory", "fits")
def fits(given: Given) -> Value:
    if given.has("free_bytes_per_chip"):
        return float(bytes_per_chip_4way_tp(given)) <= given.number("free_bytes_per_chip")
    needed = given.number("total_bytes") if given.has("total_bytes") else float(total_bytes(given))
    return needed <= hbm_bytes(given) * given.number("chips", 1.0)


@answers("memory", "chips", "chips_rounded_up_exact_bytes")
def chips(given: Given) -> Value:
    return chips_for(given.number("total_bytes"), memory_of(hbm_bytes(given)))


@answers("memory", "gpus")
def gpus(given: Given) -> Value:
    return ceil(chips_for(float(bytes_of(given)), memory_of(hbm_bytes(given))))


@answers("memory", "nodes")
def nodes(given: Given) -> Value:
    return ceil(int(gpus(given)) / GPUS_PER_NODE)


@answers("memory", "bytes_per_gpu_tp8")
def bytes_per_gpu_tp8(given: Given) -> Value:
    return state(params_of(given), 3, 8, **bytes_each(given))


@answers("memory", "tp8_dp_fits")
def tp8_dp_fits(given: Given) -> Value:
    return float(bytes_per_gpu_tp8(given)) <= hbm_bytes(given)


@answers("memory", "slice_hbm")
def slice_hbm(given: Given) -> Value:
    devices = given.number("chips") if given.has("chips") else given.number("N")
    return devices * hbm_bytes(given)


def caches_beside(given: Given, memory_bytes: float) -> int:
    params = 0.0
    if not given.has("free_GB"):
        params = (
            given.number("params_bytes") if given.has("params_bytes") else given.number("params_GB") * 1e9
        )
    served = Served(params, params, 1.0, given.number("kv_bytes_per_sequence"))
    return most_sequences(served, memory_of(memory_bytes))


def memory_for_caches(given: Given) -> float:
    """Decimal bytes that weights and caches share, or that are free beside the weights."""
    if given.has("free_GB"):
        return given.number("free_GB") * 1e9
    if given.has("hbm_total_decimal"):
        return given.number("hbm_total_decimal")
    return hbm_bytes(given) * given.number("chips")


@answers("memory", "max_batch")
def max_batch(given: Given) -> Value:
    return caches_beside(given, memory_for_caches(given))


@answers("memory", "max_batch_if_GiB")
def max_batch_if_gib(given: Given) -> Value:
    return caches_beside(given, memory_for_caches(given) / 1e9 * 2**30)


@answers("memory", "sequences")
def cached_sequences(given: Given) -> Value:
    return max_batch(given)
