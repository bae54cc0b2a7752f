"""Goals and fronts at the doors: the command line, files, messages; docs/goals.md is executed."""

import csv
import inspect
import json
from dataclasses import fields
from pathlib import Path

import pytest
from pages import check_printed, commands, run_python

import meshwright as mw
from meshwright.costmodel.goals import GOALS
from meshwright.hardware.errors import InputError
from meshwright.optimizer.cli import build_parser, main
from meshwright.optimizer.goals.front import AXES

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "goals.md").read_text(encoding="utf-8")
LINE = ["llama-3-8b", "--cluster", "h100:8x1", "--batch", "256Ki", "--seq", "8192"]
RUN = mw.Training(2**18, 8192)


def test_every_command_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, shown in commands(PAGE):
        assert main(words) == (3 if any("INFEASIBLE" in line for line in shown) else 0), words
        check_printed(words, shown, capsys.readouterr().out.splitlines())


def test_the_python_of_the_page_runs() -> None:
    run_python(PAGE, "goals.md")


def test_the_page_names_every_goal_and_axis() -> None:
    assert [goal for goal in GOALS if f"| `{goal}` |" not in PAGE] == []
    assert [axis for axis in AXES if axis not in PAGE] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["recommend", "--goal", "time"], "unknown goal 'time'; did you mean step? Known: chips, cost, step"),
        (["recommend", "--goal", "chips"], "goal chips needs one limit, none is given; give deadline"),
        (["recommend", "--goal", "chips", "--within", "1s", "--deadline", "3d"], "goal chips needs one limit, two are given"),
        (["recommend", "--goal", "chips", "--deadline", "3d"], "deadline is of the whole run, whose length is not given; give --tokens"),
        (["recommend", "--goal", "chips", "--within", "0s"], "within_s is 0.0; give a number above zero"),
        (["recommend", "--goal", "chips", "--within", "2"], "--within: '2' has no unit"),
        (["recommend", "--within", "1s"], "within is read with goal chips, not with goal step; leave it out"),
        (["recommend", "--goal", "cost", "--shadow"], "--shadow compares step times, the goal is cost; leave one of them out"),
        (["front", "--axes", "time"], "axes are 'time'; give two different ones, such as time,memory"),
        (["front", "--axes", "time,time"], "axes are 'time,time'; give two different ones"),
        (["front", "--axes", "time,loss"], "unknown axis 'loss'"),
        (["front", "--axes", "chips,memory"], "the axes memory and chips ask for no speed"),
        (["front", "--apart", "2"], "--apart: '2' is not a share from 0% to below 100%"),
        (["front", "--axes", "time,cost", "--apart", "5%"], "apart thins a walk over memory or chips"),
        (["front", "--plot", "x.txt"], "--plot 'x.txt' ends in neither"),
        (["front", "--csv", "/nowhere/x.csv"], "cannot write /nowhere/x.csv: no folder"),
    ],
)  # fmt: skip
def test_bad_questions_get_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([words[0], *LINE, *words[1:]]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"meshwright: {message}") and told.err.count("\n") == 1 and told.out == ""


def test_bad_arguments_get_typed_errors() -> None:
    for words in (
        {"goal": 3},
        {"goal": "chips", "within_s": "1s"},
        {"goal": "chips", "within_s": 10**400},
        {"goal": "chips", "deadline_s": True},
        {"goal": "cost", "within_s": 1.0},
    ):
        with pytest.raises(InputError):
            mw.recommend("llama-3-8b", "h100:8x1", RUN, **words)  # type: ignore[arg-type]
    for words in (
        {"axes": 3},
        {"points": 0},
        {"points": 2.0},
        {"apart": 1.0},
        {"apart": "x"},
        {"options": 1},
    ):
        with pytest.raises(InputError):
            mw.front("llama-3-8b", "h100:8x1", RUN, **words)  # type: ignore[arg-type]


