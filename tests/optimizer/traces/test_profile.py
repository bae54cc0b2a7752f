"""A measured step beside roofline and plan, on traces whose numbers are known."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from made_traces import collective, event, kernel, names, operator, step, write

import meshwright as mw
from meshwright.hardware.errors import InputError
from meshwright.optimizer.plan import Priced
from meshwright.optimizer.question import price, resolve
from meshwright.optimizer.report.page import render
from meshwright.optimizer.report.profile import page
from meshwright.optimizer.traces.profile import Profile, profile
from meshwright.optimizer.traces.stream import TraceError

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
PEAK, HBM = 989e12, 3.35e12  # of h100 in bf16, FLOP/s and bytes/s


@cache
def plan(layout: str = "dp=8,zero=3,recompute=full", batch: int = 2**17) -> Priced:
    return price(resolve("llama-3-8b", "h100:8x1", mw.Training(batch, 8192)), mw.parse_layout(layout))


def two_steps() -> list[dict[str, Any]]:
    """Two steps of 10 ms on one GPU, each: product 0-4, gather 2-7, norm 5-6, reduction 8-9; idle 7-8 and 9-10."""
    events = []
    for n in (0, 1):
        t = n * 10_000.0
        events += [
            operator(2 * n + 1, "aten::mm", [[8192, 4096], [4096, 6144]]),
            operator(2 * n + 2, "aten::mul", [[8192, 4096], [8192, 4096]]),
            step(n, t - 500, 10_000), step(n, t, 9_999, device=0),
            kernel("nvjet_sm90", t, 4000, **{"External id": 2 * n + 1}),
            collective("AllGather", t + 2000, 5000, 2**29, [*range(8)], "mesh_dp_shard"),
            kernel("vectorized_elementwise", t + 5000, 1000, **{"External id": 2 * n + 2}),
            collective("AllReduce", t + 8000, 1000, 2**20, [*range(8)]),
            kernel("tail", t + 9_999, 1, stream=9),
        ]  # fmt: skip
    return events


def made(tmp_path: Path, events: list[dict[str, Any]], **asked: Any) -> Profile:
    header = {"distributedInfo": {"world_size": 8}, "deviceProperties": [{"name": "NVIDIA H100 80GB HBM3"}]}
    return profile(write(tmp_path / "t.json", events, **header), **asked)


def test_a_step_by_hand_against_the_chip(tmp_path: Path) -> None:
    found = made(tmp_path, two_steps(), chip="h100")
    assert (found.steps, found.found, found.device) == (2, "annotations on the device", "GPU 0")
    assert found.step_s == pytest.approx(0.01, rel=1e-3)
    parts = {p.name: p.a for p in found.parts}
    assert parts == pytest.approx(
        {"compute": 5.001e-3, "fsdp": 2e-3, "all_reduce": 1e-3, "idle": 1.9985e-3}, rel=1e-3
    )
    kinds = {k.name: k for k in found.kinds}
    assert kinds["matmul"].flop_share == pytest.approx(2 * 8192 * 4096 * 6144 / 4e-3 / PEAK, rel=1e-3)
    assert kinds["elementwise"].hbm_share == pytest.approx(3 * 2 * 8192 * 4096 / 1e-3 / HBM, rel=1e-3)
    assert (kinds["other"].known_s, kinds["other"].planned_s) == (0.0, None)
    carried = {c.name: c for c in found.carried}
    assert carried["fsdp"].hidden_s == pytest.approx(3e-3)
    assert carried["fsdp"].sent_bytes == pytest.approx(2 * 2**29 * 7 / 8)
    assert (carried["fsdp"].link, carried["all_reduce"].link) == ("scale_up", "scale_up")
    assert carried["fsdp"].link_share == pytest.approx(2 * 2**29 * 7 / 8 / 5e-3 / 450e9)
    first = found.operations[0]
    assert (first.name, first.shape, first.count) == ("aten::mm", (8192, 4096, 6144), 1.0)
    assert first.gap_s == pytest.approx(4e-3 - 2 * 8192 * 4096 * 6144 / PEAK, rel=1e-3)
    gaps = [o.gap_s for o in found.operations]
    assert gaps == sorted(gaps, reverse=True)


@pytest.mark.parametrize("which", ["torch", "jax", "made"])
def test_parts_sum_to_the_step_and_hidden_and_exposed_to_communication(tmp_path: Path, which: str) -> None:
    if which == "made":
        found = made(tmp_path, two_steps(), chip="h100")
    else:
        found = profile(GOLDEN / f"{which}_cpu.trace.json.gz", chip="v5e")
    assert sum(float(p.a) for p in found.parts) == pytest.approx(found.step_s)  # type: ignore[arg-type]
    compute = sum(k.seconds for k in found.kinds)
    assert compute == pytest.approx(
        sum(float(p.a) for p in found.parts if p.name in ("compute", "optimizer"))
    )  # type: ignore[arg-type]
    exposed = {p.name: p.a for p in found.parts}
    for each in found.carried:
        assert each.exposed_s == pytest.approx(exposed[each.name])
    operations = sum(o.seconds for o in found.operations)
    if which == "jax":  # its threads compute side by side, and share those moments
        assert operations > compute
    else:
        assert operations == pytest.approx(compute)


def test_beside_a_plan_everything_has_its_counterpart_or_none(tmp_path: Path) -> None:
    found = made(tmp_path, two_steps(), plan=plan())
    parts = plan().estimate.parts
    told = {p.name: p.b for p in found.parts}
    assert told["compute"] == parts["compute"] + parts["recompute"]
    assert told["fsdp"] == parts["fsdp"]
    assert told["all_reduce"] is None  # nothing of this plan reduces over all ranks
    assert told["optimizer"] == parts["optimizer"]
    assert sum(value or 0.0 for value in told.values()) == pytest.approx(plan().estimate.step_s)  # type: ignore[misc]
    assert sum(k.planned_s or 0.0 for k in found.kinds) == pytest.approx(
        parts["compute"] + parts["recompute"]
    )
    assert found.operations[0].operator == "qkv"  # 4096 x (4096 + 2 * 1024), as one product
    fsdp = next(c for c in found.carried if c.name == "fsdp")
    wire = 2 * 2**29 * 7 / 8 / 5e-3 / 450e9
    assert (
        fsdp.link_share is not None and wire < fsdp.link_share < 1.005 * wire
    )  # the plan's floor has latencies
    operators = {p.name: (p.a, p.b) for p in found.operators}
    assert operators["qkv"][0] == pytest.approx(4e-3)
    assert operators["norm1"][0] is None and operators["recompute"][1] == parts["recompute"]
    assert sum(float(p.b) for p in found.operators) == pytest.approx(parts["compute"] + parts["recompute"])  # type: ignore[arg-type]
    text = render(page(found))
    line = next(line.split() for line in text.splitlines() if line.strip().startswith("compute"))
    assert float(line[-1]) == pytest.approx(
        found.parts[0].a / (parts["compute"] + parts["recompute"]), abs=0.005
    )  # type: ignore[operator]
    for wanted in ("trace/plan", "in the plan", "all_reduce", "qkv", f"{parts['fsdp']:.3f}"[:4]):
        assert wanted in text


def test_products_get_the_operators_that_have_their_sizes(tmp_path: Path) -> None:
    """Gate and up of llama-3-8b are as large as down, transposed; joined to one product they are not."""

    def told(*products: tuple[int, int, int]) -> dict[str, float]:
        events = [step(0, 0, 100, device=0)]
        for n, (m, k, width) in enumerate(products):
            events += [
                operator(n + 1, "aten::mm", [[m, k], [k, width]]),
                kernel("nvjet", 10.0 * n, 9, **{"External id": n + 1}),
            ]
        found = made(tmp_path, events, plan=plan("dp=4,tp=2,zero=3,recompute=full"))
        assert sum(float(p.b) for p in found.operators) == pytest.approx(found.parts[0].b)  # type: ignore[arg-type]
        return {p.name: float(p.a) for p in found.operators if p.a is not None}

    gate, down, joined = (8192, 4096, 7168), (8192, 7168, 4096), (8192, 4096, 14336)
    assert told(gate, down) == {"down/up": pytest.approx(18e-6)}
    assert told(joined, down) == {"up": pytest.approx(9e-6), "down": pytest.approx(9e-6)}
    # Backward: the gradients of input and of weight have the same three sizes.
    assert told((8192, 3072, 4096), (4096, 8192, 3072)) == {"qkv": pytest.approx(18e-6)}
    assert told((123, 4096, 3072)) == {}


def test_collectives_get_the_class_that_alone_can_have_sent_them(tmp_path: Path) -> None:
    def labels(layout: str, *events: dict[str, Any]) -> list[str]:
        more = [step(0, 0, 100, device=0), kernel("k", 0, 100), *events]
        return [c.name for c in made(tmp_path, more, plan=plan(layout)).carried]

    gather = collective("AllGather", 10, 5, 2**20, [0, 1])
    wide = collective("AllGather", 10, 5, 2**20, [0, 1, 2, 3])
    assert labels("dp=2,tp=4,zero=3,recompute=full", gather) == ["fsdp"]  # by its size
    assert labels("dp=2,tp=4,zero=3,recompute=full", wide) == ["tp"]
    assert labels("dp=8,zero=3,recompute=full", wide) == ["all_gather"]  # no group of four
    named = collective("AllGather", 10, 5, 2**20, [0, 1, 2, 3], "TENSOR_MODEL_PARALLEL_GROUP")
    assert labels("dp=8,zero=3,recompute=full", named) == ["tp"]
    assert labels("pp=2,dp=4,zero=1,recompute=full", collective("SendRecv", 1, 5, 2**20, [0, 4])) == ["pp"]


def test_what_a_reader_should_know_is_noted(tmp_path: Path) -> None:
    notes = " ".join(
        made(tmp_path, two_steps(), plan=plan("pp=2,dp=4,zero=1,recompute=full")).notes
    ) + " ".join(profile(GOLDEN / "jax_cpu.trace.json.gz", chip="v5e").notes)
    for says in (
        "the trace is of NVIDIA H100 80GB HBM3, the peaks are those of h100",
        "operators of the plan are those of its slowest stage",
        "the operations are those of CPU:1, the peaks those of v5e",
        "the trace has 2 devices; the one that is occupied longest is told",
        "s of a step are operations whose FLOPs and bytes the trace does not say",
    ):
        assert says in notes
    fast = [
        operator(1, "aten::mm", [[8192, 4096], [4096, 6144]]),
        kernel("gemm", 0, 100, **{"External id": 1}),
    ]
    (tmp_path / "other").mkdir()
    notes = " ".join(made(tmp_path, fast, chip="h100", steps=1).notes)
    assert "aten::mm reaches 4.17 of its roofline: another chip than h100" in notes
    four = write(tmp_path / "four.json", two_steps(), distributedInfo={"world_size": 4})
    assert "the trace is of a job of 4 ranks, the plan of 8 devices" in " ".join(
        profile(four, plan=plan()).notes
    )


def test_steps_are_annotations_then_runs_then_said(tmp_path: Path) -> None:
    lines = {1: "XLA Ops", 4: "XLA Modules"}
    op = {"hlo_category": "loop fusion"}
    runs = [
        *names(3, "/device:TPU:0", lines),
        *[event("jit_step", t, 30, pid=3, tid=4) for t in (0, 50, 110)],
        event("jit_data", 40, 5, pid=3, tid=4),
        *[event("fusion", t, 30, pid=3, tid=1, args=op) for t in (0, 50, 110)],
    ]
    found = profile(write(tmp_path / "t.json", runs), chip="v5p")
    assert (found.steps, found.found) == (3, "runs of jit_step")
    assert (found.shortest_s, found.longest_s) == (pytest.approx(30e-6), pytest.approx(60e-6))
    assert found.step_s == pytest.approx(140e-6 / 3)

    bare = write(tmp_path / "b.json", [kernel("k", t, 5) for t in (0, 10, 20, 35)])
    with pytest.raises(
        TraceError, match=r"marks no steps \(ProfilerStep#N .*say how many it holds with --steps N"
    ):
        profile(bare, chip="h100")
    said = profile(bare, chip="h100", steps=2)
    assert (said.steps, said.step_s, said.shortest_s) == (2, pytest.approx(20e-6), None)
    with pytest.raises(
        TraceError, match="has 3 steps by runs of jit_step, --steps says 2; leave --steps out"
    ):
        profile(tmp_path / "t.json", chip="v5p", steps=2)


def test_chip_and_plan_are_held_to(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", two_steps())
    for asked in ({}, {"chip": "h100", "plan": plan()}):
        with pytest.raises(InputError, match=r"against a plan .* or a chip alone .*; give one of them"):
            profile(path, **asked)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown chip 'h1000'"):
        profile(path, chip="h1000")
    with pytest.raises(InputError, match=r"plan is 'plan.yaml'; give what recommend"):
        profile(path, plan="plan.yaml")  # type: ignore[arg-type]


def test_on_a_torus_the_plan_says_where_a_group_sits(tmp_path: Path) -> None:
    """All four chips of a 2x2: a gather has a link on each axis, both at once (jax-ml/scaling-book, chapter 3)."""
    text = "%g = bf16[1048576]{0} all-gather(bf16[262144]{0} %p), replica_groups={{0,1,2,3}}, dimensions={0}"
    gather = {"hlo_category": "all-gather", "long_name": text}
    events = [
        *names(3, "/device:TPU:0", {1: "XLA Ops", 3: "Steps"}), event("0", 0, 100, pid=3, tid=3),
        event("fusion.1", 0, 50, pid=3, tid=1, args={"hlo_category": "loop fusion"}),
        event("all-gather.1", 50, 50, pid=3, tid=1, args=gather),
    ]  # fmt: skip
    path = write(tmp_path / "t.json", events)
    asked = resolve("llama-3-8b", "v5e:2x2", mw.Training(2**17, 8192))
    found = profile(path, plan=price(asked, mw.parse_layout("dp=4,zero=3,recompute=full")))
    (carried,) = found.carried
    assert (carried.name, carried.link) == ("fsdp", "scale_up")
    assert carried.link_share == pytest.approx(2 * 2**20 * 3 / 4 / (2 * 50e9) / 50e-6)
    (alone,) = profile(path, chip="v5e").carried
    assert (alone.name, alone.link, alone.link_share) == ("all_gather", "", None)
