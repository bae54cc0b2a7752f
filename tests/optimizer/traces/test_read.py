"""Files of traces: read piece by piece as a whole parse would, real ones of torch and JAX, and what is wrong with others."""

import gzip
import json
import sys
import tracemalloc
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_traces import collective, event, kernel, names, operator, step, write

from meshwright.hardware.errors import MissingExtraError
from meshwright.optimizer.traces import read, stream
from meshwright.optimizer.traces.read import read_trace
from meshwright.optimizer.traces.stream import TraceError, TraceFile

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
_FILES = st.tuples(
    st.lists(st.dictionaries(st.text(max_size=4), _VALUES, max_size=3), max_size=5),
    st.dictionaries(st.text(max_size=4), _VALUES, max_size=3),
)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(_FILES, st.sampled_from([1, 2, 7]), st.sampled_from([None, 1]), st.booleans())
def test_pieces_give_what_a_whole_parse_gives(
    tmp_path_factory: pytest.TempPathFactory, content: Any, piece: int, indent: int | None, zipped: bool
) -> None:
    events, rest = content
    path = tmp_path_factory.mktemp("trace") / "t.json"
    text = json.dumps({"a": 1, "traceEvents": events, **rest}, indent=indent).encode()
    path.write_bytes(gzip.compress(text) if zipped else text)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stream, "_PIECE", piece)
        file = TraceFile(path)
        assert list(file) == events
    assert file.header == {"a": 1, **rest}
    path.write_bytes(json.dumps(events).encode())
    assert list(TraceFile(path)) == events


def test_torch_on_the_cpu_as_its_file_says() -> None:
    """Durations and sizes against the JSON itself."""
    path = GOLDEN / "torch_cpu.trace.json.gz"
    raw = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    trace = read_trace(path)
    assert (trace.maker, trace.devices, trace.ranks) == ("torch", ("cpu",), None)
    assert [mark.name for mark in trace.marks] == ["ProfilerStep#1", "ProfilerStep#2"]
    operators = [e for e in raw if e.get("cat") == "cpu_op"]
    assert len(trace.events) == len(operators)
    assert sum(e.seconds for e in trace.events) == pytest.approx(sum(e["dur"] for e in operators) * 1e-6)
    # Two steps of a block of width 256 on 256 tokens: forward of 12 d^2 weights, and twice that backward.
    flops = sum(e.flops or 0 for e in trace.events if e.kind == "matmul")
    assert flops == 2 * 3 * 2 * 256 * 12 * 256**2
    # AdamW on 12 tensors: its operators lie inside the annotation of the update.
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in raw if str(e["name"]).startswith("Optimizer.step#")]
    inside = [e["dur"] for e in operators if any(start <= e["ts"] < end for start, end in spans)]
    assert sum(e.seconds for e in trace.events if e.kind == "optimizer") == pytest.approx(sum(inside) * 1e-6)
    # Causal attention: 2 sequences, 4 heads of 64, a query meets 64.5 keys; backward 2.5 times forward.
    core = sum(e.flops or 0 for e in trace.events if e.kind == "attention")
    assert core == pytest.approx(2 * 3.5 * 2 * 128 * 4 * (64 + 64) * 64.5 * 2)


def test_jax_on_two_cpu_devices_as_its_file_says() -> None:
    path = GOLDEN / "jax_cpu.trace.json.gz"
    raw = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    trace = read_trace(path)
    assert (trace.maker, trace.devices) == ("jax", ("CPU:0", "CPU:1"))
    assert [mark.name for mark in trace.marks if not mark.program] == ["train", "train"]
    assert [mark.device for mark in trace.marks if mark.program].count("CPU:1") == 2
    reductions = [e["dur"] for e in raw if str(e.get("args", {}).get("hlo_op", "")).startswith("all-reduce")]
    told = [e.seconds for e in trace.events if e.kind == "all_reduce"]
    assert len(told) == 4
    assert sum(told) == pytest.approx(sum(reductions) * 1e-6)


