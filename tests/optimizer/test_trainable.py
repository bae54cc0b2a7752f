"""Models of which not all is trained, as the planner sees them: against exhaustive search, in files, for launchers."""

from pathlib import Path

import pytest
from instances import FROZEN, instance
from judge import agrees
from test_bounds import check_every_candidate, check_refinements
from test_coefficients import check

import meshwright as mw
from meshwright.costmodel.estimate import complete, estimate
from meshwright.hardware.errors import InputError
from meshwright.optimizer.question import model_hash, resolve
from meshwright.optimizer.reasons.operators import operators_of
from meshwright.optimizer.reasons.question import reopen

SLICE = [
    FROZEN + i for i in (0, 1, 2, 4, 5, 8, 10, 11, 12, 14, 17, 20, 21, 22, 23)
]  # of every form, with and without an answer
ALL = range(FROZEN, FROZEN + 200)
LORA = "lora:16:qkv+out"


@pytest.mark.parametrize("seed", SLICE)
def test_search_equals_exhaustive_search(seed: int) -> None:
    assert agrees(seed).setting.training.trainable != "all"


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_search_equals_exhaustive_search_on_200_instances(seed: int) -> None:
    agrees(seed)


@pytest.mark.parametrize("seed", [FROZEN, FROZEN + 3, FROZEN + 6])
def test_no_bound_passes_the_exact_optimum(seed: int) -> None:
    check_every_candidate(seed)
    check_refinements(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_no_bound_passes_the_exact_optimum_on_200_instances(seed: int) -> None:
    check_every_candidate(seed)
    check_refinements(seed)


def test_a_program_prices_a_layout_as_the_cost_model_does() -> None:
    assert sum(check(instance(seed))["priced"] for seed in (FROZEN, FROZEN + 3, FROZEN + 5)) > 20


def job(trainable: str) -> mw.Training:
    return mw.Training(64 * 4096, 4096, trainable=trainable)


def test_less_state_allows_a_faster_layout() -> None:
    """Where a 70B model in full needs to be cut 16 ways and recomputed, adapters leave room to keep what is saved."""
    whole, lora = (mw.recommend("llama-3-70b", "h100:8x4", job(t)) for t in ("all", "lora:16"))
    assert lora.estimate.step_s < whole.estimate.step_s
    assert lora.certificate.status == "OPTIMAL"
    assert (
        "trainable lora:16: 207,093,760 parameters are trained on a model of 70,553,706,496" in lora.warnings
    )


def test_a_plan_file_keeps_what_is_trained(tmp_path: Path) -> None:
    plan = mw.recommend("llama-3-8b", "h100:8x1", job(LORA))
    mw.save_plan(plan, tmp_path / "plan.json")
    again = mw.load_plan(tmp_path / "plan.json")
    assert again.inputs["training"]["trainable"] == LORA
    found = reopen(again)
    assert found.model == resolve("llama-3-8b", "h100:8x1", job(LORA)).model
    # A model is what it is, whatever is trained of it.
    assert again.inputs["model"]["hash"] == model_hash(resolve("llama-3-8b", "h100:8x1", job("all")).model)
    older = mw.recommend("llama-3-8b", "h100:8x1", job("all"))
    del older.inputs["training"]["trainable"]
    reopen(older)


def test_operators_sum_to_compute() -> None:
    asked = resolve("mixtral-8x7b", "h100:8x2", job("lora:8:qkv+expert_up"))
    alone = complete(asked, mw.parse_layout("dp=16,zero=3,ep=8"))
    parts = estimate(asked, alone).parts
    seconds = sum(o.seconds for o in operators_of(asked, alone, 0))
    assert seconds == pytest.approx(parts["compute"] + parts["recompute"], rel=1e-9)


@pytest.mark.parametrize("launcher", ["megatron", "maxtext", "torchtitan", "deepspeed", "calculon"])
def test_launchers_that_are_not_known_to_freeze_weights_refuse(launcher: str) -> None:
    with pytest.raises(InputError) as refused:
        resolve("llama-3-8b", "h100:8x1", job("lora:16"), launcher=launcher)
    assert str(refused.value) == (
        f"the limits of launcher {launcher} are those without frozen weights, trainable is lora:16; use trainable all, or "
        "--launcher jax or any"
    )
