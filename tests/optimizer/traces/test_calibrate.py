"""The efficiency file of a trace: every number by hand, taken by the planner, and refused where it cannot be."""

from pathlib import Path
from typing import Any

import pytest
from made_traces import collective, event, kernel, operator, step, write

import meshwright as mw
from meshwright.hardware.calibration import load_efficiency
from meshwright.hardware.chip import load_chip
from meshwright.hardware.errors import InputError
from meshwright.optimizer.plan import Priced
from meshwright.optimizer.question import price, resolve
from meshwright.optimizer.traces.calibrate import Calibration, calibrate, save_calibration
from meshwright.optimizer.traces.stream import TraceError

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
PEAK, HBM = 989e12, 3.35e12  # of h100 in bf16, FLOP/s and bytes/s
BASE = load_efficiency("default", load_chip("h100"))
BEND = (1 + BASE.matmul_m0 / 8192) * (1 + BASE.matmul_n0 / 4096)  # of 8192 x 4096 x 6144


def events() -> list[dict[str, Any]]:
    """One step of 20 ms: two equal products at different rates, attention, a norm, copies, collectives, and short ones."""
    heads = [[1, 8192, 32, 128], [1, 8192, 8, 128], [1, 8192, 8, 128], *[[]] * 6]
    product = [[8192, 4096], [4096, 6144]]
    return [
        step(0, 0, 20_000, device=0),
        operator(1, "aten::mm", product), kernel("nvjet", 0, 500, **{"External id": 1}),
        operator(2, "aten::mm", product), kernel("nvjet", 500, 700, **{"External id": 2}),
        operator(3, "aten::mm", product), kernel("gemm", 1200, 9, **{"External id": 3}),
        operator(4, "aten::mm", [[8192, 4096], [4096, 64]]), kernel("gemm", 1210, 100, **{"External id": 4}),
        operator(5, "aten::mm", product, dtype="float"), kernel("gemm_f32", 1400, 4000, **{"External id": 5}),
        operator(6, "aten::_flash_attention_forward", heads, constants=("",) * 8 + ("True",)),
        kernel("flash_fwd", 6000, 1500, **{"External id": 6}),
        operator(7, "aten::add", [[8192, 4096], [8192, 4096]]), kernel("vectorized_elementwise", 8000, 100, **{"External id": 7}),
        collective("AllGather", 1000, 400, 2**26, [*range(8)], "mesh_dp_shard"),
        collective("ReduceScatter", 10_000, 5000, 2**26, [0, 8, 16, 24], "mesh_dp_shard"),
        collective("AllReduce", 15_000, 100, 2**20, [0, 1, 8, 9]),
        event("Memcpy HtoD (Pinned -> Device)", 17_000, 200, cat="gpu_memcpy", args={"device": 0, "stream": 8, "bytes": 10**7}),
    ]  # fmt: skip


def priced(efficiency: str = "default") -> Priced:
    asked = resolve("llama-3-8b", "h100:8x1", mw.Training(2**17, 8192), efficiency=efficiency)
    return price(asked, mw.parse_layout("dp=8,zero=3,recompute=full"))


@pytest.fixture
def made(tmp_path: Path) -> Calibration:
    path = write(tmp_path / "run.json", events(), deviceProperties=[{"name": "NVIDIA H100 80GB HBM3"}])
    return calibrate(path, chip="h100")


def test_every_number_by_hand(made: Calibration) -> None:
    told = {r.name: (r.share, r.count) for r in made.reached}
    flops = 2 * 8192 * 4096 * 6144
    core = 4 * 8192 * 32 * 128 * 8193 / 2  # causal: a query meets half of the keys
    out = load_chip("h100").scale_out_bytes_per_s
    assert out is not None
    wanted = {
        # Not the product of 9 us, not the one that memory bounds (n = 64), not the one in fp32.
        "matmul": (2 * flops * BEND / PEAK / 1.2e-3, 2),
        "attention": (core / PEAK / 1.5e-3, 1),
        "hbm": (3 * 2 * 8192 * 4096 / HBM / 1e-4, 1),
        "scale_up": (2 * 2**26 * 7 / 8 / 450e9 / 4e-4, 1),
        # One rank in each domain; where two share a domain the rate depends on the placement.
        "scale_out": (2 * 2**26 * 3 / 4 / out / 5e-3, 1),
        "host_link": (1e7 / 63e9 / 2e-4, 1),
        # Under products but for 1 us between two of them, and 90 us from 1310 to 1400.
        "overlap.fsdp": ((400e-6 - 1e-6 - 90e-6) / 5.4e-3, 2),
    }
    for name, (share, count) in wanted.items():
        assert told[name] == (pytest.approx(share, rel=1e-6), count), name
    assert set(told) == set(wanted)
    products = next(r for r in made.reached if r.name == "matmul")
    shares = [flops * BEND / PEAK / took for took in (7e-4, 5e-4)]
    spread = shares[1] - shares[0]
    assert (products.low, products.high) == (
        pytest.approx(shares[0] + 0.1 * spread),
        pytest.approx(shares[1] - 0.1 * spread),
    )


