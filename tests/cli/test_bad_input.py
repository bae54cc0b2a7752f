"""Bad input: one clear line on stderr, exit code 2, nothing on stdout, no traceback; the text is pinned."""

from pathlib import Path

import bad_input_cases
import bad_input_layouts
import pytest
from bad_input_files import FILES

from meshwright.optimizer.asks import COMMANDS
from meshwright.optimizer.cli import main

CASES = [*bad_input_cases.CASES, *bad_input_layouts.CASES]


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 40
    assert len({(template, given) for template, given, _ in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("template", "given", "text"), CASES, ids=[f"{t.split()[0]} {g}"[:50] for t, g, _ in CASES]
)
def test_one_line_and_exit_code_2(
    template: str,
    given: str,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.yaml").mkdir()
    argv = words(template, given)
    for name in FILES.keys() & {*argv, *(word.rpartition("=")[2] for word in argv)}:
        (tmp_path / name).write_bytes(FILES[name])
    code = main(argv)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and err.endswith("\n")
    if text.endswith("..."):
        assert err.startswith(f"meshwright: {text.removesuffix('...')}")
    else:
        assert err == f"meshwright: {text}\n"


def words(template: str, given: str) -> list[str]:
    """The command line; an empty `given` stays one empty argument."""
    argv: list[str] = []
    for word in template.split():
        argv += (given.split() or [""]) if word == "{}" else [word]
    return argv


def test_no_arguments_name_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    own = (
        "recommend", "estimate", "compare", "front", "explain", "balance", "profile", "calibrate", "chips", "clusters",
        "models",
    )  # fmt: skip
    names = ", ".join((*own, *(name.replace("_", "-") for name in COMMANDS)))
    assert capsys.readouterr().err == f"meshwright: name a command: {names}; see meshwright --help\n"
