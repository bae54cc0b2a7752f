"""Best shapes of a grid for one device: the front of loss against a cost, and the best under each budget.

The grid is listed whole and every legal shape is priced, so the answer is exact by exhaustion and all that was priced can
be written to a file. `search.proven` answers the same of grids too large for that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from meshwright.costmodel.doors import check_positive
from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.hardware.errors import InputError, MeshwrightError, UnknownNameError, check_type, shown
from meshwright.hardware.numbers import is_number, make_plain
from meshwright.hardware.units import human_bytes
from meshwright.search.architecture import Counts, counts_of
from meshwright.search.front import best, front
from meshwright.search.grid import Grid, list_shapes, load_grid
from meshwright.search.law import Law, Priced, load_law
from meshwright.search.price import Costs, Latency, Pricer
from meshwright.search.shape import Floats, Ints, Shapes

if TYPE_CHECKING:
    from meshwright.search.engine.answers import Certificate

Against = Literal["total", "ttft", "tpot", "memory"]
AGAINST: Mapping[str, str] = {
    "total": "total_s",
    "ttft": "prefill_s",
    "tpot": "token_s",
    "memory": "memory_bytes",
}
FITS = "memory of the device"
_MOST_ROWS = 2_000_000  # about 3 GB of columns while they are priced


class NoShapeError(MeshwrightError):
    """Proven: no shape of the grid keeps the limits."""

    exit_code = 3


ROUNDED = 1 + 1e-9  # a cost read off a file, in ten digits, is a limit that its own shape keeps


@dataclass(frozen=True)
class Budget:
    """Limits on a shape; inf where there is none.

    Attributes:
        ttft_s: seconds of prefill. tpot_s: seconds of a decoded token, averaged. total_s: both phases together.
        memory_bytes: beside the memory of the device.

    Raises:
        InputError: a limit that is no number above 0.
    """

    ttft_s: float = np.inf
    tpot_s: float = np.inf
    total_s: float = np.inf
    memory_bytes: float = np.inf

    def __post_init__(self) -> None:
        make_plain(self)
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if not is_number(value, infinite=True) or not value > 0:
                raise InputError(
                    f"{field.name} is {shown(value)}; give a number above 0, or inf for no limit"
                )

    def finite(self) -> dict[str, float]:
        """The limits that there are, by the name of the cost."""
        every = {"ttft": self.ttft_s, "tpot": self.tpot_s, "total": self.total_s, "memory": self.memory_bytes}
        return {name: float(limit) for name, limit in every.items() if limit < np.inf}

    def limits(self, costs: Costs) -> dict[str, tuple[Floats, float]]:
        """Column and limit by the name of the cost."""
        return {
            "total": (costs.total_s, ROUNDED * self.total_s),
            "ttft": (costs.prefill_s, ROUNDED * self.ttft_s),
            "tpot": (costs.token_s, ROUNDED * self.tpot_s),
            "memory": (costs.memory_bytes, ROUNDED * self.memory_bytes),
        }


@dataclass(frozen=True)
class Searched:
    """What a search found.

    Attributes:
        shapes, costs, counts, priced: columns over the R shapes that are kept: all that are legal and fit.
        budgets: as asked. best: row of the least loss under each, None where no shape keeps it.
        on_front: rows of the front of loss against `against`, by rising cost.
        listed: rows of the grid before any rule. removed: shapes by the rule that removed them.
        certificates: none where all that is legal was priced and kept; else (`search.proven`) only the front and the
            best are kept, and these say what was proven, of the front and of each budget.
        tokens: of training, as asked.
    """

    grid: Grid
    device: Device
    request: Request
    latency: Latency
    against: Against
    shapes: Shapes
    costs: Costs
    counts: Counts
    priced: Priced
    budgets: tuple[Budget, ...]
    best: tuple[int | None, ...]
    on_front: Ints
    listed: int
    removed: Mapping[str, int]
    certificates: "tuple[Certificate, ...]" = ()
    tokens: float | None = None

    @property
    def loss(self) -> Floats:
        return self.priced.loss

    @property
    def against_cost(self) -> Floats:
        """The column that the front trades loss for; seconds or bytes."""
        return np.asarray(getattr(self.costs, AGAINST[self.against]))


def search_shapes(
    law: Law | str,
    grid: Grid | str | PathLike[str],
    device: Device,
    request: Request,
    *budgets: Budget,
    latency: Latency = "full",
    against: Against = "total",
    tokens: float | None = None,
) -> Searched:
    """Price every legal shape that fits the memory, and choose.

    law, grid: themselves, a shipped name or the path of a file. latency: 'full', the cost model operator by operator,
    or 'plas', the paper's aggregated forms. tokens: of training, for a law that reads them.

    Errors: InputError, UnknownNameError; NoShapeError where no legal shape fits the memory; what `Pricer.costs` and
    `Law.loss` raise.
    """
    law, grid = check_asked(law, grid, device, request, budgets, latency, against, tokens)
    if grid.size > _MOST_ROWS:
        raise InputError(
            f"the grid has {grid.size:,} rows, more than the {_MOST_ROWS:,} that are priced one by one; ask "
            "search.proven.prove_shapes, which does not list them, or shorten an axis"
        )
    pricer = Pricer(grid.ends, device, request, latency)
    listing = list_shapes(grid)
    if not len(listing.shapes):
        raise NoShapeError(
            f"no shape of the grid obeys its rules: {_told(listing.removed)}; change an axis or a rule"
        )
    costs = pricer.costs(listing.shapes)
    fits = np.flatnonzero(costs.memory_bytes <= device.memory_bytes)
    if not len(fits):
        raise NoShapeError(
            f"no shape of the grid fits {human_bytes(device.memory_bytes)}, the smallest takes "
            f"{human_bytes(float(costs.memory_bytes.min()))}; give more memory, fewer bytes per weight, or a grid of smaller shapes"
        )
    shapes, costs = listing.shapes[fits], Costs(*(getattr(costs, f.name)[fits] for f in fields(Costs)))
    counts = counts_of(shapes, grid.ends)
    priced = law.loss(law.columns(shapes, counts, tokens))
    loss, cost = np.asarray(priced.loss), np.asarray(getattr(costs, AGAINST[against]))
    chosen = []
    for budget in budgets:
        limits = budget.limits(costs)
        chosen.append(best(loss, *limits.pop(against), *limits.values()))
    removed = {**listing.removed, FITS: len(listing.shapes) - len(fits)}
    return Searched(grid, device, request, latency, against, shapes, costs, counts, priced, budgets,
                    tuple(chosen), front(loss, cost), listing.listed, removed, tokens=tokens)  # fmt: skip


def check_asked(
    law: Law | str,
    grid: Grid | str | PathLike[str],
    device: Device,
    request: Request,
    budgets: tuple[Budget, ...],
    latency: str,
    against: str,
    tokens: float | None,
) -> tuple[Law, Grid]:
    """The law and the grid, loaded; raises as `search_shapes` for what cannot be asked."""
    check_type("law", law, (Law, str), "a name such as 'plas-10b', or a Law")
    check_type("grid", grid, (Grid, str, PathLike), "a name such as 'plas', a path, or a Grid")
    check_type("device", device, Device, "a Device, such as board_of('jetson-agx-orin-64gb').device")
    check_type("request", request, Request, "a Request")
    for budget in budgets:
        check_type("budget", budget, Budget, "a Budget")
    for what, word, known in (
        ("against", against, get_args(Against)),
        ("latency", latency, get_args(Latency)),
    ):
        check_type(what, word, str, f"one of {', '.join(known)}")
        if word not in known:
            raise UnknownNameError(what, word, known)
    check_positive(tokens=tokens)
    return (
        load_law(law) if isinstance(law, str) else law,
        grid if isinstance(grid, Grid) else load_grid(grid if isinstance(grid, str) else Path(grid)),
    )


def _told(removed: Mapping[str, int]) -> str:
    return ", ".join(f"{rule} removed {n:,}" for rule, n in removed.items() if n)
