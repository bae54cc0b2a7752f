"""The shape of least loss whose best layout keeps the deadline, proven.

    1  shapes whose state passes the memory of all devices, or whose floor passes the deadline, go       (columns)
    2  the rest in order of a bound on their loss: what it is at the fewest seconds a step could take    (columns)
    3  each whose bound is below the answer so far: its layouts, those slower than would beat it cut off (a search)

A search that finds nothing proves that no layout of the shape beats the answer. The first shape whose bound is not
below the answer ends it: those after it are never looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.hostlink import parts_on_host
from meshwright.costmodel.offloads import OFFLOADS
from meshwright.optimizer.space import Space
from meshwright.search.shape import Floats
from meshwright.search.trained.floors import least_device_bytes, step_floor_s
from meshwright.search.trained.layouts import Fastest, Layouts
from meshwright.search.trained.tokens import Tokens

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Chosen:
    """One shape with its run.

    Attributes:
        row: of the shapes. fastest: its best layout.
    """

    row: int
    loss: float
    steps: int
    fastest: Fastest


@dataclass(frozen=True)
class Missed:
    """A shape whose loss would be less than the answer's, had it fitted. `why` is TOO_LARGE, TOO_SLOW or NO_LAYOUT."""

    row: int
    loss: float
    why: str


TOO_LARGE = "state passes the memory of all devices"
TOO_SLOW = "compute alone passes the deadline"
NO_LAYOUT = "no layout keeps memory and the time that a better loss needs"
BEATEN = "loss not below the answer's at the fewest seconds a step could take"


@dataclass(frozen=True)
class Outcome:
    """What a search over shapes proved.

    Attributes:
        ranked: chosen shapes, best first; empty where none keeps the deadline.
        removed: shapes by the reason for which they are not among them.
        missed: of those that memory, time or layout keep out, the one of least loss.
        undecided: shapes that the work limit left open, each with the loss that it may reach.
        floor_s: of a step of every shape.
    """

    ranked: tuple[Chosen, ...]
    removed: Mapping[str, int]
    missed: Missed | None
    undecided: tuple[tuple[int, float], ...]
    floor_s: Floats


def find(layouts: Layouts, tokens: Tokens, params: Floats, runner_ups: int = 0) -> Outcome:
    """The best shapes: the best one and `runner_ups` more."""
    floor_s = step_floor_s(layouts.given, layouts.shapes, layouts.ends)
    bounds = tokens.hoped(floor_s)
    large, slow = too_large(layouts, params), tokens.steps(floor_s) == 0
    order = [int(row) for row in np.lexsort((floor_s, bounds)) if not (large[row] or slow[row])]
    ranked: list[Chosen] = []
    undecided, fruitless, looked = [], [], 0
    for row in order:
        cut = ranked[runner_ups].loss if len(ranked) > runner_ups else np.inf
        if not bounds[row] < cut:
            break
        looked += 1
        fastest = layouts.fastest(row, tokens.limit_s(row, cut, float(floor_s[row])))
        loss, hoped = (tokens.loss(row, s) for s in (fastest.step_s, fastest.bound_s))
        if not fastest.proven and hoped < loss:
            undecided.append((row, hoped))
        if fastest.layout is None:
            fruitless.append(row)
            continue
        steps = int(tokens.steps(np.array([fastest.step_s]))[0])
        ranked = sorted([*ranked, Chosen(row, loss, steps, fastest)], key=lambda c: c.loss)[: runner_ups + 1]
    removed = {
        TOO_LARGE: int(large.sum()),
        TOO_SLOW: int((slow & ~large).sum()),
        NO_LAYOUT: len(fruitless),
        BEATEN: len(order) - looked,
    }
    answer = ranked[0].loss if ranked else np.inf
    open_ones = tuple((row, loss) for row, loss in undecided if loss < answer)
    reasons = [
        (TOO_LARGE, np.flatnonzero(large)),
        (TOO_SLOW, np.flatnonzero(slow & ~large)),
        (NO_LAYOUT, fruitless),
    ]
    missed = _missed(bounds, answer, reasons)
    return Outcome(tuple(ranked), removed, missed, open_ones, floor_s)


def quickest(layouts: Layouts, floor_s: Floats, params: Floats) -> Chosen | None:
    """The shape whose best layout has the shortest step; None where no layout of any shape fits the memory."""
    large, best = too_large(layouts, params), None
    for row in np.argsort(floor_s, kind="stable"):
        cut = np.inf if best is None else best.fastest.step_s
        if not floor_s[row] < cut:
            break
        if not large[row]:
            fastest = layouts.fastest(int(row), cut)
            best = Chosen(int(row), np.inf, 0, fastest) if fastest.step_s < cut else best
    return best


def too_large(layouts: Layouts, params: Floats) -> Bools:
    """Shapes whose state passes the memory of all devices."""
    given = layouts.given
    away = {part for i in Space(given, layouts.wishes).offloads for part in parts_on_host(OFFLOADS[i])}
    return np.asarray(least_device_bytes(given, params, away) > given.capacity_bytes)


def _missed(bounds: Floats, answer: float, reasons: list[tuple[str, Any]]) -> Missed | None:
    """The shape of least loss among those kept out, where that is below the answer's."""
    kept_out = [(float(bounds[row]), int(row), why) for why, rows in reasons for row in rows]
    loss, row, why = min(kept_out, default=(np.inf, 0, ""))
    return Missed(row, loss, why) if loss < answer else None
