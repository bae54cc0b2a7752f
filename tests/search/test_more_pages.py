"""docs/laws.md and docs/layers.md are executed: their files are written, their commands print what they show."""

import re
from pathlib import Path

import pytest
from pages import check_in_order, commands

from meshwright.optimizer import cli
from meshwright.search.law import law_names, load_law

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["laws", "layers"])
def test_the_commands_of_a_page_print_what_it_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, content in re.findall(r"```(?:csv|yaml) (\S+)\n(.*?)```", text, re.DOTALL):
        Path(name).write_text(content)
    for words, shown in commands(text):
        assert cli.main(words) == 0, words
        check_in_order(words, shown, capsys.readouterr().out.splitlines())


def test_every_law_is_on_the_page_with_its_source() -> None:
    told = dict(
        re.findall(r"^\| `(\S+)` \| .* \| arXiv (\S+) \|$", (DOCS / "laws.md").read_text(), re.MULTILINE)
    )
    assert set(told) == set(law_names())
    assert all(paper in load_law(name).source for name, paper in told.items())
