"""Pipelines: topic pipeline."""

import numpy as np

from book_answers import Given, answers
from book_answers.counts import whole
from book_answers.gpu_bounds import GPUS_PER_NODE
from book_answers.gpu_bounds import nodes_of as two_nodes
from book_answers.roofline import number
from meshwright.costmodel.exchange.bubble import hops, schedule
from meshwright.costmodel.limits.thresholds import block_work, data_tokens, gather_s_per_byte
from meshwright.costmodel.working import Working

TOPIC = "pipeline"


def scheduled(given: Given) -> Working:
    """In units of one forward pass of a micro-batch through a stage."""
    ratio = given.number("backward_over_forward")
    return schedule(whole(given, "stages"), whole(given, "microbatches"), backward_over_forward=ratio)


answers(TOPIC, "makespan")(lambda given: number(scheduled(given), "step"))
answers(TOPIC, "idle_fraction_per_stage")(lambda given: number(scheduled(given), "idle"))


def hopping(given: Given, *free: str) -> Working:
    """`free` are counts that the step asked for does not depend on."""
    stages, many = (2 if key in free else whole(given, key) for key in ("stages", "microbatches"))
    layers = stages if "layers" in free else whole(given, "layers")
    return hops(given.number("B"), given.number("D"), stages, many, layers, given.number("W_Bps"))


answers(TOPIC, "t_hop")(lambda given: number(hopping(given, "stages", "layers"), "t_hop"))
answers(TOPIC, "t_total")(lambda given: number(hopping(given, "layers"), "t_total"))
answers(TOPIC, "t_per_layer_rule")(
    lambda given: number(hopping(given, "stages", "microbatches"), "t_per_layer_rule")
)


# A model over several nodes: each data replica has all their NICs.


def nodes_of(given: Given) -> float:
    return max(1.0, whole(given, "TP") * whole(given, "PP") / GPUS_PER_NODE)


answers(TOPIC, "effective_bw")(lambda given: nodes_of(given) * given.number("node_egress_Bps"))


@answers(TOPIC, "tokens_per_gpu")
def needed_tokens(given: Given) -> float:
    """From which data parallelism between nodes is compute bound."""
    flops, network = two_nodes(given)
    beyond = gather_s_per_byte(network, np.array(network.sizes), exact=False)[1]
    return float(data_tokens(block_work(flops, 1, 1), beyond, cut=nodes_of(given)))
