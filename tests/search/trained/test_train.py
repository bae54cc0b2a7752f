"""What a user of `train` and of the mode sees: the page, the law's own split of compute, and every refusal's words."""

import argparse
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from meshwright.costmodel.layout import Layout, layout_text, parse_layout
from meshwright.costmodel.workload import Training
from meshwright.hardware.errors import InputError, LayoutError, MeshwrightError
from meshwright.optimizer.plan import Infeasible, Undecided
from meshwright.optimizer.solve import SolveOptions
from meshwright.search.grid import Grid, list_shapes, load_grid
from meshwright.search.law import load_law
from meshwright.search.trained import command
from meshwright.search.trained.answer import working
from meshwright.search.trained.compute_optimal import compute_optimal
from meshwright.search.trained.find import find
from meshwright.search.trained.layouts import Layouts
from meshwright.search.trained.tokens import Fixed, Free, Losses
from meshwright.search.trained.train import Trained, train

JOB = Training(2**20, 4096)
DAY_S = 86_400.0


def some_grid(**changed: object) -> Grid:
    axes: dict[str, object] = {
        "source": "test", "layers": (8, 16), "width": (1024, 2048, 3072), "head_dim": (128,),
        "kv_heads": ("heads",), "ffn_ratio": (2.5, 4.0), "experts": ((1, 1),), "vocab": 32_000, "tied": True,
        "rules": ("heads_fill_width", "whole_expert_width"),
    }  # fmt: skip
    return Grid(**(axes | changed))  # type: ignore[arg-type]


@lru_cache
def free() -> Trained:
    return train(load_law("besiroglu"), some_grid(), "h100:8x1", JOB, 2 * DAY_S, runner_ups=2)


def test_free_tokens_come_out_near_the_split_that_the_law_makes_of_the_compute() -> None:
    """About as far from it as the machine, which the law does not know, makes of it: here less than a quarter."""
    page = working(free())
    assert page.number("per_param") == pytest.approx(
        page.number("law_tokens") / page.number("law_params"), rel=0.25
    )
    assert page.number("law_loss") <= page.number("best_loss") <= page.number("law_loss") + 1e-3
    assert page.number("days") == pytest.approx(2.0, rel=1e-4)
    assert page.number("days") <= 2.0
    assert page.number("tokens_trained") == page.number("steps") * 2**20
    assert "the deadline" in page.binds


@pytest.mark.parametrize("flops", [1e18, 5.76e23, 1e26])
def test_the_closed_form_is_the_least_of_the_law_over_all_splits(flops: float) -> None:
    law = load_law("besiroglu")
    found = compute_optimal(law, flops)
    assert found is not None
    params = found.params * np.geomspace(0.5, 2.0, 2001)
    k = law.coefficients
    losses = k["A"] / params ** k["a"] + k["B"] / (flops / 6 / params) ** k["b"] + k["floor"]
    assert found.loss == pytest.approx(losses.min(), rel=1e-9)
    assert params[losses.argmin()] == pytest.approx(found.params, rel=1e-3)
    assert 6 * found.params * found.tokens == pytest.approx(flops)
    assert compute_optimal(load_law("gemstones-wdpt"), flops) is None


def test_the_split_at_the_compute_of_chinchilla() -> None:
    """arXiv 2404.10102: about 20 tokens per parameter at 5.76e23 FLOPs, where Chinchilla was trained on 70B by 1.4T."""
    found = compute_optimal(load_law("besiroglu"), 5.76e23)
    assert found is not None
    assert 15 < found.tokens / found.params < 30


def test_runner_ups_are_further_shapes_in_order_of_loss() -> None:
    ranked = free().outcome.ranked
    losses = [c.loss for c in ranked]
    assert len({c.row for c in ranked}) == 3
    assert losses == sorted(losses)
    assert len(working(free()).table) == 3


def test_a_later_deadline_never_raises_the_loss_and_nothing_changes_between_two_runs() -> None:
    law, grid = load_law("gemstones-wdpt"), some_grid()
    losses = [train(law, grid, "h100:8x1", JOB, days * DAY_S).best.loss for days in (0.5, 1.0, 4.0, 16.0)]
    assert losses == sorted(losses, reverse=True)
    first, second = (train(law, grid, "h100:8x1", JOB, DAY_S) for _ in range(2))
    assert first.proof == second.proof
    assert first.plan.to_dict() == second.plan.to_dict()


