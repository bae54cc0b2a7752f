"""How far more chips shorten a step at a fixed batch: products fall as 1/N, FSDP's traffic stays, TP's stays too.

Per curve seconds of one forward pass over the layers, for arrays of chip counts; the step has three times the products.
Whole axes at their full rate whatever N, as the book draws them: a real slice has its own tilings (`tilings`).

Source: jax-ml/scaling-book, chapter 5.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.costmodel.limits.thresholds import (
    Array,
    Work,
    best_tensor_ways,
    data_comm_s,
    mixed_comm_s,
    tensor_comm_s,
)
from meshwright.costmodel.setting import Streams


@dataclass(frozen=True)
class Reach:
    """Seconds per byte of the groups that a scheme uses.

    Attributes:
        whole: of a group on all axes (pure FSDP, pure TP).
        data, tensor: of the parts that FSDP and TP take in the mix.
    """

    whole: float
    data: float
    tensor: float


@dataclass(frozen=True)
class Curve:
    """Seconds by number of devices, [N] each; `mixed_s` at the best split of every N, `tensor_ways` its Y."""

    devices: Array
    math_s: Array
    fsdp_s: Array
    tensor_s: Array
    mixed_s: Array
    tensor_ways: Array

    @property
    def best_s(self) -> Array:
        """Of the layers under the better of FSDP and the mix, what does not hide included."""
        return np.maximum(self.math_s, np.minimum(self.fsdp_s, self.mixed_s))

    @property
    def scheme(self) -> tuple[str, ...]:
        """The simplest scheme that stays compute bound, or that waits least."""
        return tuple(
            "FSDP" if f <= m or f <= x else "FSDP x TP" if x <= m else "FSDP x TP, waits"
            for m, f, x in zip(self.math_s, self.fsdp_s, self.mixed_s, strict=True)
        )


def curve(work: Work, reach: Reach, tokens: float, devices: Array, streams: Streams) -> Curve:
    """Seconds of every scheme at a batch of `tokens` on each number of devices.

    The mix is never worse than FSDP or TP alone on its own axes: Y is at least 1 and at most N.
    """
    math_s = work.math_s * tokens / devices
    ways = np.clip(best_tensor_ways(work, reach.data, reach.tensor, tokens / devices), 1.0, devices)
    data_s = data_comm_s(work, reach.data, ways)
    residual_s = np.where(ways > 1, tensor_comm_s(work, reach.tensor, tokens * ways / devices), 0.0)
    return Curve(
        devices=devices,
        math_s=math_s,
        fsdp_s=np.full(len(devices), data_comm_s(work, reach.whole)),
        tensor_s=np.full(len(devices), tensor_comm_s(work, reach.whole, tokens)),
        mixed_s=np.asarray(mixed_comm_s(data_s, residual_s, streams)),
        tensor_ways=ways,
    )
