"""Every goal against exhaustive search on random small instances: same optimum, same refusals."""

from dataclasses import replace
from functools import lru_cache
from math import ceil

import numpy as np
import pytest
from exhaustive_oracle import DEGREES
from goal_oracle import Plans, plans_of
from instances import Instance, build

from meshwright.costmodel.goals import Goal
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.limits.token_cost import per_million_tokens
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.decode import decode
from meshwright.optimizer.goals.ties import PARTS_OF_MEMORY, simplicity
from meshwright.optimizer.plan import Infeasible, LimitMissed, Plan
from meshwright.optimizer.recommend import recommend_in
from meshwright.optimizer.solve import Search, SolveOptions
from meshwright.optimizer.space import Space

QUICK = SolveOptions(runner_ups=0, refinements=10**6)
LISTING = SolveOptions(runner_ups=3, refinements=10**6)
# Mixes of policies, counts of devices to choose from, hosts that bind, one without a plan.
SEEDS = (34, 61, 103)
# The search alone stops at a plan with less to spare than another of the same value.
TIED = (141, 193)
FLOATS = 1e-9


@lru_cache(maxsize=300)
def asked(seed: int) -> tuple[Instance, Plans]:
    made, space = build(seed)
    return made, plans_of(space)


def solved(made: Instance, goal: Goal, options: SolveOptions = QUICK) -> Plan | None:
    """None where nothing fits or nothing is in time."""
    try:
        return recommend_in(replace(made.setting, goal=goal), made.constraints, options)
    except LimitMissed as late:
        assert late.goal == goal and made.answer is not None
        proof = late.fastest.certificate
        assert proof.value_s == pytest.approx(
            made.answer.seconds, abs=2 * proof.slack_s + FLOATS * proof.value_s
        )
        return None
    except Infeasible:
        assert made.answer is None
        return None


def check_cost(seed: int) -> None:
    made, plans = asked(seed)
    plan = solved(made, Goal("cost"))
    assert (plan is None) == (made.answer is None), str(made)
    if plan is None:
        return
    proof = plan.certificate
    best = float(plans.device_s.min())
    assert proof.status == "OPTIMAL" and proof.goal == "cost"
    assert proof.value_s == pytest.approx(best, abs=proof.slack_s + FLOATS * best), str(made)
    cluster, training = made.setting.cluster, made.setting.training
    assert proof.value == pytest.approx(per_million_tokens(cluster, training, best), rel=1e-5)
    assert proof.bound <= proof.value
    tokens = plan.estimate.sequences * training.seq_len
    chips = plan.layout.devices / cluster.chip.devices_per_chip
    chip_s = chips * plan.estimate.step_s / tokens * 1e6
    price = cluster.chip.price_usd_per_hour
    assert proof.value == pytest.approx(chip_s if price is None else chip_s / 3600 * price, rel=1e-5)
    fastest = solved(made, Goal())
    assert fastest is not None
    assert plan.estimate.step_s * plan.layout.devices / plan.estimate.sequences <= (
        fastest.estimate.step_s * fastest.layout.devices / fastest.estimate.sequences * (1 + 1e-5)
    )


def check_chips(seed: int) -> None:
    """Limits from below the fastest plan to far above it: never more devices for a longer one."""
    made, plans = asked(seed)
    fastest = 1.0 if made.answer is None else made.answer.seconds
    last = None
    for times in (0.97, 1.0, 1.31, 4.0):
        limit = fastest * times
        plan, expected = solved(made, Goal("chips", limit)), plans.fewest(limit * (1 + FLOATS))
        assert (plan is None) == (expected is None), (str(made), times)
        if plan is None or expected is None:
            continue
        proof = plan.certificate
        assert proof.status == "OPTIMAL" and proof.goal == "chips" and proof.unit == "chips"
        assert proof.value == proof.bound == expected[0] / made.setting.cluster.chip.devices_per_chip, str(
            made
        )
        assert plan.layout.devices == expected[0]
        assert proof.value_s == pytest.approx(expected[1], abs=proof.slack_s + FLOATS * expected[1]), str(
            made
        )
        step = plan.estimate.step_s * made.setting.training.sequences / plan.estimate.sequences
        assert step <= limit * (1 + FLOATS) + proof.slack_s
        assert last is None or plan.layout.devices <= last
        last = plan.layout.devices