def test_fixed_tokens_take_the_best_shape_that_ends_in_time() -> None:
    made = train(load_law("besiroglu"), some_grid(), "h100:8x1", replace(JOB, total_tokens=10**10), DAY_S / 4)
    page = working(made)
    assert page.number("tokens_trained") == 10**10
    assert page.number("steps") == -(-(10**10) // 2**20)
    assert "would reach a loss of" in page.binds
    assert made.plan.run is not None
    assert made.plan.run["days"] == pytest.approx(page.number("days"), rel=1e-3)
    assert made.outcome.missed is not None
    assert made.outcome.missed.loss < made.best.loss


def test_with_time_to_spare_the_grid_binds() -> None:
    made = train(load_law("besiroglu"), some_grid(), "h100:8x1", replace(JOB, total_tokens=10**9), 90 * DAY_S)
    assert made.outcome.missed is None
    assert working(made).binds.startswith("the grid: no shape of it has less loss")
    assert "layers 16 (most), width 3072 (most)" in working(made).binds


@pytest.mark.parametrize("tokens", [10**9, None])
def test_a_range_of_parameters_binds(tokens: int | None) -> None:
    """Of what it leaves out the shape of least loss at its floor, by hand: the largest, to which the law gives most."""
    job, law, days = replace(JOB, total_tokens=tokens), load_law("besiroglu"), 90 * DAY_S
    made = train(law, some_grid(), "h100:8x1", job, days, params=(1e8, 1e9))
    every = train(law, some_grid(), "h100:8x1", job, days)
    assert made.outside is not None and made.outside.params > 1e9
    assert made.outside.loss <= every.best.loss < made.best.loss
    told = (
        f": 16 layers of width 3072 ({made.outside.params / 1e9:.4g}B parameters) lies outside and may reach"
    )
    assert told in working(made).binds
    assert working(made).binds.startswith("--params: " if tokens else "the deadline: ")
    assert ("; --params binds too: " in working(made).binds) == (tokens is None)
    assert every.outside is None and "--params" not in working(every).binds
    wide = train(law, some_grid(), "h100:8x1", job, days, params=(0.0, 1e12))
    assert wide.outside is None and working(wide).binds == working(every).binds


def test_a_shape_outside_of_the_range_that_cannot_run_does_not_bind() -> None:
    """As in the case of memory below: what is above the range would not fit, or would not end in time."""
    grid = some_grid(layers=(8, 64), width=(1024, 8192), ffn_ratio=(4.0,))
    short = replace(JOB, total_tokens=10**9)
    made = train(load_law("besiroglu"), grid, "h100:2x1", short, 1e4 * DAY_S, params=(0.0, 5e10))
    assert made.outside is None
    tight = train(load_law("besiroglu"), some_grid(), "h100:8x1", short, 1800.0, params=(0.0, 3e8))
    assert tight.outside is not None and 3e8 < tight.outside.params < 2e9


def test_memory_binds() -> None:
    """64 layers of width 8192 hold 64 * 16 * 8192^2 parameters; their 14 bytes each are 962 GB, two H100 hold 160."""
    grid = some_grid(layers=(8, 64), width=(1024, 8192), ffn_ratio=(4.0,))
    made = train(load_law("besiroglu"), grid, "h100:2x1", replace(JOB, total_tokens=10**9), 1e4 * DAY_S)
    assert working(made).binds.startswith("memory: 64 layers of width 8192 (68.98B parameters)")


def test_a_law_is_asked_for_kinds_that_it_knows() -> None:
    grid = some_grid(experts=((1, 1), (8, 1)))
    dense = train(load_law("besiroglu"), grid, "h100:8x1", JOB, DAY_S)
    assert dense.shapes.experts.max() == 1
    assert dense.proof.removed["besiroglu was fitted at activation 1"] == 12
    every = train(load_law("besiroglu"), grid, "h100:8x1", JOB, DAY_S, extrapolate=True)
    assert len(every.shapes) == 24
    assert any("activation outside 1" in note for note in working(every).notes)


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"law": load_law("plas-10b")}, InputError, "law plas-10b has no term in tokens (it was fitted at 1e+10 of them), so they cannot be free; give --train-tokens a number"),
        ({"deadline_s": 0.0}, InputError, "deadline is 0.0; give a number above zero"),
        ({"deadline_s": "30d"}, InputError, "deadline is '30d'; give a number above zero"),
        ({"law": "besiroglu"}, InputError, "law is 'besiroglu'; give what load_law gives"),
        ({"grid": "plas"}, InputError, "grid is 'plas'; give what load_grid gives"),
        ({"cluster": 7}, InputError, "cluster is 7"),
        ({"training": None}, InputError, "training is None"),
        ({"runner_ups": -1}, InputError, "runner_ups=-1 is not a whole number of at least 0"),
        ({"options": 3}, InputError, "options is 3; give a SolveOptions, or None"),
        ({"extrapolate": "yes"}, InputError, "extrapolate is 'yes'"),
        ({"params": (1e9,)}, InputError, "params is (1000000000.0,); give a pair such as (1e9, 1e10)"),
        ({"params": (2e9, 1e9)}, InputError, "params from 2e+09 to 1e+09 hold no number"),
        ({"params": (1e12, 2e12)}, InputError, "the rules leave none of the 12 shapes of the grid"),
        ({"training": replace(JOB, batch_tolerance=0.05)}, InputError, "a tolerance of 5% moves the batch"),
        ({"constraints": "tp >= 64"}, LayoutError, "leaves no value of tp"),
        ({"constraints": "tp"}, LayoutError, "cannot read constraint 'tp'"),
        ({"deadline_s": 1e-3}, Infeasible, "every shape of the grid takes longer than 1 ms for a single step on h100:8x1; the quickest, 8 layers of width 1024 ("),
        ({"training": replace(JOB, total_tokens=10**15)}, Infeasible, "every shape of the grid takes longer than 2 d for 1000T tokens on h100:8x1"),
        ({"grid": some_grid(layers=(64,), width=(8192,)), "cluster": "h100:2x1"}, Infeasible, "the device memory is too small for every layout"),
        ({"options": SolveOptions(refinements=1)}, Undecided, "work limits left the layouts of "),
    ],
)  # fmt: skip
def test_refusals_say_what_to_do(changed: dict[str, object], error: type[Exception], words: str) -> None:
    asked: dict[str, object] = {
        "law": load_law("besiroglu"), "grid": some_grid(), "cluster": "h100:8x1", "training": JOB,
        "deadline_s": 2 * DAY_S,
    }  # fmt: skip
    with pytest.raises(error) as told:
        train(**(asked | changed))  # type: ignore[arg-type]
    assert words in str(told.value)
    assert isinstance(told.value, MeshwrightError)
    assert "\n" not in str(told.value)


