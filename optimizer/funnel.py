"""The funnel: how many candidates each named rule removed, in the order they were applied."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.rows import Rows


@dataclass
class Funnel:
    """Counts by rule. `entered` counts candidates per level of refinement as they were listed."""

    entered: dict[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)

    def enter(self, level: str, count: int) -> None:
        self.entered[level] = self.entered.get(level, 0) + int(count)

    def remove(self, rule: str, count: int) -> None:
        if count:
            self.removed[rule] = self.removed.get(rule, 0) + int(count)

    def keep(self, rule: str, rows: Rows, holds: NDArray[np.bool_]) -> Rows:
        """Rows that pass, the rest counted under the rule."""
        self.remove(rule, len(rows) - int(holds.sum()))
        return rows if holds.all() else rows[holds]