def test_the_front_takes_what_its_command_takes() -> None:
    """Every option of the question and of the walk, by its name in Python."""
    _, subparsers = build_parser()
    options = {action.dest for action in subparsers.choices["front"]._actions}
    of_training = {
        "batch",
        "seq",
        "tokens",
        "optimizer",
        "dtype",
        "moe_imbalance",
        "expert_capacity",
        "mtp",
        "images",
        "trainable",
    }
    of_cluster = {"host_memory", "cpu_update", "fabric"}
    of_options = {"refinements", "work_limit", "batch_sizes", "seed"}
    shown_only = {"help", "csv", "plot", "progress", "json"}
    taken = {*inspect.signature(mw.front).parameters} - {"constraints", "training", "options"}
    assert options - of_training - of_cluster - of_options - shown_only - {"constraint"} == taken
    assert of_options <= {f.name for f in fields(mw.SolveOptions)}
    assert {*inspect.signature(mw.resolve).parameters} <= {*inspect.signature(mw.front).parameters}
    assert {*inspect.signature(mw.resolve).parameters} <= {*inspect.signature(mw.recommend).parameters}


def test_a_launcher_bounds_a_front_and_chips_are_counts() -> None:
    made = mw.front("llama-3-8b", "h100:8x1", RUN, launcher="torchtitan", points=1)
    point = made.points[0]
    assert made.inputs["launcher"] == "torchtitan" and point.layout.zero in (0, 3)
    assert isinstance(point.chips, int) and point.chips == 8
    assert point.to_dict()["chips"] == 8
    chip = mw.load_chip("tpu7x")
    assert [chip.chips_of(n) for n in (1, 2, 16)] == [0.5, 1, 8]
    assert isinstance(chip.chips_of(16), int)


def test_a_plan_of_another_goal_is_read_back_and_not_asked_for_step_times(tmp_path: Path) -> None:
    plan = mw.recommend("llama-3-8b", "h100:8x1", RUN, goal="cost")
    mw.save_plan(plan, tmp_path / "plan.json")
    again = mw.load_plan(tmp_path / "plan.json")
    assert again.certificate.to_dict() == plan.certificate.to_dict()
    assert again.certificate.unit == "USD per million tokens"
    assert mw.explain(again).binds
    with pytest.raises(InputError, match=r"the plan's goal is cost, and this reason compares step times"):
        mw.shadow_prices(again)


def test_without_a_price_cost_is_chip_seconds() -> None:
    plan = mw.recommend("llama-3-8b", "h800:8x1", RUN, goal="cost")
    proof = plan.certificate
    assert proof.unit == "chip-seconds per million tokens"
    rounding = proof.slack_s / proof.value_s
    assert proof.value == pytest.approx(
        plan.estimate.step_s * plan.layout.devices / 2**18 * 1e6, rel=rounding
    )


def test_a_missed_limit_is_a_proven_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "recommend",
        *LINE,
        "--tokens",
        "1T",
        "--goal",
        "chips",
        "--deadline",
        "2d",
        "--json",
        "-o",
        f"{tmp_path}/no.json",
    ]
    assert main(words) == 3
    told = capsys.readouterr()
    data = json.loads(told.out)
    assert data["status"] == "INFEASIBLE" and data == json.loads((tmp_path / "no.json").read_text())
    days = data["fastest"]["run"]["days"]
    assert (
        f"no plan takes at most 2 days ({data['limit_s']:.4g} s a step): the fastest takes {days:.4g} days"
        in told.err
    )
    assert "why" not in data
    kept = mw.recommend(
        "llama-3-8b",
        "h100:8x1",
        mw.Training(2**18, 8192, total_tokens=10**12),
        goal="chips",
        deadline_s=days * 86_400,
    )
    assert kept.certificate.value == 8 and kept.warnings == tuple(data["fastest"]["warnings"])


def test_the_files_of_a_front(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["front", *LINE, "--csv", f"{tmp_path}/a.csv", "--plot", f"{tmp_path}/a.svg", "--json"]
    assert main(words) == 0
    first = capsys.readouterr().out
    data = json.loads(first)
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert [float(r["step_s"]) for r in rows] == [p["step_s"] for p in data["points"]]
    assert [float(r["usd_per_million_tokens"]) for r in rows] == [p["cost"] for p in data["points"]]
    assert [r["tp"] for r in rows] == [str(p["layout"]["tp"]) for p in data["points"]]
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    assert data["proven"] and len(data["points"]) > 3
    assert main(words) == 0 and capsys.readouterr().out == first
    assert main(["front", *LINE, "--points", "1"]) == 4
    told = capsys.readouterr()
    assert "plans may be missing: the walk ended after 1 plans" in told.out
