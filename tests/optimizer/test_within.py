"""A search told that slower plans are of no use: the same best plan from just above its value, a proven no from just
below."""

from functools import lru_cache

import pytest
from instances import Instance, instance

from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.solve import Search, SolveOptions
from meshwright.optimizer.space import Space

MARGIN = 1e-6  # far above the solver's ticks


@lru_cache
def answered() -> tuple[Instance, ...]:
    return tuple(asked for asked in map(instance, range(14)) if asked.answer is not None)


def search(asked: Instance, within_s: float) -> Search:
    space = Space(asked.setting, parse_constraints(asked.constraints))
    run = Search(space, SolveOptions(runner_ups=0), within_s=within_s)
    run.run()
    return run


@pytest.mark.parametrize("slower", [MARGIN, 0.01, 0.5, 4.0])
def test_the_best_plan_is_found_within_any_longer_time(slower: float) -> None:
    for asked in answered():
        assert asked.answer is not None
        best = asked.answer.seconds
        run = search(asked, best * (1 + slower))
        assert [f.value_s for f in run.ranked[:1]] == [pytest.approx(best, rel=MARGIN)], str(asked)
        assert not run.undecided


@pytest.mark.parametrize("faster", [MARGIN, 0.01, 0.5])
def test_a_shorter_time_is_a_proven_no(faster: float) -> None:
    for asked in answered():
        assert asked.answer is not None
        run = search(asked, asked.answer.seconds * (1 - faster))
        assert not run.best, str(asked)
        assert not run.undecided
