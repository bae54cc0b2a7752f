"""`meshwright collective`, `transfer`, `fabric` and `pipeline`: one screen, the book's figures, one line for a slip."""

import json
import re
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


LATENCIES = [
    "all-to-all 1GiB --cluster v5e:16x16*4", "all-to-all 1MiB --cluster v5e:16x16*4", "all-gather 1KiB --cluster v5p:4x4x4",
    "all-reduce 1GiB --cluster h100:8x4", "all-reduce 1MB --cluster h100:8x4", "permute 1MiB --cluster v5p:4x4x4",
    "all-gather 64KiB --cluster v5e:16x16*4", "ragged-all-to-all 1MB --top-k 2 --cluster h100:8x4",
    "all-gather 2MB --cluster h100:8x2", "reduce-scatter 3MiB --cluster h100:8x64",
]  # fmt: skip


@pytest.mark.parametrize("words", LATENCIES)
def test_the_short_form_is_what_its_formula_gives(capsys: Capture, words: str) -> None:
    """Hops run under the bytes of a torus, a tier adds its latency; several levels may bind by different parts."""
    step = json.loads(page(capsys, "collective", *words.split(), "--json"))["steps"]
    bandwidth, latency, t = (step[name]["value"] for name in ("t_bandwidth", "t_latency", "t_approx"))
    formula = step["t_approx"]["formula"]
    if "t_bandwidth" in formula:
        given = max(bandwidth, latency) if formula.startswith("max") else bandwidth + latency
        assert t == pytest.approx(given)
    else:
        parts = [
            float(n) * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}[u]
            for n, u in re.findall(r"([\d.]+) (ns|us|ms|s)\b", formula)
        ]
        assert t == pytest.approx(max(parts) if formula.startswith("max") else sum(parts), rel=2e-3)
    rule = step["t_latency"]["note"]
    assert ("add" in rule) == (not formula.startswith("max") or "*" in words)


def test_the_trees_other_count_is_told(capsys: Capture) -> None:
    """128 domains: a NIC brings in all others', the book's leaf only its own 32."""
    out = " ".join(page(capsys, *["collective", "all-gather", "1GB", "--cluster", "h100:8x128"]).split())
    assert (
        "V / t is 403.1 GB/s; the book's tree form counts at a leaf of 32 the other 31 only, 412.9 GB/s"
        in out
    )
    assert "tree form" not in page(capsys, *["collective", "all-gather", "1GB", "--cluster", "h100:8x32"])


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
        ("collective all-to-all 1GiB --cluster v5p:4x4x4 --top-k 2", "--top-k is for ragged-all-to-all, not for all-to-all; drop it"),
        ("collective ragged-all-to-all 1GiB --cluster v5p:4x4x4 --experts 8", "needs either top_k (of experts) or a fraction"),
        ("collective all-gather 1GiB --cluster v5p:4x4x4 --profile boook", "unknown profile 'boook'; did you mean book"),
        ("collective all-gather 1GiB", "--cluster"),
        ("collective all-gather -1GiB --cluster v5p:4x4x4", "'-1GiB' is below zero"),
        ("collective all-gather bf16[8,8 --cluster v5p:4x4x4", "cannot read array 'bf16[8,8'; write sizes as numbers, like bf16[8192,28672]"),
        ("collective all-gather bf16[4096_X,8192] --cluster v5p:4x4x4", "is split over X, which says nothing here; write the whole array bf16[4096,8192]"),
        ("collective ragged-all-to-all 1GiB --cluster v5p:4x4x4", "needs to know what is sent: give top_k, or a fraction"),
        ("collective all-gather 1GiB --cluster v5p:4x4x4 --experts 8", "--experts is for ragged-all-to-all, not for all-gather; drop it"),
        ("collective ragged-all-to-all 1GiB --cluster h100:8x1 --top-k 2 --fraction 0.3", "--top-k and --fraction both say what is sent; keep one"),
        ("collective ragged-all-to-all 1GiB --cluster h100:8x1 --experts 8 --fraction 0.3", "a fraction of a full exchange needs no experts"),
        ("collective ragged-all-to-all 1GiB --cluster h100:8x1 --top-k 2 --experts 7", "7 experts do not spread evenly over 8 devices; use a multiple of 8"),
        ("collective all-reduce 1GiB --cluster h100:8x4 --one-way", "one_way is for rings, and nvlink, ib400 closes none here; drop it"),
        ("collective all-gather 1GiB --cluster v5e:4x8 --axes x --one-way", "one_way is for rings, and x closes none here"),
        ("collective permute 1GiB --cluster v5p:4x4x4 --one-way", "one_way changes nothing: a permute goes round in one direction"),
        ("collective all-gather 1GiB --cluster h100:8x4 --sharp theory", "sharp=theory is for an all-reduce, and all-gather reduces nothing"),
        ("collective all-reduce 1GiB --cluster v5p:4x4x4 --sharp off", "sharp=off is for switches, and x, y, z is a torus"),
        ("transfer 1GiB --cluster v5e:4x4 --src 0,0", "a transfer needs --src and --dst, or --from-host"),
        ("transfer 1GiB --cluster v5e:4x4 --src a --dst 1,1", "--src: cannot read 'a'; write coordinates like 0,3"),
        ("transfer 1GiB --cluster v5e:4x4 --from-host --src 0,0", "drop --src and --links"),
        ("transfer 1GiB --cluster v5e:4x4 --from-host --times bf16[8,128]", "needs the array's shape too"),
        ("transfer int8[64,64] --cluster v5e:4x4 --from-host --times bf16[8,32]", "last dimension of bf16[8,32] is 32 and the first of int8[64,64] is 64"),
        ("fabric v5p:4x4x4", "is a torus, without switches; ask 'meshwright inventory v5p:4x4x4'"),
        ("pipeline --stages 4 --micro-batches 8 --width 8192", "--width is for the hops; give --tokens too"),
        ("pipeline --stages 4 --micro-batches 3 --chunks 2", "2 chunks a stage run whole rounds of 4 micro-batches"),
        ("pipeline --stages 4 --micro-batches 8 --tokens 1M --width 8 --layers 8 --rate 1GB/s --chunks 2", "--chunks is for the bubble and changes no hop"),
        ("pipeline --stages 4 --micro-batches 8 --tokens 1M --width 8 --layers 3 --rate 1GB/s", "3 layers leave some of 4 stages without one"),
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
