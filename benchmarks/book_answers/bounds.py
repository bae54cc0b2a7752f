"""When training stops being compute bound: questions of the topic training-bound.

A case gives a chip, rates, or only an intensity alpha = C/W; torus axes are whole rings. Without M_X and M_Y the mix
is the book's on three axes, two for FSDP and one for TP.
"""

from collections.abc import Callable
from math import prod

import numpy as np

from book_answers import Given, UnansweredError, Value, answers
from book_answers.counts import chip_of, flag, whole
from meshwright.costmodel.collectives import Network, duration
from meshwright.costmodel.flops import BF16
from meshwright.costmodel.layer import BACKWARD_CROSSINGS
from meshwright.costmodel.limits.thresholds import (
    Work,
    best_tensor_ways,
    block_work,
    data_comm_s,
    data_tokens,
    gather_s_per_byte,
    mixed_comm_s,
    mixed_tokens,
    reduce_s_per_byte,
    switched_network,
    tensor_comm_s,
    tensor_ways,
    torus_network,
)
from meshwright.costmodel.operators import BACKWARD
from meshwright.costmodel.roofline.intensity import critical_intensity
from meshwright.hardware.chip import Torus

TOPIC = "training-bound"
AXES = 3
ALPHAS = ("alpha_ici", "alpha", "alpha_node")
BACK = BACKWARD["up"]  # products of backward over those of forward


# Machines and the layer


def flop_per_s(given: Given) -> float:
    """Peak of one chip. With only an intensity it is that, and the network moves a byte per second."""
    for key in ALPHAS:
        if given.has(key):
            return given.number(key)
    return peak(given)


def peak(given: Given) -> float:
    """Peak of one chip, FLOP/s."""
    return given.number("flops_per_s") if given.has("flops_per_s") else chip_of(given).peak_flop_per_s("bf16")


def only_alpha(given: Given) -> bool:
    return any(given.has(key) for key in ALPHAS)


def torus_of(given: Given) -> Torus:
    torus = chip_of(given).scale_up
    if not isinstance(torus, Torus):
        raise UnansweredError("the chip has no torus")
    return torus


def ring_s_per_byte(given: Given, axes: int) -> float:
    """Seconds per byte of a gather over so many whole axes."""
    if only_alpha(given):
        rate = 1.0
    else:
        rate = given.number("W_bidir_Bps", 0.0) or 2.0 * torus_of(given).per_link_one_way.si
    return whole_group_s(torus_network(rate, axes))


def whole_group_s(network: Network) -> float:
    return float(duration(gather_s_per_byte(network, np.array(network.sizes), exact=False)))


def whole_or(given: Given, key: str, default: int) -> int:
    return whole(given, key) if given.has(key) else default


def layer(given: Given, at_peak: float | None = None, **stand_ins: int) -> Work:
    """The book's layer; letters that play no part have stand-ins."""
    size = {k: stand_ins[k] if k in stand_ins and not given.has(k) else round(given.number(k)) for k in "DF"}
    return block_work(flop_per_s(given) if at_peak is None else at_peak, size["D"], size["F"])


def fsdp(given: Given, axes: int = AXES) -> float:
    """Tokens per chip of FSDP over so many axes."""
    return float(data_tokens(layer(given, D=1, F=1), ring_s_per_byte(given, axes)))


def mix_s_per_byte(given: Given) -> tuple[float, float]:
    """Seconds per byte of FSDP's and of TP's axes."""
    x, y = whole_or(given, "M_X", AXES - 1), whole_or(given, "M_Y", 1)
    return ring_s_per_byte(given, x), ring_s_per_byte(given, y)


def mixed(given: Given) -> float:
    """Tokens per chip of FSDP x TP; both kinds of traffic overlap unless the case says that they do not."""
    overlap = flag(given, "overlap_between_axes", True)
    return float(
        mixed_tokens(layer(given, D=1), *mix_s_per_byte(given), "independent" if overlap else "shared")
    )


def tp_limit(given: Given) -> float:
    """Ways of TP over `axes`."""
    return float(tensor_ways(layer(given, D=1), ring_s_per_byte(given, whole_or(given, "axes", 1))))


def chips_in(given: Given) -> float:
    """All chips of the case."""
    if given.has("slices"):
        return given.number("slices") * given.number("chips_per_slice")
    ways = [given.number(key) for key in ("X", "Y") if given.has(key)]
    if not ways:
        raise UnansweredError("no number of chips")
    return prod(ways)


def pod_of(given: Given) -> float:
    """Chips of a pod."""
    return given.number("pod_chips") if given.has("pod_chips") else float(torus_of(given).pod_chips.count)


