"""What no layout of a shape beats, as columns over shapes: seconds of a step, and bytes on a device.

Seconds. A step of `costmodel.pipeline` is never below m * sum_s t_s / pp, so its device-seconds are never below
those of the compute of all its tokens, and those are least for the largest micro-batch on one device:

    tokens   the rate of a product rises with the tokens of a micro-batch, and weights are read once for all of them
    tp, etp  a cut product is narrower, its input and weights of kv heads beyond their number are copied: never less
             work for a device-second; attention and elementwise work fall as 1 / tp at best
    ep       an expert meets at most its share of all tokens of the step
    the rest exchanges, repeats, bubbles and launches only add

Bytes. State is cut over all devices at most, and the fullest device holds at least the mean.
"""

from dataclasses import replace

import numpy as np

from meshwright.costmodel.flops import TRAIN
from meshwright.costmodel.memory import bytes_per_param
from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.operators import BACKWARD, Shape, embedding_s, forward_s, head_s
from meshwright.costmodel.setting import Setting
from meshwright.optimizer.bounds import SAFE
from meshwright.search.architecture import Ends, stack_of
from meshwright.search.shape import Floats, Shapes


def step_floor_s(given: Setting, shapes: Shapes, ends: Ends) -> Floats:
    """Seconds that a step of the nominal batch takes at least under any layout, [R]. Of `given` all but the model.

    The batch must be one that does not move (no tolerance): a larger one might take less for each of its tokens.
    """
    kind = 2 * (shapes.experts > 1) + (shapes.shared > 0)
    floor_s = np.zeros(len(shapes))
    for one in np.unique(kind):  # columns of one kind of layer at a time: what a kind lacks has no width
        rows = kind == one
        floor_s[rows] = _floor_s(given, shapes[rows], ends)
    return floor_s


def _floor_s(given: Setting, shapes: Shapes, ends: Ends) -> Floats:
    training, stack = given.training, stack_of(shapes, ends)
    one = np.ones(1, np.int64)
    whole = Shape(
        tokens=one * float(training.global_batch_tokens),
        seq_len=training.seq_len,
        tp=one,
        spread=one,
        ep=one,
        etp=one,
        imbalance=training.expert_load,
    )
    columns = ModelSpec(
        "columns", "", stack.hidden, ends.vocab, (), (), stack.embedding, stack.final, ends.tied
    )
    around = replace_model(given, columns)
    seconds = TRAIN * (embedding_s(around, whole) + head_s(around, whole))
    for layers, kind in stack.parts:
        for name, forward in forward_s(given, kind, whole).items():
            seconds = seconds + layers * (1.0 + BACKWARD[name]) * forward
    return np.asarray(SAFE * seconds / given.cluster.devices + given.rates.step_s)


def replace_model(given: Setting, model: ModelSpec) -> Setting:
    """The same question of another model; rates and network, which know of none, are not made again."""
    changed = replace(given, model=model)
    changed.__dict__.update(rates=given.rates, network=given.network)
    return changed


def replace_training(given: Setting, total_tokens: int) -> Setting:
    """The same question for a run of so many tokens."""
    return replace(given, training=replace(given.training, total_tokens=total_tokens))


def least_device_bytes(given: Setting, params: Floats, on_host: set[str]) -> Floats:
    """Bytes of state that the fullest device holds at least under any layout, [R]; `on_host` are parts of the state
    that some offload class moves to the hosts."""
    each = bytes_per_param(given.framework, given.training.optimizer, accumulates=False)
    held = sum(size for part, size in each.items() if part not in on_host)
    return np.asarray(SAFE * params * float(held) / given.cluster.devices)