def test_a_gpu_has_its_operators_sizes_and_its_collectives_bytes(tmp_path: Path) -> None:
    events = [
        step(3, 0, 100),
        operator(1, "aten::addmm", [[512], [2048, 1024], [1024, 512]]),
        operator(2, "aten::mul", [[2048, 512], [2048, 512]]),
        operator(3, "aten::_flash_attention_forward", [[2, 1024, 8, 64], [2, 1024, 2, 64], [2, 1024, 2, 64], *[[]] * 6],
                 constants=("",) * 8 + ("False",)),
        kernel("sm90_xmma_gemm_bf16", 0, 10, **{"External id": 1}),
        kernel("splitKreduce_kernel", 10, 2, **{"External id": 1}),
        kernel("vectorized_elementwise_kernel", 12, 4, **{"External id": 2}),
        kernel("flash_fwd_kernel", 16, 5, **{"External id": 3}),
        collective("AllGather", 5, 20, 4096, [0, 1, 2, 3], "mesh_dp_shard"),
        collective("AllReduce", 25, 20, 4096, [0, 4]),
        collective("SendRecv", 46, 3, 4096, [0, 1, 2, 3], called="all_to_allv"),
        event("Memcpy HtoD (Pinned -> Device)", 50, 6, cat="gpu_memcpy", args={"device": 0, "stream": 8, "bytes": 1000}),
        event("torch/nn/module.py: forward", 0, 90, cat="python_function"),
    ]  # fmt: skip
    found = {e.name.partition("_RING")[0]: e for e in read_trace(write(tmp_path / "t.json", events)).events}
    product = found["sm90_xmma_gemm_bf16"]
    assert (product.kind, product.shape, product.dtype) == ("matmul", (2048, 1024, 512), "bf16")
    assert product.flops == 2 * 2048 * 1024 * 512
    assert product.moved_bytes == 2 * (2048 * 1024 + 1024 * 512 + 2048 * 512)
    assert (found["splitKreduce_kernel"].kind, found["splitKreduce_kernel"].flops) == ("elementwise", None)
    assert found["vectorized_elementwise_kernel"].moved_bytes == 3 * 2 * 2048 * 512
    assert found["flash_fwd_kernel"].flops == 2 * 1024 * 2 * 1024 * 8 * (64 + 64)  # not causal: all keys
    assert found["flash_fwd_kernel"].shape == (2, 1024, 1024, 8, 64)
    gather, reduction = found["ncclDevKernel_AllGather"], found["ncclDevKernel_AllReduce"]
    assert gather.group is not None and (gather.group.ranks, gather.group.label) == (
        (0, 1, 2, 3),
        "mesh_dp_shard",
    )
    assert gather.moved_bytes == pytest.approx(2 * 4096 * 3 / 4)  # a ring sends all but its own share
    assert reduction.moved_bytes == pytest.approx(2 * 2 * 4096 / 2)  # and for a reduction twice that
    exchange = found["ncclDevKernel_SendRecv"]  # NCCL exchanges by sends
    assert (exchange.kind, exchange.moved_bytes) == ("all_to_all", pytest.approx(2 * 4096 * 3 / 4))
    copy = found["Memcpy HtoD (Pinned -> Device)"]
    assert (copy.kind, copy.moved_bytes, copy.stream) == ("host_to_device", 1000.0, "8")
    assert len(found) == 8


