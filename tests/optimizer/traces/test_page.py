"""docs/profile.md is executed and names every key; the two commands as a user meets them."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_traces import kernel, step, write
from pages import check_in_order, commands, run_python

from meshwright.optimizer.cli import main

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "profile.md").read_text(encoding="utf-8")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page's commands run: with the real traces, and what its Python writes."""
    for path in (ROOT / "tests" / "golden" / "traces").glob("*.gz"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    run_python(PAGE, "profile.md")
    return tmp_path


def test_every_command_prints_what_the_page_shows(folder: Path, capsys: Capture) -> None:
    for words, shown in commands(PAGE):
        assert main(words) == 0, words
        check_in_order(words, shown, capsys.readouterr().out.splitlines())
    told = yaml.safe_load(Path("mine.yaml").read_text())
    assert (told["name"], told["extends"], set(told["chips"])) == ("mine", "default", {"h100"})
    assert set(told["chips"]["h100"]) == {"matmul", "scale_up", "overlap"}


def keys(data: Any) -> set[str]:
    if isinstance(data, dict):
        return set(data) | set().union(*map(keys, data.values()))
    return set().union(*map(keys, data)) if isinstance(data, list) else set()


def test_the_page_names_every_key(folder: Path, capsys: Capture) -> None:
    assert main(["profile", "run.json", "--chip", "h100", "--json", "-o", "made.yaml"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert yaml.safe_load(Path("made.yaml").read_text()) == printed
    free = set(printed["parts"]) | set(printed["operators"])
    rows = "".join(line for line in PAGE.splitlines() if line.startswith("|"))
    assert keys(printed) - free <= set(re.findall(r"`(\w+)`", rows))


def test_the_same_trace_prints_the_same_bytes(folder: Path, capsys: Capture) -> None:
    asked = ["profile", "torch_cpu.trace.json.gz", "--chip", "h100", "--json"]
    assert [main(asked), main(asked)] == [0, 0]
    printed = capsys.readouterr().out
    assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("profile run.json", 2, "against a plan (--plan plan.yaml) or a chip alone (--chip h100); give one of them"),
        ("profile run.json --chip h100 --model x", 2, "model says where a plan's file is, and no plan is given"),
        ("profile bare.json --chip h100", 2, "marks no steps"),
        ("profile run.json --chip h100 --steps 0", 2, "--steps: '0' is not a whole number from 1"),
        ("profile run.json --chip h100 --steps 4", 2, "has 1 steps by annotations on the device, --steps says 4"),
        ("profile none.json --chip h100", 2, "cannot read none.json: No such file or directory; give a trace"),
        ("profile run.json --plan run.json", 2, "run.json is not a plan file"),
        ("profile run.json --chip h100 -o none/x.yaml", 2, "no folder"),
        ("profile x.xplane.pb --chip h100", 5, "pip install 'meshwright[xplane]'"),
        ("calibrate run.json --chip h100", 2, "the following arguments are required: -o/--output"),
        ("calibrate runs.csv --chip h100 -o mine.yaml", 2, "--chip is for a trace; a table of step times names clusters and layouts itself"),
        ("calibrate torch_cpu.trace.json.gz --chip h100 -o new.yaml", 2, "has operations of cpu, none of h100"),
        ("calibrate run.json --chip h100 -o ideal.yaml", 2, "ideal is the name of a shipped efficiency"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_and_a_code(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, words: str, code: int, says: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    assert main(words.split()) == code
    out, line = capsys.readouterr()
    assert says in line and line.count("\n") == 1 and out == ""
    assert not Path("new.yaml").exists()


def test_calibrate_as_json_has_numbers_and_silences(folder: Path, capsys: Capture) -> None:
    assert main(["calibrate", "run.json", "--chip", "h100", "-o", "mine.yaml", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["reached"]) == {"matmul", "scale_up"}
    assert set(printed["reached"]["matmul"]) == {"share", "count", "low", "high"}
    assert set(printed["silent"]) == {"attention", "hbm", "scale_out", "host_link", "overlap"}


def test_names_that_break_a_page_do_not(folder: Path, capsys: Capture) -> None:
    name = "void at::native::" + "<(anonymous)>[red]" * 40 + "\n\u2603"
    write(folder / "long.json", [step(0, 0, 9, device=0), kernel(name, 0, 9)])
    assert main(["profile", "long.json", "--chip", "h100"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 110
