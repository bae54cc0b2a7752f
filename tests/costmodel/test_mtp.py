"""Multi-token-prediction modules on the last stage: figures by hand, the schedules' simulation, what they may not change."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from costmodel_cases import best_rows, make_setting
from pipeline_simulator import order

from meshwright.costmodel.estimate import estimate, stage_counts
from meshwright.costmodel.flops import model_flops
from meshwright.costmodel.layout import Layout, parse_layout, with_stages
from meshwright.costmodel.legal import chunk_unit
from meshwright.costmodel.limits.answer import limits
from meshwright.costmodel.pipeline import at_end
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.costmodel.workload import Training
from meshwright.hardware.errors import WorkloadError

WITH, WITHOUT = ((("mtp", n),) for n in (1, 0))
# One multi-token-prediction module of DeepSeek-V3, from its published sizes.
D, VOCAB, HEADS = 7168, 129280, 128
ATTENTION = D * 1536 + 1536 + 1536 * HEADS * 192 + D * 576 + 512 + 512 * HEADS * 256 + HEADS * 128 * D
EXPERT, ROUTER = 3 * D * 2048, D * 256
PLAIN = ATTENTION + 2 * D + ROUTER + EXPERT + 2 * D * D + 3 * D  # one expert is shared
ROUTED, TABLE = 256 * EXPERT, VOCAB * D


def both(cluster: str = "h100:8x16", **words: Any) -> tuple[Setting, Setting]:
    """DeepSeek-V3 with one module and with none."""
    with_one, with_none = (
        make_setting("deepseek-v3", cluster, 256, 4096, training=t, **words) for t in (WITH, WITHOUT)
    )
    return with_one, with_none


def table(setting: Setting, *layouts: Layout) -> tuple[StageTable, np.ndarray, np.ndarray]:
    """Stage coefficients, layers by stage, and stage numbers."""
    given = [with_stages(x, setting.model.layers, chunk_unit(setting, x.vpp)) for x in layouts]
    rows = Rows.of(given, setting)
    counts, stages = stage_counts(setting, given)
    return StageTable.of(setting, rows, best_rows(setting, rows)), counts, stages


def test_parameters_of_a_module_by_hand() -> None:
    spec = both()[0].model
    assert spec.mtp_params == PLAIN + ROUTED == 11_610_067_968


def test_flops_of_a_module_by_hand() -> None:
    """Its layer, join and a pass of the head, times six; attention under a causal mask."""
    ahead, plain = both()
    products = ATTENTION - 1536 - 512 + ROUTER + 9 * EXPERT + 2 * D * D + TABLE  # one shared, eight routed
    kernel = HEADS * (192 + 128) * 4097 / 2
    more = 6 * (products + kernel) * 256 * 4096
    assert model_flops(ahead) - model_flops(plain) == pytest.approx(more, rel=1e-12)


@pytest.mark.parametrize(("tp", "ep", "dp"), [(1, 8, 32), (2, 8, 16), (1, 32, 32)])
def test_state_of_a_module_by_hand(tp: int, ep: int, dp: int) -> None:
    """Over four stages the last one alone holds it, with a copy of the token table; ZeRO-1, megatron's fp32 gradients."""
    layout = parse_layout(f"pp=4,tp={tp},dp={dp},zero=1,ep={ep}")
    one, none = (
        table(s, layout)[0].stage_parts(*table(s, layout)[2:0:-1]) for s in both(framework="megatron")
    )
    whole = (
        ATTENTION - HEADS * 192 * 1536 - 512 * HEADS * 256 - HEADS * 128 * D
    )  # down projections and their norms
    whole += 2 * D + ROUTER + 3 * D
    plain = whole + (PLAIN - whole + TABLE) / tp
    routed, shards = ROUTED / ep, dp * tp / ep  # ranks that hold the same experts
    held = plain + routed
    owned = plain / dp + routed / shards
    for part, expected in (
        ("parameters", 2 * held),
        ("gradients", 4 * held),
        ("master", 4 * owned),
        ("optimizer", 8 * owned),
    ):
        more = one[part][0] - none[part][0]
        assert more[:3].tolist() == [0, 0, 0], part
        assert more[3] == pytest.approx(expected, rel=1e-9), part
        assert expected > 0


def test_the_last_stage_takes_a_layer_and_a_head_more() -> None:
    """Everything at its peak rate and no elementwise work: the seconds are FLOPs over the peak."""
    ahead, plain = both(efficiency="mfu=1.0", overlap="full")
    layout = parse_layout("pp=4,dp=32,zero=1,ep=32")
    (one, counts, stages), (none, *_) = table(ahead, layout), table(plain, layout)
    more = one.stage_s(stages, counts)[0] - none.stage_s(stages, counts)[0]
    assert more[:3].tolist() == [0, 0, 0]
    moe, head = none.layer_s[0, -1], none.last.total[0]
    join = 3 * 2 * 2 * D * D * 4096 / ahead.cluster.chip.peak_flop_per_s("bf16")
    assert more[3] == pytest.approx(moe + head + join, rel=0.02)  # look-ups and norms beside


