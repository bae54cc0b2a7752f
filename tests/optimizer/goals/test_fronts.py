"""Fronts against exhaustive search: the same plans, each undominated and the optimum of its own limit."""

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import ceil

import numpy as np
import pytest
from goal_oracle import Plans, plans_of
from instances import Instance, build

from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.goals.front import Front, Point, front_in
from meshwright.optimizer.plan import Infeasible
from meshwright.optimizer.solve import Search, SolveOptions
from meshwright.optimizer.space import Space

QUICK = SolveOptions(runner_ups=0, refinements=10**6)
# Axes and instances: several policies in the best plan (2, 61), counts of devices, hosts that bind (103).
CASES = {
    ("time", "chips"): (2, 61, 103),
    ("time", "memory"): (2, 103),
    ("time", "cost"): (61, 103),
    ("cost", "memory"): (2,),
    ("chips", "cost"): (2,),
    ("memory", "time"): (103,),
}
FLOATS = 1e-9


@lru_cache
def asked(seed: int) -> tuple[Instance, Plans]:
    made, space = build(seed)
    return made, plans_of(space)


def units(made: Instance, axis: str) -> float:
    """What the oracle's number is in the front's unit, at cost left out: its order is what counts."""
    return 1 / made.setting.cluster.chip.devices_per_chip if axis == "chips" else 1.0


def check(seed: int, axes: tuple[str, str]) -> int:
    made, plans = asked(seed)
    if made.answer is None:
        with pytest.raises(Infeasible):
            front_in(made.setting, ",".join(axes), made.constraints, options=QUICK)
        return 0
    found = front_in(made.setting, ",".join(axes), made.constraints, points=10_000, options=QUICK)
    assert found.proven
    slack = 2 * max(point.slack for point in found.points)
    near = np.array([slack if axis in ("time", "cost") else 0.0 for axis in axes]) + FLOATS
    ours = np.array([[on(point, axis) for axis in axes] for point in found.points])
    expected = plans.front(axes) * [units(made, axis) for axis in axes]
    for pair in ours:  # each is one of the front
        assert (np.abs(expected - pair) <= near * pair).all(axis=1).any(), (str(made), pair)
    for pair in expected:  # and none of the front is missing but those that rounding cannot tell apart
        assert (ours <= pair * (1 + near)).all(axis=1).any(), (str(made), pair)
    undominated(found)
    return len(found.points)


def on(point: Point, axis: str) -> float:
    return point.step_s * point.layout.devices if axis == "cost" else point.on(axis)


def undominated(found: Front) -> None:
    a, b = found.axes
    for one, other in pairwise(found.points):
        assert one.on(a) < other.on(a) and one.on(b) > other.on(b)


@pytest.mark.parametrize("axes", CASES, ids=",".join)
def test_fronts_equal_exhaustive_search(axes: tuple[str, str]) -> None:
    assert max(check(seed, axes) for seed in CASES[axes]) > 1


@pytest.mark.full
@pytest.mark.parametrize("axes", CASES, ids=",".join)
@pytest.mark.parametrize("seed", [seed for seed in range(60) if seed not in (26, 33, 39)])
def test_fronts_equal_exhaustive_search_on_more_instances(seed: int, axes: tuple[str, str]) -> None:
    check(seed, axes)


def test_each_plan_is_the_optimum_of_its_own_limit() -> None:
    made, _ = asked(2)
    wishes = parse_constraints(made.constraints)
    for point in front_in(made.setting, "time,memory", made.constraints, options=QUICK).points:
        tight = replace(made.setting, memory_limit_bytes=ceil(point.device_bytes))
        again = Search(Space(tight, wishes), QUICK)
        again.run()
        assert again.ranked[0].value_s == pytest.approx(point.step_s, rel=2 * point.slack + 1e-9)


def test_plans_apart_are_some_of_the_front_and_few_points_say_so() -> None:
    made, _ = asked(2)
    every = front_in(made.setting, "time,memory", made.constraints, options=QUICK)
    some = front_in(made.setting, "time,memory", made.constraints, apart=0.2, options=QUICK)
    assert 1 < len(some.points) < len(every.points) and some.proven
    for one, other in pairwise(some.points):
        assert other.device_bytes <= 0.8 * one.device_bytes
    least = [p.step_s for p in every.points]
    assert all(any(p.step_s == pytest.approx(s, rel=1e-6) for s in least) for p in some.points)
    few = front_in(made.setting, "time,memory", made.constraints, points=2, options=QUICK)
    assert not few.proven and few.open_end.startswith("the walk ended after 2 plans; raise --points")
