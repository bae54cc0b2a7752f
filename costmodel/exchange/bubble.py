"""A pipeline alone: how long its micro-batches take, how much of that stages wait, and what its hops cost.

    step = (m - 1/v) t + p t / v      idle = 1 - m t / step = (p - 1) / (m v + p - 1)      t = forward + backward
    hop  = 2 B D / (W m)              m + p - 2 of them, one after the other, forward

The planner's linear form (pipeline.py) with equal stages. Source: jax-ml/scaling-book, chapters 5 and 12; it draws the
bubble of two stages and gives no formula.
"""

import numpy as np

from meshwright.costmodel.collectives import Network, duration, send_loads
from meshwright.costmodel.flops import BF16
from meshwright.costmodel.pipeline import linear_step_s
from meshwright.costmodel.working import Step, Working
from meshwright.hardware.errors import InputError, LayoutError
from meshwright.hardware.network import SwitchTier
from meshwright.hardware.units import human_seconds

_RULE = 1.5  # hops per micro-batch in the book's rule of thumb: between one, of many micro-batches, and two


def schedule(
    stages: int,
    micro_batches: int,
    *,
    forward_s: float = 1.0,
    backward_over_forward: float = 2.0,
    chunks: int = 1,
) -> Working:
    """Step and idle share of equal stages.

    Args:
        forward_s: of one stage and micro-batch.
        chunks: per stage, of an interleaved schedule.

    Errors: LayoutError for less than one of anything.
    """
    if min(stages, micro_batches, chunks) < 1 or forward_s <= 0 or backward_over_forward < 0:
        raise LayoutError(
            f"{stages} stages, {micro_batches} micro-batches and {chunks} chunks of {forward_s:g} s are no pipeline; "
            f"use at least 1 of each"
        )
    if chunks > 1 and micro_batches % stages:
        raise LayoutError(
            f"{chunks} chunks a stage run whole rounds of {stages} micro-batches, and {micro_batches} are no whole round; use a "
            f"multiple of {stages}, or 1 chunk"
        )
    each = forward_s * (1.0 + backward_over_forward)
    step = float(linear_step_s(micro_batches, chunks, each, stages * each))
    busy = micro_batches * each
    return Working(
        question=f"How long do {micro_batches} micro-batches take in {stages} stages?",
        given={
            "p": Step(stages, "stages"),
            "m": Step(micro_batches, "micro-batches"),
            "v": Step(chunks, "chunks", note="per stage"),
            "t_forward": Step(forward_s, "s"),
            "t": Step(each, "s", f"{1 + backward_over_forward:g} t_forward", "of a stage and micro-batch"),
        },
        steps={
            "step": Step(step, "s", "(m - 1/v) t + p t / v"),
            "busy": Step(busy, "s", "m t", "of each stage"),
            "idle": Step(1.0 - busy / step, "ratio", "1 - busy / step", "of each stage"),
        },
        binds=f"a stage waits {1 - busy / step:.3g} of the step; {2 * micro_batches} micro-batches would make it "
        f"{1 - 2 * busy / float(linear_step_s(2 * micro_batches, chunks, each, stages * each)):.3g}",
    )


def hops(
    tokens: float, width: float, stages: int, micro_batches: int, layers: int, bytes_per_s: float
) -> Working:
    """Activations from stage to stage, forward, with nothing hidden.

    Args:
        tokens, width: of the whole batch, and of the residual; bf16.
        bytes_per_s: from one stage to the next.

    Errors: LayoutError for fewer than two stages, or fewer layers than stages; InputError for a size that is none.
    """
    for name, value in (("tokens", tokens), ("width", width), ("bytes_per_s", bytes_per_s)):
        if not value > 0:
            raise InputError(f"{name}={value:g} sends nothing; give a number above 0")
    if stages < 2 or micro_batches < 1:
        raise LayoutError(
            f"{stages} stages and {micro_batches} micro-batches have no hops; use at least 2 stages and 1 micro-batch"
        )
    if layers < stages:
        raise LayoutError(
            f"{layers} layers leave some of {stages} stages without one; use at most {layers} stages"
        )
    network = Network((SwitchTier("stages", 2, bytes_per_s, 0.0),), (1.0,))
    pair, ones = np.array([2]), np.array([1])
    size = BF16 * tokens * width
    each, whole = (float(duration(send_loads(network, v, pair, ones))) for v in (size / micro_batches, size))
    count = micro_batches + stages - 2
    return Working(
        question=f"How long do the hops of {stages} stages and {micro_batches} micro-batches take?",
        given={
            "B": Step(tokens, "tokens"),
            "D": Step(width),
            "p": Step(stages, "stages"),
            "m": Step(micro_batches, "micro-batches"),
            "L": Step(layers, "layers"),
            "W": Step(bytes_per_s, "B/s"),
        },
        steps={
            "t_hop": Step(each, "s", "2 B D / (W m)"),
            "hops": Step(count, "hops", "m + p - 2", "one after the other"),
            "t_total": Step(count * each, "s", "hops t_hop"),
            "t_per_layer": Step(count * each / layers, "s", "t_total / L"),
            "t_per_layer_rule": Step(
                _RULE * whole / layers, "s", "1.5 * 2 B D / (W L)", "the book's rule of thumb"
            ),
        },
        binds=f"bandwidth from stage to stage: {human_seconds(count * each)}, {count} hops of {human_seconds(each)} with "
        f"nothing hidden; {2 * micro_batches} micro-batches would make it "
        f"{human_seconds((2 * micro_batches + stages - 2) * each / 2)}",
    )