def test_a_tpu_has_what_xla_says(tmp_path: Path) -> None:
    text = "%f = f32[64,32]{1,0} fusion(bf16[64,16]{1,0} %p, bf16[16,32]{1,0} %q), kind=kOutput"
    gather = (
        "%g = bf16[1024]{0} all-gather(bf16[256]{0} %p), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}"
    )
    scatter = "%r = bf16[256]{0} reduce-scatter(bf16[1024]{0} %p), replica_groups=[2,4]<=[8], to_apply=%add"
    lines = {1: "XLA Ops", 2: "Async XLA Ops", 3: "Steps", 4: "XLA Modules", 5: "Framework Ops"}
    args: dict[str, Any] = {
        "hlo_category": "convolution fusion",
        "model_flops": "65536",
        "raw_bytes_accessed": "11264",
    }
    events = [
        *names(3, "/device:TPU:0", lines),
        *names(9, "/host:CPU", {1: "python"}),
        event("train", 0, 5, pid=9, tid=1, args={"step_num": "0"}),
        event("0", 10, 50, pid=3, tid=3),
        event("jit_step(1)", 10, 40, pid=3, tid=4),
        event("fusion.1", 10, 9, pid=3, tid=1, args={**args, "long_name": text}),
        event("attention", 10, 9, pid=3, tid=5, args={"tf_op": "again"}),
        event("custom-call.7", 20, 9, pid=3, tid=1, args={"hlo_category": "custom-call", "tf_op": "jit(f)/splash_mha"}),
        event("fusion.2", 30, 9, pid=3, tid=1, args={"hlo_category": "loop fusion", "tf_op": "jit(f)/attention/mul"}),
        event("all-gather-start.3", 15, 20, pid=3, tid=2, args={"hlo_category": "async-start", "long_name": gather}),
        event("reduce-scatter.4", 40, 9, pid=3, tid=1, args={"hlo_category": "reduce-scatter", "long_name": scatter}),
    ]  # fmt: skip
    trace = read_trace(write(tmp_path / "t.json", events))
    found = {e.name: e for e in trace.events}
    assert trace.devices == ("TPU:0",)
    assert {m.name: m.device for m in trace.marks} == {"train": None, "0": "TPU:0", "jit_step(1)": "TPU:0"}
    kinds = {name: e.kind for name, e in found.items()}
    assert kinds == {
        "fusion.1": "matmul", "custom-call.7": "attention", "fusion.2": "elementwise",
        "all-gather-start.3": "all_gather", "reduce-scatter.4": "reduce_scatter",
    }  # fmt: skip
    product = found["fusion.1"]
    assert (product.flops, product.moved_bytes, product.dtype) == (65536.0, 11264.0, "bf16")
    sent = {name: e.moved_bytes for name, e in found.items() if e.group}
    assert sent == {
        "all-gather-start.3": pytest.approx(2 * 1024 * 3 / 4),
        "reduce-scatter.4": pytest.approx(2 * 1024 * 3 / 4),
    }


MANY = [kernel(f"k{i}", i * 3.0, 1.0) for i in range(20)]


def _text(*events: Any) -> str:
    return json.dumps({"traceEvents": list(events)})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", r"is empty; give a trace that torch.profiler or jax.profiler wrote"),
        ("   ", r"ends early, after 3 characters"),
        ("model: x", r"does not start as JSON does"),
        ('{"a": 1}', r"has no traceEvents \(its keys: a\)"),
        ("{}", r"has no traceEvents \(its keys: none\)"),
        ('{"traceEvents": 3}', r"traceEvents is no list"),
        ('{"traceEvents": [3]}', r"an event is 3, not an object"),
        ('{"traceEvents": [{}] "b"}', r"is no JSON: ':' is due|is no JSON"),
        ('{"traceEvents": [], "traceEvents": []}', r"two lists traceEvents: several ranks in one file"),
        ('{"traceEvents": []}', r"has no operations of a device or of the CPU; give a trace"),
        (_text({"ph": "B", "name": "x", "ts": 1}), r"\(it has 1 begun with ph B: not of torch or JAX\)"),
        (_text(*MANY)[:-40], r"is no JSON or ends early: .*, near character [\d,]+; write it again"),
        (_text(*MANY)[:-1], r"ends early, after [\d,]+ characters"),
        (_text(kernel("k", 0, -5)), r"event 'k' lasts -5 us, below zero; the clocks of host and device"),
        (_text({**kernel("k", 0, 5), "ts": "now"}), r"ts of event 'k' is 'now', not a number"),
        (_text({**kernel("k", 0, 5), "dur": None}), r"dur of event 'k' is None, not a number"),
        (_text({**kernel("k", 0, 5), "dur": True}), r"dur of event 'k' is True, not a number"),
        (_text({**kernel("k", 0, 5), "dur": float("nan")}), r"dur of event 'k' is nan, not a number"),
        (_text(*MANY, *MANY), r"kernels on stream 7 of GPU 0 last 4e-05 s in 2e-05 s: several ranks were joined"),
        ('{"traceEvents": ' + "[" * 10**5, r"nested too deeply|an event is|is no JSON"),
        (b"\xff\xfe[]", r"is not UTF-8 text"),
        (gzip.compress(_text(*MANY).encode(), mtime=0)[:-30], r"is a broken or cut off gzip file"),
        (b"\x1f\x8b nothing", r"is a broken or cut off gzip file"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: str | bytes, says: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TraceError, match=says) as refused:
        read_trace(path)
    assert "\n" not in str(refused.value)


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    for path, says in (
        (tmp_path / "none.json", "cannot read .*none.json: No such file"),
        (Path("a\0b"), "cannot read .*: not a path"),
        (tmp_path, "is a folder with no .trace.json.gz; give the path of one file"),
        (tmp_path / "x.xplane.pb", r"x.xplane.pb"),
    ):
        with pytest.raises((TraceError, MissingExtraError), match=says):
            read_trace(path)
    with pytest.raises(Exception, match="trace is 3; give the path of a trace file"):
        read_trace(3)  # type: ignore[arg-type]


