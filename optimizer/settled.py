"""Candidates whose every decision but the network's is taken, and what a user sees of them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.layout import Placement
from meshwright.costmodel.placement import Groups, groups_of_arrays, placement_of
from meshwright.costmodel.rows import Rows

Array = NDArray[Any]


@dataclass(frozen=True)
class Settled:
    """Rows with every decision but the network's taken."""

    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> "Settled":
        return Settled(self.rows[index])


@dataclass(frozen=True)
class Placed(Settled):
    """Settled rows with where they sit.

    Attributes:
        factors, strides: of each dimension on each level, [R, dimensions, levels]; a stride is the least it can be
            while the order on its level is open.
    """

    factors: Array
    strides: Array

    def __getitem__(self, index: Any) -> "Placed":
        out = Placed(self.rows[index], self.factors[index], self.strides[index])
        if "groups" in self.__dict__:  # what is known of them stays known
            out.__dict__["groups"] = self.groups[index]
        return out

    @cached_property
    def groups(self) -> Groups:
        return groups_of_arrays(self.factors, self.strides, self.rows.ep, self.rows.etp)

    @property
    def placement(self) -> Placement:
        """Of a single row."""
        return placement_of(self.factors[0], self.strides[0])


VISIBLE = ("tp", "cp", "pp", "ep", "dp_shard", "zero", "micro_batch", "vpp", "schedule")


def visible_columns(rows: Rows) -> Array:
    """What must differ between two plans of the list, [R, columns]."""
    return np.stack([getattr(rows, n) for n in VISIBLE], axis=1)


def visible(row: Rows) -> tuple[int, ...]:
    return tuple(visible_columns(row)[0].tolist())


def order(row: Rows) -> tuple[int, ...]:
    """A fixed order for equal values: fewer devices and simpler layouts first."""
    names = (
        "devices",
        "pp",
        "tp",
        "cp",
        "ep",
        "vpp",
        "zero",
        "offload",
        "dp_replicate",
        "micro_batch",
        "cp_kind",
        "schedule",
    )
    return (*(int(getattr(row, n)[0]) for n in names), *row.policies[0].tolist())
