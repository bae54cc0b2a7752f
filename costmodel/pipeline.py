"""Pipeline schedules: how many micro-batches a stage holds, and how long a step of many micro-batches takes.

    step = (m - 1/v) max_s t_s + (1/v) sum_s t_s + max_s G_s

m micro-batches, v chunks per stage, t_s seconds of stage s for one micro-batch, G_s what the stage does once
per step (gradient reduction, optimizer). With equal stages this is m t + (p - 1) t / v: v chunks shrink the
bubble v times. It is the linear form; tests hold it against a longest-path simulation of each schedule.

In flight, at most (s counted from 0): GPipe m; 1F1B min(m, p - s); interleaved, in whole stages,
min(m v, 2 (p - s - 1) + (v - 1) p + 1) / v.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.rows import Rows

Array = NDArray[Any]


def in_flight(rows: Rows, stage: Array) -> Array:
    """Micro-batches whose activations stage `stage` holds at its peak; broadcasts rows [R, 1] with stages."""
    m, p, v = (x[:, None] for x in (rows.micro_batches, rows.pp, rows.vpp))
    plain = np.minimum(m, p - stage)
    interleaved = np.minimum(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1) / v
    held = np.where(v > 1, interleaved, np.where(rows.gpipe[:, None] > 0, m, plain))
    return np.where(stage < p, held, 0)


def step_s(rows: Rows, slowest: Array, total: Array, once: Array) -> Array:
    """Seconds of a step from max_s t_s, sum_s t_s and max_s G_s."""
    seconds: Array = linear_step_s(rows.micro_batches, rows.vpp, slowest, total, once)
    return seconds


def linear_step_s(micro_batches: Any, chunks: Any, slowest: Any, total: Any, once: Any = 0.0) -> Any:
    """The linear form on numbers or arrays."""
    return (micro_batches - 1.0 / chunks) * slowest + total / chunks + once