def test_a_folder_of_jax_is_its_one_trace(tmp_path: Path) -> None:
    run = tmp_path / "plugins" / "profile" / "today"
    run.mkdir(parents=True)
    data = (GOLDEN / "jax_cpu.trace.json.gz").read_bytes()
    (run / "host.trace.json.gz").write_bytes(data)
    assert read_trace(tmp_path).events == read_trace(GOLDEN / "jax_cpu.trace.json.gz").events
    (run / "other.trace.json.gz").write_bytes(data)
    with pytest.raises(TraceError, match=r"a folder with 2 traces, such as plugins.*host.trace.json.gz"):
        read_trace(tmp_path)


def test_ranks_that_were_joined_as_processes_are_devices_of_their_own(tmp_path: Path) -> None:
    other = [{**each, "pid": 1000} for each in [*MANY, step(1, 0, 9, device=0)]]
    events = [step(1, 0, 9, device=0), *MANY, *other]
    trace = read_trace(write(tmp_path / "t.json", events, distributedInfo={"world_size": 16}))
    assert trace.devices == ("GPU 0", "GPU 0 of process 1000")
    assert {mark.device for mark in trace.marks} == set(trace.devices)
    assert trace.ranks == 16


def test_limits_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.json", MANY)
    monkeypatch.setattr(read, "MOST_EVENTS", 19)
    with pytest.raises(TraceError, match="more than 19 events of devices; profile fewer steps"):
        read_trace(path)
    monkeypatch.setattr(stream, "MOST_TEXT", 100)
    with pytest.raises(TraceError, match="holds more than 100 characters"):
        read_trace(path)


def test_events_that_are_not_kept_take_no_memory(tmp_path: Path) -> None:
    left_out = [event("python", 0.0, 1.0, cat="python_function", args={"x": "y" * 4000})] * 3_000
    path = write(tmp_path / "t.json", [*MANY, *left_out])
    size = path.stat().st_size
    tracemalloc.start()
    read_trace(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > 10 * 2**20 > 4 * most


def test_xplane_is_read_by_jax_or_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(b"\x0a")
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "jax.profiler", raising=False)
    with pytest.raises(
        MissingExtraError, match=r"host.xplane.pb \(the .trace.json.gz beside it.*meshwright\[xplane\]"
    ) as no:
        read_trace(path)
    assert no.value.exit_code == 5

    raw = json.loads(gzip.decompress((GOLDEN / "jax_cpu.trace.json.gz").read_bytes()))["traceEvents"]
    lines = [
        SimpleNamespace(
            name="",
            events=[
                SimpleNamespace(name=e["name"], start_ns=e["ts"] * 1e3, duration_ns=e["dur"] * 1e3, stats=e["args"].items())
                for e in raw
                if e["ph"] == "X" and e["tid"] == tid
            ],
        )
        for tid in {e["tid"] for e in raw if e["ph"] == "X"}
    ]  # fmt: skip
    profiler = ModuleType("jax.profiler")
    planes = [SimpleNamespace(name="/host:CPU", lines=lines)]
    profiler.ProfileData = SimpleNamespace(from_file=lambda _: SimpleNamespace(planes=planes))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    monkeypatch.setitem(sys.modules, "jax.profiler", profiler)
    whole = read_trace(GOLDEN / "jax_cpu.trace.json.gz")
    found = read_trace(path)
    assert sorted((e.name, round(e.seconds, 9)) for e in found.events) == sorted(
        (e.name, round(e.seconds, 9)) for e in whole.events
    )
