"""docs/laws.md and docs/layers.md are executed: their files are written, their commands print what they show."""

import re
import shlex
from pathlib import Path

import pytest

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
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in block.split("$ meshwright ")[1:]:
            command, *shown = part.splitlines()
            assert cli.main(shlex.split(command)) == 0, command
            printed = capsys.readouterr().out.splitlines()
            for line in shown:
                found = [n for n, told in enumerate(printed) if told.startswith(line)]
                assert found, f"{command}\ndoes not print\n{line}\nbut:\n" + "\n".join(printed)
                printed = printed[found[0] + 1 :]


def test_every_law_is_on_the_page_with_its_source() -> None:
    told = dict(
        re.findall(r"^\| `(\S+)` \| .* \| arXiv (\S+) \|$", (DOCS / "laws.md").read_text(), re.MULTILINE)
    )
    assert set(told) == set(law_names())
    assert all(paper in load_law(name).source for name, paper in told.items())
