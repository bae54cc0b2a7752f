"""When training on GPUs stops being compute bound: nodes of switches, joined by NICs. Topic training-bound too."""

import numpy as np

from book_answers import Given, UnansweredError, Value, answers
from book_answers.bounds import BACK, TOPIC, flop_per_s, fsdp, layer, mixed, only_alpha, register
from book_answers.counts import chip_of, whole
from meshwright.costmodel.collectives import Network
from meshwright.costmodel.exchange.operations import in_switches
from meshwright.costmodel.limits.thresholds import (
    block_work,
    data_tokens,
    exact_tensor_ways,
    gather_s_per_byte,
    power_below,
    reduce_s_per_byte,
    switched_network,
    tensor_ways,
)
from meshwright.costmodel.placement import Group
from meshwright.hardware.chip import Switch

GPUS_PER_NODE = 8


def nodes_of(given: Given, count: int = 2) -> tuple[float, Network]:
    """Peak of a GPU, and so many nodes. Of two intensities the peak is one."""
    if given.has("alpha_in_node", "alpha_cross_node"):
        rates = (1 / given.number("alpha_in_node"), 1 / given.number("alpha_cross_node"))
        return 1.0, switched_network(*rates, GPUS_PER_NODE, count)
    block = GPUS_PER_NODE
    inside, outside = given.number("gpu_egress_Bps", 0.0), given.number("node_egress_Bps", 0.0)
    if given.has("chip"):
        chip = chip_of(given)
        if not isinstance(chip.scale_up, Switch) or chip.scale_out_bytes_per_s is None:
            raise UnansweredError("the chip has no node of switches")
        block = chip.scale_up.domain.count
        inside = inside or chip.scale_up.per_chip_one_way.si
        outside = outside or block * chip.scale_out_bytes_per_s
    if not inside:
        raise UnansweredError("no rate inside a node")
    return flop_per_s(given), switched_network(inside, outside or inside, block, count)


def by_level(given: Given) -> tuple[float, float]:
    """Tokens per GPU that data parallelism needs for the network inside a node and for that beyond."""
    flops, network = nodes_of(given)
    loads = gather_s_per_byte(network, np.array(network.sizes), exact=False)
    work = block_work(flops, 1, 1)
    return float(data_tokens(work, loads[0])), float(data_tokens(work, loads[1]))


def beyond(given: Given) -> float:
    if not (given.has("node_egress_Bps") or given.has("chip") or given.has("alpha_cross_node")):
        raise UnansweredError("no rate beyond a node")
    return by_level(given)[1]


def per_node(given: Given, gpus: float) -> float:
    """Data parallelism's tokens per GPU when a model replica takes so many GPUs, in whole nodes."""
    nodes = max(1.0, gpus / GPUS_PER_NODE)
    return float(data_tokens(block_work(flop_per_s(given), 1, 1), 1.0, cut=nodes))


register(lambda g: by_level(g)[0], "alpha_in_node", "in_node")
register(beyond, "alpha_cross_node", "cross_node", "dp_tokens_cross_node")
register(lambda g: max(by_level(g)[0], beyond(g)), "dp_tokens_per_gpu")
register(lambda g: per_node(g, 1), "threshold_plain")
register(lambda g: per_node(g, g.number("model_parallel_70B")), "threshold_70B")
register(lambda g: per_node(g, g.number("model_parallel_314B")), "threshold_314B")


@answers(TOPIC, "sharp_theory_cross_node")
def in_switches_tokens(given: Given) -> Value:
    """Gradients reduced in the switches; backward has twice the products."""
    flops, network = nodes_of(given)
    sizes = np.array(network.sizes)
    reduced = in_switches(network, Group(sizes, np.ones_like(sizes)), theory=True)
    both = reduce_s_per_byte(reduced, sizes, exact=True)[-1]
    return float(data_tokens(block_work(flops, 1, 1), both)) / BACK


@answers(TOPIC, "threshold", "tokens_per_gpu")
def gpu_tokens(given: Given) -> Value:
    """Over model replicas of several nodes, that there are, or that a node needs."""
    if only_alpha(given):
        return per_node(given, given.number("nodes") * GPUS_PER_NODE)
    if given.has("batch_tokens"):
        return given.number("batch_tokens") / given.number("gpus" if given.has("gpus") else "chips")
    return by_level(given)[0]


@answers(TOPIC, "batch_tokens")
def batch_of_chips(given: Given) -> Value:
    """That so many chips need."""
    count = given.number(next((k for k in ("gpus", "chips") if given.has(k)), "N"))
    if given.has("threshold"):
        return count * given.number("threshold")
    if given.has("F"):
        return count * mixed(given)
    if only_alpha(given):
        nodes = given.number("nodes", 1.0)
        return count * (
            per_node(given, nodes * GPUS_PER_NODE)
            if not given.has("axes")
            else fsdp(given, whole(given, "axes"))
        )
    return count * by_level(given)[0]


def tp_inside(given: Given) -> float:
    flops, network = nodes_of(given)
    loads = gather_s_per_byte(network, np.array(network.sizes), exact=False)
    return float(tensor_ways(layer(given, flops, D=1), loads[0]))


@answers(TOPIC, "ways")
def tp_ways(given: Given) -> Value:
    """By the NICs where their rate is given, else inside a node."""
    if not given.has("alpha_cross_node"):
        return tp_inside(given)
    flops, network = nodes_of(given)
    loads = gather_s_per_byte(network, np.array(network.sizes), exact=False)
    return float(tensor_ways(layer(given, flops, D=1), loads[1]))


register(tp_inside, "ways_in_node")
register(lambda g: power_below(tp_inside(g)), "rounded_tp")


@answers(TOPIC, "two_node_ways")
def two_node_ways(given: Given) -> Value:
    flops, network = nodes_of(given)
    return float(exact_tensor_ways(layer(given, flops, D=1), network, np.array(network.sizes))[-1])
