"""Vision towers on the first stage: figures by hand, the schedules' simulation, what they may not change."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from costmodel_cases import best_rows, make_setting
from pipeline_simulator import order

from meshwright.costmodel.estimate import estimate, stage_counts
from meshwright.costmodel.flops import model_flops
from meshwright.costmodel.layout import Layout, parse_layout, with_stages
from meshwright.costmodel.legal import check_layout, chunk_unit
from meshwright.costmodel.limits.answer import limits
from meshwright.costmodel.pipeline import at_start
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.costmodel.workload import Training
from meshwright.hardware.errors import LayoutError, WorkloadError

# The tower of gemma-3-27b, from its published sizes: patches and tokens of an image, width, feed-forward width, layers.
PATCHES, TOKENS, D, F, LAYERS, HIDDEN = 64**2, 256, 1152, 4304, 27, 5376
PIXELS = 3 * 14 * 14
CUT = 3 * (D * D + D) + D * D + (D * F + F) + F * D  # of a layer by tp
WHOLE = D + D + 4 * D  # biases of what is reduced, and norms
ENDS = (PIXELS * D + D) + PATCHES * D + 2 * D + D + D * HIDDEN
IMAGES = 2


def both(cluster: str = "h100:8x16", images: int = IMAGES, **words: Any) -> tuple[Setting, Setting]:
    """gemma-3-27b with so many images in each of 256 sequences, and with text alone."""
    given = ((("images", n),) for n in (images, 0))
    some, none = (make_setting("gemma-3-27b-it", cluster, 256, 4096, training=t, **words) for t in given)
    return some, none


def table(setting: Setting, layout: Layout) -> tuple[StageTable, np.ndarray, np.ndarray]:
    """Stage coefficients, stage numbers, and layers by stage."""
    given = [with_stages(layout, setting.model.layers, chunk_unit(setting, layout.vpp))]
    rows = Rows.of(given, setting)
    counts, stages = stage_counts(setting, given)
    return StageTable.of(setting, rows, best_rows(setting, rows)), stages, counts


def test_flops_of_an_image_by_hand() -> None:
    """Every patch meets every other; three times forward."""
    some, none = both()
    layer = 2 * (4 * D * D + 2 * D * F) + 4 * PATCHES * D
    image = PATCHES * (LAYERS * layer + 2 * PIXELS * D) + TOKENS * 2 * D * HIDDEN
    assert model_flops(some) - model_flops(none) == pytest.approx(3 * IMAGES * 256 * image, rel=1e-12)


@pytest.mark.parametrize(("tp", "dp", "zero"), [(1, 32, 1), (2, 16, 1), (2, 16, 0), (2, 16, 3)])
def test_state_of_a_tower_by_hand(tp: int, dp: int, zero: int) -> None:
    """Over four stages the first one alone holds it; megatron's fp32 gradients."""
    layout = parse_layout(f"pp=4,tp={tp},{'dp_replicate' if zero == 0 else 'dp'}={dp},zero={zero}")
    some, none = (t.stage_parts(s, n) for t, s, n in (table(x, layout) for x in both(framework="megatron")))
    held = LAYERS * (CUT / tp + WHOLE) + ENDS
    cut, ways = {0: (1, 1), 1: (dp, 1), 3: (dp, dp)}[zero]
    expected = {
        "parameters": 2 * held / ways,
        "gradients": 4 * held / ways,
        "master": 4 * held / cut,
        "optimizer": 8 * held / cut,
    }
    for part, size in expected.items():
        more = some[part][0] - none[part][0]
        assert more[1:].tolist() == [0, 0, 0], part
        assert more[0] == pytest.approx(size, rel=1e-9), part


