"""docs/launchers.md is executed, and the answers under a launcher say what its limits cost."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from independent_launchers import RUNS, refused
from pages import check_printed, commands, run_python

import meshwright as mw
from meshwright.costmodel.schedules import SCHEDULES
from meshwright.hardware.errors import InputError, LayoutError
from meshwright.optimizer.cli import main
from meshwright.optimizer.launchers.catalogue import LAUNCHERS
from meshwright.optimizer.plan import Infeasible, Plan
from meshwright.optimizer.question import resolve

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "launchers.md").read_text(encoding="utf-8")
ASKED = mw.Training(2**20, 8192)


def test_every_command_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, shown in commands(PAGE):
        assert main(words) == 0
        check_printed(words, shown, capsys.readouterr().out.splitlines())


def test_the_python_of_the_page_runs() -> None:
    run_python(PAGE, "launchers.md")


def test_the_page_names_every_launcher_with_its_version() -> None:
    for name, launcher in LAUNCHERS.items():
        line = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}`"))
        commit = launcher.snapshot.split()[1] if launcher.snapshot else ""
        assert commit in line and f"| {launcher.framework} |" in line


def test_the_page_says_of_every_schedule_who_runs_it() -> None:
    rows = {
        line.split("|")[1].strip(" `"): line.split("|")[2:-1]
        for line in PAGE.splitlines()
        if line.startswith("| ")
    }
    launchers = [word.strip(" `") for word in rows["schedule"]]
    assert launchers == ["jax, any", *RUNS]
    for word in SCHEDULES:
        told = dict(zip(launchers, (cell.strip() for cell in rows[word]), strict=True))
        assert told == {"jax, any": "yes"} | {name: "yes" if word in RUNS[name] else "no" for name in RUNS}


@pytest.mark.parametrize(
    ("launcher", "model", "cluster"),
    [
        ("megatron", "llama-3-70b", "h100:8x8"), ("megatron", "mixtral-8x7b", "h100:8x4"),
        ("torchtitan", "mixtral-8x7b", "h100:8x4"), ("deepspeed", "llama-3-70b", "h100:8x8"),
        ("maxtext", "mixtral-8x7b", "v5p:4x4x2"),
        ("calculon", "gpt3-175b", "a100:8x16"),
    ],
)  # fmt: skip
def test_a_plan_obeys_its_launcher_and_says_what_that_costs(launcher: str, model: str, cluster: str) -> None:
    asked = mw.Training(2**18, 2048) if model == "gpt3-175b" else ASKED
    given = resolve(model, cluster, asked, launcher=launcher)
    plan = mw.recommend(model, cluster, asked, launcher=launcher)
    assert refused(launcher, given, plan.layout) == []
    for other in plan.runner_ups:
        assert refused(launcher, given, other.layout) == []
    told = plan.launcher
    assert told is not None and told["name"] == launcher and told["proven"]
    free = mw.recommend(model, cluster, asked, framework=given.framework.name, launcher="any")
    own, best = plan.certificate, free.certificate
    slack = own.slack_s + best.slack_s
    assert own.value_s >= best.value_s - slack
    assert told["value_s"] == pytest.approx(best.value_s, abs=slack)
    assert (told["layout"] is None) == (not told["limits"])
    if told["layout"] is not None:
        assert refused(launcher, given, mw.Layout.from_dict(told["layout"]))
        assert told["faster"] == pytest.approx(1 - told["value_s"] / own.value_s)
    written = json.loads(json.dumps(plan.to_dict()))
    assert Plan.from_dict(written).to_dict() == written and free.launcher is None


def test_a_file_whose_launcher_is_none_is_refused_in_one_line() -> None:
    written = mw.recommend("llama-3-8b", "h100:8x1", ASKED, launcher="deepspeed").to_dict()
    for wrong in (
        3,
        {"name": "deepspeed"},
        {**written["launcher"], "layout": 3},
        {**written["launcher"], "limits": [1]},
    ):
        with pytest.raises(InputError, match="launcher"):
            Plan.from_dict({**written, "launcher": wrong})


def test_words_that_no_launcher_takes_are_refused_before_the_search() -> None:
    with pytest.raises(LayoutError) as error:
        mw.recommend(
            "llama-3-8b", "h100:8x1", ASKED, launcher="megatron", constraints="recompute==elementwise"
        )
    assert str(error.value) == (
        "constraint 'recompute==elementwise' leaves no recompute that megatron has: it takes none, attention, mlp or "
        "full; drop or widen it, or use --launcher any"
    )
    with pytest.raises(LayoutError) as error:
        mw.recommend("llama-3-8b", "v5p:2x2x1", ASKED, launcher="maxtext", constraints="schedule == zb_h1")
    assert str(error.value) == (
        "constraint 'schedule == zb_h1' leaves no schedule that maxtext has: it takes gpipe; drop or widen it, or use "
        "--launcher any"
    )


def test_limits_that_leave_nothing_are_part_of_the_clash(capsys: pytest.CaptureFixture[str]) -> None:
    line = "llama-3-70b --cluster h100:8x8 --batch 1Mi --seq 8192 --launcher torchtitan --constraint tp==16"
    assert main(["recommend", *shlex.split(line), "--json"]) == 3
    why = json.loads(capsys.readouterr().out)["why"]
    assert why["clash"]["limits"][1:] == [
        {
            "kind": "launcher",
            "text": "torchtitan: tp divides the kv heads",
            "says": "kv heads are never replicated; tp=16 does not divide 8: use a divisor",
        }
    ]
    assert "--launcher any" in [way["option"] for way in why["ways_out"]]
    with pytest.raises(Infeasible):
        mw.recommend("llama-3-70b", "h100:8x8", ASKED, launcher="torchtitan", constraints="tp==16")


def test_a_layout_that_the_launcher_cannot_run_is_refused_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "llama-3-8b --cluster h100:8x2 --batch 512Ki --seq 8192 --launcher megatron --why-not schedule=zb_h1,pp=4"
    assert main(["recommend", *shlex.split(line), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["why_not"]
    assert told["verdict"] == "no such plan" and "no schedule that megatron has" in told["refusal"]


def test_a_plan_of_several_policies_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plans of our own program by tensor and stage: other launchers say that they do not."""
    plan = str(tmp_path / "mixed.json")
    line = "llama-3-8b --cluster h100:8x2 --batch 512Ki --seq 8192 --layout"
    layout = "pp=2,dp=8,zero=1,recompute=full*3|save(qkv+core)*13;none"
    assert main(["estimate", *shlex.split(line), layout, "-o", plan]) == 0
    capsys.readouterr()
    for launcher in RUNS:
        assert main(["explain", plan, "--launcher", launcher, "--json"]) == 0
        limits = json.loads(capsys.readouterr().out)["launcher"]["limits"]
        told = {x["rule"].removeprefix(f"{launcher}: "): x["message"] for x in limits}
        assert {"one recompute policy per layer kind", "recompute it has a setting for"} <= set(told)
        assert all("=full*3|save(qkv+core)*13;none" in told[rule] for rule in told if "recompute" in rule)


def test_explain_and_compare_say_whether_a_launcher_runs_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, own = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    line = "llama-3-8b --cluster h100:8x2 --batch 512Ki --seq 8192"
    main(["recommend", *shlex.split(line), "--launcher", "torchtitan", "-o", plan])
    main(["estimate", *shlex.split(line), "--layout", "tp=4,dp=4,recompute=mlp", "-o", own])
    capsys.readouterr()
    found: dict[str, Any] = {}
    for words in (["explain", plan], ["explain", own], ["compare", plan, own]):
        assert main([*words, "--launcher", "torchtitan", "--json"]) == 0
        found[" ".join(words)] = json.loads(capsys.readouterr().out)["launcher"]
    assert found[f"explain {plan}"] == {"name": "torchtitan", "runs": True, "limits": []}
    refused_by = [limit["rule"] for limit in found[f"explain {own}"]["limits"]]
    assert "torchtitan: recompute it has a setting for" in refused_by
    both = found[f"compare {plan} {own}"]
    assert both["a"]["runs"] and not both["b"]["runs"]
    assert main(["explain", plan, "--launcher", "megatrn"]) == 2
    assert "unknown launcher 'megatrn'; did you mean megatron" in capsys.readouterr().err