@pytest.mark.parametrize("seed", SEEDS)
def test_cost_equals_exhaustive_search(seed: int) -> None:
    check_cost(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_chips_equal_exhaustive_search(seed: int) -> None:
    check_chips(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(300))
def test_goals_equal_exhaustive_search_on_more_instances(seed: int) -> None:
    check_cost(seed)
    check_chips(seed)


def check_tie(seed: int) -> bool:
    """The plan recommended, held against every plan of its value; whether the search alone leaves less to spare."""
    made, plans = asked(seed)
    plan = solved(made, Goal(), LISTING)
    if plan is None:
        return False
    # A list tells which kinds are tied; without one all are looked at. Placements of one value may differ.
    alone = solved(made, Goal())
    assert alone is not None and alone.memory == plan.memory
    assert simplicity(alone.layout) == simplicity(plan.layout)
    part = made.setting.capacity_bytes / PARTS_OF_MEMORY
    best, slack = float(plans.seconds.min()), plan.certificate.slack_s
    # Plans within rounding of the slack's edge may count as equal or not.
    parts = np.ceil(plans.device_bytes / part)
    surely, perhaps = plans.seconds <= best * (1 + 1e-12), plans.seconds <= best + 2 * slack
    spared = ceil(max(plan.estimate.stage_bytes) / part)
    assert parts[perhaps].min() <= spared <= parts[surely].min(), str(made)
    lean = parts <= spared
    layout = plan.layout
    above = sum(d > 1 for d in (*(getattr(layout, n) for n in DEGREES), layout.ep, layout.vpp))
    assert plans.degrees[perhaps & lean].min() <= above, str(made)
    if (surely & lean).any():
        assert above <= plans.degrees[surely & lean].min(), str(made)
    search = Search(Space(made.setting, parse_constraints(made.constraints)), QUICK)
    search.run()
    first = search.ranked[0]
    assert plan.certificate.value_s <= first.value_s + 2 * first.slack_s + FLOATS * best
    return ceil(max(decode(made.setting, first)[1].stage_bytes) / part) > spared


@pytest.mark.parametrize("seed", TIED)
def test_of_tied_plans_the_one_with_most_to_spare_then_the_simplest(seed: int) -> None:
    assert check_tie(seed)


@pytest.mark.parametrize("seed", (5, 36))
def test_of_plans_as_good_and_as_lean_the_simplest(seed: int) -> None:
    """One micro-batch a stage: GPipe holds and takes what 1F1B does."""
    made, _ = asked(seed)
    plan = solved(made, Goal(), LISTING)
    twin = solved(replace(made, constraints=f"{made.constraints}, schedule == gpipe"), Goal())
    assert plan is not None and twin is not None and plan.layout.schedule == "1f1b"
    assert twin.certificate.value_s == pytest.approx(
        plan.certificate.value_s, abs=2 * plan.certificate.slack_s
    )
    assert max(twin.estimate.stage_bytes) == pytest.approx(max(plan.estimate.stage_bytes), rel=1e-12)
    assert replace(twin.layout, schedule="1f1b") == plan.layout


@pytest.mark.full
@pytest.mark.parametrize("seed", range(120))
def test_ties_on_more_instances(seed: int) -> None:
    check_tie(seed)


def test_simpler_is_lower() -> None:
    """Degrees, offload, recompute, several policies, uneven stages, schedule, data sharding: in this order."""
    plain, piped = Layout(dp_replicate=2, layers_per_stage=(8,)), Layout(pp=2, layers_per_stage=(4, 4))
    layouts = [
        plain,
        replace(plain, dp_replicate=1, dp_shard=2, zero=1),
        replace(piped, schedule="gpipe"),
        replace(piped, layers_per_stage=(5, 3)),
        replace(plain, policies=("full",)),
        replace(piped, stage_policies=(("full",), ("none",))),
        replace(piped, stage_policies=(("full*2|none*2",),), layers_per_stage=(5, 3)),
        replace(plain, offload="activations"),
        Layout(dp_replicate=2, tp=2, layers_per_stage=(8,)),
    ]
    keys = [simplicity(layout) for layout in layouts]
    assert keys == sorted(keys) and len(set(keys)) == len(keys)