def test_a_law_whose_loss_rises_with_tokens_knows_no_most() -> None:
    law = load_law("besiroglu")
    rising = law.model_copy(update={"coefficients": {**law.coefficients, "B": -5.0}})
    with pytest.raises(InputError, match="rises with tokens"):
        train(rising, some_grid(), "h100:8x1", JOB, DAY_S)


def test_the_fewest_steps_that_beat_a_loss() -> None:
    """One step fewer does not, by the law itself; the limit is the deadline over them."""
    grid = some_grid()
    losses = Losses(load_law("besiroglu"), list_shapes(grid).shapes, grid.ends)
    free_ones = Free(losses, 2**20, DAY_S)
    wanted = losses.at(3, 12_345.5 * 2**20)
    assert free_ones.limit_s(3, wanted, floor_s=1e-3) == DAY_S / 12_346
    assert free_ones.limit_s(3, wanted, floor_s=DAY_S / 100) == 0.0
    assert Fixed(losses, 2**20, DAY_S, 10**9).limit_s(3, wanted, floor_s=0.1) == 0.0


@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        Layout(dp_shard=4, zero=2, tp=2, pp=2, micro_batch=2, layers_per_stage=(3, 5), policies=("full",)),
        Layout(pp=2, vpp=2, schedule="interleaved", layers_per_stage=(4, 4), cp=2, cp_kind="all_to_all"),
        Layout(tp=2, sp=False, dp_replicate=2, ep=2, etp=2, offload="activations", policies=("none", "mlp")),
    ],
)
def test_a_printed_layout_reads_back(layout: Layout) -> None:
    assert parse_layout(layout_text(layout)) == layout


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("--cluster", "--law", "--grid", "--batch"):  # as the command has them already
        parser.add_argument(name)
    command.add_options(parser)
    return parser.parse_args(["--cluster", "h100:2x1", "--law", "besiroglu", "--grid", "plas", *words])


