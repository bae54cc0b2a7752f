"""Every way to compute sharded products on a mesh, and the best one.

A way gives each mesh axis a dimension of each product, or none: then its devices all compute the same. What is
stored otherwise is resharded before, and the result after; axes on a summed dimension leave partial sums. So gathering
first, multiplying first and mixtures of both are all among the ways. Arrays that are free may be stored in any
sharding; the best is chosen with the rest, under a cap on memory if there is one.

    seconds of a product   max(t_compute, t_comms) where they overlap, their sum where not
    t_compute              max(FLOPs / C, bytes / W_hbm), on one device
    memory                 what is stored, and at the worst product its working copies
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product as combinations_of
from math import prod

from meshwright.costmodel.sharding.asked import Asked, Local, locals_of
from meshwright.costmodel.sharding.parse import Sharded
from meshwright.costmodel.sharding.reshard import SLICE, Move
from meshwright.costmodel.sharding.storage import Forms, options_of, undominated
from meshwright.hardware.errors import LayoutError
from meshwright.hardware.units import human_bytes

_MOST = 20_000  # ways to compute, of all products together: seconds of search


@dataclass(frozen=True)
class Way:
    """All products computed in one way.

    Attributes:
        locals: each product on one device.
        homes: how arrays are stored, by name.
        moves: of each product, before and after it.
        comms: seconds of these, by product.
        peak_bytes: of one device.
    """

    asked: Asked
    locals: tuple[Local, ...]
    homes: Mapping[str, Sharded]
    moves: tuple[tuple[tuple[Move, ...], tuple[Move, ...]], ...]
    comms: tuple[float, ...]
    peak_bytes: float

    @property
    def t_comms(self) -> float:
        return sum(self.comms)

    @property
    def t_compute(self) -> float:
        return sum(local.seconds for local in self.locals)

    @property
    def t_lower(self) -> float:
        """Collectives run under the product they belong to."""
        return sum(max(local.seconds, t) for local, t in zip(self.locals, self.comms, strict=True))

    @property
    def t_upper(self) -> float:
        return self.t_compute + self.t_comms

    @property
    def seconds(self) -> float:
        return self.t_lower if self.asked.overlap else self.t_upper

    @property
    def kind(self) -> tuple[bool, bool]:
        """Whether anything moves before, and after, a product."""
        before = any(m.operation != SLICE for b, _ in self.moves for m in b)
        after = any(m.operation != SLICE for _, a in self.moves for m in a)
        return before, after

    @property
    def order(self) -> tuple[float, float, float, int]:
        """Fastest first; of equals the one with less to do, then the smaller, then the simpler."""
        steps = sum(len(part) for pair in self.moves for part in pair)
        return self.seconds, self.t_upper, self.peak_bytes, steps


def best_ways(asked: Asked) -> list[Way]:
    """Ways to compute, fastest first: of a single product all that fit, of several the best ones.

    Errors: LayoutError where none fits the memory, with the least that one takes, or there are too many to search.
    """
    least: list[float] = []
    ways: list[Way] = []
    choices = [sorted(locals_of(asked, p), key=lambda x: x.seconds) for p in asked.products]
    if (count := prod(map(len, choices))) > _MOST:
        raise LayoutError(
            f"{len(asked.axes)} mesh axes and {len(choices)} products have {count:,} ways, more than the {_MOST:,} that "
            f"are searched; join axes with --mesh, like X=x*y,Y=z"
        )
    best = float("inf")
    for locals_ in combinations_of(*choices):
        if len(choices) > 1 and (sum(x.seconds for x in locals_) > best or _is_twin(asked, locals_)):
            continue
        way = _stored(asked, locals_, least)
        if way is not None:
            best = min(best, way.seconds)
            ways.append(way)
    if not ways:
        raise LayoutError(
            f"no sharding fits {human_bytes(asked.memory_bytes or 0)} on a device: the smallest takes "
            f"{human_bytes(min(least))}; give more memory or more devices"
        )
    return sorted(ways, key=lambda way: way.order)


def _is_twin(asked: Asked, locals_: Sequence[Local]) -> bool:
    """Whether an earlier way is the same but for the names of mesh axes that nothing tells apart."""
    for axes in asked.alike:
        columns = [
            tuple(next((d for d, on in local.places.items() if a in on), "") for local in locals_)
            for a in axes
        ]
        if columns != sorted(columns):
            return True
    return False


def _stored(asked: Asked, locals_: tuple[Local, ...], least: list[float]) -> Way | None:
    """The best way to store arrays for products computed so; None where nothing fits."""
    forms = Forms(asked, locals_)
    choices = [undominated(asked, options) for options in options_of(asked, forms)]
    ways = []
    for chosen in combinations_of(*choices):
        total = chosen[0]
        for more in chosen[1:]:
            total = total + more
        least.append(total.peak_bytes)
        if asked.memory_bytes is None or total.peak_bytes <= asked.memory_bytes:
            moves = tuple(zip(total.before, total.after, strict=True))
            ways.append(Way(asked, locals_, total.homes, moves, total.seconds, total.peak_bytes))
    return min(ways, key=lambda way: way.order, default=None)