def test_the_file_is_one_that_the_planner_takes(made: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    assert save_calibration(made, path) == "mine"
    told = {r.name: r.share for r in made.reached}
    read = load_efficiency(str(path), load_chip("h100"))
    for name in ("matmul", "attention", "hbm", "scale_up", "scale_out", "host_link"):
        assert getattr(read, name) == pytest.approx(told[name], rel=1e-3)
    assert read.overlap == {**BASE.overlap, "fsdp": pytest.approx(told["overlap.fsdp"], rel=1e-3)}
    assert (read.matmul_m0, read.elementwise) == (BASE.matmul_m0, BASE.elementwise)
    assert load_efficiency(str(path), load_chip("h200")).matmul == BASE.matmul  # another chip is not told
    assert "run.json: torch, 1 steps, GPU 0 of NVIDIA H100 80GB HBM3" in read.provenance
    assert "# [2; " in path.read_text()
    assert priced(efficiency=str(path)).inputs["efficiency"] == "mine"


def test_a_plan_gives_overlaps_of_its_classes(tmp_path: Path) -> None:
    plan = priced()
    unnamed = collective("AllGather", 50, 100, 2**24, [*range(8)])
    path = write(tmp_path / "t.json", [step(0, 0, 200, device=0), kernel("k", 0, 100), unnamed])
    told = {r.name: r.share for r in calibrate(path, plan=plan).reached}
    assert told["overlap.fsdp"] == pytest.approx(0.5)
    wire = 2 * 2**24 * 7 / 8 / 450e9 / 1e-4
    assert wire < told["scale_up"] < 1.005 * wire  # the plan's floor has latencies
    alone = calibrate(path, chip="h100")
    assert "overlap" in alone.silent


@pytest.mark.parametrize(
    ("kernels", "says"),
    [
        ([kernel("nvjet", 0, 100, **{"External id": 1})],
         r"matmul would be 4.\d+ of peak, above 1: what takes 0.0004\d+ s at the peak of h100 took 0.0001 s; name the chip"),
        ([kernel("k", 0, 100)], "tells no number for an efficiency file: matmul: no product in bf16 or fp16"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(tmp_path: Path, kernels: list[dict[str, Any]], says: str) -> None:
    product = operator(1, "aten::mm", [[8192, 4096], [4096, 6144]])
    path = write(tmp_path / "t.json", [step(0, 0, 100, device=0), product, *kernels])
    with pytest.raises(TraceError, match=says):
        calibrate(path, chip="h100")


def test_a_trace_of_another_machine_is_refused(tmp_path: Path) -> None:
    says = r"has operations of cpu, none of h100; profile where that chip is, with ProfilerActivity.CUDA"
    with pytest.raises(TraceError, match=says):
        calibrate(GOLDEN / "torch_cpu.trace.json.gz", chip="h100")
    with pytest.raises(
        TraceError, match=r"has operations of CPU:1, none of v5e; profile where that chip is$"
    ):
        calibrate(GOLDEN / "jax_cpu.trace.json.gz", chip="v5e")
    gpu = write(tmp_path / "t.json", events())
    with pytest.raises(TraceError, match="has operations of GPU 0, none of v5p"):
        calibrate(gpu, chip="v5p")


def test_where_the_file_goes_is_checked(
    made: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a long path is shown shortened
    for name, says in (
        ("default.yaml", "default is the name of a shipped efficiency; write to another file"),
        ("mine.json", "an efficiency file is YAML; write 'mine.json' as .yaml"),
        ("none/mine.yaml", "no folder"),
    ):
        with pytest.raises(InputError, match=says):
            save_calibration(made, Path(name))
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
