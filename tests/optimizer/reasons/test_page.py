"""docs/reasons.md is executed, and docs/json.md names every key."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pages import check_printed, commands, run_python

from meshwright.optimizer.cli import main

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "reasons.md").read_text(encoding="utf-8")


def test_every_command_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, shown in commands(PAGE):
        main(words)
        check_printed(words, shown, capsys.readouterr().out.splitlines())


def test_the_python_of_the_page_runs() -> None:
    run_python(PAGE, "reasons.md")


def keys(data: Any) -> set[str]:
    if isinstance(data, dict):
        return set(data) | set().union(*map(keys, data.values()))
    return set().union(*map(keys, data)) if isinstance(data, list) else set()


def test_the_json_page_names_every_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = shlex.split("llama-3-8b --cluster h100:8x1 --batch 512Ki --seq 8192 --json")
    names: set[str] = set()
    for words in (
        ["recommend", *line, "--shadow", "--in-band", "1%", "--why-not", "recompute=none,tp=1,cp=1,pp=1", "-o", f"{tmp_path}/a.json"],
        ["recommend", *shlex.split("llama-3-70b --cluster h100:8x2 --batch 256Ki --seq 8192 --json")],
        ["explain", f"{tmp_path}/a.json", "--json"],
        ["balance", *line],
    ):  # fmt: skip
        main(words)
        data = json.loads(capsys.readouterr().out)
        plan = {
            "inputs",
            "layout",
            "estimate",
            "memory",
            "idle",
            "run",
            "certificate",
            "runner_ups",
            "provenance",
        }
        reasons = {k: v for k, v in data.items() if words[0] != "recommend" or k not in plan}
        for gone in ("parts", "binds", "removed"):  # their keys are names of things
            reasons.pop(gone, None)
        names |= keys(reasons)
    text = (DOCS / "json.md").read_text(encoding="utf-8")
    told = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]*)`", text))))
    groups = {"rate", "shape", "experts", "traffic"}  # causes, in docs/reasons.md
    assert {n for n in names if re.fullmatch(r"[a-z_]+", n)} - told - groups == set()
