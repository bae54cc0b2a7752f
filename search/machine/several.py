"""Several devices in one question: a front and a best shape for each, and what one shape for all of them costs.

One shape for all is the one of least worst regret over the devices, exact over the grid. Under a budget the regret is
loss: what a device's own best shape within it would reach below. At a loss it is time (or memory): the share by
which the shape takes more than a device's own least of that loss.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike

import numpy as np

from meshwright.costmodel.doors import check_positive
from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.hardware.errors import InputError, check_type
from meshwright.search.asked import ROUNDED, Against, Budget, NoShapeError, Searched, search_shapes
from meshwright.search.grid import Grid
from meshwright.search.law import Law
from meshwright.search.law_columns import Bools
from meshwright.search.machine.pairs import kept
from meshwright.search.price import Costs, Latency
from meshwright.search.shape import Floats, Shapes

NO_LIMIT = Budget()


@dataclass(frozen=True)
class OneForAll:
    """The shape of least worst regret.

    Attributes:
        shape, loss: one row. costs: of it on every device, one row each.
        regret: of every device, 0 where the shape is as good as its own best. unit: of the regret, 'nats per token', or
            'ratio' for the share by which it costs more.
    """

    shape: Shapes
    loss: float
    costs: Mapping[str, Costs]
    regret: Mapping[str, float]
    unit: str


@dataclass(frozen=True)
class Several:
    """Answers by device, and the shape for all; None where nothing was asked of it, or `why` not."""

    searched: Mapping[str, Searched]
    one_for_all: OneForAll | None
    why: str = ""


def fronts(
    devices: Mapping[str, Device],
    law: Law | str,
    grid: Grid | str | PathLike[str],
    request: Request,
    budget: Budget = NO_LIMIT,
    *,
    latency: Latency = "full",
    against: Against = "total",
    loss: float | None = None,
    tokens: float | None = None,
) -> Several:
    """Each device searched alone, then one shape for all: under the budget, or the fastest that reaches a loss.

    Errors: InputError where no device is given; else as `search_shapes`, naming the device.
    """
    check_type("devices", devices, Mapping, "a mapping of names to Devices")
    check_type("budget", budget, Budget, "a Budget")
    check_positive(loss=loss)
    if not devices:
        raise InputError("no device is given; name one at least")
    searched = {}
    for name, device in devices.items():
        try:
            searched[name] = search_shapes(
                law, grid, device, request, budget, latency=latency, against=against, tokens=tokens
            )
        except NoShapeError as error:
            raise NoShapeError(f"{name}: {error}") from error
    if loss is None and budget == NO_LIMIT:
        return Several(searched, None)
    common = _Common.of(searched, budget)
    found = common.least_loss(searched) if loss is None else common.fastest(searched, budget, loss)
    return Several(searched, None, found) if isinstance(found, str) else Several(searched, found)


@dataclass(frozen=True)
class _Common:
    """The shapes that fit the memory of every device, in the grid's order; `kept`: within the budget on each."""

    shapes: Shapes
    loss: Floats
    costs: Mapping[str, Costs]
    against: Mapping[str, Floats]
    kept: Bools

    @classmethod
    def of(cls, searched: Mapping[str, Searched], budget: Budget) -> "_Common":
        smallest = min(searched.values(), key=lambda done: float(done.device.memory_bytes))
        costs, against = {}, {}
        for name, done in searched.items():
            fits = done.costs.memory_bytes <= smallest.device.memory_bytes
            costs[name] = Costs(*(getattr(done.costs, f.name)[fits] for f in fields(Costs)))
            against[name] = done.against_cost[fits]
        serves = np.logical_and.reduce([kept(budget, cost) for cost in costs.values()])
        return cls(smallest.shapes, smallest.loss, costs, against, serves)

    def least_loss(self, searched: Mapping[str, Searched]) -> OneForAll | str:
        """A loss is the same on every device, so the least worst regret is the least loss that keeps all budgets."""
        own = {name: done.best[0] for name, done in searched.items()}
        if failing := [name for name, row in own.items() if row is None]:
            return f"no shape of the grid keeps the budget on {', '.join(failing)}"
        rows = np.flatnonzero(self.kept)
        if not len(rows):
            return "each device has shapes that keep the budget, and none keeps it on all"
        slowest = np.maximum.reduce(list(self.against.values()))
        row = int(rows[np.lexsort((slowest[rows], self.loss[rows]))[0]])
        regret = {name: float(self.loss[row] - done.loss[own[name]]) for name, done in searched.items()}
        return self._one(row, regret, next(iter(searched.values())).priced.law.unit)

    def fastest(self, searched: Mapping[str, Searched], budget: Budget, wanted: float) -> OneForAll | str:
        """At a loss: the least over shapes of the greatest ratio to a device's own least cost."""
        own: dict[str, float] = {}
        for name, done in searched.items():
            cost = done.against_cost[kept(budget, done.costs) & (done.loss <= ROUNDED * wanted)]
            if not len(cost):
                return f"no shape of the grid reaches loss {wanted:g} within the budget on {name}"
            own[name] = float(cost.min())
        rows = np.flatnonzero(self.kept & (self.loss <= ROUNDED * wanted))
        if not len(rows):
            return f"each device has shapes of loss {wanted:g} within the budget, and none serves all"
        regret = {name: cost[rows] / own[name] - 1.0 for name, cost in self.against.items()}
        best = int(np.lexsort((self.loss[rows], np.maximum.reduce(list(regret.values()))))[0])
        return self._one(int(rows[best]), {name: float(r[best]) for name, r in regret.items()}, "ratio")

    def _one(self, row: int, regret: Mapping[str, float], unit: str) -> OneForAll:
        at = np.array([row])
        costs = {
            name: Costs(*(getattr(cost, f.name)[at] for f in fields(Costs)))
            for name, cost in self.costs.items()
        }
        return OneForAll(self.shapes[at], float(self.loss[row]), costs, regret, unit)
