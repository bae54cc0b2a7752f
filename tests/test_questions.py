"""docs/questions.md: every row's command runs and its page holds what the row says is the answer."""

import ast
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.optimizer.cli import main

PAGE = Path(__file__).parents[1] / "docs" / "questions.md"
LATER = {"5", "6", "46", "50"}
ROW = re.compile(r"\| (\d+|[a-z-]+ Q\S.*?) \| (.+?) \| (.+?) \|(.*)\|")


def rows() -> list[tuple[str, str, str]]:
    """(number or exercise, command, answer) of every row."""
    found = [ROW.fullmatch(line) for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [(m[1], m[3], m[4]) for m in found if m]


def test_every_question_has_a_row() -> None:
    assert {int(row) for row, _, _ in rows() if row.isdigit()} == set(range(1, 57))
    assert {row for row, command, _ in rows() if command.startswith("later")} == LATER


@pytest.mark.parametrize(
    ("row", "command", "answer"),
    [pytest.param(*row, id=f"{row[0]}-{i}") for i, row in enumerate(rows()) if row[0] not in LATER],
)
def test_a_question_is_answered(
    row: str, command: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command.strip("`"))
    assert words[0] == "meshwright"
    assert main(words[1:]) == 0
    page = capsys.readouterr().out
    # One screen: a page that scrolls is read by nobody.
    assert len(page.splitlines()) <= 60, f"{len(page.splitlines())} lines"
    names = re.findall(r"`(\w+)`", answer.split(";")[0])
    said = re.findall(r'"([^"]+)"', answer.split(";")[0])
    assert names or said
    for name in names:
        assert re.search(rf"(?<!\w){name}(?!\w)", page), f"{name} is not on the page of {command}"
    for text in said:
        assert text in " ".join(page.split()), f"{text!r} is not on the page of {command}"


def test_every_function_behind_a_command_is_on_the_face() -> None:
    """What a command module imports and returns a Working is public, and so is every type of ours that it takes."""
    face = {id(getattr(mw, name)) for name in mw.__all__}
    asks = Path(mw.__file__).parent / "optimizer" / "asks"
    behind = [
        getattr(import_module(node.module), alias.name)
        for path in asks.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("meshwright.costmodel")
        for alias in node.names
    ]
    answering = [
        f for f in behind if callable(f) and getattr(f, "__annotations__", {}).get("return") is mw.Working
    ]
    assert len({f.__qualname__ for f in answering}) > 20
    assert [f"{f.__module__}.{f.__name__}" for f in answering if id(f) not in face] == []


def test_commands_with_several_questions_have_a_function_for_each() -> None:
    service = mw.Service("llama-3-8b", "v5e:4x4", 8192)
    network = mw.network_of("v5e:4x4")
    answers = {
        "ways_throughput": mw.decode_sharding(service, 8),
        "t_floor": mw.decode_sweep(service, 8),
        "min_chips": mw.decode_slices(service),
        "idle": mw.pipeline_schedule(4, 8),
        "t_load": mw.decode_numbers(mw.Served(8e9, 8e9, 1.0), mw.Server(16, 2e14, 8e11, 16e9), 4),
    }
    for name, working in answers.items():
        assert working.number(name) > 0
    assert network == service.network and mw.load_framework("jax").name == "jax"


def test_a_working_prints_as_plain_text() -> None:
    text = str(mw.pipeline_schedule(4, 8)).splitlines()
    assert text[0].startswith("How long do 8 micro-batches take")
    assert "p = 4 stages" in text and "busy = 24 s (m t)" in text
    assert "idle = 0.272727 ratio (1 - busy / step)" in text and text[-1].startswith("a stage waits")


def test_the_library_answers_the_same() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(code, "questions.md", "exec"), {})  # noqa: S102
