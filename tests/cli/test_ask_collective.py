"""`meshwright collective`, `transfer`, `fabric` and `pipeline`: one screen, the book's figures, one line for a slip."""

import json
import subprocess
import sys
from typing import Any

import pytest

from meshwright.optimizer.cli import main

Capture = pytest.CaptureFixture[str]


def page(capsys: Capture, *words: str) -> str:
    assert main([*words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def values(capsys: Capture, *words: str) -> dict[str, Any]:
    data = json.loads(page(capsys, *words, "--json"))
    return {name: step["value"] for name, step in data["steps"].items()}


BOOK = ("--profile", "book")
ANSWERS = [
    # rows of the docs table: question of the book, words, step, value
    (11, "transfer bf16[8,128,8192] --cluster v5e:4x4 --src 0,0 --dst 3,3", "t_last_byte", 0.00019241),
    (12, "transfer int8[131072,131072] --cluster v5e:4x4 --from-host --times bf16[8,131072]", "t_lower", 0.17896),
    (14, "collective all-gather bf16[2048,8192] --cluster v5e:4x8 --axes x", "t_exact", 0.00055924),
    (14, "collective all-gather bf16[1024,4096] --cluster v4:4x4x4 --axes x --sharded-over y", "t_approx", 2.3302e-5),
    (14, "collective all-gather bf16[1024,4096] --cluster v4:4x4x4 --axes x,y", "t_approx", 4.6603e-5),
    (14, "collective all-reduce bf16[1024,4096] --cluster v4:4x4x4 --axes z --sharded-over x,y", "t_approx", 1.1651e-5),
    (14, "collective all-gather 256B --cluster v4:4x4x4 --axes x", "t_exact", 2e-6),
    (18, "collective all-to-all 1GB --cluster v5p:4x4x4 --axes x", "over_all_gather", 0.25),
    (18, "collective all-to-all 1GB --cluster v5p:4x4x4 --axes x,y,z", "t_approx", 8.6806e-5),
    (18, "collective all-to-all 1GB --cluster h100:8x2", "t_exact", 0.000625),
    (18, "collective ragged-all-to-all 1GB --cluster h100:8x1 --top-k 4", "crossing", 0.36209),
    (52, "fabric h100:8x128", "switches", 560),
    (52, "fabric h100:8x512", "cores", 64),
    (53, "collective all-gather bf16[4096,65536] --cluster h100:8x1", "t_exact", 0.0010439),
    (53, "collective all-reduce 1GB --cluster h100:8x1 --sharp theory", "t_exact", 1e9 / 450e9),
    (53, "collective all-gather 1GB --cluster h100:8x32 --over 256", "algo_bw", 412.9e9),
    (53, "collective all-gather bf16[8192,32768] --cluster h100:8x32 --axes leaf --sharded-over nvlink", "t_exact", 0.0013002),
]  # fmt: skip


@pytest.mark.parametrize(("row", "words", "step", "value"), ANSWERS, ids=[f"{a[0]} {a[1]}" for a in ANSWERS])
def test_rows_of_the_book(capsys: Capture, row: int, words: str, step: str, value: float) -> None:
    assert values(capsys, *words.split(), *BOOK)[step] == pytest.approx(value, rel=5e-4)


@pytest.mark.parametrize("words", sorted({a[1] for a in ANSWERS}))
def test_an_answer_fits_one_screen(capsys: Capture, words: str) -> None:
    out = page(capsys, *words.split(), *BOOK)
    assert len(out.splitlines()) <= 45 and max(map(len, out.splitlines())) <= 110
    assert "what binds" in out


def test_a_pipeline_and_its_hops(capsys: Capture) -> None:
    assert values(capsys, "pipeline", "--stages", "2", "--micro-batches", "2")["idle"] == pytest.approx(1 / 3)
    words = "pipeline --stages 4 --micro-batches 8 --tokens 1M --width 8192 --layers 32 --rate"
    assert values(capsys, *words.split(), "90 GB/s")["t_hop"] == pytest.approx(2 * 1e6 * 8192 / 90e9 / 8)


def test_vendors_figures_without_a_profile(capsys: Capture) -> None:
    text = "collective all-gather 1GB --cluster v5p:4x4x4 --axes x"
    words = text.split()
    vendor, book = values(capsys, *words), values(capsys, *words, *BOOK)
    assert vendor["W"] == 200e9 and book["W"] == 180e9
    real = values(capsys, *words, "--efficiency", "default")
    assert real["W"] == pytest.approx(0.9 * 200e9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("collective gather 1GiB --cluster v5p:4x4x4", "unknown collective 'gather'; did you mean all-gather"),
        ("collective all-gather 1 --cluster v5p:4x4x4", "'1' has no unit; write a size like '80 GiB'"),
        ("collective all-gather bf17[2] --cluster v5p:4x4x4", "unknown dtype 'bf17'; did you mean bf16"),
        ("collective all-gather bf16[N,2] --cluster v5p:4x4x4", "dimension N of bf16 has no size"),
        ("collective all-gather 1GiB --cluster v5p:4x4x4 --axes q", "unknown axis 'q'; known: x, y, z"),
        ("collective all-gather 1GiB --cluster v5p:4x4x4 --axes x --over 4", "both say who takes part; keep one"),
        ("collective all-gather 1GiB --cluster v5p:4x4x4 --over four", "--over: 'four' is not a whole number"),
        ("collective all-gather 1GiB --cluster v5p:4x4x4 --axes x --sharded-over x", "axis x has 4 and is asked for 4 ways"),
        ("collective all-to-all 1GiB --cluster v5p:4x4x4 --top-k 2", "all-to-all and routing do not go together"),
        ("collective ragged-all-to-all 1GiB --cluster v5p:4x4x4 --experts 8", "needs either top_k (of experts) or a fraction"),
        ("collective all-gather 1GiB --cluster v5p:4x4x4 --profile boook", "unknown profile 'boook'; did you mean book"),
        ("collective all-gather 1GiB", "--cluster"),
        ("transfer 1GiB --cluster v5e:4x4 --src 0,0", "a transfer needs --src and --dst, or --from-host"),
        ("transfer 1GiB --cluster v5e:4x4 --src a --dst 1,1", "--src: cannot read 'a'; write coordinates like 0,3"),
        ("transfer 1GiB --cluster v5e:4x4 --from-host --src 0,0", "drop --src and --links"),
        ("transfer 1GiB --cluster v5e:4x4 --from-host --times bf16[8,128]", "needs the array's shape too"),
        ("transfer int8[64,64] --cluster v5e:4x4 --from-host --times bf16[8,32]", "last dimension of bf16[8,32] is 32 and the first of int8[64,64] is 64"),
        ("fabric v5p:4x4x4", "is a torus, without switches; ask 'meshwright inventory v5p:4x4x4'"),
        ("pipeline --stages 4 --micro-batches 8 --width 8192", "--width is for the hops; give --tokens too"),
        ("pipeline --stages 4 --micro-batches 8 --tokens 1M", "need --width, --layers, --rate too"),
    ],
)  # fmt: skip
def test_a_slip_is_one_line(capsys: Capture, words: str, message: str) -> None:
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom meshwright.optimizer.cli import main\n"
        "try: main(['collective', '--help'])\nexcept SystemExit: pass\n"
        "bad = {'numpy', 'pydantic', 'ortools', 'rich'} & set(sys.modules)\nassert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
