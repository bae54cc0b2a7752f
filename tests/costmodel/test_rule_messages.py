"""Every refusal says the rule, the numbers and the way out; the text is pinned."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from costmodel_cases import draw_layout, make_setting

from meshwright.costmodel.estimate import estimate
from meshwright.costmodel.layout import Layout, parse_layout, with_stages
from meshwright.costmodel.legal import RULES, chunk_unit, pattern_period
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.workload import Training, parse_batch
from meshwright.hardware.errors import (
    LayoutError,
    MeshwrightError,
    MissingFigureError,
    UnknownNameError,
    WorkloadError,
)

LLAMA = make_setting("llama-3-8b", "v5p:4x4x4", 128, 8192)
MIXTRAL = make_setting("mixtral-8x7b", "v5p:4x4x4", 128, 4096)
GPU = make_setting("llama-3-8b", "h100:8x2", 16, 8192)
BARE = make_setting("llama-3-8b", "h100:8x2", 16, 8192, host=True)
NO_LINK = replace(
    BARE, cluster=replace(BARE.cluster, chip=BARE.cluster.chip.model_copy(update={"host_link": None}))
)
NO_UPDATE = replace(BARE, cluster=replace(BARE.cluster, cpu_update_params_per_s=None))

LAYOUT = [
    ({"tp": 0}, "tp=0 is not a degree; give a whole number of 1 or more"),
    ({"pp": True}, "pp=True is not a degree; give a whole number of 1 or more"),
    ({"micro_batch": 1.5}, "micro_batch=1.5 is not a degree; give a whole number of 1 or more"),
    ({"ep": 2**24 + 1}, "ep=16777217 is not a degree; give a whole number of 1 or more"),
    ({"zero": 4}, "zero=4 is not one of 0, 1, 2, 3"),
    ({"cp_kind": "star"}, "cp_kind='star' is not one of ring, all_to_all, all_gather"),
    ({"schedule": "zbv"}, "schedule='zbv' is not one of gpipe, 1f1b, interleaved, zb_h1, zb_h2, dualpipev"),
    ({"schedule": "zb_h1"}, "schedule=zb_h1 needs a pipeline, but pp is 1; use schedule=1f1b"),
    ({"schedule": "gpipe"}, "schedule=gpipe needs a pipeline, but pp is 1; use schedule=1f1b"),
    ({"schedule": "dualpipev", "pp": 2}, "vpp=1 does not go with schedule=dualpipev; interleaved takes vpp above 1, dualpipev vpp=2, any other vpp=1"),
    ({"offload": "disk"}, "offload='disk' is not one of none, activations, optimizer, optimizer+activations, optimizer+gradients, optimizer+gradients+activations, parameters, parameters+activations, optimizer+parameters, optimizer+parameters+activations, optimizer+gradients+parameters, optimizer+gradients+parameters+activations"),
    ({"policies": ("some",)}, "recompute='some' is not one of none, elementwise, attention, mlp, full, and no list of what is saved, such as save(core+up)"),
    ({"dp_shard": 4}, "zero=0 shards nothing, and dp_shard=4 (dp = dp_shard*dp_replicate = 4); use zero=1, 2 or 3, or dp_shard=1,dp_replicate=4"),
    ({"dp_shard": 4, "dp_replicate": 2}, "zero=0 shards nothing, and dp_shard=4 (dp = dp_shard*dp_replicate = 8); use zero=1, 2 or 3, or dp_shard=1,dp_replicate=8"),
    ({"zero": 2}, "zero=2 has nothing to shard over: dp_shard*cp is 1; use zero=0"),
    ({"zero": 2, "dp_replicate": 8}, "zero=2 has nothing to shard over: dp_shard*cp is 1; use zero=0, or dp_shard=8,dp_replicate=1"),
    ({"pp": 2, "vpp": 2}, "vpp=2 does not go with schedule=1f1b; interleaved takes vpp above 1, dualpipev vpp=2, any other vpp=1"),
    ({"schedule": "interleaved"}, "vpp=1 does not go with schedule=interleaved; interleaved takes vpp above 1, dualpipev vpp=2, any other vpp=1"),
    ({"vpp": 2, "schedule": "interleaved"}, "vpp=2 needs a pipeline, but pp is 1; use vpp=1"),
    ({"tp": 4, "etp": 2}, "etp=2 is neither 1 nor tp=4; use one of them"),
    ({"tp": 4, "ep": 3}, "ep*etp=3 does not divide the 4 devices of a stage (dp_replicate*dp_shard*cp*tp); use a divisor"),
    ({"pp": 2, "layers_per_stage": (32,)}, "layers=32 has 1 entry for pp=2 stages; give one each, or pp=1"),
]  # fmt: skip

TEXT = [
    ("tp", "cannot read 'tp' in the layout; write name=value, like tp=8,pp=4"),
    ("tp=8;pp=4", "cannot read 'tp=8;pp=4' in the layout; write name=value, like tp=8,pp=4"),
    ("tp=8,tp=4", "layout gives tp twice; give it once"),
    ("tpp=8", "unknown layout key 'tpp'; did you mean"),
    ("sp=yes", "sp=yes is neither true nor false"),
    ("tp=eight", "tp=eight is not a whole number; write tp=8"),
    ("pp=2,layers=16/x", "layers=x is not a whole number; write layers=8"),
    (
        "dp=8,dp_shard=2,dp_replicate=2,zero=1",
        "dp=8 is not dp_shard*dp_replicate, which is 4; leave dp out, or write dp=4",
    ),
    (
        "dp=8,dp_shard=3,zero=1",
        "dp_shard=3 does not divide dp=8, which is dp_shard*dp_replicate; use a divisor, or leave dp out",
    ),
    (
        "dp=8,dp_replicate=0",
        "dp_replicate=0 does not divide dp=8, which is dp_shard*dp_replicate; use a divisor, or leave dp out",
    ),
    (
        "tp=8,placement=tp8;-",
        "cannot read 'tp8' in the placement; write each level, innermost first, like tp*8;dp_shard*2/pp*4, and - for one that holds nothing",
    ),
    (
        "tp=8,placement=tp*8;;-",
        "cannot read '' in the placement; write each level, innermost first, like tp*8;dp_shard*2/pp*4, and - for one that holds nothing",
    ),
    ("tp=1 6", "cannot read 'tp=1 6' in the layout; write name=value, like tp=8,pp=4"),
]

RULE = [
    (LLAMA, Layout(dp_replicate=128), "the layout uses 128 devices, v5p:4x4x4 has 64; lower a degree"),
    (LLAMA, Layout(tp=3), "tp=3 does not fit the model's heads (32 heads, 8 kv heads): it must divide the heads, and divide the kv heads or be a multiple of them; use tp=1, 2, 4, 8, 16 or 32"),
    (make_setting("llama-2-13b"), Layout(tp=5), "tp=5 (etp=1) does not divide the feed-forward widths (13824); use a divisor"),
    (MIXTRAL, Layout(dp_replicate=3, ep=3), "ep=3, etp=1: ep must divide the model's 8 experts and ep*etp the 3 devices of a stage; use such a divisor"),
    (LLAMA, Layout(dp_replicate=2, ep=2), "ep=2, etp=1: llama-3-8b has no experts; use ep=1 and etp=1"),
    (make_setting("llama-3-8b", sequences=8, seq_len=4098), Layout(cp=2, zero=1), "seq_len 4098 is not a multiple of 2*cp (cp=2) times tp=1; use degrees that divide it"),
    (make_setting("llama-3-8b", sequences=8, seq_len=4098), Layout(tp=4), "seq_len 4098 is not a multiple of 2*cp (cp=1) times tp=4; use degrees that divide it"),
    (LLAMA, Layout(cp=16, zero=1, cp_kind="all_to_all"), "cp_kind=all_to_all needs tp*cp=16 to divide heads and kv heads (32 and 8); use ring or all_gather"),
    (LLAMA, Layout(dp_replicate=6), "a batch of 128 sequences is not a multiple of dp*micro_batch = 6*1; change one of them"),
    (LLAMA, Layout(micro_batch=5), "a batch of 128 sequences is not a multiple of dp*micro_batch = 1*5; change one of them"),
    (LLAMA, Layout(sequences=64), "sequences=64 is not the batch asked for, 128 sequences; give that batch, or a tolerance like 4Mi~5%"),
    (LLAMA, Layout(pp=64), "pp*vpp = 64*1 is more than the model's 32 layers; lower one"),
    (LLAMA, Layout(pp=2, vpp=3, schedule="interleaved"), "vpp=3 needs the 32 layers to be a multiple of vpp times the pattern's period 1, with one such group a stage; use vpp=1"),
    (LLAMA, Layout(pp=4, vpp=2, schedule="interleaved", micro_batch=64), "vpp=2 needs the number of micro-batches to be a multiple of pp=4; change micro_batch or use vpp=1"),
    (LLAMA, Layout(policies=("none", "full")), "2 recompute policies for 1 layer kinds (dense); give one, or one each"),
    (LLAMA, Layout(pp=2, layers_per_stage=(16, 15)), "layers=16/15 sums to 31, the model has 32 layers; make them 32, or leave layers out for even stages, 16/16"),
    (LLAMA, Layout(pp=2, layers_per_stage=(32, 0)), "layers=32/0: every stage needs 1 layer or more; move layers, or lower pp=2"),
    (LLAMA, Layout(pp=4, schedule="zb_h2", micro_batch=64), "schedule=zb_h2 needs 7 micro-batches at pp=4, there are 2; change micro_batch or use schedule=1f1b"),
    (LLAMA, Layout(pp=4, vpp=2, schedule="dualpipev", micro_batch=32), "schedule=dualpipev needs 8 micro-batches at pp=4, there are 4; change micro_batch or use schedule=1f1b"),
    (LLAMA, Layout(pp=2, vpp=2, schedule="interleaved", layers_per_stage=(15, 17)), "layers=15/17: every stage needs a positive multiple of 2 layers (whole chunks); move layers, or lower pp=2"),
    (LLAMA, Layout(tp=8, dp_replicate=32, placement=()), "the layout uses 256 devices, v5p:4x4x4 has 64; lower a degree"),
    (make_setting("llama-3-8b", "v5p:4x4x4", 5, 8192), Layout(dp_replicate=5), "dp_replicate=5 cannot be laid over x 4 x y 4 x z 4: each level must hold a whole factor of every degree"),
    (LLAMA, Layout(tp=2, placement=((("tp", 2),),)), "placement has 1 of the 3 levels of the network; give one each, innermost first: x, y, z"),
    (LLAMA, Layout(tp=2, placement=((("ep", 2),), (), ())), "placement puts ep=2 on x; dimensions are tp, cp, dp_shard, dp_replicate, pp"),
    (LLAMA, Layout(tp=2, placement=((("tp", 0),), (), ())), "placement puts tp=0 on x; dimensions are tp, cp, dp_shard, dp_replicate, pp"),
    (LLAMA, Layout(tp=8, placement=((("tp", 8),), (), ())), "placement uses 8 of the 4 on level x; place less of it there"),
    (LLAMA, Layout(tp=4, pp=2, placement=((("tp", 2), ("pp", 1), ("tp", 2)), (("pp", 2),), ())), "placement puts tp twice on x; give its whole factor there once"),
    (LLAMA, Layout(tp=4, placement=((("tp", 2),), (), ())), "placement multiplies tp to 2, the layout says 4; make them one"),
    (GPU, Layout(offload="activations"), "offload=activations needs the host's memory and h100:8x2 gives none (field host_memory_bytes); say it with --host-memory 2TB, or use offload=none"),
    (NO_LINK, Layout(offload="activations"), "offload=activations needs the host link's rate and h100 gives none (field host_link)"),
    (NO_UPDATE, Layout(offload="optimizer"), "offload=optimizer needs the host's optimizer rate and h100:8x2 gives none (field cpu_update_params_per_s); say it with --cpu-update '1 Gparam/s', or use offload=activations"),
]  # fmt: skip

WORK = [
    (lambda: Training(100, 0), "seq_len is 0; give a number from 1 to 16777216"),
    (lambda: Training(100, 2.5), "seq_len must be a whole number, not 2.5"),  # type: ignore[arg-type]
    (lambda: Training(2**41, 1), "global batch in tokens is 2199023255552; give a number from 1 to 1099511627776"),
    (lambda: Training(10000, 4096), "a batch of 10000 tokens is not a whole number of sequences of 4096; the nearest are 8192 and 12288 tokens"),
    (lambda: Training(4096, 4096, batch_tolerance=0.6), "batch tolerance 0.6 is outside 0 to 0.5 (0% to 50%)"),
    (lambda: Training(4096, 4096, batch_tolerance=float("nan")), "batch tolerance nan is outside 0 to 0.5 (0% to 50%)"),
    (lambda: Training(4096, 4096, moe_imbalance=0.5), "moe_imbalance 0.5 is outside 1 to 100 (fullest over mean)"),
    (lambda: Training(4096, 4096, optimizer="lion"), "unknown optimizer 'lion'; known: adamw, adamw8bit, sgd"),  # type: ignore[arg-type]
    (lambda: Training(4096, 4096, compute_dtype="fp32"), "unknown compute dtype 'fp32'; known: bf16, fp16, fp8, fp4"),  # type: ignore[arg-type]
    (lambda: Training(4096, 4096, total_tokens=0), "total tokens is 0; give a number from 1 to 1152921504606846976"),
    (lambda: parse_batch("lots", 4096), "cannot read batch 'lots'; write tokens like 4Mi or 4194304, sequences like 1024seq, and a tolerance like 4Mi~5%"),
    (lambda: parse_batch("1.5", 4096), "batch '1.5' is 1.5 tokens, not a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), LAYOUT, ids=lambda x: str(x)[:40])
def test_layout_refuses(words: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        Layout(**words)
    assert str(caught.value) == message


@pytest.mark.parametrize(("text", "message"), TEXT, ids=lambda x: str(x)[:40])
def test_layout_string_refuses(text: str, message: str) -> None:
    with pytest.raises((LayoutError, UnknownNameError)) as caught:
        parse_layout(text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("setting", "layout", "message"), RULE, ids=[r[2][:60] for r in RULE])
def test_estimate_refuses(setting: Any, layout: Layout, message: str) -> None:
    with pytest.raises((LayoutError, MissingFigureError)) as caught:
        estimate(setting, layout)
    assert str(caught.value) == message


@pytest.mark.parametrize(("make", "message"), WORK, ids=[w[1][:60] for w in WORK])
def test_workload_refuses(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"tpp": 2}, "unknown layout key 'tpp'; did you mean tp"),
        ({"layers_per_stage": 3}, "layers_per_stage is 3; give a list as `to_dict` writes it"),
        ({"placement": [[["tp"]]]}, "an entry of placement is (('tp',),); give a tuple of pairs such as (('tp', 8),)"),
        ({"tp": "8"}, "tp='8' is not a degree; give a whole number of 1 or more"),
    ],
)  # fmt: skip
def test_layout_files_refuse(data: dict[str, Any], message: str) -> None:
    with pytest.raises((LayoutError, UnknownNameError)) as caught:
        Layout.from_dict(data)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "seq", "expect"),
    [
        ("4Mi", 4096, (4 * 2**20, 0.0)),
        ("4194304", 4096, (4194304, 0.0)),
        ("1.5k", 1, (1500, 0.0)),
        ("1024seq", 4096, (1024 * 4096, 0.0)),
        ("4Mi~5%", 4096, (4 * 2**20, 0.05)),
        (" 16M~0.5% ", 1, (16_000_000, 0.005)),
    ],
)
def test_batch_strings(text: str, seq: int, expect: tuple[int, float]) -> None:
    assert parse_batch(text, seq) == expect


def test_a_tolerance_of_five_percent_allows_1050_sequences() -> None:
    """The design's example: 1,024 sequences of 4,096, where 1,050 fill 70 data ranks of the whole v5p pod."""
    found = Training(4 * 2**20, 4096, batch_tolerance=0.05).sequence_range
    assert (found.start, found.stop - 1) == (973, 1075)
    assert 1050 in found and 1050 % 70 == 0


