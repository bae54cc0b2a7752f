"""The cheapest device that reaches a loss in time with some shape, and the front of price against loss, both exact.

Shapes are columns, devices levels of compute, bandwidth and memory with a price each. A shape's least device is found
by a staircase: for each level of compute the least bandwidth that keeps the limits, by bisection, since more of either
is never slower. What bounds away most shapes before that costs one pair each: the corner, the most compute and the
most bandwidth of any device that could still improve on the best so far; a shape too slow there is too slow on all of
them. The order is (price, loss, place of the shape in the grid); of a shape's devices at one price the first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from meshwright.costmodel.doors import check_positive
from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.working import told
from meshwright.hardware.errors import InputError, MeshwrightError, check_type, shown
from meshwright.hardware.units import human_bytes
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.plan import ModelDriftError
from meshwright.search.architecture import counts_of
from meshwright.search.asked import ROUNDED, Budget
from meshwright.search.front import front
from meshwright.search.grid import Grid, list_shapes
from meshwright.search.law import Law, Priced
from meshwright.search.machine.pairs import Pairs, kept
from meshwright.search.machine.points import Points, points_of
from meshwright.search.machine.space import DeviceSpace
from meshwright.search.machine.staircase import Stairs
from meshwright.search.price import Costs, Latency, Pricer
from meshwright.search.shape import Floats, Ints, Shapes

LOSS, MEMORY, BUDGET, PRICE = "loss", "memory", "budget", "price_bound"  # what removes a shape
_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")
_FIRST, _MOST = 32, 1 << 14  # shapes looked at together: few until there is a price to beat


class NoDeviceError(MeshwrightError):
    """Proven: no shape on any device of the space keeps the limits; `certificate` counts what removed them."""

    exit_code = 3

    def __init__(self, reason: str, certificate: "Certificate") -> None:
        self.certificate = certificate
        super().__init__(f"no device of the space serves: {reason}")


@dataclass(frozen=True)
class Certificate:
    """What was proved over which space.

    Attributes:
        status: OPTIMAL, or INFEASIBLE.
        shapes, devices: of the grid and of the space; their product is the pairs. forbidden: devices by rule.
        removed: shapes by what removed them. settled: shapes whose least device was found.
        priced: pairs priced, all bounds counted.
    """

    status: str
    shapes: int
    devices: int
    forbidden: dict[str, int]
    removed: dict[str, int]
    settled: int
    priced: int

    @property
    def pairs(self) -> int:
        return self.shapes * self.devices


@dataclass(frozen=True)
class Choice:
    """A device and the shape that it serves.

    Attributes:
        row: of the listed shapes. flop_per_s, bytes_per_s, memory_bytes, price: of the device.
        costs: of the shape on it; each column has one row.
    """

    row: int
    loss: float
    in_box: bool
    flop_per_s: float
    bytes_per_s: float
    memory_bytes: float
    price: float
    costs: Costs


@dataclass(frozen=True)
class Chosen:
    """Devices by rising price and falling loss; one where a loss was asked for."""

    shapes: Shapes
    priced: Priced
    points: Points
    choices: tuple[Choice, ...]
    certificate: Certificate


def cheapest(
    space: DeviceSpace,
    law: Law,
    grid: Grid,
    request: Request,
    budget: Budget,
    loss: float,
    *,
    latency: Latency = "full",
    tokens: float | None = None,
) -> Chosen:
    """The cheapest device on which some shape of the grid reaches the loss within the budget.

    Errors: InputError at the door; NoDeviceError with the closest miss.
    """
    if isinstance(loss, bool) or not isinstance(loss, int | float | np.number) or not 0 < loss < np.inf:
        raise InputError(f"the loss to reach is {shown(loss)}; give a number above 0")
    search = _Search.of(space, law, grid, request, budget, latency, tokens)
    reached = np.flatnonzero(search.priced.loss <= ROUNDED * loss)
    search.funnel.remove(LOSS, len(search.loss) - len(reached))
    if not len(reached):
        raise search.none(
            f"the least loss of the grid is {search.loss.min():.4f}, above {loss:g}; allow more, or add larger shapes"
        )
    found = search.best_of(reached)
    if found is None:
        raise search.none(search.closest(loss))
    return search.chosen([found])


def price_front(
    space: DeviceSpace,
    law: Law,
    grid: Grid,
    request: Request,
    budget: Budget,
    *,
    latency: Latency = "full",
    tokens: float | None = None,
) -> Chosen:
    """The least price of every loss that some shape reaches within the budget on some device.

    Errors: as `cheapest`.
    """
    search = _Search.of(space, law, grid, request, budget, latency, tokens)
    found = search.front()
    if not found:
        raise search.none(search.closest(None))
    return search.chosen(found)


@dataclass
class _Search:
    """State of one search. `price_by_rank`: of the devices by place, rising."""

    pairs: Pairs
    stairs: Stairs
    priced: Priced
    price_by_rank: Floats
    funnel: Funnel

    @classmethod
    def of(cls, space: DeviceSpace, law: Law, grid: Grid, request: Request, budget: Budget,
           latency: Latency, tokens: float | None) -> "_Search":  # fmt: skip
        for what, value, kind in (("space", space, DeviceSpace), ("law", law, Law), ("grid", grid, Grid),
                                  ("request", request, Request), ("budget", budget, Budget)):  # fmt: skip
            check_type(what, value, kind, f"a {kind.__name__}")
        check_positive(tokens=tokens)
        points = points_of(space)
        shapes = list_shapes(grid).shapes
        if not len(shapes):
            raise InputError("the grid has no legal shape; loosen its rules or add values")
        priced = law.loss(law.columns(shapes, counts_of(shapes, grid.ends), tokens))
        pairs = Pairs(space, points, shapes, grid.ends, request, budget, latency)
        return cls(pairs, Stairs(pairs), priced, points.price.reshape(-1)[points.by_rank], Funnel())

    @property
    def loss(self) -> Floats:
        return np.asarray(self.priced.loss)

    def best_of(self, rows: Ints) -> tuple[int, int] | None:
        """The shape of the cheapest device, and the device's place; of equal prices the least loss, then the first."""
        rows, level, strain = self._fitting(rows)
        order = np.lexsort((rows, strain))
        rows, level = rows[order], level[order]
        best: tuple[float, float, int, int] | None = None  # price, loss, row, rank
        for part in _growing(len(rows)):
            some = rows[part]
            below = np.full(len(some), len(self.price_by_rank))
            if best is not None:
                tie_wins = (self.loss[some] < best[1]) | ((self.loss[some] == best[1]) & (some < best[2]))
                cheaper, as_cheap = (np.searchsorted(self.price_by_rank, best[0], side) for side in _SIDES)
                below = np.where(tie_wins, as_cheap, cheaper)
            ranks = self._least_ranks(some, level[part], below)
            for i in np.flatnonzero(ranks < below):
                row, rank = int(some[i]), int(ranks[i])
                key = (float(self.price_by_rank[rank]), float(self.loss[row]), row, rank)
                best = key if best is None else min(best, key)
        return None if best is None else best[2:]

    def front(self) -> list[tuple[int, int]]:
        """Shape and device of every point of the front of loss against price, by rising price."""
        rows, level, _ = self._fitting(np.arange(len(self.loss)))
        order = np.lexsort((rows, self.loss[rows]))
        rows, level = rows[order], level[order]
        found: list[tuple[int, int]] = []
        below = len(self.price_by_rank)
        for part in _growing(len(rows)):
            some = rows[part]
            ranks = self._least_ranks(some, level[part], np.full(len(some), below))
            found += [(int(some[i]), int(ranks[i])) for i in np.flatnonzero(ranks < below)]
            if found:  # a shape of more loss must be cheaper
                least = self.price_by_rank[min(rank for _, rank in found)]
                below = int(np.searchsorted(self.price_by_rank, least, "left"))
        found.sort()
        at = [row for row, _ in found], [rank for _, rank in found]
        return [found[i] for i in front(self.loss[at[0]], self.price_by_rank[at[1]])] if found else []

    def chosen(self, found: Sequence[tuple[int, int]]) -> Chosen:
        """Decode: each choice priced again on its device alone."""
        choices = []
        for row, rank in found:
            at = self.pairs.points.place(rank)
            flop_per_s, bytes_per_s, memory = (
                float(axis[i]) for axis, i in zip(self.pairs.points.values, at, strict=True)
            )
            device = self.pairs.space.device(flop_per_s, bytes_per_s, memory)
            pricer = Pricer(self.pairs.ends, device, self.pairs.request, self.pairs.latency)
            costs = pricer.costs(self.pairs.shapes[np.array([row])])
            if not kept(self.pairs.budget, costs).all() or costs.memory_bytes[0] > memory:
                raise ModelDriftError(
                    f"shape {row} does not keep the limits on the device found for it; report this"
                )
            inside, price = bool(self.priced.inside[row]), float(self.price_by_rank[rank])
            choices.append(
                Choice(row, float(self.loss[row]), inside, flop_per_s, bytes_per_s, memory, price, costs)
            )
        pairs = self.pairs
        return Chosen(pairs.shapes, self.priced, pairs.points, tuple(choices), self.certificate("OPTIMAL"))

    def certificate(self, status: str) -> Certificate:
        points = self.pairs.points
        return Certificate(status, len(self.loss), len(points), dict(points.removed), dict(self.funnel.removed),
                           self.stairs.settled, self.pairs.priced)  # fmt: skip

    def none(self, reason: str) -> NoDeviceError:
        return NoDeviceError(reason, self.certificate("INFEASIBLE"))

    def closest(self, loss: float | None) -> str:
        """What fails, by how much, and what is reached instead. Prices every shape on every device that none beats."""
        rows = np.arange(len(self.loss))
        costs = self._at_best(rows)
        level = self._level(costs)
        wanted = rows if loss is None else rows[self.loss <= ROUNDED * loss]
        most = float(self.pairs.points.values[2][-1])
        need = float(costs.memory_bytes[wanted].min())
        of = "the grid" if loss is None else f"loss {loss:g} or less"
        if need > most:
            return (
                f"the smallest shape of {of} takes {human_bytes(need)}, the largest memory is {human_bytes(most)}; "
                "add larger ones, or store weights in fewer bytes"
            )
        strain = self.stairs.least_strain(level)
        within = rows[strain <= 1]
        instead = (
            f"the least loss within it is {self.loss[within].min():.4f}" if len(within) and loss is not None
            else "no shape of the grid keeps it"
        )  # fmt: skip
        return (
            f"the fastest shape of {of} that fits takes {told(float(strain[wanted].min()))} times what the budget allows; {instead}; "
            "allow more, or add levels of compute and bandwidth"
        )

    def _at_best(self, rows: Ints) -> Costs:
        compute, bandwidth, _ = self.pairs.points.shape
        return self.pairs.costs(rows, np.full(len(rows), compute - 1), np.full(len(rows), bandwidth - 1))

    def _level(self, costs: Costs) -> Ints:
        """The least level of memory that holds each shape; the number of levels where none does."""
        return np.searchsorted(self.pairs.points.values[2], costs.memory_bytes)

    def _fitting(self, rows: Ints) -> tuple[Ints, Ints, Floats]:
        """Shapes that some memory holds and that keep the budget at the best of both rates; levels, and how tightly."""
        costs = self._at_best(rows)
        level, strain = self._level(costs), self.pairs.strain(costs)
        fits = level < self.pairs.points.shape[2]
        self.funnel.remove(MEMORY, int((~fits).sum()))
        keeps = kept(self.pairs.budget, costs)
        self.funnel.remove(BUDGET, int((fits & ~keeps).sum()))
        keep = fits & keeps
        return rows[keep], level[keep], strain[keep]

    def _least_ranks(self, rows: Ints, level: Ints, below: Ints) -> Ints:
        settled = self.stairs.settled
        ranks = self.stairs.least_ranks(rows, level, below)
        self.funnel.remove(PRICE, len(rows) - (self.stairs.settled - settled))
        return ranks


def _growing(length: int) -> Iterator[slice]:
    """Slices that cover a length, each twice as long as the one before, to a limit."""
    start, size = 0, _FIRST
    while start < length:
        yield slice(start, start + size)
        start, size = start + size, min(2 * size, _MOST)
