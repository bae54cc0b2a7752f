"""`meshwright roofline` and `meshwright inventory`: the book's figures, one screen, plots, and refusals in one line."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwright.optimizer.cli import main

Capture = pytest.CaptureFixture[str]
PRODUCT = "bf16[4096,8192] x bf16[8192,28672]"
ATTENTION = ["--queries", "1", "--keys", "8192", "--heads", "64", "--kv-heads", "8", "--head-dim", "128"]


def steps(capsys: Capture, *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    out = capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert capsys.readouterr().out == out  # the same question, the same bytes
    return {name: step["value"] for name, step in json.loads(out)["steps"].items()}


def book(*words: str) -> tuple[str, ...]:
    return (*words, "--profile", "book")


@pytest.mark.parametrize(
    ("words", "step", "value"),
    [
        # chapter 1: 240 rows on v5e, 120 with int8 weights; 295 on H100
        (book("roofline", "matmul", "bf16[B,D] x bf16[D,F]", "--chip", "v5e"), "critical_batch", 240.24),
        (book("roofline", "matmul", "bf16[B,D] x bf16[D,F]", "--chip", "v5e", "--weights", "int8"),
         "critical_batch", 120.12),
        (book("roofline", "matmul", "bf16[B,D] x bf16[D,F]", "--chip", "h100"), "critical_batch", 295.22),
        # chapter 2: from VMEM 11 rows; from the host 57,500 at 16 GB/s on v6e
        (book("roofline", "matmul", "int8[B,4096] x int8[4096,16384]", "--chip", "v5e", "--from", "vmem"),
         "critical_batch_exact", 10.957),
        (book("roofline", "matmul", "bf16[B,D] x bf16[D,F]", "--chip", "v6e", "--from", "host", "--rate", "16 GB/s"),
         "critical_batch", 57500),
        # chapter 1: two chips that share the contraction, D > 8755
        (book("roofline", "matmul", "bf16[B,D] x bf16[D,F]", "--chip", "v5e", "--split", "2"), "critical_k", 8755.6),
        # chapter 7: attention of decode reads G FLOPs per byte at most
        (book("roofline", "attention", *ATTENTION, "--chip", "v5e"), "intensity_limit", 8),
        # chapter 1 and chapter 12, quiz 1
        (book("roofline", "op", "--dot", "1M", "--chip", "v5e"), "intensity", 0.5),
        (book("roofline", "op", "--add", "1Gi", "--dtype", "fp32", "--vector", "--chip", "h100"), "t_lower", 3.8462e-3),
        (("roofline", "op", "--flops", "1 TFLOP", "--bytes", "1 MB", "--chip", "h100"), "t_math", 1.0111e-3),
        # chapter 2, question 2, and section (a)
        (book("inventory", "v5p:16x20x28"), "hosts", 2240),
        (book("inventory", "v5p:16x20x28"), "cores", 17920),
        (book("inventory", "v5p:16x20x28"), "flops_per_s_bf16", 4.1126e18),
        (book("inventory", "v5p:16x20x28"), "alpha_network", 2550),
        (book("inventory", "v5p:16x20x28"), "alpha_dcn", 73440),
        (book("inventory", "v5p:16x20x28"), "ici_egress", 540e9),
        (book("inventory", "h100:8x128"), "alpha_hbm_bf16", 295.22),
        (book("inventory", "h100:8x128"), "peak_from_clock", 989.43e12),
        (book("inventory", "b200:8x4"), "clock_behind_peak", 1.8558e9),  # 2048 FLOPs per tensor core and cycle
    ],
)  # fmt: skip
def test_figures_of_the_book(capsys: Capture, words: tuple[str, ...], step: str, value: float) -> None:
    assert steps(capsys, *words)[step] == pytest.approx(value, rel=5e-5)


@pytest.mark.parametrize(
    "words",
    [
        ("roofline", "matmul", PRODUCT, "--chip", "v5p", "--weights", "int8", "--tile", "256x256"),
        ("roofline", "matmul", "bf16[B,8192] x bf16[8192,28672]", "--chip", "h100", "--from", "dcn"),
        ("roofline", "attention", *ATTENTION, "--chip", "tpu7x", "--kv-dtype", "int8"),
        ("roofline", "op", "--add", "1Gi", "--vector", "--chip", "v5p"),
        *(("inventory", text) for text in ("v5p:16x20x28", "v5e:8x16*2", "h100:8x128", "gb200:72x8", "mi300x:8x4")),
        ("inventory", "tpu7x:4x4x4*2", "--profile", "book"),
    ],
)  # fmt: skip
def test_each_page_is_one_screen(capsys: Capture, words: tuple[str, ...]) -> None:
    assert main(list(words)) == 0
    page = capsys.readouterr().out
    assert page.count("\n") <= 50
    assert all(len(line) <= 110 for line in page.splitlines())


def test_the_page_says_what_binds_and_by_how_much(capsys: Capture) -> None:
    assert main(["roofline", "matmul", PRODUCT, "--chip", "v5p", "--profile", "book"]) == 0
    page = capsys.readouterr().out
    assert (
        "compute binds, 15.2 times as long as memory; it is compute bound from 168.3 rows and has 4,096"
        in page
    )
    assert main(["inventory", "v5e:8x16"]) == 0
    assert "axis x does not wrap (an axis wraps if its size is 16)" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("product", [PRODUCT, "bf16[B,8192] x bf16[8192,28672]"])
def test_plots_are_drawn_and_reproducible(capsys: Capture, tmp_path: Path, suffix: str, product: str) -> None:
    pytest.importorskip("matplotlib")
    drawn = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}{suffix}"
        assert main(["roofline", "matmul", product, "--chip", "v5p", "--plot", str(path)]) == 0
        drawn.append(path.read_bytes())
    assert drawn[0] == drawn[1]
    assert drawn[0].startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    capsys.readouterr()


def test_a_plot_without_the_library_ends_with_5_and_how_to_get_it(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    asked = ["roofline", "matmul", PRODUCT, "--chip", "v5p", "--plot", str(tmp_path / "a.png")]
    assert main(asked) == 5
    out, err = capsys.readouterr()
    assert out == "" and not (tmp_path / "a.png").exists()
    assert (
        err == "meshwright: --plot needs an optional part; install it with: pip install 'meshwright[plot]'\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("roofline",), "the following arguments are required: OPERATION; see meshwright roofline --help"),
        (("roofline", "matmul", PRODUCT), "the following arguments are required: --chip; see ..."),
        (("roofline", "matmul", "bf16[4,5] x bf16[7,6]", "--chip", "v5p"), "the last dimension of bf16[4,5] is 5 ..."),
        (("roofline", "matmul", PRODUCT, "--chip", "v5q"), "unknown chip 'v5q'; did you mean ..."),
        (("roofline", "matmul", PRODUCT, "--chip", "v5p", "--profile", "bok"), "unknown profile 'bok'; did you mean book? Known: book, catalogue"),
        (("roofline", "matmul", PRODUCT, "--chip", "v5p", "--weights", "int9"), "unknown dtype 'int9'; did you mean ..."),
        (("roofline", "matmul", PRODUCT, "--chip", "v5p", "--tile", "256"),
         "--tile: '256' is not two sizes; write rows x columns, like 256x256"),
        (("roofline", "matmul", PRODUCT, "--chip", "v5p", "--rate", "16"), "--rate: '16' has no unit; write a rate ..."),
        (("roofline", "matmul", PRODUCT, "--chip", "v5p", "--peak", "1 TB/s"), "--peak: unknown unit 'TB/s' ..."),
        (("roofline", "matmul", PRODUCT, "--chip", "v5p", "--sizes", "B"), "cannot read size 'B'; write sizes ..."),
        (("roofline", "matmul", PRODUCT, "--chip", "v5p", "--split", "2", "--from", "vmem"),
         "--split does not take --from; leave one of them out"),
        (("roofline", "matmul", PRODUCT, "--chip", "v5p", "--plot", "a.pdf"),
         "--plot 'a.pdf' ends in neither .png nor .svg; name it like curve.svg"),
        (("roofline", "matmul", PRODUCT, "--chip", "v5p", "--plot", "no/a.png"),
         "--plot 'no/a.png': there is no folder no; make it first"),
        (("roofline", "matmul", "bf16[B,D] x bf16[D,F]", "--chip", "v5p", "--plot", "a.png"),
         "--plot needs the sizes of all dimensions but the rows; give them with --sizes"),
        (("roofline", "op", "--flops", "1e12", "--bytes", "1 GB", "--chip", "v5p"), "--flops: '1e12' has no unit; ..."),
        (("roofline", "op", "--flops", "1 TFLOP", "--chip", "v5p"), "give one operation: --flops with --bytes, or ..."),
        (("roofline", "op", "--dot", "5", "--add", "5", "--chip", "v5p"), "give one operation: ..."),
        (("roofline", "attention", *ATTENTION[:-2], "--head-dim", "0", "--chip", "v5p"), "--head-dim: '0' is not above zero ..."),
        (("inventory", "v5e:3x5"), "v5e:3x5 does not exist: ..."),
        (("inventory", "v3:32x32", "--profile", "book"), "no source lists the slices of TPU v3, nor which ..."),
        (("inventory", "v5e"), "cluster 'v5e' has no shape; write it like v5e:16x16"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(capsys: Capture, words: tuple[str, ...], message: str) -> None:
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"meshwright: {message.removesuffix(' ...').removesuffix('...')}")
    assert message.endswith("...") or err == f"meshwright: {message}\n"
