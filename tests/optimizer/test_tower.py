"""Vision towers on the first stage, as the planner sees them: against exhaustive search, and on gemma-3."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instances import SEEING, instance
from judge import agrees, complaints, search
from numpy.typing import NDArray
from test_bounds import check_every_candidate, check_refinements
from test_coefficients import check

import meshwright as mw
from meshwright.costmodel.estimate import complete, estimate, table_of
from meshwright.costmodel.layout import parse_layout
from meshwright.costmodel.stages import StageTable
from meshwright.hardware.errors import InputError
from meshwright.optimizer import entries
from meshwright.optimizer.cuts import Cuts
from meshwright.optimizer.mixes import Room
from meshwright.optimizer.question import resolve
from meshwright.optimizer.reasons.launcher import plan_runs_on
from meshwright.optimizer.reasons.operators import operators_of

Floats = NDArray[np.float64]
SLICE = range(SEEING, SEEING + 8)
ALL = range(SEEING, SEEING + 200)


@pytest.mark.parametrize("seed", SLICE)
def test_search_equals_exhaustive_search(seed: int) -> None:
    assert agrees(seed).setting.training.images


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_search_equals_exhaustive_search_on_200_instances(seed: int) -> None:
    agrees(seed)


@pytest.mark.parametrize("seed", range(SEEING + 1, SEEING + 12, 5))
def test_no_bound_passes_the_exact_optimum(seed: int) -> None:
    check_every_candidate(seed)
    check_refinements(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_no_bound_passes_the_exact_optimum_on_200_instances(seed: int) -> None:
    check_every_candidate(seed)
    check_refinements(seed)


def test_a_forgotten_peak_of_the_tower_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in what stages leave their layers, which the judge of the other tests must complain about."""
    asked = instance(SEEING + 5)
    honest = entries._room

    def faulty(table: StageTable, cuts: Cuts, stage: Floats, *more: Any) -> Room:
        last = stage == int(table.rows.last_stage[0])
        return replace(honest(table, cuts, stage, *more), beside=last * float(table.costs.loss[0]))

    monkeypatch.setattr(entries, "_room", faulty)
    assert complaints(asked, search(asked))


def test_a_program_prices_a_layout_as_the_cost_model_does() -> None:
    assert sum(check(instance(seed))["priced"] for seed in SLICE[::2]) > 10


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_programs_of_200_instances(seed: int) -> None:
    check(instance(seed))


CLUSTER, STAGES, IMAGES = "h100:8x16", 4, 4


def job(images: int) -> mw.Training:
    return mw.Training(1024 * 4096, 4096, images=images)


@cache
def gemma(images: int) -> mw.Plan:
    """The best plan over four stages."""
    text = f"pp == {STAGES}, vpp == 1, tp == 1, cp == 1"
    return mw.recommend("gemma-3-27b-it", CLUSTER, job(images), constraints=text)


def test_the_first_stage_of_gemma_3_gives_up_what_its_tower_takes() -> None:
    """The best cut of the text alone is no longer the best."""
    text, seeing = gemma(0), gemma(IMAGES)
    assert text.certificate.status == seeing.certificate.status == "OPTIMAL"
    asked = resolve("gemma-3-27b-it", CLUSTER, job(IMAGES))
    table = table_of(asked, [seeing.layout])
    assert table.tower is not None
    layers = float(table.tower.total[0] / table.layer_s[0].mean())
    given_up = text.layout.layers_per_stage[0] - seeing.layout.layers_per_stage[0]
    assert 5 < layers < 20
    # Other stages take three quarters of it.
    assert 0.5 * layers < given_up < layers + 1
    even = replace(seeing.layout, placement=(), stage_policies=(), policies=("full",), layers_per_stage=())
    assert estimate(asked, even).step_s > seeing.estimate.step_s * 1.05


def test_memory_and_operators_show_the_tower() -> None:
    seeing = gemma(IMAGES)
    assert [stage["tower"] > 0 for stage in seeing.estimate.memory] == [True] + [False] * (STAGES - 1)
    assert all("tower" not in stage for stage in gemma(0).estimate.memory)
    asked = resolve("gemma-3-27b-it", CLUSTER, job(IMAGES))
    shown = {(o.layer, o.name) for o in operators_of(asked, seeing.layout, 0)}
    assert {("ends", "embedding"), ("ends", "tower")} <= shown
    assert ("ends", "tower") not in {(o.layer, o.name) for o in operators_of(asked, seeing.layout, 1)}
    alone = complete(asked, parse_layout("dp=128,zero=3"))
    parts = estimate(asked, alone).parts
    seconds = sum(o.seconds for o in operators_of(asked, alone, 0))
    assert seconds == pytest.approx(parts["compute"] + parts["recompute"], rel=1e-9)


def test_warnings_say_what_is_trained_and_what_is_left_out() -> None:
    left_out = "text only: the vision tower is not trained, and not among the parameters"
    trained = (
        "images 4 a sequence: the vision tower of 423,060,336 parameters, not among the model's, is trained on the first "
        "stage with full recompute"
    )
    assert left_out in gemma(0).warnings
    assert left_out not in gemma(IMAGES).warnings
    assert trained in gemma(IMAGES).warnings


@pytest.mark.parametrize("launcher", ["megatron", "maxtext", "torchtitan", "deepspeed", "calculon"])
def test_launchers_that_are_not_known_to_train_a_tower_refuse_images(launcher: str) -> None:
    told = (
        f"the limits of launcher {launcher} are those without a vision tower, images is 4; use images 0, or --launcher jax or "
        "any"
    )
    with pytest.raises(InputError) as refused:
        resolve("gemma-3-27b-it", CLUSTER, job(IMAGES), launcher=launcher)
    assert str(refused.value) == told
    with pytest.raises(InputError) as refused:
        plan_runs_on(gemma(IMAGES), launcher)
    assert str(refused.value) == told


def test_a_file_of_before_there_were_towers_is_one_without(tmp_path: Path) -> None:
    plan = gemma(0)
    older = replace(plan, inputs=plan.inputs | {"training": dict(plan.inputs["training"])})
    del older.inputs["training"]["images"]
    mw.save_plan(older, tmp_path / "plan.json")
    assert plan_runs_on(mw.load_plan(tmp_path / "plan.json"), "jax").limits == ()


def test_without_images_a_tower_changes_nothing() -> None:
    blind = replace(resolve("gemma-3-27b-it", CLUSTER, job(0)).model, tower=None)
    asked = replace(resolve("gemma-3-27b-it", CLUSTER, job(0)), model=blind)
    layout = gemma(0).layout
    assert estimate(asked, layout) == gemma(0).estimate
