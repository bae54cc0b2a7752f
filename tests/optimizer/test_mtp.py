"""Multi-token-prediction modules on the last stage, as the planner sees them: against exhaustive search, and on DeepSeek-V3."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from instances import AHEAD
from judge import agrees
from test_bounds import check_every_candidate, check_refinements

import meshwright as mw
from meshwright.costmodel.estimate import estimate, table_of
from meshwright.hardware.errors import InputError
from meshwright.optimizer.question import resolve
from meshwright.optimizer.reasons.launcher import plan_runs_on
from meshwright.optimizer.reasons.operators import operators_of

SLICE = range(AHEAD, AHEAD + 10)
ALL = range(AHEAD, AHEAD + 200)


# The last two once missed choices that keep part of a layer on the host; modules have no part in that.
@pytest.mark.parametrize("seed", [*SLICE, AHEAD + 116, AHEAD + 147])
def test_search_equals_exhaustive_search(seed: int) -> None:
    assert agrees(seed).setting.training.mtp


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_search_equals_exhaustive_search_on_200_instances(seed: int) -> None:
    agrees(seed)


@pytest.mark.parametrize("seed", range(AHEAD + 1, AHEAD + 16, 5))
def test_no_bound_passes_the_exact_optimum(seed: int) -> None:
    check_every_candidate(seed)
    check_refinements(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_no_bound_passes_the_exact_optimum_on_200_instances(seed: int) -> None:
    check_every_candidate(seed)
    check_refinements(seed)


CLUSTER, STAGES = "h200:8x64", 8


def job(modules: int) -> mw.Training:
    return mw.Training(1024 * 4096, 4096, mtp=modules)


@cache
def deepseek(modules: int) -> mw.Plan:
    """The best plan over eight stages."""
    text = f"pp == {STAGES}, vpp == 1, tp == 1, cp == 1, ep == 64"
    return mw.recommend("deepseek-v3", CLUSTER, job(modules), constraints=text)


def test_the_last_stage_of_deepseek_v3_gives_up_what_its_module_takes() -> None:
    """A layer, a head and what joins them; the best cut without the module is no longer the best."""
    plain, ahead = deepseek(0), deepseek(1)
    assert plain.certificate.status == ahead.certificate.status == "OPTIMAL"
    asked = resolve("deepseek-v3", CLUSTER, job(1))
    table = table_of(asked, [ahead.layout])
    assert table.mtp is not None
    layers = float(table.mtp.total[0] / table.layers[-1].total[0])
    given_up = plain.layout.layers_per_stage[-1] - ahead.layout.layers_per_stage[-1]
    assert 1.5 < layers < 4
    assert abs(given_up - layers) <= 1
    kept = replace(plain.layout, placement=())
    assert estimate(asked, kept).step_s > ahead.estimate.step_s * 1.02


def test_memory_and_operators_show_the_modules() -> None:
    ahead = deepseek(1)
    assert [stage["mtp"] > 0 for stage in ahead.estimate.memory] == [False] * (STAGES - 1) + [True]
    assert all("mtp" not in stage for stage in deepseek(0).estimate.memory)
    asked = resolve("deepseek-v3", CLUSTER, job(1))
    shown = {(o.layer, o.name) for o in operators_of(asked, ahead.layout, STAGES - 1)}
    assert {("ends", "head"), ("ends", "mtp")} <= shown
    assert ("ends", "mtp") not in {(o.layer, o.name) for o in operators_of(asked, ahead.layout, 0)}


def test_warnings_say_what_is_trained_and_what_is_left_out() -> None:
    left_out = "1 multi-token-prediction layer not counted"
    assert left_out in deepseek(0).warnings
    assert left_out not in deepseek(1).warnings
    assert (
        "1 of 1 multi-token-prediction layers on the last stage, not among the parameters"
        in deepseek(1).warnings
    )


@pytest.mark.parametrize("launcher", ["maxtext", "torchtitan", "deepspeed", "calculon"])
def test_launchers_that_are_not_known_to_run_modules_refuse_them(launcher: str) -> None:
    told = (
        f"the limits of launcher {launcher} are those without multi-token prediction, mtp is 1; use mtp 0, or --launcher "
        "megatron, jax or any"
    )
    with pytest.raises(InputError) as refused:
        resolve("deepseek-v3", CLUSTER, job(1), launcher=launcher)
    assert str(refused.value) == told
    with pytest.raises(InputError) as refused:
        plan_runs_on(deepseek(1), launcher)
    assert str(refused.value) == told


def test_a_file_of_before_there_were_modules_is_one_without(tmp_path: Path) -> None:
    plan = deepseek(0)
    older = replace(plan, inputs=plan.inputs | {"training": dict(plan.inputs["training"])})
    del older.inputs["training"]["mtp"]
    mw.save_plan(older, tmp_path / "plan.json")
    assert plan_runs_on(mw.load_plan(tmp_path / "plan.json"), "jax").limits == ()
