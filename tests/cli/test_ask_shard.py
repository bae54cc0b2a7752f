"""`meshwright shard`: one screen, the book's figures, one line for an illegal sharding."""

import json
from typing import Any

import pytest

from meshwright.optimizer.cli import main

Capture = pytest.CaptureFixture[str]
MLP = "In[B,D] @ Win[D,F] -> H[B,F]; H @ Wout[F,D] -> Out[B,D]"


def ask(capsys: Capture, sharding: str, words: str) -> dict[str, Any]:
    assert main(["shard", sharding, *words.split(), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    answer: dict[str, Any] = json.loads(out)
    return answer


ANSWERS = [
    # rows 13, 15, 16, 17 and 51 of the docs table; chapter 3, question 5: 497 us, 62 us of math, short form V / (3 W)
    ("A[I_X,J] @ B[J,K] -> C[I_X,K]", "--sizes I=1024,J=4096,K=4096 --cluster v5p:4x4x4 --mesh X=4,Y=4,Z=4", "bytes_A", 2 * 1024 * 4096 / 4),
    ("A[I_X,J] @ B[J,K] -> C[I_X,K]", "--sizes I=1024,J=4096,K=4096 --cluster v5p:4x4x4 --mesh X=4,Y=4,Z=4", "compute_copies", 16),
    ("A[I,J_X] @ B[J_X,K] -> C[I,K_X]", "--sizes I=8192,J=8192,K=8192 --cluster v5p:4x4x4 --mesh X=4", "t_multiply_then_reduce", 598.9e-6),
    ("A[I,J] @ B[J,K] -> C[I,K]", "--sizes I=8192,J=8192,K=8192 --cluster v4:4x4x4 --free A,B", "t_comms_approx", 0.0004971),
    ("A[I,J] @ B[J,K] -> C[I,K]", "--sizes I=8192,J=8192,K=8192 --cluster v4:4x4x4 --free A,B", "t_math", 6.2472e-5),
    (MLP, "--sizes B=128,D=8192,F=32768 --cluster v5e:2x2 --free all --like Out=In --memory 300MB", "t_comms", 3.4953e-5),
    ("A[I_X,J] -> A[I,J_X]", "--sizes I=8192,J=8192 --cluster v5p:4x4x4 --mesh X=4", "t", 134217728 / (4 * 180e9)),
    # int8: half the bytes, twice the rate
    ("A[I_X,J] -> A[I,J_X]", "--sizes I=8192,J=8192 --cluster v5p:4x4x4 --mesh X=4 --dtype int8", "t", 67108864 / (4 * 180e9)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sharding", "words", "step", "value"), ANSWERS, ids=[f"{a[0]} {a[2]}" for a in ANSWERS]
)
def test_rows_of_the_book(capsys: Capture, sharding: str, words: str, step: str, value: float) -> None:
    answer = ask(capsys, sharding, f"{words} --profile book")
    assert answer["steps"][step]["value"] == pytest.approx(value, rel=5e-4)


@pytest.mark.parametrize(("sharding", "words"), sorted({(a[0], a[1]) for a in ANSWERS}))
def test_an_answer_fits_one_screen(capsys: Capture, sharding: str, words: str) -> None:
    assert main(["shard", sharding, *words.split(), "--profile", "book"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 50 and max(map(len, lines)) <= 110
    assert "what binds" in lines


def test_what_to_do_and_when_it_flips(capsys: Capture) -> None:
    words = "--sizes B=1024,D=8192,F=8192 --cluster v5p:4x4x4 --mesh X=4 --profile book"
    answer = ask(capsys, "X[B,D] @ Y[D_X,F] -> Z[B,F]", words)
    assert answer["steps"]["strategy"]["value"] == "multiply, then reduce"
    assert answer["steps"]["strategy"]["note"] == "multiply D/X, all-reduce Z over X"
    assert answer["steps"]["move_2"]["note"] == "all-reduce Z[B,F]{U_X} over X -> Z[B,F], 16 MiB"
    assert any(
        "It flips to: all-to-all Y over X, multiply F/X, all-gather Z over X, at B above 2,730.7" in n
        for n in answer["notes"]
    )


@pytest.mark.parametrize("sizes", [{"B": 128, "D": 8192, "F": 32768}, {"B": 8192, "D": 512, "F": 64}])
def test_each_product_overlaps_with_its_own_moves(capsys: Capture, sizes: dict[str, int]) -> None:
    """The page's formulas give the page's values: compute under one product hides no moves of the other."""
    text = "In[B_X,D] @ Win[D,F_X] -> H[B,F_X]; H @ Wout[F_X,D] -> Out[B_X,D]"
    words = f"--sizes {','.join(f'{k}={v}' for k, v in sizes.items())} --cluster v5e:2x2 --mesh X=4"
    steps = {name: step["value"] for name, step in ask(capsys, text, words)["steps"].items()}
    parts = [(steps[f"compute_{i}"], steps[f"comms_{i}"]) for i in (1, 2)]
    assert steps["t_lower"] == pytest.approx(sum(max(part) for part in parts))
    assert steps["t_upper"] == pytest.approx(sum(sum(part) for part in parts))
    assert steps["hidden"] == pytest.approx((steps["t_upper"] - steps["t_lower"]) / steps["t_comms"])
    b, d, f = sizes.values()
    assert steps["flops"] == pytest.approx(2 * 2 * b * d * f / 4)
    assert steps["t_hbm"] == pytest.approx(steps["hbm_bytes"] / 819e9)
    one = ask(
        capsys, "A[I_X,J] @ B[J_X,K] -> C[I,K]", "--sizes I=64,J=4096,K=64 --cluster v5e:2x2 --mesh X=4"
    )
    step = one["steps"]
    assert step["t_lower"]["formula"] == "max(compute, t_comms)"
    assert step["t_lower"]["value"] == max(step[n]["value"] for n in ("t_math", "t_hbm", "t_comms"))
    assert step["flops"]["formula"].startswith("2 I J K")


def test_without_overlap_compute_counts_too(capsys: Capture) -> None:
    words = "--sizes I=8192,J=8192,K=8192 --cluster v5p:4x4x4 --mesh X=4"
    whole, none = (
        ask(capsys, "A[I,J_X] @ B[J_X,K] -> C[I,K]", f"{words} --overlap {w}") for w in ("full", "none")
    )
    assert whole["steps"]["t_multiply_then_reduce"]["value"] == whole["steps"]["t_lower"]["value"]
    assert none["steps"]["t_multiply_then_reduce"]["value"] == none["steps"]["t_upper"]["value"]


@pytest.mark.parametrize(
    ("sharding", "words", "message"),
    [
        ("A[I_X,J_X] @ B[J,K]", "--sizes I=8,J=8,K=8", "axis X splits I and J; an axis may be used once in an array"),
        ("A[I_X,J] @ B[J,K_X]", "--sizes I=8,J=8,K=8", "write the output as C[I_X,K] or C[I,K_X]"),
        ("A[I_W,J] @ B[J,K]", "--sizes I=8,J=8,K=8", "unknown mesh axis 'W'; known: X, Y, Z"),
        ("A[I_X,J] @ B[J,K]", "--sizes I=9,J=8,K=8", "I=9 does not divide over X=4; pad it to 12"),
        ("A[I_X,J] @ B[J,K]", "--sizes I=8,J=8", "dimension K of B has no size; give it, like --sizes K=8192"),
        ("A[I_X,J] @ B[J,K]", "--sizes I=8,J=8,K", "--sizes: cannot read 'K'; write name=value"),
        ("A[I_X,J] @ B[J,K]", "--sizes I=8,J=8,K=8,K=9", "--sizes: K is given twice"),
        ("A[I_X,J] @ B[J,K]", "--sizes I=8,J=8,K=x", "--sizes K: "),
        ("A[I_X,J] @ B[J,K]", "--sizes I=8,J=8,K=8 --overlap some", "unknown overlap 'some'"),
        ("A[I_X,J] @ B[J,K]", "--sizes I=8,J=8,K=8 --dtype bf61", "unknown dtype 'bf61'"),
        ("A[I_X,J] @ B[J,K]", "--sizes I=8,J=8,K=8 --mesh X=5", "mesh X=5 cannot be laid over x 4 x y 4 x z 4"),
        ("A[I,J] @ A[J,K] -> C[I,K]", "--sizes I=8,J=8,K=8", "A[I,J] and A[J,K] are two arrays of one name; call one of them D"),
        ("A[I,J] @ B[J,K]; C[I_X,K] @ D[K,L] -> E[I,L]", "--sizes I=8,J=8,K=8,L=8", "C[I,K] and C[I_X,K] are two arrays of one name"),
        ("A[I,J] @ B[J,K]; C @ D[K,L]", "--sizes I=8,J=8,K=8,L=8", "C[I,K] has its name already; give the output a name of its own, like -> E[I,L]"),
        ("A[I,J] @ B[J,K] -> A[I,K]", "--sizes I=8,J=8,K=8", "A[I,J] has its name already"),
        (MLP, "--sizes B=128,D=8192,F=32768 --free all --like Out=In --memory 1MB", "no sharding fits 976.6 KiB on a device: the smallest takes"),
    ],
)  # fmt: skip
def test_a_slip_is_one_line(capsys: Capture, sharding: str, words: str, message: str) -> None:
    assert main(["shard", sharding, *words.split(), "--cluster", "v5p:4x4x4"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and len(err.splitlines()) == 1


def test_a_pinned_share_of_peak_is_what_products_reach(capsys: pytest.CaptureFixture[str]) -> None:
    """As for the planner: before, `mfu=` left the products of `shard` at the whole peak."""
    seconds = []
    for efficiency in ("ideal", "mfu=0.4"):
        words = [
            "shard",
            "A[I,J] @ B[J,K] -> C[I,K]",
            "--sizes",
            "I=8192,J=8192,K=8192",
            "--cluster",
            "v5p:4x4x4",
        ]
        assert main([*words, "--efficiency", efficiency, "--json"]) == 0
        seconds.append(json.loads(capsys.readouterr().out)["steps"]["t_math"]["value"])
    assert seconds[1] == pytest.approx(seconds[0] / 0.4)
