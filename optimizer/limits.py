"""Limits of pipeline stages: so much per unit that a stage holds, so much in all."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.optimizer.bounds import SAFE

Array = NDArray[Any]


@dataclass(frozen=True)
class Limits:
    """Limits of stages: first the bytes, then time alone and with memory at each price.

    Attributes:
        per_unit: what a unit of each sort takes, [sorts, G + 1, R, S]; per stage, since micro-batches in flight are.
        total: what there is, [G + 1, R, S].
    """

    per_unit: Array
    total: Array

    def within(self, seconds: Array) -> "Limits":
        """The same for stages that take so many seconds less, [R]."""
        total = self.total.copy()
        total[1:] -= seconds[:, None]
        return Limits(self.per_unit, total)

    def __getitem__(self, rows: Array) -> "Limits":
        return Limits(self.per_unit[:, :, rows], self.total[:, rows])

    def hold(self, units: Array) -> Array:
        """Whether each stage holds so many units of each sort, [R, S] from [R, S, sorts]; none always fit."""
        taken = np.einsum("rsu,ulrs->lrs", units, self.per_unit)
        room = self.total + abs(self.total) * (1.0 - SAFE)
        held: Array = (taken <= room).all(axis=0) | ~units.any(axis=2)
        return held

    def most(self, sort: int) -> Array:
        """Units of one sort alone that each stage holds, [R, S]; fractions left in."""
        with np.errstate(divide="ignore", invalid="ignore"):
            most: Array = (self.total / self.per_unit[sort]).min(axis=0)
        return most