@pytest.mark.parametrize(("tp", "cp", "mb"), [(1, 1, 1), (2, 1, 2), (2, 2, 1)])
def test_what_a_tower_saves_by_hand(tp: int, cp: int, mb: int) -> None:
    """Of each layer its input, of four micro-batches in flight; all ranks of tp and cp have all images."""
    given = table(both()[0], parse_layout(f"pp=4,tp={tp},cp={cp},dp=8,zero=1,micro_batch={mb}"))
    patches, tokens = mb * IMAGES * PATCHES, mb * IMAGES * TOKENS
    one = LAYERS * patches * D + patches * (PIXELS + D) + tokens * (D + D)
    assert given[0].memory.tower[0] == 4 * 2 * one
    assert given[0].costs.first_bytes[0] == pytest.approx(
        sum(given[0].memory.first[p][0] for p in given[0].memory.first) + 8 * one, rel=1e-12
    )


def test_the_first_stage_takes_as_long_as_its_flops() -> None:
    """Everything at its peak rate with all hidden: forward, backward with the kernel's repeated product, and each layer
    once more but for its last product."""
    some, none = both(efficiency="mfu=1.0", overlap="full")
    layout = parse_layout("pp=4,dp=32,zero=1")
    (one, stages, counts), (other, *_) = table(some, layout), table(none, layout)
    more = one.stage_s(stages, counts)[0] - other.stage_s(stages, counts)[0]
    assert more[1:].tolist() == [0, 0, 0]
    products, core = 2 * (4 * D * D + 2 * D * F), 4 * PATCHES * D
    again = products - 2 * D * F + core
    ends = 3 * (2 * PATCHES * PIXELS * D + TOKENS * 2 * D * HIDDEN)
    flops = IMAGES * (PATCHES * LAYERS * (3 * products + 3.5 * core + again) + ends)
    seconds = flops / some.cluster.chip.peak_flop_per_s("bf16")
    assert more[0] == pytest.approx(seconds, rel=1e-9)


def test_ranks_of_cp_repeat_the_tower() -> None:
    """Twice the ranks for the same sequences: a rank of cp has as many images as one of dp."""
    one, two = (table(both()[0], parse_layout(f"pp=4,cp={cp},dp=8,zero=1"))[0].tower for cp in (1, 2))
    assert one is not None
    assert two is not None
    assert two.parts["compute"][0] == one.parts["compute"][0] > 0


def test_tp_collectives_of_a_tower() -> None:
    """Each layer gathers and scatters all patches at its width around two blocks, and once more where it runs again."""
    some, none = both(overlap="none", streams="independent")
    (one, *_), (other, *_) = (table(x, parse_layout("pp=4,tp=2,dp=16,zero=1")) for x in (some, none))
    assert one.tower is not None
    size = np.array([2.0 * IMAGES * PATCHES * D])
    each = one.comm.gather("tp", size).max()
    assert one.tower.parts["tp"][0] == pytest.approx(LAYERS * (2 * 5 + 1) * each, rel=1e-9)
    assert one.first.parts["tp"][0] - other.first.parts["tp"][0] == pytest.approx(one.tower.parts["tp"][0])


SCHEDULES = (
    ("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb_h1", 1), ("zb_h2", 1), ("dualpipev", 2),
)  # fmt: skip


@pytest.mark.parametrize(("schedule", "v"), SCHEDULES)
def test_what_precedes_the_first_layer_is_held_as_the_simulation_says(schedule: str, v: int) -> None:
    """Micro-batches in flight at the start of the model, and weight gradients that are late there."""
    for p, m in ((2, 4), (2, 8), (3, 6), (4, 8), (4, 16)):
        flying = late = most = latest = 0
        for block in order(schedule, 0, p, m, v):
            kinds = [w.kind for w in block if w.chunk == 0]
            flying += kinds.count("F")
            whole = "B" in kinds and "W" in kinds
            most = max(most, flying)
            flying -= kinds.count("B")
            late += 0 if whole else kinds.count("B")
            latest = max(latest, late)
            late -= 0 if whole else kinds.count("W")
        rows = Rows.of([Layout(pp=p, vpp=v, schedule=schedule, sequences=m)], make_setting())
        held, kept = at_start(rows)
        assert (held[0], kept[0]) == (most, latest), (p, m)


