"""The best choice along a range of one limit: a table solved again and again, each time from the choice before."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.hardware.errors import InputError, UnknownNameError, check_type, shown
from meshwright.search.layers.limits import parse_value
from meshwright.search.layers.problem import Floats, Limit, Problem, one_sided
from meshwright.search.layers.settle import Options
from meshwright.search.layers.solve import Choice, NoChoice, Unsettled, solve

Words = NDArray[np.str_]

_RANGE = re.compile(r"\s*([A-Za-z_]\w*)\s*(=|<=|>=)\s*(\S.*?)\s*\.\.\s*(\S.*?)\s*:\s*(\d{1,4})\s*", re.DOTALL)


@dataclass(frozen=True)
class Sweep:
    """`points` values of a limit from `first` to `last`, evenly spaced; `above` where it is a least value."""

    total: str
    first: float
    last: float
    points: int
    above: bool = False

    @property
    def values(self) -> Floats:
        return np.linspace(self.first, self.last, self.points)

    def limit(self, value: float) -> Limit:
        return Limit(self.total, least=value) if self.above else Limit(self.total, most=value)


@dataclass(frozen=True)
class Point:
    """One value of the limit. `choice` is None where nothing keeps the limits (INFEASIBLE) or nothing was found."""

    value: float
    status: str
    choice: Choice | None


def parse_sweep(text: str) -> Sweep:
    """`decode_ms=10ms..30ms:9`; with >= a limit from below. Errors: InputError, UnknownNameError."""
    check_type("sweep", text, str, "a text such as 'decode_ms=10ms..30ms:9'")
    match = _RANGE.fullmatch(text) if len(text) <= 200 else None
    if match is None:
        raise InputError(
            f"cannot read sweep {shown(text)}; write name=from..to:points, like decode_ms=10ms..30ms:9"
        )
    name, compare, first, last, points = match.groups()
    try:
        (total, low), (_, high) = parse_value(name, first), parse_value(name, last)
    except UnknownNameError:
        raise
    except InputError as error:
        raise InputError(f"sweep {shown(text)}: {error}") from None
    if not 2 <= int(points) <= 1000 or low == high:
        raise InputError(
            f"sweep {shown(text)} has {points} points from {low:g} to {high:g}; give 2 to 1000, and two ends"
        )
    return Sweep(total, low, high, int(points), compare == ">=")


def sweep(
    problem: Problem, along: Sweep, limits: Sequence[Limit] = (), options: Options | None = None
) -> tuple[Point, ...]:
    """The best choice at each value, in the order of the range; the swept limit takes the place of one in `limits`.

    Errors: InputError.
    """
    check_type("problem", problem, Problem, "a Problem")
    check_type("along", along, Sweep, "a Sweep, or read one with parse_sweep")
    others = [freed for limit in one_sided(limits) if (freed := _without(limit, along)) is not None]
    points: dict[float, Point] = {}
    start: Choice | None = None
    # From the tightest on: what keeps a limit keeps the wider ones too.
    for value in sorted(along.values.tolist(), reverse=along.above):
        try:
            held = [*others, along.limit(value)]
            start = solve(problem, held, options=options, start=start, explain=False).best
            points[value] = Point(value, start.proof.status, start)
        except NoChoice:
            points[value] = Point(value, "INFEASIBLE", None)
        except Unsettled:
            points[value] = Point(value, "UNKNOWN", None)
    return tuple(points[value] for value in along.values.tolist())


def columns_of(problem: Problem, along: Sweep, points: Sequence[Point]) -> dict[str, Words]:
    """Points as columns for a CSV file: the limit, status, score and its bound, totals, variants by layer.

    Cells are empty where there is no choice.
    """
    sign = -1.0 if problem.higher_is_better else 1.0
    rows = [
        {
            f"limit_{along.total}": _digits(point.value),
            "status": point.status,
            "score": _digits(c.score) if c else "",
            "score_bound": _digits(sign * c.proof.bound) if c else "",
            **{name: _digits(c.totals[name]) if c else "" for name in problem.totals},
            "layers": " ".join("+".join(names) for names in c.variants) if c else "",
        }
        for point in points
        for c in (point.choice,)
    ]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _digits(value: float) -> str:
    return f"{value:.10g}"


def _without(limit: Limit, along: Sweep) -> Limit | None:
    """A limit less the side that is swept."""
    if limit.total != along.total:
        return limit
    freed = replace(limit, text="", least=-np.inf) if along.above else replace(limit, text="", most=np.inf)
    return freed if np.isfinite(freed.least) or np.isfinite(freed.most) else None