def sides(given: Given, key: str = "slice") -> list[float]:
    """Of a slice or pod, in chips."""
    value = given[key]
    if not isinstance(value, list) or not all(isinstance(side, int | float) for side in value):
        raise UnansweredError(f"input {key!r} is {value!r}, not a list of sides")
    return value


def degrees(given: Given) -> dict[str, float]:
    """Of a layout, by name."""
    value = given["layout"]
    if not isinstance(value, dict) or not all(isinstance(ways, int | float) for ways in value.values()):
        raise UnansweredError(f"layout {value!r} does not name degrees")
    return value


def register(answer: Callable[[Given], Value], *quantities: str) -> None:
    answers(TOPIC, *quantities)(answer)


# Thresholds on a torus

register(lambda g: fsdp(g, 1), "tokens_per_chip_1_axis")
register(lambda g: fsdp(g, 3), "tokens_per_chip_3_axes")
register(lambda g: fsdp(g, 3) * pod_of(g), "pod_batch_3_axes")
register(lambda g: g.number("sequences") * g.number("seq_len"), "total_tokens")
register(lambda g: g.number("sequences") * g.number("seq_len") / g.number("devices"), "local_tokens")
register(lambda g: g.number("batch_tokens") / g.number("threshold"), "chips")
register(lambda g: g.number("batch_tokens") / g.number("threshold") / pod_of(g), "pods")
register(lambda g: g.number("tokens_per_chip") / g.number("mixed_bound"), "margin")
register(lambda g: fsdp(g) / mixed(g), "gain_over_fsdp")
register(tp_limit, "max_tp")
register(lambda g: tp_limit(g) >= 8, "tp8_compute_bound")
register(lambda g: tp_limit(g) >= 16, "tp16_compute_bound")


@answers(TOPIC, "tokens_per_chip")
def tokens_per_chip(given: Given) -> Value:
    """Needed by FSDP x TP where F is given, else those that there are."""
    if given.has("F"):
        return mixed(given)
    return given.number("batch_tokens") / given.number("chips")


@answers(TOPIC, "compute_bound_at_468")
def enough(given: Given) -> Value:
    return mixed(given) <= 468


@answers(TOPIC, "F_needed_for_8way")
def width_for_8(given: Given) -> Value:
    one = block_work(flop_per_s(given), 1, 1)
    return 8 / float(tensor_ways(one, ring_s_per_byte(given, whole_or(given, "axes", 1))))


@answers(TOPIC, "alpha_int8")
def int8_intensity(given: Given) -> Value:
    return critical_intensity(given.number("ops_per_s_int8"), 1.0 / ring_s_per_byte(given, 1))


@answers(TOPIC, "tp_limit_int8_over_bf16")
def int8_over_bf16(given: Given) -> Value:
    ring = ring_s_per_byte(given, 1)
    int8 = block_work(given.number("ops_per_s_int8"), 1, 1, element_bytes=1)
    bf16 = block_work(chip_of(given).peak_flop_per_s("bf16"), 1, 1)
    return float(tensor_ways(int8, ring)) / float(tensor_ways(bf16, ring))


@answers(TOPIC, "crossover_caption", "crossover_text")
def crossover(given: Given) -> Value:
    """Batch at which FSDP of a layout, TP's share of the weights each, takes as long as its products."""
    x, _ = mix_s_per_byte(given)
    tensor = degrees(given).get("Y")
    if tensor is None:
        raise UnansweredError("the layout has no Y")
    return given.number("N") * float(data_tokens(layer(given), x, cut=tensor))


# Ratios of products to communication, and seconds of one layer


def ratio(given: Given, comm_s: float) -> float:
    return layer(given, D=1).math_s * given.number("tokens_per_chip") / comm_s


@answers(TOPIC, "fsdp_only_ratio")
def fsdp_ratio(given: Given) -> Value:
    axes = len(sides(given))
    return ratio(given, float(data_comm_s(layer(given, D=1), ring_s_per_byte(given, axes))))


@answers(TOPIC, "tp_only_ratio")
def tp_ratio(given: Given) -> Value:
    chips = prod(sides(given))
    tokens = given.number("tokens_per_chip") * chips
    return ratio(
        given, float(tensor_comm_s(layer(given, D=1), ring_s_per_byte(given, len(sides(given))), tokens))
    )


