"""Pages of the documentation as tests read them: their blocks, their commands, and what a command must print."""

import re
import shlex
from collections.abc import Iterator


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def commands(page: str) -> Iterator[tuple[list[str], list[str]]]:
    """(words after `$ meshwright`, lines that the page shows) of every command."""
    for block in blocks(page, "console"):
        for part in block.split("$ meshwright ")[1:]:
            command, *shown = part.splitlines()
            yield shlex.split(command), shown


def check_printed(words: list[str], shown: list[str], printed: list[str]) -> None:
    """Every shown line begins a printed one."""
    for line in shown:
        assert any(text.startswith(line) for text in printed), (words, line, printed)


def check_in_order(words: list[str], shown: list[str], printed: list[str]) -> None:
    """The same, one below the other."""
    for line in shown:
        found = [n for n, text in enumerate(printed) if text.startswith(line)]
        assert found, f"{shlex.join(words)}\ndoes not print\n{line}\nbut:\n" + "\n".join(printed)
        printed = printed[found[0] + 1 :]


def run_python(page: str, name: str) -> None:
    for block in blocks(page, "python"):
        exec(compile(block, name, "exec"), {})  # noqa: S102
