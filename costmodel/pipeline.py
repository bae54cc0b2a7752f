"""Pipeline schedules: how many micro-batches a stage holds, and how long a step of many micro-batches takes.

    step = (m - 1/v) max_s t_s + (1/v) sum_s t_s + max_s G_s              gpipe, 1f1b, interleaved
    step = m max_s t_s + (1 - 1/p) sum_s (t_s - h_s) + max_s G_s          where weight gradients run apart

m micro-batches, v chunks per stage, t_s seconds of stage s for one micro-batch, G_s what the stage does once
per step (gradient reduction, optimizer), h_s the seconds that its schedule hides (schedules.py). With equal stages
this is m t + (p - 1) t / v and m t + (p - 1) (t - h): the published bubbles. It is the linear form; tests hold it
against a longest-path simulation of each schedule.

In flight, at most (s counted from 0): GPipe m; 1F1B and zb_h1 min(m, p - s); zb_h2 min(m, 2 (p - s) - 1);
dualpipev p + 1/2; interleaved, in whole stages, min(m v, 2 (p - s - 1) + (v - 1) p + 1) / v. Beside them wait weight
gradients: zb_h1 of min(m, s + 1) micro-batches, zb_h2 of min(m, 2 s + 1), on stages other than the first, which
runs each at once; dualpipev of (s + 1) / 2.

Where the last chunk of an interleaved stage is longer or shorter than its others (`legal.chunk_periods`), it counts by
itself: of the K = min(m v, ...) chunks in flight it is min(p, 2 (p - s) - 1) when most are of it, and
max(0, K - (v - 1) min(m, 2 p)) when fewest are. Only the last differs, as the head follows it: within a round all
stages run the same chunk, so what one has more of has to be where another has less. With chunks of the same mean
length b the form is at most 1% below a simulation while the last chunk of the model with its head is up to b + 0.6 layers
long, 4% at b + 1 and 8% at b + 2 (equal chunks: exact, the head wherever it is). Where it calls such a cut faster than equal
chunks so did every simulation. Were last chunks longer on all stages it would be a tenth too low.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.rows import Rows, of_schedule
from meshwright.costmodel.schedules import DUALPIPEV, GPIPE, INTERLEAVED, ZB_H1, ZB_H2

Array = NDArray[Any]


def in_flight(rows: Rows, stage: Array, longer: Array | float = 0.0) -> Array:
    """Micro-batches whose activations stage `stage` holds at its peak; broadcasts rows [R, 1] with stages.

    `longer` is the share of the stage's layers by which its last chunk is longer than its others; then the mean over layers.
    """
    m, p, v, schedule = (x[:, None] for x in (rows.micro_batches, rows.pp, rows.vpp, rows.schedule))
    plain = np.minimum(m, p - stage)
    chunks = np.minimum(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1)
    interleaved = chunks / v
    if np.any(longer):
        most, fewest = np.minimum(p, 2 * (p - stage) - 1), chunks - (v - 1) * np.minimum(m, 2 * p)
        last = np.where(np.asarray(longer) > 0, most, np.maximum(fewest, 0))
        interleaved = (1 - longer) * interleaved + longer * last
    held = np.where(schedule == INTERLEAVED, interleaved, np.where(schedule == GPIPE, m, plain))
    if rows.splits.any():
        held = np.where(schedule == ZB_H2, np.minimum(m, 2 * (p - stage) - 1), held)
        held = np.where(schedule == DUALPIPEV, p + 0.5, held)
    return np.where(stage < p, held, 0)


def deferred(rows: Rows, stage: Array) -> Array:
    """Micro-batches whose weight gradients stage `stage` has still to run, at most; [R, S]."""
    m, p, schedule = (x[:, None] for x in (rows.micro_batches, rows.pp, rows.schedule))
    if not rows.splits.any():
        return np.zeros(np.broadcast_shapes(p.shape, stage.shape))
    late = np.where(schedule == ZB_H1, stage + 1, np.where(schedule == ZB_H2, 2 * stage + 1, 0))
    late = np.where(stage > 0, np.minimum(m, late), 0)
    return np.where(stage < p, np.where(schedule == DUALPIPEV, (stage + 1) / 2, late), 0)


def peaks(rows: Rows, stage: Array, longer: Array | float = 0.0) -> tuple[tuple[Array, Array], ...]:
    """(micro-batches in flight, those whose weight gradients are still to run) when stages are fullest, [R, S] each.

    A stage holds at most the largest of these. zb_h1 and zb_h2 meet both at once. dualpipev defers nothing at its peak;
    what it keeps late takes the place of micro-batches in flight.
    """
    held = in_flight(rows, stage, longer)
    if not rows.splits.any():
        return ((held, np.zeros_like(held)),)
    late, swaps = deferred(rows, stage), (rows.schedule == DUALPIPEV)[:, None]
    if not swaps.any():
        return ((held, late),)
    return (held - np.where(swaps, late, 0.0), late), (held, np.where(swaps, 0.0, late))


def at_start(rows: Rows) -> tuple[Array, Array]:
    """The same as `at_end` of what precedes the first layer.

    As much as the first stage holds of all its layers, but for chunks: of the first one twice as many as there are
    stages, since it is fullest when the last chunk of the first round has run backward.
    """
    m, p = rows.micro_batches, rows.pp
    chunks = (rows.schedule == INTERLEAVED) | (rows.schedule == DUALPIPEV)
    first = np.zeros((1, 1), np.int64)
    held = np.where(chunks, np.minimum(m, 2 * p), in_flight(rows, first)[:, 0])
    return held, np.where(rows.schedule == DUALPIPEV, 1, deferred(rows, first)[:, 0])


def at_end(rows: Rows) -> tuple[Array, Array]:
    """(micro-batches in flight, those whose weight gradients are still to run) of what follows the last layer, [R] each.

    Its backward pass follows the forward pass at once, but for GPipe, which runs all forward passes first.
    """
    held = np.where(rows.schedule == GPIPE, rows.micro_batches, 1)
    late = np.where(rows.schedule == DUALPIPEV, 1, deferred(rows, rows.last_stage[:, None])[:, 0])
    return held, late


def weights(rows: Rows) -> tuple[Array, Array]:
    """How often a step counts the slowest stage, and the sum of all stages; [R] each."""
    rounds, share = rows.micro_batches - 1.0 / rows.vpp, 1.0 / rows.vpp
    if not rows.splits.any():
        return rounds, share
    return np.where(rows.splits, rows.micro_batches, rounds), np.where(
        rows.splits, 1.0 - 1.0 / rows.pp, share
    )


def hidden_s(rows: Rows, forward: Array, weight_grad: Array) -> Array:
    """Seconds that a step is shorter by, from the sums over the model of forward and weight-gradient seconds, [R]."""
    hides_weight, hides_forward = (of_schedule(n, rows.schedule) for n in ("hides_weight", "hides_forward"))
    hidden: Array = (1.0 - 1.0 / rows.pp) * (hides_weight * weight_grad + hides_forward * forward)
    return hidden


def step_s(rows: Rows, slowest: Array, total: Array, once: Array, hidden: Array | float = 0.0) -> Array:
    """Seconds of a step from max_s t_s, sum_s t_s, max_s G_s and what the schedule hides (`hidden_s`)."""
    rounds, share = weights(rows)
    seconds: Array = rounds * slowest + share * total + once - hidden
    return seconds


def linear_step_s(micro_batches: Any, chunks: Any, slowest: Any, total: Any, once: Any = 0.0) -> Any:
    """The linear form of schedules that split nothing, on numbers or arrays."""
    return (micro_batches - 1.0 / chunks) * slowest + total / chunks + once