@pytest.mark.parametrize(
    "text",
    [
        "pp=4,dp=32,zero=1",
        "dp=128,zero=3",
        "dp=64,tp=2,zero=3,reshard=false",
        "pp=2,vpp=2,dp=64,zero=2,schedule=dualpipev",
    ],
)
def test_parts_sum_up(text: str) -> None:
    some, none = both()
    if "vpp" in text:  # 62 layers of two kinds make no two chunks of two stages
        some, none = (replace(s, model=replace(s.model, pattern=(1, 1) * 30)) for s in (some, none))
    one, stages, counts = table(some, parse_layout(text))
    parts = one.stage_parts(stages, counts)
    np.testing.assert_allclose(sum(parts.values()), one.stage_bytes(stages, counts), rtol=1e-12)
    assert (parts["tower"][0] > 0).tolist() == [s == 0 for s in range(int(one.rows.pp[0]))]
    priced = estimate(some, parse_layout(text))
    assert sum(priced.parts.values()) == pytest.approx(priced.step_s, rel=1e-9)
    assert priced.lower_s <= priced.step_s <= priced.upper_s
    assert priced.step_s > estimate(none, parse_layout(text)).step_s


def test_the_peak_of_a_tower_counts_where_it_is_above_that_of_a_layer() -> None:
    """Many images beside short sequences: the first stage's peak is the tower's, that of the others a layer's."""
    layout = parse_layout("pp=4,dp=32,zero=1,recompute=full")
    one, stages, counts = table(both(images=16)[0], layout)
    parts = one.stage_parts(stages, counts)
    peak = one.memory.tower_peak[0]
    assert peak > one.costs.heaviest(counts)[0, 0] + one.memory.gathers[0]
    assert parts["tower"][0].tolist() == [one.memory.tower[0] + peak, 0, 0, 0]
    assert (parts["working"][0] > 0).tolist() == [False, True, True, parts["loss"][0, 3] == 0]


def test_images_that_cannot_be_are_refused() -> None:
    for model, images, told in (
        ("gemma-3-27b-it", 17, "17 images of 256 tokens are 4352 tokens, a sequence has 4096; use images <= 16, or longer"),
        ("llama-3-8b", 1, "images is 1 and no vision tower of llama-3-8b was read, which takes a gemma3 configuration"),
    ):  # fmt: skip
        with pytest.raises(WorkloadError, match=told):
            make_setting(model, "h100:8x16", 256, 4096, training=(("images", images),))
    for wrong, told in (
        (-1, "images is -1; give a number from 0 to 100000"),
        (True, "images must be a whole number, not True"),
    ):
        with pytest.raises(WorkloadError, match=told):
            Training(4096, 4096, images=wrong)


def test_tp_that_does_not_cut_the_tower_is_refused() -> None:
    """A tower of three heads; the language model would take tp=2."""
    some, none = both()
    assert some.model.tower is not None
    vision = some.model.tower.kind
    three = replace(vision, attention=replace(vision.attention, heads=3))
    odd = replace(some, model=replace(some.model, tower=replace(some.model.tower, kind=three)))
    layout = with_stages(parse_layout("tp=2,dp=64,zero=1"), some.model.layers, 1)
    check_layout(some, layout)
    check_layout(replace(none, model=odd.model), layout)
    told = "tp=2 does not divide the 3 heads and the feed-forward width 4304 of the vision tower; use tp=1, or images=0"
    with pytest.raises(LayoutError) as refused:
        check_layout(odd, layout)
    assert str(refused.value) == told


def test_limits_are_of_layers_alone() -> None:
    with pytest.raises(
        WorkloadError, match="limits are those of the layers alone, and images is 2; ask with images=0"
    ):
        limits(both()[0])
