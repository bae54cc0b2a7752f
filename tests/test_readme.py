"""The README is executed: its commands run and print what it shows, its Python runs, its CI command is CI's."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pages import blocks

from meshwright.optimizer import cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands() -> list[tuple[str, list[str]]]:
    """(command, lines it must print) of every console block; indentation and line order count, gaps do not."""
    out: list[tuple[str, list[str]]] = []
    for block in blocks(README, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                out.append((line[2:], []))
            else:
                out[-1][1].append(line)
    return out


def test_every_command_prints_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command, shown in commands():
        words = shlex.split(command)
        assert words[0] == "meshwright"
        code = cli.main(words[1:])
        printed = capsys.readouterr().out.splitlines()
        assert code == (3 if any("INFEASIBLE" in line for line in shown) else 0), command
        at = 0
        for line in shown:
            rest = [n for n, text in enumerate(printed[at:], at) if text.startswith(line)]
            assert rest, f"{command}\ndoes not print, after line {at}:\n{line}\nbut:\n" + "\n".join(printed)
            at = rest[0] + 1


def test_the_python_of_the_readme_runs() -> None:
    scope: dict[str, object] = {}
    for block in blocks(README, "python"):
        exec(compile(block, "README.md", "exec"), scope)  # noqa: S102


def test_ci_runs_the_commands_of_the_readme() -> None:
    install, test = (part.strip() for part in blocks(README, "sh")[1].split("&&"))
    script = (ROOT / ".ci" / "run").read_text()
    assert install.replace("pip install", "pip install --quiet") in script
    assert test in script


def test_the_main_job_runs_as_a_program() -> None:
    """The first of the two commands, less the installation that this suite runs on."""
    command = blocks(README, "sh")[0].split("&&")[1].strip()
    code = (
        f"import sys; from meshwright.optimizer.cli import main; sys.exit(main({shlex.split(command)[1:]!r}))"
    )
    environment = {k: v for k, v in os.environ.items() if k in ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    assert "OPTIMAL" in done.stdout


def test_every_subcommand_is_in_the_readme() -> None:
    _, subparsers = cli.build_parser()
    for name in subparsers.choices:
        assert f"meshwright {name}" in README, name
    for page in re.findall(r"\]\((docs/[\w-]+\.md)\)", README):
        assert (ROOT / page).exists(), page