def test_both_ends_add_up_the_gradients_of_the_table() -> None:
    """The head of DeepSeek-V3 is its own, but its module looks tokens up on the last stage."""
    layout = Layout(pp=4)
    tied = [table(s, layout)[0].once.tied_s(np.arange(4)[None, :])[0] for s in both()]
    assert tied[0][0] == tied[0][3] > 0
    assert [*tied[0][1:3], *tied[1]] == [0] * 6


@pytest.mark.parametrize("word", ["none", "full"])
def test_recompute_is_of_modules_too_where_it_is_one_setting(word: str) -> None:
    """Megatron repeats all layers of a kind or none; where stages choose, modules repeat nothing."""
    for framework, repeats in (("megatron", word == "full"), ("jax", False)):
        ahead, plain = both(framework=framework)
        one, none = (
            table(s, parse_layout(f"pp=4,dp=32,zero=1,ep=32,recompute={word}"))[0] for s in (ahead, plain)
        )
        assert one.mtp is not None
        assert (one.mtp.parts["recompute"][0] > 0) == repeats
        if repeats:
            assert one.mtp.parts["recompute"][0] == none.layers[-1].parts["recompute"][0]


SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb_h1", 1), ("zb_h2", 1), ("dualpipev", 2))


@pytest.mark.parametrize(("schedule", "v"), SCHEDULES)
def test_what_follows_the_last_layer_is_held_as_the_simulation_says(schedule: str, v: int) -> None:
    """Micro-batches in flight at the end of the model, and weight gradients that are late there: never below."""
    for p, m in ((2, 4), (2, 8), (3, 6), (4, 8), (4, 16)):
        rank, chunk = (0, 1) if schedule == "dualpipev" else (p - 1, v - 1)
        flying = late = most = latest = 0
        for block in order(schedule, rank, p, m, v):
            kinds = [w.kind for w in block if w.chunk == chunk]
            flying += kinds.count("F")
            whole = "B" in kinds and "W" in kinds
            most = max(most, flying)
            flying -= kinds.count("B")
            late += 0 if whole else kinds.count("B")
            latest = max(latest, late)
            late -= 0 if whole else kinds.count("W")
        rows = Rows.of([Layout(pp=p, vpp=v, schedule=schedule, sequences=m)], make_setting())
        held, kept = at_end(rows)
        assert held[0] == most, (p, m)
        assert latest <= kept[0] <= latest + 1, (p, m)


@pytest.mark.parametrize(
    "text",
    ["pp=4,dp=32,zero=1,ep=32", "dp=128,zero=3,ep=64", "pp=2,vpp=2,dp=64,zero=2,ep=64,schedule=dualpipev"],
)
def test_parts_sum_up(text: str) -> None:
    ahead, plain = both()
    # 61 layers of two kinds make no two chunks of two stages.
    if "vpp" in text:
        ahead, plain = (replace(s, model=replace(s.model, pattern=(1,) * 60)) for s in (ahead, plain))
    one, counts, stages = table(ahead, parse_layout(text))
    parts = one.stage_parts(stages, counts)
    np.testing.assert_allclose(sum(parts.values()), one.stage_bytes(stages, counts), rtol=1e-12)
    assert (parts["mtp"][0] > 0).tolist() == [
        s == int(one.rows.last_stage[0]) for s in range(int(one.rows.pp[0]))
    ]
    priced = estimate(ahead, parse_layout(text))
    assert sum(priced.parts.values()) == pytest.approx(priced.step_s, rel=1e-9)
    assert priced.lower_s <= priced.step_s <= priced.upper_s
    assert priced.step_s > estimate(plain, parse_layout(text)).step_s


def test_more_modules_than_the_model_carries_are_refused() -> None:
    with pytest.raises(
        WorkloadError,
        match="mtp 2 is more than the 1 multi-token-prediction modules deepseek-v3 carries; use mtp <= 1",
    ):
        make_setting("deepseek-v3", training=(("mtp", 2),))
    with pytest.raises(
        WorkloadError, match="mtp 1 is more than the 0 multi-token-prediction modules llama-3-8b carries"
    ):
        make_setting("llama-3-8b", training=WITH)
    for wrong, told in (
        (-1, "mtp is -1; give a number from 0 to 1000"),
        (True, "mtp must be a whole number, not True"),
    ):
        with pytest.raises(WorkloadError, match=told):
            Training(4096, 4096, mtp=wrong)


def test_limits_are_of_layers_alone() -> None:
    with pytest.raises(
        WorkloadError, match="limits are those of the layers alone, and mtp is 1; ask with mtp=0"
    ):
        limits(both()[0])
