"""Traces with any one value replaced: an answer whose parts sum, or one line that says what is wrong."""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_traces import collective, event, kernel, names, operator, step, write

from meshwright.hardware.errors import MeshwrightError
from meshwright.optimizer.report.page import render
from meshwright.optimizer.report.profile import page
from meshwright.optimizer.traces.calibrate import calibrate
from meshwright.optimizer.traces.profile import profile

LONG = "%g = bf16[1024]{0} all-gather(bf16[256]{0} %p), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}"


@cache
def whole() -> dict[str, list[dict[str, Any]]]:
    args = {"hlo_category": "convolution fusion", "model_flops": "65536", "raw_bytes_accessed": "11264"}
    heads = [[1, 128, 8, 64]] * 3 + [[]] * 6
    return {
        "h100": [
            step(0, 0, 90, device=0), step(1, 90, 90),
            operator(1, "aten::mm", [[64, 32], [32, 16]]), kernel("gemm", 0, 20, **{"External id": 1}),
            operator(2, "aten::add_", [[64, 32], [64, 32]]), kernel("add", 30, 20, **{"External id": 2}),
            operator(3, "aten::_flash_attention_forward", heads, constants=("",) * 8 + ("True",)),
            kernel("flash", 50, 20, **{"External id": 3}),
            collective("AllGather", 10, 60, 4096, [0, 1, 2, 3], "mesh_dp_shard"),
            event("Memcpy HtoD", 70, 15, cat="gpu_memcpy", args={"device": 0, "stream": 8, "bytes": 1000}),
        ],
        "v5p": [
            *names(3, "/device:TPU:0", {1: "XLA Ops", 2: "Async XLA Ops", 3: "Steps", 4: "XLA Modules"}),
            event("0", 10, 50, pid=3, tid=3), event("jit_step(1)", 10, 40, pid=3, tid=4),
            event("fusion.1", 10, 20, pid=3, tid=1, args={**args, "long_name": LONG}),
            event("all-gather-start.3", 15, 20, pid=3, tid=2, args={"hlo_category": "all-gather", "long_name": LONG}),
        ],
    }  # fmt: skip


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path] * bool(path) + [place for key, value in inner for place in places(value, (*path, key))]


ODD = st.sampled_from(
    [None, True, "", "x", "nan", [], {}, [[]], [None], [[-1, 2]], {"a": []}, 0, -1, 0.5, 2**63, 10**400, -(10**400), 1e300, "9" * 99]
)  # fmt: skip


@pytest.mark.parametrize("chip", ["h100", "v5p"])
def test_any_value_replaced_is_answered_or_refused(
    tmp_path_factory: pytest.TempPathFactory, chip: str
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    everywhere = places(whole()[chip])

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(st.sampled_from(everywhere), ODD)
    def check(place: tuple[Any, ...], value: object) -> None:
        events: Any = copy.deepcopy(whole()[chip])
        at = events
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = value
        path = write(Path(folder) / "t.json", events)
        try:
            found = profile(path, chip=chip)
        except MeshwrightError as refused:
            assert "\n" not in str(refused)
            return
        assert sum(float(p.a) for p in found.parts) == pytest.approx(found.step_s)  # type: ignore[arg-type]
        json.dumps(found.to_dict(), allow_nan=False)
        assert render(page(found))
        try:
            assert all(0 <= number.share <= 1 for number in calibrate(path, chip=chip).reached)
        except MeshwrightError as refused:
            assert "\n" not in str(refused)

    check()
