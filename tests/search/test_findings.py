"""docs/findings.md: its table is what the benchmark prints, and its sentences hold."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "findings.md").read_text()
SPEC = importlib.util.spec_from_file_location("findings", ROOT / "benchmarks" / "findings.py")
assert SPEC is not None and SPEC.loader is not None
findings = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(findings)
ORIN = "jetson-agx-orin-64gb"
# Least and most of fp16 seconds over those with int8 weights, by dtype of the products.
GAINS = {
    "fp16": {"prefill": (1.01, 1.86), "decode": (1.67, 2.0), "both": (1.54, 1.95)},
    "int8": {"prefill": (1.35, 1.96), "decode": (1.67, 2.0), "both": (1.63, 1.99)},
}


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, float]]:
    out = {}
    for way, (latency, device) in findings.devices(ORIN).items():
        costs = findings.costs_of(latency, device, findings.request())
        for axis in findings.AXES:
            out[f"{way}, {axis}"] = findings.shares(findings.on_front(costs, device, axis))
    return out


def test_the_table_is_what_the_benchmark_finds(rows: dict[str, dict[str, float]]) -> None:
    told = re.findall(r"^\| ((?:paper|full)[^|]*) \| (.*) \|$", PAGE, re.MULTILINE)
    assert [name for name, _ in told] == list(rows)
    for name, cells in told:
        for text, value in zip(cells.split(" | "), rows[name].values(), strict=True):
            digits = len(text.partition(".")[2])
            assert abs(float(text) - value) <= 0.51 * 10**-digits, (name, text, value)


def test_sparse_is_best_at_batch_1_and_what_measured_experts_take_from_it(rows) -> None:
    assert all(rows[f"paper's forms, {axis}"]["moe"] == 1 for axis in findings.AXES)
    assert min(rows[f"{way}, both"]["moe"] for way in findings.devices(ORIN)) > 0.93
    assert rows["full, experts .43, prefill"]["moe"] < 0.81


def test_only_the_full_model_tells_prefill_from_decode(rows) -> None:
    few, many = rows["full, ideal, prefill"]["mean_experts"], rows["full, ideal, decode"]["mean_experts"]
    assert few < rows["full, ideal, both"]["mean_experts"] < many
    alike = [rows[f"paper's forms, {axis}"]["mean_experts"] for axis in findings.AXES]
    assert max(alike) - min(alike) < 0.01


@pytest.mark.parametrize("compute", ["fp16", "int8"])
@pytest.mark.parametrize("latency", ["plas", "full"])
def test_int8_helps_and_by_less_than_two(latency: str, compute: str) -> None:
    for phase, (least, most) in findings.int8_gain(ORIN, latency, compute).items():
        all_flops = latency == "plas" and phase == "prefill"
        assert least >= 1 and (most < 2 or all_flops), phase
        if latency == "full":
            assert (round(least, 2), round(most, 2)) == GAINS[compute][phase]
            assert f"{least:.2f} to {most:.2f}" in PAGE or (compute, phase) == ("int8", "prefill")