@pytest.mark.parametrize("setting", [LLAMA, MIXTRAL, make_setting("gemma-2-2b", "v5p:4x4x4", 64, 8192)])
def test_each_rule_says_of_a_column_what_it_says_of_a_layout(setting: Any) -> None:
    """Rows that the planner drops by a rule are just those that estimate() refuses with that rule's sentence."""
    rng = random.Random(7)
    layouts = []
    for _ in range(300):
        layout = draw_layout(rng, True, False)
        layouts.append(with_stages(layout, setting.model.layers, chunk_unit(setting, layout.vpp)))
    rows = Rows.of(layouts, setting)
    holds = np.array([rule.holds(setting, rows) for rule in RULES])
    assert not holds.all(axis=0).all()
    for row in range(0, 300, 6):
        broken = [r for r, ok in zip(RULES, holds[:, row], strict=True) if not ok]
        try:
            estimate(setting, layouts[row])
        except MeshwrightError as error:
            if broken:
                assert str(error) == broken[0].message(setting, layouts[row])
        else:
            assert not broken


def test_pattern_period() -> None:
    assert [pattern_period(p) for p in ((0, 0, 0), (0, 1, 0, 1), (0, 1, 1), (0, 1, 0))] == [1, 2, 3, 3]


def test_even_stages_give_the_remainder_to_the_first() -> None:
    """The last stage has the head; and interleaved stages take whole groups."""
    assert with_stages(Layout(pp=3), 32, 1).layers_per_stage == (11, 11, 10)
    assert with_stages(Layout(pp=3), 32, 4).layers_per_stage == (12, 12, 8)
    assert with_stages(Layout(pp=2, layers_per_stage=(20, 12)), 32, 1).layers_per_stage == (20, 12)


