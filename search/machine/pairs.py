"""Pairs of a shape and a device: what they take, and whether a limit holds. Counts what it prices.

Work does not depend on the device, so for a shape every time is a sum of max(FLOPs / C, bytes / W): it never rises with
C or W, rounding included, since division, maximum and sum never fall where an operand does not. The memory that a
shape needs is one number. All bounds of `cheapest` rest on that.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.inference.request import Request
from meshwright.search.architecture import Ends
from meshwright.search.asked import Budget
from meshwright.search.machine.points import Points
from meshwright.search.machine.space import DeviceSpace
from meshwright.search.price import Costs, Latency, Pricer
from meshwright.search.shape import Floats, Ints, Shapes

_CHUNK = 1 << 16  # pairs in one call, about 50 MB of columns


def kept(budget: Budget, costs: Costs) -> NDArray[np.bool_]:
    """Whether every limit of a budget is kept, by row."""
    return np.asarray(
        np.logical_and.reduce([column <= limit for column, limit in budget.limits(costs).values()])
    )


@dataclass
class Pairs:
    """Shapes against the levels of compute and bandwidth of a device space.

    Attributes:
        priced: pairs priced so far.
    """

    space: DeviceSpace
    points: Points
    shapes: Shapes
    ends: Ends
    request: Request
    budget: Budget
    latency: Latency = "full"
    priced: int = field(default=0, init=False)

    def costs(self, rows: Ints, compute: Ints, bandwidth: Ints) -> Costs:
        """Of shape rows[i] at levels compute[i] and bandwidth[i]."""
        parts = [
            self._some(rows[i : i + _CHUNK], compute[i : i + _CHUNK], bandwidth[i : i + _CHUNK])
            for i in range(0, len(rows), _CHUNK)
        ]
        if not parts:
            none = np.zeros(0)
            return Costs(none, none, none, none)
        names = ("prefill_s", "token_s", "total_s", "memory_bytes")
        return Costs(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def keep(self, rows: Ints, compute: Ints, bandwidth: Ints) -> NDArray[np.bool_]:
        """Whether each pair keeps the budget."""
        return kept(self.budget, self.costs(rows, compute, bandwidth))

    def strain(self, costs: Costs) -> Floats:
        """Largest share of a limit that each pair takes; 0 where there is none."""
        return np.asarray(
            np.maximum.reduce([column / limit for column, limit in self.budget.limits(costs).values()])
        )

    def _some(self, rows: Ints, compute: Ints, bandwidth: Ints) -> Costs:
        self.priced += len(rows)
        flop_per_s, bytes_per_s, _ = self.points.values
        device = self.space.device(flop_per_s[compute], bytes_per_s[bandwidth], 1.0)
        return Pricer(self.ends, device, self.request, self.latency).costs(self.shapes[rows])
