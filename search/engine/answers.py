"""The answers: shapes with their proof, or a proven no."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from meshwright.costmodel.estimate import digits
from meshwright.hardware.errors import MeshwrightError
from meshwright.search.law import Priced
from meshwright.search.shape import Floats, Shapes

LISTED, TOGETHER, BEATEN, SETTLED = "listed", "limits together", "bound passes the best", "settled"


@dataclass(frozen=True)
class Certificate:
    """What was proved, over which space, and what it took.

    Attributes:
        status: OPTIMAL; FEASIBLE where effort ended first, and the bound lies below the value.
        value, bound: loss of the best shape, of a front its least, and what no shape of the space beats.
        slack: loss that rounding can hide; shapes this close were priced exactly before one was preferred.
        space, legal: shapes of the grid, and those that obey its rules. removed: shapes by rule, in the file's order.
        rows: pairs of a width and a number of layers: listed, out by which limit, beaten by their bound, settled.
        bounded: bounds taken, one for each feed-forward option of a row at a time; none of them prices a shape.
        parts_priced: layers with one option beside the smallest other, and ends, priced by the cost model.
        combined: shapes priced as a sum of parts. shapes_priced: whole ones, by the cost model.
        programs: rows that went to CP-SAT.
        solves: budgets proved; more than one for a front.
        space_hash: of the question and the versions.
    """

    status: str
    value: float
    bound: float
    slack: float
    space: int
    legal: int
    removed: dict[str, int]
    rows: dict[str, int]
    bounded: int
    parts_priced: int
    combined: int
    shapes_priced: int
    programs: int
    solves: int
    space_hash: str

    @property
    def gap(self) -> float:
        """Share by which the loss can at most be beaten."""
        return max(0.0, 1.0 - self.bound / self.value)

    @property
    def share_priced(self) -> float:
        """Of the space: parts, sums of parts and whole shapes."""
        return (self.parts_priced + self.combined + self.shapes_priced) / self.space

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        return out | {name: digits(out[name]) for name in ("value", "bound", "slack")}


@dataclass(frozen=True)
class Found:
    """Shapes with their proof: the best first, or a front by rising cost.

    Attributes:
        costs: [R] by name in RESOURCES, by the cost model. priced: their losses, and whether the law was fitted there.
        binding: of row 0, the share that it takes of the most that each limit allows.
    """

    shapes: Shapes
    costs: Mapping[str, Floats]
    priced: Priced
    binding: Mapping[str, float]
    certificate: Certificate

    def __len__(self) -> int:
        return len(self.shapes)


class NoShape(MeshwrightError):
    """Proven: no shape of the grid keeps the limits.

    Attributes:
        limit: one that cannot be kept: alone, or beside the others (`beside`); None where the grid's rules leave nothing.
        least: the value nearest to the limit that a shape reaches, and the others keep where `beside`.
    """

    exit_code = 3

    def __init__(
        self, reason: str, limit: str | None = None, least: float | None = None, beside: bool = False
    ) -> None:
        self.limit, self.least, self.beside = limit, least, beside
        super().__init__(f"no shape of the grid serves: {reason}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        least = None if self.least is None else digits(self.least)
        return {
            "status": "INFEASIBLE",
            "reason": str(self),
            "limit": self.limit,
            "least": least,
            "beside": self.beside,
        }
