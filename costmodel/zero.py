"""Ways that ZeRO cuts each part of the state: plain weights over `dp_shard * cp`, routed experts over edp."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.rows import Rows

Array = NDArray[Any]

# ZeRO level from which a part is sharded.
ZERO_FROM = {"optimizer": 1, "master": 1, "gradients": 2, "parameters": 3}


def zero_ways(rows: Rows) -> tuple[Array, Array, Array]:
    """Ways that ZeRO cuts optimizer state, gradients and parameters of plain weights."""
    return _ways(rows.zero, rows.shard)


def expert_zero_ways(rows: Rows) -> tuple[Array, Array, Array]:
    """The same for routed experts, whose group is edp."""
    return _ways(rows.zero, rows.edp)


def _ways(zero: Array, group: Array) -> tuple[Array, Array, Array]:
    optimizer, gradients, parameters = (
        np.where(zero >= ZERO_FROM[p], group, 1) for p in ("optimizer", "gradients", "parameters")
    )
    return optimizer, gradients, parameters
