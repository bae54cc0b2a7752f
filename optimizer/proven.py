"""What settled plans prove of others: one that costs no less anywhere, and holds no less, is no faster.

Many placed plans differ only in how data parallelism is split and where it sits, that is in their state and in what they
do once per step. The first of them that is settled then answers for those that are worse in both.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.stages import StageTable
from meshwright.optimizer.offers import Offer
from meshwright.optimizer.units import Units

Array = NDArray[Any]
Key = tuple[Any, ...]


@dataclass
class Proven:
    """Least step seconds of settled plans, in no order; plans are compared where their `key` is the same."""

    _known: dict[Key, list[tuple[Array, float]]] = field(default_factory=lambda: defaultdict(list))

    def floor_s(self, key: Key, costs: Array) -> float:
        """Seconds that a plan of these costs is known not to beat."""
        return max((s for known, s in self._known[key] if (known <= costs).all()), default=-np.inf)

    def add(self, key: Key, costs: Array, least_s: float) -> None:
        """No cut and no policies of a plan of these costs take less than `least_s`."""
        self._known[key].append((costs, least_s))


def compared(table: StageTable, offers: tuple[Offer, ...], units: Units) -> tuple[Key, Array]:
    """(what must be equal, what must be no less) for one placed row never to be faster than another, hosts aside.

    Given equal policies to choose from, and equally many micro-batches in flight on each stage, seconds and bytes of a plan
    only grow with the numbers of the second.
    """
    rows, costs = table.rows, table.costs
    counts = tuple(int(getattr(rows, n)[0]) for n in ("pp", "micro_batches", "vpp", "schedule"))
    saved = (a.tobytes() for offer in offers for a in (offer.codes, offer.device, offer.working))
    shares = units.shares
    ends = np.unique([0, min(1, counts[0] - 1), counts[0] - 1])
    stage, share = (x.ravel() for x in np.meshgrid(ends, np.arange(len(shares))))
    once = table.once_s(stage[None, :], shares[share][None])[0]
    of_row = (
        costs.first_s,
        costs.last_s,
        costs.hop_s,
        costs.first_bytes,
        costs.last_bytes,
        costs.gathers,
        costs.loss,
        costs.tower,
    )
    seconds = (offer.seconds for offer in offers)
    least = np.concatenate(
        [np.concatenate(of_row), -costs.hidden_s, costs.state[0], costs.deferred[0], once, *seconds]
    )
    return (*counts, *saved), least
