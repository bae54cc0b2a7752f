"""docs/search.md is executed: its commands print what it shows, its Python runs, the keys it names are the keys there are."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import blocks, check_in_order, commands

from meshwright.optimizer import cli
from meshwright.search.breakdown import GROUPS
from meshwright.search.grid import Grid

PAGE = (Path(__file__).parents[2] / "docs" / "search.md").read_text(encoding="utf-8")
ASK = ["search", "--cluster", "jetson-agx-orin-64gb", "--prompt", "1024", "--output", "16"]


def test_every_command_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, shown in commands(PAGE):
        assert cli.main(words) == 0, words
        printed = capsys.readouterr().out.splitlines()
        assert len(printed) <= 70, f"{words} takes {len(printed)} lines"
        check_in_order(words, shown, printed)


def test_the_python_runs_and_the_grid_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    (code,), (grid,) = blocks(PAGE, "python"), blocks(PAGE, "yaml")
    exec(compile(code, "search.md", "exec"), {})  # noqa: S102
    assert "best shapes by plas-10b on jetson-agx-orin-64gb" in capsys.readouterr().out
    assert Grid.model_validate(yaml.safe_load(grid)).size > 50_000


def test_every_option_is_on_the_page() -> None:
    from meshwright.search import modes

    _, subparsers = cli.build_parser()
    cli._add_extensions(subparsers)
    parser = subparsers.choices["search"]
    options: modes.Options = parser.get_default("options")
    assert [name for name in options.names[""] if f"`--{name.replace('_', '-')}" not in PAGE] == []
    assert [mode.option for mode in modes.MODES if f"`{mode.option}`" not in PAGE] == []


def test_the_keys_are_those_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    told = dict(re.findall(r"^\| ([^|]+?) \| (.+) \|$", PAGE[PAGE.index("## JSON") :], re.MULTILINE))
    named = {part: set(re.findall(r"`(\w+)`", keys)) for part, keys in told.items()}

    def ask(*words: str) -> dict[str, Any]:
        assert cli.main([*ASK, *words, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    found, without = ask("--total", "1s", "--efficiency", "edge"), ask()
    assert set(found["given"]) == named["`given`"] and set(without["steps"]) == named["`steps`"]
    one = named["with one budget"]
    assert {name for name in one if name.startswith("part_")} == {f"part_{group}" for group in GROUPS}
    assert set(found["steps"]) - named["`steps`"] <= one
    assert one - set(found["steps"]) == {"part_ffn"}
    assert set(found["table"][0]) == named["`table`"] - {"head_dim", "shared"}
    assert set(found) == {"question", "given", "steps", "binds", "notes", "table"}
