"""estimate(): three times in order, parts that sum, one formula for one layout and for many, words that read back."""

import json
from dataclasses import replace

import numpy as np
import pytest
from costmodel_cases import legal_layouts, make_setting
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodel.estimate import (
    PARTS,
    StepEstimate,
    complete,
    estimate,
    stage_counts,
    step_seconds,
    table_of,
)
from meshwright.costmodel.layout import DIMENSIONS, Layout, parse_layout
from meshwright.costmodel.placement import enumerate_placements

WORLDS = [
    ("llama-3.2-1b", "v5p:4x4x4", "default", "jax"),
    ("llama-3.2-1b", "h100:8x8", "mfu=0.4", "megatron"),
    ("mixtral-8x7b", "v5e:8x8", "default", "jax"),
    ("gemma-2-2b", "tpu7x:2x2x4", "book", "jax"),
]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    data=st.data(),
    overlap=st.sampled_from(("full", "none", "calibrated")),
    streams=st.sampled_from(("shared", "independent")),
)
@pytest.mark.parametrize(("model", "cluster", "efficiency", "framework"), WORLDS)
def test_three_times_are_ordered_and_parts_sum(
    model: str, cluster: str, efficiency: str, framework: str, overlap: str, streams: str, data: st.DataObject
) -> None:
    """lower <= step <= upper, exposed parts none negative and together the step, for any legal layout and mode."""
    words = {"efficiency": efficiency, "framework": framework, "overlap": overlap, "streams": streams}
    setting = make_setting(model, cluster, 64, 4096, host=True, **words)
    layout = data.draw(st.sampled_from(legal_layouts(make_setting(model, cluster, 64, 4096, host=True), 120)))
    found = estimate(setting, layout)
    assert 0 < found.lower_s <= found.step_s <= found.upper_s
    assert set(found.parts) == set(PARTS)
    assert sum(found.parts.values()) == pytest.approx(found.step_s, rel=1e-9)
    assert min(found.parts.values()) >= -1e-9 * found.step_s
    assert 0 < found.mfu <= 1
    assert found.tokens_per_s == pytest.approx(64 * 4096 / found.step_s, rel=1e-12)
    if overlap == "none":
        assert found.step_s == found.upper_s


def test_the_order_of_the_three_times_is_not_forced() -> None:
    """estimate() orders roundings; before that the three tables must already be in order to 1e-9."""
    setting = make_setting("mixtral-8x7b", "v5e:8x8", 64, 4096)
    layouts = [complete(setting, x) for x in legal_layouts(setting, 120)[:40]]
    counts, stages = stage_counts(setting, layouts)
    lower, step, upper = (
        step_seconds(table_of(s, layouts), stages, counts) for s in (setting.floor, setting, setting.serial)
    )
    assert (lower <= step * (1 + 1e-9)).all()
    assert (step <= upper * (1 + 1e-9)).all()


def test_one_layout_is_its_row_in_a_table() -> None:
    """The planner's columns and the single answer come from one formula: equal to the last bits."""
    setting = make_setting("llama-3.2-1b", "v5p:4x4x4", 64, 4096)
    layouts = [complete(setting, x) for x in legal_layouts(setting, 120)[:60]]
    counts, stages = stage_counts(setting, layouts)
    table = table_of(setting, layouts)
    column = step_seconds(table, stages, counts)
    memory = table.stage_bytes(stages, counts)
    for row, layout in enumerate(layouts):
        alone = estimate(setting, layout)
        assert alone.step_s == pytest.approx(column[row], rel=1e-12)
        assert alone.stage_bytes == pytest.approx(memory[row, : layout.pp], rel=1e-12)


@pytest.mark.parametrize(
    "text", ["tp=4,dp=4,zero=3", "tp=2,pp=2,dp=2,cp=2,zero=1,recompute=full", "pp=4,dp_replicate=4"]
)
@pytest.mark.parametrize("cluster", ["v5p:2x2x4", "h100:4x4"])
def test_a_placement_left_out_is_the_best_one(text: str, cluster: str) -> None:
    """Against pricing every placement one at a time."""
    setting = make_setting("llama-3.2-1b", cluster, 64, 4096)
    layout = parse_layout(text)
    chosen = estimate(setting, layout)
    options = enumerate_placements({d: getattr(layout, d) for d in DIMENSIONS}, setting.cluster.levels)
    every = [estimate(setting, replace(layout, placement=p)).step_s for p in options]
    assert len(every) > 1
    assert chosen.step_s == pytest.approx(min(every), rel=1e-12)
    assert max(every) > min(every)


def test_more_bandwidth_or_peak_is_never_slower() -> None:
    """The three times fall or stay when a machine's figure grows: calibrated rates are shares of the peaks."""
    slow = make_setting("llama-3.2-1b", "h100:8x2", 64, 4096)
    fast = replace(
        slow, efficiency=slow.efficiency.model_copy(update={"scale_out": 1.0, "scale_up": 1.0, "matmul": 1.0})
    )
    for layout in legal_layouts(slow, 120)[:40]:
        given = complete(slow, layout)
        before, after = estimate(slow, given), estimate(fast, given)
        assert after.step_s <= before.step_s * (1 + 1e-12)
        assert after.upper_s <= before.upper_s * (1 + 1e-12)
        assert after.lower_s == before.lower_s


