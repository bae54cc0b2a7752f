"""Questions of the topic inference-layout; what they share with other topics on serving is in serving.py."""

import re
from dataclasses import replace
from math import ceil, prod

import numpy as np

from book_answers import Given, UnansweredError, Value, answers
from book_answers.counts import whole
from book_answers.serving import (
    chip_of,
    letters_of,
    sequence_bytes,
    served_of,
    server_of,
    token_bytes,
    weights_of,
)
from meshwright.costmodel.collectives import Network, all_to_all_loads, duration
from meshwright.costmodel.flops import product_bytes
from meshwright.costmodel.limits.thresholds import gather_s_per_byte, reduce_s_per_byte, torus_network
from meshwright.costmodel.roofline.intensity import critical_intensity
from meshwright.costmodel.serving import server as serving
from meshwright.costmodel.serving.layout import CachePlacement, TwoD, place_cache, queries_bytes, two_d
from meshwright.costmodel.serving.layout_answer import matrix_steps, useful_ways
from meshwright.costmodel.serving.server import Served, Server
from meshwright.costmodel.textbook import textbook_model
from meshwright.costmodel.working import Working
from meshwright.hardware.chip import Torus
from meshwright.hardware.profile import book_chip

TOPIC = "inference-layout"
BOOK_AXES = 3  # of the book's 1D layout, which 2D is held against; X has one of them, YZ the others


# What fits


@answers(TOPIC, "params")
def params(given: Given) -> Value:
    return letters_of(given).params


@answers(TOPIC, "param_bytes")
def param_bytes(given: Given) -> Value:
    return weights_of(given).param_bytes


@answers(TOPIC, "kv_per_token", "kv_bytes_per_token")
def kv_per_token(given: Given) -> Value:
    return token_bytes(given)


@answers(TOPIC, "kv_per_sequence")
def kv_per_sequence(given: Given) -> Value:
    return sequence_bytes(given)


@answers(TOPIC, "kv", "kv_total")
def kv_of_batch(given: Given) -> Value:
    return sequence_bytes(given) * given.number("batch")


@answers(TOPIC, "total")
def total(given: Given) -> Value:
    """Weights, and the caches of the batch where one is given."""
    cached = float(kv_of_batch(given)) if given.has("batch") else 0.0
    return weights_of(given).param_bytes + cached


@answers(TOPIC, "min_chips")
def min_chips(given: Given) -> Value:
    """Not rounded."""
    if given.has("F_over_D") or given.has("comms_1d"):
        raise UnansweredError("chips of a layout are asked for, not of what they hold")
    return serving.chips_for(float(total(given)), server_of(given, 1))


@answers(TOPIC, "chips", "min_chips_memory")
def whole_chips(given: Given) -> Value:
    return ceil(float(min_chips(given)))


@answers(TOPIC, "slice_chips")
def slice_chips(given: Given) -> Value:
    found = serving.smallest_slice(chip_of(given), float(min_chips(given)))
    if found is None:
        raise UnansweredError("no slice is large enough")
    return serving.chips_of(found)


def filled(given: Given, context: float | None = None) -> tuple[Served, Server]:
    """The case's model on its chips, or on the smallest slice that holds its weights."""
    stated = given.has("chips") or given.has("slice")
    return served_of(given, context), server_of(given, None if stated else int(slice_chips(given)))


@answers(TOPIC, "free_hbm")
def free_hbm(given: Given) -> Value:
    return serving.free_bytes(*filled(given))


@answers(TOPIC, "kv_caches", "max_batch")
def max_batch(given: Given) -> Value:
    return serving.most_sequences(*filled(given))


@answers(TOPIC, "max_batch_exact_131072_tokens")
def max_batch_131072(given: Given) -> Value:
    return serving.most_sequences(*filled(without_sequence(given), 131072))


def without_sequence(given: Given) -> Given:
    """The case without what it says of whole sequences."""
    kept = {k: v for k, v in given.inputs.items() if k not in ("kv_per_sequence", "S", "context")}
    return Given(kept, given.unit)


@answers(TOPIC, "max_batch_K1")
def max_batch_one_head(given: Given) -> Value:
    """With one kv head instead of K."""
    served, server = filled(given)
    one = served.kv_bytes / whole(given, "K")
    return serving.most_sequences(replace(served, kv_bytes=one), server)


@answers(TOPIC, "activation_bytes_one_layer")
def activation_bytes(given: Given) -> Value:
    """The widest activation: a row of F per sequence."""
    return float(product_bytes(given.number("batch"), given.number("F"), 0))