@answers(TOPIC, "mixed_ratio")
def mix_ratio(given: Given) -> Value:
    work, tokens, (x, y) = layer(given, D=1), given.number("tokens_per_chip"), mix_s_per_byte(given)
    ways = best_tensor_ways(work, x, y, tokens)
    both = data_comm_s(work, x, ways), tensor_comm_s(work, y, tokens * ways)
    return ratio(given, float(mixed_comm_s(*both, "independent")))


@answers(TOPIC, "t_math", "t_math_fwd")
def products_s(given: Given) -> Value:
    chips = prod(sides(given)) if given.has("slice") else chips_in(given)
    return layer(given).math_s * given.number("B") / chips


@answers(TOPIC, "t_math_bwd")
def backward_products_s(given: Given) -> Value:
    return BACK * layer(given).math_s * given.number("B") / chips_in(given)


@answers(TOPIC, "t_comms_fwd")
def forward_comm_s(given: Given) -> Value:
    """Of FSDP where only X is given, of TP where only Y is."""
    ring = ring_s_per_byte(given, whole(given, "axes"))
    if given.has("X") == given.has("Y"):
        raise UnansweredError("one scheme alone is meant")
    if given.has("X"):
        return float(data_comm_s(layer(given), ring))
    return float(tensor_comm_s(layer(given), ring, given.number("B")))


@answers(TOPIC, "t_comms_bwd")
def backward_comm_s(given: Given) -> Value:
    """Gradients reduced: scattered and gathered."""
    if given.has("Y"):
        raise UnansweredError("gradients of data parallelism alone are meant")
    network = torus_network(1.0 / ring_s_per_byte(given, 1), whole(given, "axes"))
    return float(
        data_comm_s(
            layer(given), float(duration(reduce_s_per_byte(network, np.array(network.sizes), exact=False)))
        )
    )


def mix_seconds(given: Given, x: float, y: float) -> tuple[float, float]:
    """Seconds of FSDP's and of TP's traffic of a layout."""
    ring_x, ring_y = mix_s_per_byte(given)
    work = layer(given)
    return float(data_comm_s(work, ring_x, y)), float(tensor_comm_s(work, ring_y, given.number("B") / x))


register(lambda g: mix_seconds(g, g.number("X"), g.number("Y"))[0], "t_fsdp_fwd")
register(lambda g: mix_seconds(g, g.number("X"), g.number("Y"))[1], "t_tp_fwd")
register(lambda g: float(mixed_comm_s(*mix_seconds(g, 512, 8), "independent")), "t_dp512_tp8")
register(lambda g: float(mixed_comm_s(*mix_seconds(g, 1024, 4), "independent")), "t_dp1024_tp4")


@answers(TOPIC, "t_fsdp4096")
def fsdp_s(given: Given) -> Value:
    return float(data_comm_s(layer(given), ring_s_per_byte(given, len(sides(given)))))


@answers(TOPIC, "t_tp4096")
def tp_s(given: Given) -> Value:
    return float(tensor_comm_s(layer(given), ring_s_per_byte(given, len(sides(given))), given.number("B")))


@answers(TOPIC, "compute_bound")
def layout_is_compute_bound(given: Given) -> Value:
    x, y = given.number("X"), given.number("Y")
    needed = float(mixed_comm_s(*mix_seconds(given, x, y), "independent"))
    return layer(given).math_s * given.number("B") / (x * y) >= needed


@answers(TOPIC, "tp_backward_coefficient", "mixed_backward_tp_coefficient")
def crossing_bytes(given: Given) -> Value:
    return BACKWARD_CROSSINGS * BF16 * given.number("B") * given.number("D")


# Slices over the data-centre network


def slice_s_per_byte(given: Given, chips: int) -> float:
    """Seconds per byte of a gather over two slices, sharded inside them, at the level between them."""
    egress = given.number("dcn_Bps_per_chip", chip_of(given).scale_out_bytes_per_s or 0.0)
    if not egress:
        raise UnansweredError("no rate between slices")
    network = switched_network(1.0, egress * chips, chips)
    return float(gather_s_per_byte(network, np.array(network.sizes), exact=False)[-1])


@answers(TOPIC, "tokens_per_slice")
def slice_batch(given: Given) -> Value:
    """Whatever the size of the slice: its egress grows with it."""
    chips = whole_or(given, "chips_per_slice", round(pod_of(given)))
    return chips * float(data_tokens(layer(given, D=1, F=1), slice_s_per_byte(given, chips)))


@answers(TOPIC, "t_dcn")
def slices_s(given: Given) -> Value:
    """Gradients reduced between slices: two passes."""
    return 2 * float(data_comm_s(layer(given), slice_s_per_byte(given, whole(given, "chips_per_slice"))))
