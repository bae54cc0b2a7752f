"""Where state lives, as the planner chooses it: against exhaustive search, and on better machines."""

from dataclasses import replace

import pytest
from instances import STATES, Instance, instance, mix, with_memory
from judge import FLOATS, agrees, search
from test_bounds import check_every_candidate, check_refinements

from meshwright.optimizer.reasons.machine import with_host_link

SLICE = range(STATES, STATES + 24)
ALL = range(STATES, STATES + 200)
# Shares of instances whose best plan has them, with room below what these seeds have (0.20 each in the slice).
SHARES = {
    "weights kept in the optimum": 0.15,
    "gradients on the host in the optimum": 0.10,
    "weights on the host in the optimum": 0.15,
    "memory-binding": 0.5,
    "infeasible": 0.1,
}


def test_the_choices_occur_and_bind() -> None:
    shares = mix([instance(seed) for seed in SLICE])
    assert all(shares[name] >= least for name, least in SHARES.items()), shares


@pytest.mark.parametrize("seed", SLICE)
def test_search_equals_exhaustive_search(seed: int) -> None:
    agrees(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_search_equals_exhaustive_search_on_200_instances(seed: int) -> None:
    agrees(seed)


@pytest.mark.parametrize("seed", range(STATES + 1, STATES + 24, 5))
def test_no_bound_passes_the_exact_optimum(seed: int) -> None:
    check_every_candidate(seed)
    check_refinements(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_no_bound_passes_the_exact_optimum_on_200_instances(seed: int) -> None:
    check_every_candidate(seed)
    check_refinements(seed)


def hosted() -> list[Instance]:
    """Small instances whose best plan keeps state on the host."""
    found = [a for a in map(instance, SLICE) if a.answer is not None and a.answer.row.offload[0] > 1]
    small = [a for a in found if a.plans < 40_000]
    assert len(small) >= 4
    return small[:4]


def test_a_better_host_never_slows() -> None:
    """More memory, a faster link, a faster CPU: each alone, from the machine as it is; one of them does help."""
    helped = 0
    for asked in hosted():
        given, best = asked.setting, search(asked).ranked[0]
        cluster = given.cluster
        assert cluster.host_memory_bytes is not None
        better = [
            with_memory(given, given.capacity_bytes, 2 * cluster.host_memory_bytes),
            with_host_link(given, 2.0),
        ]
        if (rate := cluster.cpu_update_params_per_s) is not None:
            better.append(replace(given, cluster=replace(cluster, cpu_update_params_per_s=2 * rate)))
        for setting in better:
            found = search(replace(asked, setting=setting)).ranked[0]
            assert found.value_s <= best.value_s * (1 + FLOATS) + best.slack_s + found.slack_s, str(asked)
            helped += found.value_s < 0.999 * best.value_s
    assert helped > 0
