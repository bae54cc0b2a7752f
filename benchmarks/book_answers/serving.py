"""Decode, prefill and pools of servers: questions of the topics inference-latency and serving; inference-layout is in
serving_layouts.py.

The book's chapter on serving speaks of one running example and its exercises leave it out: LLaMA-3 70B, which it counts
as 70e9 parameters, on v5e, sequences of 8192 tokens. A case that names no model is about that one.
"""

from dataclasses import replace
from math import prod

from book_answers import Given, UnansweredError, Value, answers
from book_answers.counts import whole
from meshwright.costmodel.counting.kvcache import cache_bytes
from meshwright.costmodel.flops import product_flops
from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.readers import load_model
from meshwright.costmodel.roofline.operands import parse_dtype
from meshwright.costmodel.serving import disaggregation as pools
from meshwright.costmodel.serving import server as serving
from meshwright.costmodel.serving.decode import decode
from meshwright.costmodel.serving.prefill import prefill
from meshwright.costmodel.serving.server import Served, Server
from meshwright.costmodel.textbook import textbook_model
from meshwright.costmodel.working import Working
from meshwright.hardware.chip import ELEMENT_BYTES, Chip
from meshwright.hardware.profile import book_chip

EXAMPLE, EXAMPLE_PARAMS, EXAMPLE_CONTEXT, EXAMPLE_CHIP = "llama-3-70b", 70e9, 8192, "v5e"
LETTERS = ("D", "F", "L", "N", "K", "H", "V")


def chip_of(given: Given) -> Chip:
    """With the book's figures."""
    return book_chip(str(given["chip"]) if given.has("chip") else EXAMPLE_CHIP)


def compute_dtype(given: Given) -> str:
    return parse_dtype(str(given["compute"])) if given.has("compute") else "bf16"


def chips_of(given: Given) -> int:
    if given.has("slice"):
        return prod(given["slice"])
    return whole(given, "model_shards" if given.has("model_shards") else "chips")


def server_of(given: Given, chips: int | None = None) -> Server:
    """The case's chips at the case's rates; the book's where it gives none."""
    if chips is None:
        chips = chips_of(given)
    server = Server.of_chip(chip_of(given), chips, compute_dtype(given))
    memory = (
        given.number("hbm_GB") * 1e9 if given.has("hbm_GB") else given.number("hbm_B", server.memory_bytes)
    )
    return replace(
        server,
        flop_per_s=given.number("flops_per_s", server.flop_per_s),
        hbm_bytes_per_s=given.number("hbm_Bps", server.hbm_bytes_per_s),
        memory_bytes=memory,
    )


def element_bytes(given: Given, *keys: str) -> float:
    """Bytes of an element by the first of the keys, which hold dtypes, that is there; or dtype_bytes."""
    for key in keys:
        if given.has(key):
            return ELEMENT_BYTES[parse_dtype(str(given[key]))]
    return given.number("dtype_bytes")


def letters_of(given: Given) -> ModelSpec:
    return textbook_model(*(whole(given, letter) for letter in LETTERS))


def held_bytes(given: Given) -> float | None:
    """Bytes of all weights, where the case gives them as such."""
    return next((given.number(key) for key in ("param_bytes", "params_bytes") if given.has(key)), None)


def params_of(given: Given) -> float:
    if given.has("params"):
        return given.number("params")
    if given.has("matmuls"):
        return given.number("matmuls") * given.number("D") * given.number("F")
    if given.has(*LETTERS):
        return float(letters_of(given).params)
    held = held_bytes(given)
    if held is not None and held / EXAMPLE_PARAMS not in ELEMENT_BYTES.values():
        raise UnansweredError("the number of parameters is not given")
    return EXAMPLE_PARAMS


def weights_of(given: Given) -> Served:
    """The case's model without its cache."""
    held = held_bytes(given)
    if held is not None:
        return Served(params := _params_or(given, held), params, held / params)
    params = params_of(given)
    plain = given.has("matmuls") and not given.has("weights") and not given.has("dtype_bytes")
    return Served(params, params, 2.0 if plain else element_bytes(given, "weights", "dtype"))


def _params_or(given: Given, held: float) -> float:
    try:
        return params_of(given)
    except UnansweredError:
        return held  # only how long they take to read can be asked


def served_of(given: Given, context: float | None = None) -> Served:
    """The case's model with its cache. `context`: instead of the case's."""
    return replace(weights_of(given), kv_bytes=sequence_bytes(given, context))


def sequence_bytes(given: Given, context: float | None = None) -> float:
    """Cache of one sequence."""
    if context is None:
        for key in ("kv_bytes_per_sequence", "kv_per_sequence"):
            if given.has(key):
                return given.number(key)
        key = "S" if given.has("S") else "context"
        context = given.number(key) if given.has(key) else EXAMPLE_CONTEXT
    return context * token_bytes(given)


def token_bytes(given: Given) -> float:
    """Cache of one token."""
    for key in ("kv_bytes_per_token", "kv_per_token"):
        if given.has(key):
            return given.number(key)
    if given.has("kv_per_sequence") and given.has("context"):
        return given.number("kv_per_sequence") / given.number("context")
    return cache_bytes(cached_model(given), 1, element_bytes(given, "kv", "dtype", "weights"))


def cached_model(given: Given) -> ModelSpec:
    """A model with the case's cache."""
    if given.has("L", "K", "H"):
        kv_heads = whole(given, "K")
        return textbook_model(1, 1, whole(given, "L"), kv_heads, kv_heads, whole(given, "H"), 1)
    if params_of(given) != EXAMPLE_PARAMS:
        raise UnansweredError("neither the cache nor the layers of the model are given")
    return load_model(EXAMPLE)


