"""docs/questions.md: every row's command runs and its page holds what the row says is the answer."""

import re
import shlex
from pathlib import Path

import pytest

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


def test_the_library_answers_the_same() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(code, "questions.md", "exec"), {})  # noqa: S102