# Latency limits


def _on_chips(chips: int) -> None:
    @answers(TOPIC, f"t_min_{chips}_chips")
    def floor(given: Given) -> Value:
        return serving.load_s(weights_of(given), server_of(given, chips))

    @answers(TOPIC, f"meets_limit_{chips}")
    def meets(given: Given) -> Value:
        return bool(float(floor(given)) <= given.number("latency_limit_s"))


for _chips in (32, 64, 256):
    _on_chips(_chips)


# Tensor parallelism


def ici_bytes_per_s(given: Given) -> float:
    """Of one ring, both directions, or one way where the case says so; the book's where it gives none."""
    if given.has("link_one_way_Bps") and not given.has("W_bidir_Bps"):
        return 2 * given.number("link_one_way_Bps")
    return given.number("W_bidir_Bps") if given.has("W_bidir_Bps") else ring_bytes_per_s(chip_of(given).name)


def ring_bytes_per_s(chip_name: str) -> float:
    torus = book_chip(chip_name).scale_up
    if not isinstance(torus, Torus):
        raise UnansweredError(f"{chip_name} has no rings")
    return 2 * torus.per_link_one_way.si


@answers(TOPIC, "alpha_ici")
def alpha_ici(given: Given) -> Value:
    return critical_intensity(server_of(given, 1).flop_per_s, ici_bytes_per_s(given))


def gather_s(bytes_per_s: float, axes: int = 1) -> float:
    """Seconds per byte of a gather over whole rings, (X-1)/X as 1."""
    return over(torus_network(bytes_per_s, axes), np.full(axes, 2))


