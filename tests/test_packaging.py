"""What is installed, what importing it costs, and that the documents are about this code."""

import re
import subprocess
import sys
import tomllib
from operator import attrgetter
from pathlib import Path

import meshwright as mw

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("optimizer", "costmodel", "hardware", "search")


def test_every_package_folder_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(("meshwright", *init.parent.relative_to(ROOT).parts))
        for top in FOLDERS
        for init in (ROOT / top).rglob("__init__.py")
    }
    assert {"meshwright", *found} == set(listed)


def test_the_top_level_is_the_fixed_one() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    if not tracked:  # an sdist has no history
        tracked = "\n".join(p.name for p in ROOT.iterdir())
    top = {line.split("/")[0] for line in tracked.splitlines()}
    fixed = {
        "pyproject.toml", "README.md", *FOLDERS, "tests", "benchmarks", "__init__.py", "py.typed",
        "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "docs",
    }  # fmt: skip
    assert {name for name in top if not name.startswith(".")} <= fixed


def test_importing_the_face_loads_nothing_heavy() -> None:
    code = (
        "import sys, meshwright; "
        "print(sorted({'ortools', 'pandas', 'numpy', 'pydantic', 'yaml', 'rich'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert out.stdout.strip() == "[]"


def test_every_name_of_the_face_is_there() -> None:
    for name in mw.__all__:
        assert getattr(mw, name) is not None


def test_every_name_that_the_pages_mention_is_there() -> None:
    pages = {
        path.name: path.read_text(encoding="utf-8")
        for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    }
    named = {name for text in pages.values() for name in re.findall(r"\bmw\.(\w+(?:\.\w+)*)", text)}
    for name in named:
        assert name.split(".")[0] in mw.__all__, name
        attrgetter(name)(mw)  # raises where a name is missing
    asked = set(re.findall(r"\bmw\.(\w+)", pages["json.md"]))
    assert {"Plan", "load_plan", "load_priced", "save_plan"} <= asked


def test_no_file_is_long() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for top in (*FOLDERS, "tests", "benchmarks")
        for path in (ROOT / top).rglob("*.py")
        if (count := len(path.read_text().splitlines())) > 400
    }
    assert long == {}
