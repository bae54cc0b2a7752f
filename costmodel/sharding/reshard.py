"""From one sharding of an array to another: the cheapest sequence of collectives.

    slice            an axis that holds copies splits a dimension: nothing moves
    all-gather       split dimensions become whole
    all-to-all       an axis splits another dimension than before
    reduce-scatter   partial sums are added up, and split a dimension
    all-reduce       partial sums are added up, everywhere

All sequences are searched (shortest path), of moves that bring an axis where it should be, or free it for that. A
dimension's axes nest, so what is innermost leaves first. The bytes of a collective are those of the array less what
axes outside it split. Source: jax-ml/scaling-book, chapter 3.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, count, permutations, product
from math import prod

from meshwright.costmodel.sharding.mesh import Mesh
from meshwright.costmodel.sharding.parse import Sharded, spelled

SLICE = "slice"
Axes = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Move:
    """One step on the way.

    Attributes:
        axes: mesh axes that take part.
        before, after: the array's shardings.
    """

    operation: str
    axes: tuple[str, ...]
    before: Sharded
    after: Sharded

    def bytes(self, mesh: Mesh, array_bytes: float) -> float:
        """What the collective gathers, reduces or exchanges: all the group holds together."""
        ways = mesh.ways
        return array_bytes / prod(ways[a] for a in self.before.split if a not in self.axes)

    def seconds(self, mesh: Mesh, array_bytes: float, exact: bool = True) -> float:
        if self.operation == SLICE:
            return 0.0
        return mesh.seconds(self.operation, self.axes, self.bytes(mesh, array_bytes), exact)

    def __str__(self) -> str:
        return f"{self.operation} {self.before} over {spelled(self.axes)} -> {self.after}"


def reshard(
    start: Sharded, goal: Sharded, mesh: Mesh, array_bytes: float, exact: bool = True
) -> tuple[Move, ...]:
    """The moves that take least time together; slices are free. Of equal ways the one with fewest moves."""
    order = count()  # heap entries never compare arrays
    queue: list[tuple[float, int, int, Sharded, tuple[Move, ...]]] = [(0.0, 0, next(order), start, ())]
    done: set[tuple[Axes, tuple[str, ...]]] = set()
    while queue:
        seconds, steps, _, array, moves = heapq.heappop(queue)
        state = (array.axes, array.partial)
        if state == (goal.axes, ()):
            return moves
        if state in done:
            continue
        done.add(state)
        for move in _moves(array, goal):
            price = seconds + move.seconds(mesh, array_bytes, exact)
            heapq.heappush(queue, (price, steps + 1, next(order), move.after, (*moves, move)))
    raise AssertionError(f"{start} cannot become {goal}")


def _moves(array: Sharded, goal: Sharded) -> Iterator[Move]:
    """Everything that one collective can do towards the goal."""
    yield from _slices(array, goal)
    yield from _exchanges(array, goal)
    yield from _gathers(array, goal)
    yield from _reductions(array, goal)


def _slices(array: Sharded, goal: Sharded) -> Iterator[Move]:
    used = {*array.split, *array.partial}
    for axis in goal.split:
        axes = None if axis in used else _appended(array.axes, goal.axes, (axis,))
        if axes is not None:
            yield Move(SLICE, (axis,), array, replace(array, axes=axes))


def _exchanges(array: Sharded, goal: Sharded) -> Iterator[Move]:
    for dim, leaving in enumerate(_misplaced(array, goal)):
        for many in range(1, len(leaving) + 1):
            moved = leaving[-many:]
            stay = list(array.axes)
            stay[dim] = array.axes[dim][:-many]
            axes = _appended(tuple(stay), goal.axes, moved)
            if axes is not None and axes[dim] == stay[dim]:
                yield Move("all-to-all", moved, array, replace(array, axes=axes))


def _gathers(array: Sharded, goal: Sharded) -> Iterator[Move]:
    leaving = _misplaced(array, goal)
    for many in product(*(range(len(axes) + 1) for axes in leaving)):
        gathered = tuple(a for axes, k in zip(leaving, many, strict=True) if k for a in axes[-k:])
        if gathered:
            kept = tuple(a[: len(a) - k] for a, k in zip(array.axes, many, strict=True))
            yield Move("all-gather", gathered, array, replace(array, axes=kept))


def _reductions(array: Sharded, goal: Sharded) -> Iterator[Move]:
    for many in range(1, len(array.partial) + 1):
        for summed in combinations(array.partial, many):
            left = tuple(a for a in array.partial if a not in summed)
            yield Move("all-reduce", summed, array, replace(array, partial=left))
            for order in permutations(summed):
                axes = _appended(array.axes, goal.axes, order)
                if axes is not None:
                    yield Move("reduce-scatter", summed, array, replace(array, axes=axes, partial=left))
                    break


def _misplaced(array: Sharded, goal: Sharded) -> Axes:
    """Of each dimension the axes that are not where the goal has them, with all that nests in them."""
    out = []
    for now, then in zip(array.axes, goal.axes, strict=True):
        right = 0
        while right < min(len(now), len(then)) and now[right] == then[right]:
            right += 1
        out.append(now[right:])
    return tuple(out)


def _appended(axes: Axes, goal: Axes, new: Sequence[str]) -> Axes | None:
    """Axes put innermost, one by one, where the goal has them next; None where it does not."""
    now = list(axes)
    for axis in new:
        dim = next((i for i, then in enumerate(goal) if axis in then), None)
        if dim is None or goal[dim][: len(now[dim]) + 1] != (*now[dim], axis):
            return None
        now[dim] = (*now[dim], axis)
    return tuple(now)
