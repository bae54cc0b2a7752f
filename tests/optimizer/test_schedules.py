"""Schedules that split the backward pass: bounds and answers against exhaustive search over all of them."""

import pytest
from instances import SCHEDULED, instance
from judge import complaints, search
from test_bounds import case, check_every_candidate, check_refinements

SLICE = range(SCHEDULED, SCHEDULED + 32)
ALL = range(SCHEDULED, SCHEDULED + 300)


@pytest.mark.parametrize("seed", SLICE)
def test_the_plan_is_the_best_of_all_schedules(seed: int) -> None:
    assert complaints(instance(seed), search(instance(seed))) == []


@pytest.mark.parametrize("seed", SLICE)
def test_no_bound_passes_the_optimum_of_any_schedule(seed: int) -> None:
    check_every_candidate(seed)
    check_refinements(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_no_bound_and_no_plan_is_wrong_on_300_instances(seed: int) -> None:
    assert complaints(instance(seed), search(instance(seed))) == []
    check_every_candidate(seed)
    check_refinements(seed)


def test_every_schedule_is_the_best_somewhere() -> None:
    """A judge that never sees a schedule win, or memory bind, judges nothing."""
    answers = [case(seed).asked for seed in SLICE]
    best = [int(a.answer.row.schedule[0]) for a in answers if a.answer is not None]
    assert len(set(best)) >= 4
    assert sum(a.memory_binding for a in answers) >= 5