def step_of(given: Given, chips: int | None = None) -> Working:
    params_of(given)  # unanswered where they are not known
    return decode(served_of(given), server_of(given, chips), whole(given, "batch"))


# inference-latency


@answers(("inference-latency", "inference-layout"), "t_step")
def step_seconds(given: Given) -> Value:
    if given.has("batch"):
        return step_of(given).number("t_step")
    if given.has("param_bytes") or given.has("params"):
        return serving.load_s(weights_of(given), server_of(given))
    return serving.full_memory_s(server_of(given, 1))


@answers("inference-latency", "t_step_16_chips")
def step_on_16(given: Given) -> Value:
    return step_of(given, 16).number("t_step")


def _read_off(name: str) -> None:
    @answers("inference-latency", name)
    def adapter(given: Given) -> Value:
        return step_of(given)[name]


for _name in ("t_kv", "t_mlp", "throughput", "throughput_per_chip"):
    _read_off(_name)


@answers("inference-latency", "throughput_per_chip_per_ms")
def per_millisecond(given: Given) -> Value:
    return step_of(given).number("throughput_per_chip") / 1e3


@answers("inference-latency", "kv_bytes")
def cache_of_batch(given: Given) -> Value:
    return step_of(given).number("kv_bytes")


@answers("inference-latency", "kv_per_sequence")
def cache_of_sequence(given: Given) -> Value:
    return sequence_bytes(given)


@answers("inference-latency", "total_bytes")
def total_bytes(given: Given) -> Value:
    return step_of(given).number("total_bytes") if given.has("batch") else weights_of(given).param_bytes


@answers("inference-latency", "bytes_per_chip")
def bytes_per_chip(given: Given) -> Value:
    return float(total_bytes(given)) / server_of(given).chips


def _fits(name: str, memory_bytes: float) -> None:
    @answers("inference-latency", name)
    def adapter(given: Given) -> Value:
        server = replace(server_of(given, 8), memory_bytes=memory_bytes)
        return decode(served_of(given), server, whole(given, "batch"))["fits"]


_fits("fits_8x16GB", 16e9)
_fits("fits_8x16GiB", 16 * 2**30)


@answers("inference-latency", "t_load", "t_min")
def load_seconds(given: Given) -> Value:
    return serving.load_s(weights_of(given), server_of(given))


@answers("inference-latency", "t_roofline", "t_layer")
def layer_seconds(given: Given) -> Value:
    if not given.has("matmuls"):
        raise UnansweredError("no layer is given")
    return float(serving.weights_s(weights_of(given), server_of(given), given.number("batch")))


@answers("inference-latency", "layer_params")
def layer_params(given: Given) -> Value:
    if not given.has("matmuls", "D", "F"):
        raise UnansweredError("no layer is given")
    return params_of(given)


@answers("inference-latency", "flops_per_token")
def flops_per_token(given: Given) -> Value:
    return float(product_flops(1, 1, params_of(given)))


@answers("inference-latency", "t_flops_bound_times_N")
def one_chip_flops(given: Given) -> Value:
    params = params_of(given)
    return float(serving.math_s(Served(params, params, 1.0), server_of(given, 1), given.number("batch", 1)))


@answers("inference-latency", "t_memory_bound_times_N")
def one_chip_memory(given: Given) -> Value:
    return serving.load_s(weights_of(given), server_of(given, 1))


@answers("inference-latency", "t")
def first_token_seconds(given: Given) -> Value:
    """Of a prompt; where there is none, of a step."""
    if not given.has("tokens"):
        return step_seconds(given)
    params, server = params_of(given), server_of(given)
    stated = given.has("weights") or given.has("dtype_bytes")
    served = Served(params, params, element_bytes(given, "weights") if stated else 2.0)
    return prefill(served, server, whole(given, "tokens"), mfu=given.number("mfu", 1.0)).number("t")


# serving


def filled(given: Given) -> tuple[Served, Server]:
    """The running example on chips that caches fill."""
    return served_of(given), server_of(given)


@answers("serving", "free_hbm")
def free_memory(given: Given) -> Value:
    return serving.free_bytes(*filled(given))


@answers("serving", "batch")
def filling_batch(given: Given) -> Value:
    return serving.most_sequences(*filled(given))


@answers("serving", "t_decode")
def decode_seconds(given: Given) -> Value:
    return float(pools.decode_s(given.number("t_step"), given.number("decode_tokens")))


@answers("serving", "qps_total")
def queries_per_second(given: Given) -> Value:
    batch = given.number("batch") if given.has("batch") else filling_batch(given)
    return float(pools.queries_per_s(float(batch), given.number("t_step"), given.number("decode_tokens")))


@answers("serving", "qps_per_chip")
def queries_per_chip(given: Given) -> Value:
    return float(queries_per_second(given)) / given.number("chips")


@answers("serving", "prefill_per_generate")
def prefill_servers(given: Given) -> Value:
    rates = (given.number(key) for key in ("batch", "t_step", "decode_tokens", "t_prefill"))
    return float(pools.prefill_per_generate(*rates))


@answers("serving", "sequences_per_step")
def finished(given: Given) -> Value:
    return float(pools.finished_per_step(given.number("batch"), generated(given)))


@answers("serving", "tokens_per_step")
def evicted(given: Given) -> Value:
    prompt = given.number("P") if given.has("P") else given.number("prompt_tokens")
    return float(pools.evicted_tokens_per_step(given.number("batch"), prompt, generated(given)))


def generated(given: Given) -> float:
    return given.number("G") if given.has("G") else given.number("decode_tokens")


@answers("serving", "compute_fraction")
def uncached(given: Given) -> Value:
    return float(pools.prefilled_share(given.number("prompt_tokens"), given.number("cached_prefix")))