def test_stages_hold_the_pattern_in_order() -> None:
    """gemma-2 alternates two kinds; interleaved chunks are dealt round, so a stage sees both."""
    setting = make_setting("gemma-2-2b", sequences=8, seq_len=4096)
    assert setting.model.pattern[:4] == (0, 1, 0, 1)
    assert setting.model.layers == 26
    plain = Layout(pp=4, layers_per_stage=(7, 7, 6, 6))
    counts, _ = stage_counts(setting, [plain])
    assert counts[0].tolist() == [[4, 3], [3, 4], [3, 3], [3, 3]]
    counts, _ = stage_counts(
        setting, [Layout(pp=2, vpp=2, schedule="interleaved", layers_per_stage=(12, 14))]
    )
    assert counts[0].sum(axis=0).tolist() == [13, 13]
    assert counts[0].sum(axis=1).tolist() == [12, 14]


def test_layouts_and_estimates_survive_json() -> None:
    """Plans are files: what is written reads back equal, placement and stages included."""
    setting = make_setting("mixtral-8x7b", "v5p:4x4x4", 64, 4096)
    for layout in legal_layouts(setting, 120)[:40]:
        full = complete(setting, layout)
        assert Layout.from_dict(json.loads(json.dumps(full.to_dict()))) == full
    found = estimate(setting, full)
    again = StepEstimate.from_dict(json.loads(json.dumps(found.to_dict())), found.memory_dict())
    assert again.to_dict() == found.to_dict()
    assert again.memory_dict() == found.memory_dict()
    assert again.step_s == pytest.approx(found.step_s, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "expect"),
    [
        ("tp=8", Layout(tp=8)),
        (" tp = 8 , pp=2", Layout(tp=8, pp=2)),
        # dp without a level of ZeRO is copies; with one it is shards; a part given leaves the other
        ("dp=8", Layout(dp_replicate=8)),
        ("dp=8,zero=0", Layout(dp_replicate=8)),
        ("dp=8,zero=1", Layout(dp_shard=8, zero=1)),
        ("zero=3,dp=8,dp_replicate=2", Layout(dp_replicate=2, dp_shard=4, zero=3)),
        ("zero=3,dp=8,dp_shard=8", Layout(dp_shard=8, zero=3)),
        ("dp=8,dp_shard=4,dp_replicate=2,zero=2", Layout(dp_replicate=2, dp_shard=4, zero=2)),
        ("pp=2,vpp=4", Layout(pp=2, vpp=4, schedule="interleaved")),
        ("pp=3,layers=10/11/11", Layout(pp=3, layers_per_stage=(10, 11, 11))),
        ("layers=32", Layout(layers_per_stage=(32,))),
        ("recompute=full/none", Layout(policies=("full", "none"))),
        ("sp=False,tp=2", Layout(sp=False, tp=2)),
        ("offload=optimizer+activations", Layout(offload="optimizer+activations")),
        ("offload=activations+optimizer", Layout(offload="optimizer+activations")),
        (
            "zero=3,dp=2,offload=parameters+optimizer+activations",
            Layout(dp_shard=2, zero=3, offload="optimizer+parameters+activations"),
        ),
        ("micro_batch=4,sequences=64,cp=2,zero=1,cp_kind=all_gather",
         Layout(micro_batch=4, sequences=64, cp=2, zero=1, cp_kind="all_gather")),
    ],
)  # fmt: skip
def test_layout_strings(text: str, expect: Layout) -> None:
    assert parse_layout(text) == expect


def test_sequences_of_a_layout_scale_work_and_keep_mfu_honest() -> None:
    """A batch that the planner moved: tokens and FLOPs follow, MFU stays below 1 and hardly moves."""
    setting = make_setting("llama-3.2-1b", "v5p:2x2x4", 64, 4096)
    setting = replace(setting, training=replace(setting.training, batch_tolerance=0.5))
    base = Layout(dp_replicate=16, micro_batch=1)
    usual, more = estimate(setting, base), estimate(setting, replace(base, sequences=96))
    assert more.sequences == 96
    assert more.mfu == pytest.approx(usual.mfu, rel=0.1)
    assert more.mfu > usual.mfu  # the reduction is paid once for more work
    assert more.tokens_per_s == pytest.approx(96 * 4096 / more.step_s)


def test_what_is_short_is_told() -> None:
    """llama-3-70b on one v5p: state alone is 18 bytes a parameter in bf16 and fp32."""
    setting = make_setting("llama-3-70b", "v5p:2x2x1", 8, 4096)
    found = estimate(setting, Layout())
    assert not found.fits
    assert found.short_bytes == pytest.approx(max(found.stage_bytes) - setting.capacity_bytes)
    assert found.short_bytes > 16 * setting.model.params - setting.capacity_bytes
    small = make_setting("llama-3.2-1b", "v5p:2x2x1", 8, 4096)
    assert estimate(small, Layout(policies=("full",))).fits


def test_heaviest_stage_decides_memory_with_gpipe_and_1f1b() -> None:
    """GPipe holds every micro-batch on every stage, 1F1B at most pp of them."""
    setting = make_setting("llama-3.2-1b", "v5p:2x2x4", 64, 4096)
    deep = Layout(pp=4, dp_replicate=4)
    flush, steady = (estimate(setting, replace(deep, schedule=s)) for s in ("gpipe", "1f1b"))
    assert [m["activations"] for m in flush.memory] == pytest.approx(
        [m["activations"] * 16 / (4 - s) for s, m in enumerate(steady.memory)]
    )
    assert steady.step_s == flush.step_s
    assert np.argmax(steady.stage_bytes) == 0
