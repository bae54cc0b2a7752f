"""docs/devices.md is executed: its commands, its file, its table and its Python."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from pages import blocks

from meshwright.costmodel.inference.request import Request
from meshwright.optimizer.cli import main
from meshwright.search.asked import Budget, search_shapes
from meshwright.search.board import board_of
from meshwright.search.machine.points import points_of
from meshwright.search.machine.space import load_space

PAGE = (Path(__file__).parents[3] / "docs" / "devices.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", blocks(PAGE, "console"))
def test_a_command_prints_what_the_page_shows(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, *shown = block.splitlines()
    assert main(shlex.split(command.removeprefix("$ meshwright "))) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for line in shown:
        assert " ".join(line.split()) in printed, line


def test_the_file_is_a_device_space(tmp_path: Path) -> None:
    (text,) = blocks(PAGE, "yaml")
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    space = load_space(path)
    # 16 GB for 204.8 GB/s, and for each of the others either: 4 levels of compute times 5.
    assert len(points_of(space)) == 20
    assert space.decode.experts == 0.6 and not space.price.example


def test_the_table_is_what_the_searches_find() -> None:
    scope: dict[str, Any] = {}
    (code,) = blocks(PAGE, "python")
    exec(compile(code, "devices.md", "exec"), scope)  # noqa: S102
    found = scope["found"]
    rows = {cells[0]: cells[1:] for cells in (
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")
    )}  # fmt: skip
    form = next(iter(found.values()))
    exponents = (form.prefill_form, form.decode_form, form.activation_form)
    assert rows["closed form"][:3] == [f"{one.exponent:.2f}" for one in exponents]
    for name, one in found.items():
        exponents = (one.prefill_depth, one.decode_depth, one.activation)
        done = search_shapes(
            "plas-10b", "plas", board_of(name).device, Request(1, 1024, 16, 2, 2), Budget(total_s=0.2)
        )
        i, s = done.best[0], done.shapes
        best = f"{s.layers[i]}, {s.width[i]}, {s.experts[i]}, {s.ffn_ratio[i]:g}, {done.loss[i]:.3f}"
        assert rows[name] == [*(f"{e.exponent:.2f}" for e in exponents), best]
        free = one.free_depth.values
        assert max(free) / min(free) <= 1.4
    assert set(rows) == {"device", "---", "closed form", *found}


FREE = ["search", "--device-space", "example", "--prompt", "1024", "--output", "16"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["--ttft", "100ms", "--loss", "2.9"],
            3,
            "no device of the space serves: the fastest shape of loss 2.9",
        ),
        (["--cluster", "rtx-4090"], 2, "--cluster: the device is what is looked for; leave it out"),
        (["--memory", "8GB"], 2, "--memory: the device is what is looked for"),
        (["--efficiency", "edge"], 2, "the file's own `prefill` and `decode` say"),
        (["--budgets", "1s"], 2, "--budgets is not read with --device-space"),
        (["--loss", "nan"], 2, "--loss: 'nan' is not a finite number"),
        (["--law", "besiroglu"], 2, "law besiroglu needs tokens"),
        (["--latency", "plas", "--batch", "2"], 2, "batch 1"),
    ],
)
def test_refusals(words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FREE, *words]) == code
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_same_bytes_and_the_front(capsys: pytest.CaptureFixture[str]) -> None:
    pages = []
    for _ in range(2):
        assert main([*FREE, "--ttft", "100ms", "--json"]) == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]
    rows = json.loads(pages[0])["table"]
    prices, losses = [row["price"] for row in rows], [row["loss"] for row in rows]
    assert prices == sorted(prices) and losses == sorted(losses, reverse=True) and len(rows) == 12


def test_a_loss_read_off_the_front_finds_its_own_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FREE, "--ttft", "100ms", "--json"]) == 0
    for row in json.loads(capsys.readouterr().out)["table"]:
        assert main([*FREE, "--ttft", "100ms", "--loss", f"{row['loss']}", "--json"]) == 0
        steps = json.loads(capsys.readouterr().out)["steps"]
        assert (steps["price"]["value"], steps["loss"]["value"]) == (row["price"], row["loss"])
        assert steps["shape"]["value"].startswith(f"l{row['layers']}-d{row['width']}-")


@pytest.mark.parametrize(
    "words",
    [FREE, ["search", "--cluster", "jetson-agx-orin-64gb,rtx-4090", "--prompt", "1024", "--output", "16"]],
)
def test_what_was_asked_is_given(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Every word of the question that changes the answer stands in it."""
    more = [
        "--ttft",
        "1s",
        "--loss",
        "3.5",
        "--head",
        "int8",
        "--weights",
        "int4",
        "--law",
        "besiroglu",
        "--tokens",
        "1T",
    ]
    assert main([*words, *more, "--batch", "2", "--json"]) == 0
    given = {name: step["value"] for name, step in json.loads(capsys.readouterr().out)["given"].items()}
    wanted = {
        "ttft_s": 1,
        "loss_asked": 3.5,
        "head_bytes": 1,
        "weight_bytes": 0.5,
        "tokens": 1e12,
        "batch": 2,
    }
    assert {name: given[name] for name in wanted} == wanted and given["law"] == "besiroglu"
