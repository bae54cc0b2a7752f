"""Multi-token-prediction modules on the last stage, as the planner sees them: against exhaustive search, and on DeepSeek-V3."""

import pytest
from instances import AHEAD, instance
from judge import complaints, search
from test_bounds import check_every_candidate, check_refinements

SLICE = range(AHEAD, AHEAD + 20)
ALL = range(AHEAD, AHEAD + 200)


@pytest.mark.parametrize("seed", SLICE)
def test_search_equals_exhaustive_search(seed: int) -> None:
    asked = instance(seed)
    assert asked.setting.training.mtp
    assert complaints(asked, search(asked)) == [], str(asked)


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_search_equals_exhaustive_search_on_200_instances(seed: int) -> None:
    asked = instance(seed)
    assert complaints(asked, search(asked)) == [], str(asked)


@pytest.mark.parametrize("seed", range(AHEAD + 1, AHEAD + 20, 6))
def test_no_bound_passes_the_exact_optimum(seed: int) -> None:
    check_every_candidate(seed)
    check_refinements(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_no_bound_passes_the_exact_optimum_on_200_instances(seed: int) -> None:
    check_every_candidate(seed)
    check_refinements(seed)