def over(network: Network, factors: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> float:
    return float(duration(gather_s_per_byte(network, factors, exact=False)))


def ways(given: Given, axes: int, beta: float | None = None, batch: float = 1.0) -> tuple[float, float]:
    """Useful ways by FLOPs and by reads, in units in which an axis moves one byte a second."""
    alpha = given.number("alpha_ici") if given.has("alpha_ici") else float(alpha_ici(given))
    return useful_ways(alpha, beta or 1.0, gather_s(1.0, axes), 1, whole(given, "F"), batch)


@answers(TOPIC, "max_ways")
def most_ways(given: Given) -> Value:
    if sequences(given) is not None and (given.has("beta") or given.has("beta_used")):
        return memory_bound_ways(given)
    return ways(given, whole(given, "axes") if given.has("axes") else 1)[0]


@answers(TOPIC, "flops_bound_ways")
def flops_bound_ways(given: Given) -> Value:
    axes = len(given["slice"]) if given.has("slice") else 1
    return ways(given, whole(given, "axes") if given.has("axes") else axes)[0]


@answers(TOPIC, "tp_bound_two_axes")
def two_axes(given: Given) -> Value:
    return ways(given, 2)[0]


@answers(TOPIC, "memory_bound_ways")
def memory_bound_ways(given: Given) -> Value:
    """Over one axis, as the book has it."""
    batch = sequences(given)
    if batch is None:
        raise UnansweredError("no batch is given")
    beta = given.number("beta") if given.has("beta") else given.number("beta_used")
    return ways(given, 1, beta, batch)[1]


@answers(TOPIC, "max_ways_exact_beta")
def ways_exact_beta(given: Given) -> Value:
    batch = sequences(given)
    if batch is None:
        raise UnansweredError("no batch is given")
    return ways(given, 1, beta_of(given, chip_of(given).name), batch)[1]


def sequences(given: Given) -> float | None:
    return next((given.number(key) for key in ("batch", "B") if given.has(key)), None)


def beta_of(given: Given, chip_name: str) -> float:
    return book_chip(chip_name).hbm_bytes_per_s / ring_bytes_per_s(chip_name)


@answers(TOPIC, "beta_v5e")
def beta_v5e(given: Given) -> Value:
    return beta_of(given, "v5e")


@answers(TOPIC, "beta_v6e")
def beta_v6e(given: Given) -> Value:
    return beta_of(given, "v6e")


def matrix(given: Given, network_bytes_per_s: float) -> Working:
    """One matrix D x F over all chips."""
    server = server_of(given)
    steps = matrix_steps(
        server.flop_per_s,
        server.hbm_bytes_per_s,
        network_bytes_per_s,
        given.number("D"),
        given.number("F"),
        sequences(given) or 0.0,
        server.devices,
    )
    return Working("", {}, steps)


def _of_matrix(name: str) -> None:
    @answers(TOPIC, name)
    def adapter(given: Given) -> Value:
        rate = given.number("link_one_way_Bps") if given.has("link_one_way_Bps") else ici_bytes_per_s(given)
        return matrix(given, rate)[name]


for _name in ("t_math", "t_hbm", "t_ici", "hbm_bound"):
    _of_matrix(_name)


@answers(TOPIC, "t_ici_one_axis_no_wrap")
def no_wrap(given: Given) -> Value:
    return matrix(given, ici_bytes_per_s(given) / 2)["t_ici"]


# The cache


def placement(given: Given) -> CachePlacement:
    if given.has("Y", "Z"):
        devices = whole(given, "Y") * whole(given, "Z")
    elif given.has("slice"):
        devices = prod(given["slice"])
    else:
        devices = whole(given, "chips" if given.has("chips") else "Y")
    if devices < 1:
        raise UnansweredError("no devices")
    if given.has("Y") and not given.has("Z") and whole(given, "Y") != devices:
        raise UnansweredError("Y is not all devices, and the other ways are not given")
    return place_cache(devices, whole(given, "K"), int(sequences(given) or devices))


def with_batch(given: Given) -> CachePlacement:
    if sequences(given) is None:
        raise UnansweredError("no batch is given")
    return placement(given)


@answers(TOPIC, "kv_head_shards")
def head_shards(given: Given) -> Value:
    return placement(given).heads


@answers(TOPIC, "kv_batch_shards")
def batch_shards(given: Given) -> Value:
    return with_batch(given).batch


@answers(TOPIC, "alltoalls_per_layer")
def all_to_alls(given: Given) -> Value:
    return with_batch(given).all_to_alls


@answers(TOPIC, "bytes_per_alltoall_total")
def exchanged_bytes(given: Given) -> Value:
    heads, batch = whole(given, "N"), sequences(given)
    if batch is None:
        raise UnansweredError("no batch is given")
    kind = textbook_model(1, 1, 1, heads, heads, whole(given, "H"), 1).kinds[0]
    return queries_bytes(kind, batch) * given.number("dtype_bytes", 2.0) / 2.0


@answers(TOPIC, "t_bandwidth_each")
def exchange_seconds(given: Given) -> Value:
    """Over a ring of the batch's ways, the array cut over the heads' ways too."""
    placed = placement(given)
    network = torus_network(ici_bytes_per_s(given), 1)
    sent = float(exchanged_bytes(given)) / placed.heads / placed.batch
    ring = replace(network.levels[0], size=placed.batch)
    group = np.array([placed.batch])
    return float(duration(all_to_all_loads(Network((ring,), (1.0,)), sent, group, np.ones(1), exact=False)))


# Weights cut both ways


# What must stand in the crossings that a case writes down, for the book's comparison to be meant.
BOOK_CROSSINGS = {"comms_1d": ("BD", str(BOOK_AXES)), "comms_2d": ("BD", "BF")}


def two_ways(given: Given, ffn_over_width: float) -> TwoD:
    """As the book compares: rows of one element, an axis moving one byte a second."""
    for key, needed in BOOK_CROSSINGS.items():
        written = re.sub(r"[\s*]", "", str(given[key])) if given.has(key) else ""
        if written and not all(part in written for part in needed):
            raise UnansweredError(f"{key} is not the book's")
    network = torus_network(1.0, BOOK_AXES)
    x, yz, whole_torus = np.array([2, 1, 1]), np.array([1, 2, 2]), np.array([2, 2, 2])
    summed = float(duration(reduce_s_per_byte(network, x, exact=False)))
    return two_d(1.0, ffn_over_width, 1.0, over(network, whole_torus), summed, over(network, yz))


def ratio(given: Given) -> float:
    return given.number("F_over_D") if given.has("F_over_D") else given.number("F") / given.number("D")


@answers(TOPIC, "X_opt_N512")
def x_of_512(given: Given) -> Value:
    return two_ways(given, ratio(given)).best_x(512)


@answers(TOPIC, "YZ_opt_N512")
def yz_of_512(given: Given) -> Value:
    return 512 / two_ways(given, ratio(given)).best_x(512)


@answers(TOPIC, "coefficient")
def coefficient(given: Given) -> Value:
    return two_ways(given, ratio(given)).best_s(1.0)


@answers(TOPIC, "min_chips")
def chips_for_two_ways(given: Given) -> Value:
    return two_ways(given, ratio(given)).crossing


@answers(TOPIC, "min_chips_per_F_over_D")
def chips_per_ratio(given: Given) -> Value:
    return two_ways(given, 1.0).crossing
