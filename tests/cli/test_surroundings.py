"""The command as a process: poor environments, reproducible bytes, readers that leave, what gets imported."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "meshwright.optimizer"]
RECOMMEND = ["recommend", "tiny.json", "--cluster", "h100:8x1", "--batch", "64Ki", "--seq", "4096"]
pytestmark = pytest.mark.usefixtures("folder")


def run(words: list[str], **env: str) -> subprocess.CompletedProcess[bytes]:
    """The command with an almost empty environment."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "SYSTEMROOT")}
    return subprocess.run(
        [*COMMAND, *words], env={**kept, **env}, capture_output=True, timeout=120, check=False
    )


def test_two_processes_print_the_same_bytes() -> None:
    first, second = (run([*RECOMMEND, "--json"], PYTHONHASHSEED=seed) for seed in ("1", "4242"))
    assert first.returncode == 0 and first.stderr == b""
    assert first.stdout == second.stdout
    assert json.loads(first.stdout)["certificate"]["status"] == "OPTIMAL"


def test_no_home_no_terminal_no_unicode() -> None:
    poor = {"HOME": "/nonexistent", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for words in (RECOMMEND, ["chips", "--sources"], ["clusters", "--sources"], ["models", "--sources"]):
        done = run(words, **poor)
        assert done.returncode == 0, done.stderr
        assert done.stderr == b"" and done.stdout.isascii()


def test_an_error_with_odd_letters_stays_one_line() -> None:
    done = run(["recommend", "mod\u00e8le", *RECOMMEND[2:]], PYTHONIOENCODING="ascii")
    assert done.returncode == 2 and done.stdout == b""
    assert done.stderr.startswith(b"meshwright: unknown model 'mod") and done.stderr.count(b"\n") == 1


def test_a_reader_that_leaves_is_no_fault() -> None:
    process = subprocess.Popen([*COMMAND, *RECOMMEND], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 0


@pytest.mark.skipif(os.name == "nt", reason="signals are sent another way")
@pytest.mark.parametrize(
    "module", ["argparse", "numpy._core._multiarray_umath", "meshwright.optimizer.solve"]
)
def test_an_interrupt_ends_quietly(module: str) -> None:
    """Sent when a module has just been loaded: before, amid and after the imports, on a machine of any speed."""
    words = ["recommend", "llama-3-70b", "--cluster", "v5p:16x16x16", "--batch", "4Mi", "--seq", "4096"]
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", *COMMAND[1:], *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.split(b"|")[-1].strip() == module.encode():
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    told = [line for line in err.splitlines() if not line.startswith(b"import time:")]
    assert (process.returncode, out, told) == (130, b"", [b"meshwright: interrupted"])


def loaded_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after a statement."""
    code = (
        f"import sys\n{statement}\nprint(' '.join({{m.split('.')[0] for m in sys.modules}}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = {"ortools", "pandas", "numpy", "pydantic", "yaml", "rich"}
    assert loaded_after("import meshwright") & heavy == set()
    assert loaded_after("import meshwright.optimizer.cli") & heavy == set()


@pytest.mark.parametrize("command", ["chips", "clusters"])
def test_catalogues_load_no_solver(command: str) -> None:
    loaded = loaded_after(f"from meshwright.optimizer.cli import main\nmain([{command!r}])")
    assert loaded & {"ortools", "pandas", "numpy"} == set()


WITHOUT_SOLVER = """
import sys
from importlib import metadata
installed = metadata.version
def version(name):
    if name == "ortools":
        raise metadata.PackageNotFoundError(name)
    return installed(name)
metadata.version = version
sys.modules["ortools"] = None
from meshwright.optimizer.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_an_estimate_needs_no_solver() -> None:
    words = ["estimate", *RECOMMEND[1:], "--layout", "dp=8,zero=1", "--json"]
    bare = subprocess.run([sys.executable, "-c", WITHOUT_SOLVER, *words], capture_output=True, check=True)
    without, whole = json.loads(bare.stdout), json.loads(run(words).stdout)
    assert whole["provenance"]["versions"].pop("ortools")
    assert set(whole["provenance"]["versions"]) == {"meshwright", "numpy"}
    assert without == whole


def test_the_installed_script_is_the_same_command() -> None:
    script = Path(sys.executable).with_name("meshwright")
    if not script.exists():
        pytest.skip("the package is not installed with its script")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("meshwright ")