def test_the_mode_of_the_command() -> None:
    args = parsed(
        "--train-tokens",
        "2B",
        "--deadline",
        "2h",
        "--batch",
        "128seq",
        "--params",
        "..200M",
        "--runner-ups",
        "1",
    )
    assert command.wanted(args)
    page = command.answer(args)
    assert page["tokens_trained"] == 2 * 10**9
    assert page.number("best_params") <= 2e8
    assert page["batch"] == 128 * 4096
    assert len(page.table) == 2
    assert not command.wanted(parsed())
    assert load_grid("plas").size == page["shapes_listed"]


def test_hosts_take_what_devices_cannot(tmp_path: Path) -> None:
    """64 layers of width 4096 are 17B parameters: 240 GB of state, where two H100 hold 160 and the hosts 12 of 14 bytes.

    Without host memory the notes name the option that gives it.
    """
    (tmp_path / "two.yaml").write_text(
        "{source: test, layers: [8, 64], width: [1024, 4096], head_dim: [128], kv_heads: [heads], ffn_ratio: [4.0],"
        " experts: [[1, 1]], vocab: 32000, tied: true, rules: [heads_fill_width, whole_expert_width]}"
    )
    words = (
        "--train-tokens",
        "2B",
        "--deadline",
        "300d",
        "--batch",
        "64seq",
        "--grid",
        str(tmp_path / "two.yaml"),
    )
    alone = working(command.found(parsed(*words)))
    assert alone.binds.startswith("memory: 64 layers of width 4096 (17.")
    assert any("--host-memory 2TB" in note for note in alone.notes)
    hosted = command.found(parsed(*words, "--host-memory", "2TB", "--cpu-update", "1 Gparam/s"))
    cluster = hosted.given.cluster
    assert (cluster.host_memory_bytes, cluster.cpu_update_params_per_s) == (2 * 10**12, 1e9)
    assert hosted.model.layers == 64
    assert "optimizer" in hosted.plan.layout.offload
    assert not any("--host-memory" in note or "--cpu-update" in note for note in working(hosted).notes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--deadline", "1d"), "--deadline asks for a model to train, and needs --train-tokens 1T beside it"),
        (("--train-tokens", "1T"), "--train-tokens asks for a model to train, and needs --deadline 30d beside it"),
        (("--train-tokens", "1T", "--deadline", "30"), "--deadline: '30' has no unit"),
        (("--train-tokens", "many", "--deadline", "30d"), "--train-tokens: cannot read 'many'"),
        (("--train-tokens", "free", "--deadline", "30d", "--params", "8B"), "--params: cannot read '8B'; write 1B..10B"),
        (("--train-tokens", "free", "--deadline", "30d", "--params", "x..8B"), "--params: cannot read 'x'"),
        (("--train-tokens", "free", "--deadline", "30d", "--host-memory", "2"), "--host-memory: '2' has no unit"),
        (("--train-tokens", "free", "--deadline", "30d", "--cpu-update", "1GB"), "--cpu-update: "),
        (("--train-tokens", "free", "--deadline", "30d", "--batch", "1Mi~5%"), "a tolerance of 5% moves the batch"),
    ],
)  # fmt: skip
def test_the_mode_refuses(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError) as told:
        command.answer(parsed(*words))
    assert message in str(told.value)


def test_the_tally_is_of_one_search() -> None:
    """Searches are counted where they are made; a shape that constraints leave no layout is one that was looked at."""
    made = free()
    layouts = Layouts(made.given, made.shapes, made.grid.ends, (), SolveOptions(runner_ups=0))
    outcome = find(layouts, made.tokens, made.counts.params, 2)
    assert [c.row for c in outcome.ranked] == [c.row for c in made.outcome.ranked]
    assert (layouts.searches, layouts.plans_priced, layouts.rows_bounded) == (
        made.proof.searched, made.proof.plans_priced, made.proof.rows_bounded,
    )  # fmt: skip
    assert sum(outcome.removed.values()) + len(outcome.ranked) <= len(made.shapes)
