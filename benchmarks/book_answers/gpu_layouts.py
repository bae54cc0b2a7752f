"""Layouts of training runs on GPUs, published ones among them: questions of the topic training-layout."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from book_answers import Given, UnansweredError, Value, answers
from book_answers.bounds import peak
from book_answers.gpu_bounds import GPUS_PER_NODE, nodes_of
from book_answers.layouts import TOPIC, batch, chips
from meshwright.costmodel.counting.counts import utilisation
from meshwright.costmodel.layout import parse_layout
from meshwright.costmodel.limits.thresholds import block_work, data_tokens, gather_s_per_byte
from meshwright.costmodel.textbook import textbook_model
from meshwright.costmodel.workload import Training
from meshwright.optimizer.question import price, resolve

TERA, PETA = 1e12, 1e15
CHIP = "h100"  # of the chapter's layouts that name none
# The chapter rounds this chip's peak where it computes thresholds.
ROUNDED = {"h100": 990e12}


def with_chip(given: Given) -> Given:
    return given if given.has("chip") else Given({**given.inputs, "chip": CHIP}, given.unit)


def model_parallel(given: Given, pp: float | None = None) -> float:
    """GPUs of a model replica."""
    ways = given.number("TP", 1.0) * given.number("EP", 1.0)
    return ways * (given.number("PP", 1.0) if pp is None else pp)


def dp_threshold(given: Given, replica: float) -> float:
    """Tokens per GPU of data parallelism across nodes when a model replica takes so many GPUs."""
    given = with_chip(given)
    flops, network = nodes_of(given)
    if not given.has("flops_per_s"):
        flops = ROUNDED.get(str(given["chip"]), flops)
    beyond = gather_s_per_byte(network, np.array(network.sizes), exact=False)[-1]
    nodes = max(1.0, replica / GPUS_PER_NODE)
    return float(data_tokens(block_work(flops, 1, 1), beyond, cut=nodes))


@answers(TOPIC, "model_parallel")
def replica(given: Given) -> Value:
    return model_parallel(given)


@answers(TOPIC, "dp_threshold_tokens")
def threshold(given: Given) -> Value:
    return dp_threshold(given, model_parallel(given))


@answers(TOPIC, "zero3_compute_bound")
def without_pipeline(given: Given) -> Value:
    return batch(given) / chips(given) >= dp_threshold(given, model_parallel(given, 1))


@answers(TOPIC, "with_pp8_compute_bound")
def with_pipeline(given: Given) -> Value:
    return batch(given) / chips(given) >= dp_threshold(given, model_parallel(given, 8))


@answers(TOPIC, "DP_without_pp")
def data_without(given: Given) -> Value:
    return chips(given) / model_parallel(given, 1)


@answers(TOPIC, "DP_with_pp8")
def data_with(given: Given) -> Value:
    return chips(given) / model_parallel(given, 8)


@answers(TOPIC, "dp_cost_reduction")
def cost_reduction(given: Given) -> Value:
    """By what a model replica of several nodes divides the tokens that data parallelism needs."""
    if given.has("EP"):
        raise UnansweredError("experts and the other weights have different data ranks")
    # Without tensor parallelism every stage is a node at least.
    gpus = model_parallel(given) * (1 if given.has("TP") else GPUS_PER_NODE)
    return dp_threshold(given, 1) / dp_threshold(given, gpus)


@answers(TOPIC, "dp_bandwidth_gain")
def few_ranks(given: Given) -> Value:
    """Over few data ranks beyond the nodes: each keeps its share of what it gathers."""
    ranks = round(given.number("DP"))  # a gain of a pipeline's many nodes is another one
    given = with_chip(given)
    if ranks < 2:
        raise UnansweredError("one rank gathers nothing")
    _, network = nodes_of(given, ranks)
    group = np.array([1, ranks])
    short, exact = (gather_s_per_byte(network, group, exact=e)[-1] for e in (False, True))
    return float(short / exact)


# Published runs


@cache
def published() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "megatron_runs.yaml").read_text())
    return table


def measured(given: Given) -> float:
    """FLOP/s per GPU of the published run of this shape and layout."""
    for row in published()["runs"]:
        shared = [key for key in row if given.has(key) and key != "params"]
        if given["chip"] == CHIP and len(shared) > 4 and all(given[key] == row[key] for key in shared):
            return float(row["tflops_per_gpu"]) * TERA
    raise UnansweredError("no such run was published")


@answers(TOPIC, "mfu")
def published_mfu(given: Given) -> Value:
    return utilisation(measured(given), 1.0, peak(given))


@answers(TOPIC, "aggregate_pflops")
def aggregate(given: Given) -> Value:
    return measured(given) * chips(given) / PETA


@answers(TOPIC, "per_gpu_tflops_measured")
def predicted(given: Given) -> Value:
    """What the planner expects of the layout, at its calibrated rates."""
    width, heads = round(given.number("D")), round(given.number("heads"))
    model = textbook_model(
        width,
        4 * width,
        round(given.number("L")),
        heads,
        heads,
        width // heads,
        published()["vocab"],
        gated=False,
    )
    cluster = f"{given['chip']}:{GPUS_PER_NODE}x{round(chips(given)) // GPUS_PER_NODE}"
    degrees = ",".join(f"{name.lower()}={round(given.number(name))}" for name in ("TP", "PP", "DP"))
    asked = resolve(model, cluster, Training(round(batch(given)), round(given.number("seq"))))
    return price(asked, parse_layout(f"{degrees},zero=1")).estimate.mfu * peak(given) / TERA