WAYS = [
    ("dp=8,dp_shard=4,dp_replicate=2", "dp=8,dp_shard=1,dp_replicate=8"),
    ("dp=8,dp_shard=4,dp_replicate=2", "dp=8,dp_shard=4,dp_replicate=2,zero=1"),
    ("dp=8,dp_shard=4,dp_replicate=4,zero=1", "dp_shard=4,dp_replicate=4,zero=1"),
    ("dp=8,dp_shard=4,dp_replicate=4,zero=1", "dp=16,dp_shard=4,dp_replicate=4,zero=1"),
    ("dp=8,dp_replicate=8,zero=3", "dp=8,dp_shard=8,dp_replicate=1,zero=3"),
    ("dp=8,dp_shard=3,zero=1", "dp_shard=3,zero=1"),
]


@pytest.mark.parametrize(("wrong", "right"), WAYS, ids=[f"{a} -> {b}" for a, b in WAYS])
def test_the_way_out_of_degrees_that_disagree_is_one(wrong: str, right: str) -> None:
    """Every number that a message tells the user to write is in what then reads."""
    with pytest.raises(LayoutError, match=r"dp_shard\*(dp_replicate|cp)"):
        parse_layout(wrong)
    layout = parse_layout(right)
    assert layout.dp == layout.dp_shard * layout.dp_replicate
