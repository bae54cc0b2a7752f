"""Where state lives: weights kept or gathered again, state on hosts. Bytes and seconds by hand, and what no choice may do."""

from dataclasses import replace

import numpy as np
import pytest
from costmodel_cases import best_rows, legal_layouts, make_setting

from meshwright.costmodel.estimate import estimate, stage_counts
from meshwright.costmodel.layout import Layout, parse_layout, with_stages
from meshwright.costmodel.legal import chunk_unit
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.hardware.errors import LayoutError

# llama-3-8b: q, o 4096 x 4096, k, v 4096 x 1024, gate, up, down 4096 x 14336, two norms of 4096.
MATRICES = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
NORMS = 2 * 4096


def table_of(setting: Setting, *layouts: Layout) -> tuple[StageTable, np.ndarray, np.ndarray]:
    """Stage table at the best placement with (stages, counts)."""
    given = [with_stages(x, setting.model.layers, chunk_unit(setting, x.vpp)) for x in layouts]
    rows = Rows.of(given, setting)
    counts, stages = stage_counts(setting, given)
    return StageTable.of(setting, rows, best_rows(setting, rows)), stages, counts


@pytest.mark.parametrize(
    ("framework", "sharded", "whole"), [("jax", MATRICES, NORMS), ("megatron", MATRICES + NORMS, 0)]
)
def test_kept_weights_by_hand(framework: str, sharded: int, whole: int) -> None:
    """Over 8 ranks: a bf16 shard of each layer, and kept beside it what the others hold too; nothing else is gathered.

    jax keeps norms whole on every rank, so they are never gathered.
    """
    setting = make_setting("llama-3-8b", framework=framework)
    table, stages, counts = table_of(
        setting, *(parse_layout(f"dp=8,zero=3,pp=4,reshard={r}") for r in ("true", "false"))
    )
    parts = table.stage_parts(stages, counts)
    second = parts["parameters"][:, 1]  # no embedding, no head; 8 layers
    assert second[0] == pytest.approx(8 * 2 * (sharded / 8 + whole), rel=1e-12)
    assert second[1] == pytest.approx(8 * 2 * (sharded / 8 + whole + sharded), rel=1e-12)
    layer, fw = MATRICES + NORMS, setting.framework
    assert parts["gathers"][0, 1] == pytest.approx(layer * (2 * fw.gather_depth + fw.grad_bytes), rel=1e-12)
    assert parts["gathers"][1, 1] == pytest.approx(
        layer * fw.grad_bytes, rel=1e-12
    )  # the gradient of one layer
    for part in ("master", "optimizer", "gradients", "activations", "working", "loss"):
        np.testing.assert_array_equal(parts[part][0], parts[part][1])
    # The same for any number of micro-batches in flight.
    more, stages, counts = table_of(setting, parse_layout("dp=8,zero=3,pp=4,reshard=false,micro_batch=16"))
    assert more.stage_parts(stages, counts)["parameters"][0, 1] == second[1]


def test_a_group_of_one_keeps_nothing_more() -> None:
    """Experts whose ranks hold no copies are whole already: mixtral over 8 experts on 8 ranks."""
    setting = make_setting("mixtral-8x7b", "h100:8x8", 64, 4096)
    table, stages, counts = table_of(
        setting, *(parse_layout(f"dp=8,zero=3,ep=8,reshard={r}") for r in ("true", "false"))
    )
    gathered, kept = table.stage_parts(stages, counts)["parameters"][:, 0]
    plain = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 8
    assert kept - gathered == pytest.approx(32 * 2 * plain, rel=1e-12)


def test_one_gather_of_three_collectives_is_spared() -> None:
    """Two gathers and a scatter of the same bytes, or one of each; nothing hidden, on one level."""
    setting = make_setting("llama-3-8b", "h100:8x1", overlap="none")
    table, _, _ = table_of(setting, *(parse_layout(f"dp=8,zero=3,reshard={r}") for r in ("true", "false")))
    again, kept = table.layers[0].parts["fsdp"]
    assert kept == pytest.approx(again * 2 / 3, rel=1e-12)
    # 7/8 of the layer in bf16 reach each rank at the rate of its link.
    level = setting.network.levels[0]
    wire = 2 * (MATRICES + NORMS) * 7 / 8 / (level.bytes_per_s * setting.network.achieved[0])
    assert again - kept == pytest.approx(wire, rel=0.05)  # and the latency of seven hops


@pytest.mark.parametrize("world", [("llama-3-8b", "v5p:4x4x4"), ("mixtral-8x7b", "h100:8x16")], ids=str)
def test_keeping_weights_saves_at_most_their_gathers(world: tuple[str, str]) -> None:
    """Never slower, never by more than one bare gather of every layer and micro-batch, and never fewer bytes."""
    hidden, bare = (make_setting(*world, 128, 4096, overlap=o) for o in ("calibrated", "none"))
    found = [x for x in legal_layouts(hidden) if x.zero == 3]
    assert len(found) > 20
    saving = 0
    for layout in found:
        kept = replace(layout, reshard=not layout.reshard) if layout.reshard else layout
        again = replace(kept, reshard=True)
        (table, stages, counts), (naked, _, _) = (table_of(s, again, kept) for s in (hidden, bare))
        seconds = table.stage_s(stages, counts)
        gathers = np.diff(naked.stage_s(stages, counts)[::-1], axis=0)[0]
        saved = seconds[0] - seconds[1]
        assert (saved >= -1e-12 * seconds[0]).all() and (saved <= gathers * (1 + 1e-9)).all()
        saving += bool((saved > 0).any())
        state = table.costs.state
        assert (state[1] >= state[0]).all()
    assert saving > 0


def test_reshard_is_read_written_and_refused() -> None:
    layout = parse_layout("dp=8,zero=3,reshard=false")
    assert not layout.reshard and Layout.from_dict(layout.to_dict()) == layout
    with pytest.raises(LayoutError, match="zero=2 gathers none; use zero=3 or reshard=true"):
        parse_layout("dp=8,zero=2,reshard=false")
    with pytest.raises(LayoutError, match="reshard=no is neither true nor false"):
        parse_layout("dp=8,zero=3,reshard=no")
    question = make_setting("llama-3-8b", "h100:8x1")
    assert estimate(question, layout).step_s <= estimate(question, replace(layout, reshard=True)).step_s


LAYER = MATRICES + NORMS
PARAMS = 32 * LAYER + 2 * 128256 * 4096 + 4096  # with token table, head and the last norm
LINK = 63e9  # bytes/s of an H100's PCIe link, one way
OFFLOADED = (
    "optimizer",
    "optimizer+gradients",
    "parameters",
    "optimizer+parameters",
    "optimizer+gradients+parameters",
)


def hosted(**words: str) -> Setting:
    """8 GPUs of one host that updates 3 Gparam/s, nothing hidden."""
    return make_setting(
        "llama-3-8b", "h100:8x1", 64, 8192, host=True, efficiency="ideal", **{"overlap": "none", **words}
    )


@pytest.mark.parametrize("reshard", [True, False])
def test_link_bytes_of_a_layer_by_hand(reshard: bool) -> None:
    """Of 8 ranks each moves an eighth: a bf16 gradient out, bf16 weights in for each gather; activations both ways."""
    gradient, weights = 2 * LAYER / 8, (2 if reshard else 1) * 2 * LAYER / 8
    saved = 2 * 8192 * 4096 * 2  # the layer's input out and in again, under full recompute
    bytes_of = {
        "activations": saved,
        "optimizer": 0.0,
        "optimizer+gradients": gradient,
        "parameters": weights,
        "optimizer+parameters": weights,
        "optimizer+gradients+parameters+activations": gradient + weights + saved,
    }
    base = Layout(dp_shard=8, zero=3, reshard=reshard, policies=("full",))
    table, _, _ = table_of(hosted(), *(replace(base, offload=o) for o in bytes_of))
    np.testing.assert_allclose(
        table.layers[0].parts["offload"], np.array(list(bytes_of.values())) / LINK, rtol=1e-12
    )
    # Ends: the token table and the head once, whatever is gathered of them.
    table, _, _ = table_of(hosted(), replace(base, offload="optimizer+gradients+parameters"))
    for end, norm in (
        (table.first, 0),
        (table.last, 4096),
    ):  # of the last norm the gradient counts, not the weights
        moved = 2 * 128256 * 4096 / 8 + 2 * (128256 * 4096 + norm) / 8
        assert end.parts["offload"][0] == pytest.approx(moved / LINK, rel=1e-12)


def test_the_update_by_hand() -> None:
    """The CPU updates all 8.03e9 parameters of the host at 3e9 a second; the link carries what has not crossed yet."""
    assert PARAMS == 8030261248
    slow = replace(hosted())  # a link so slow that it, not the CPU, takes the longest
    slow.__dict__["rates"] = replace(slow.rates, host_bytes_per_s=1e6)
    base = Layout(dp_shard=8, zero=3)
    for setting, link in ((hosted(), LINK), (slow, 1e6)):
        table, stages, counts = table_of(setting, *(replace(base, offload=o) for o in OFFLOADED))
        found = dict(zip(OFFLOADED, table.once_parts(stages, counts)["optimizer"][:, 0], strict=True))
        cpu, each = PARAMS / 3e9, PARAMS / 8 / link
        device = (
            (2 * (4 + 8) + 4 + 2) * PARAMS / 8 / setting.rates.hbm_bytes_per_s
        )  # state both ways, gradient, weights
        assert found["optimizer"] == pytest.approx(
            max(cpu, (2 + 2) * each), rel=1e-12
        )  # gradients out, weights in
        assert found["optimizer+gradients"] == pytest.approx(max(cpu, 2 * each), rel=1e-12)
        assert found["optimizer+parameters"] == pytest.approx(max(cpu, 2 * each), rel=1e-12)
        assert found["optimizer+gradients+parameters"] == pytest.approx(cpu, rel=1e-12)
        assert found["parameters"] == pytest.approx(max(device, 2 * each), rel=1e-12)  # new weights out


def test_users_of_the_link_add_up_before_they_hide() -> None:
    """On a link that each class alone leaves idle, all together are waited for: the sum over the layer's own time."""
    setting = replace(hosted(overlap="full"))
    words = ("activations", "optimizer+gradients", "parameters", "optimizer+gradients+parameters+activations")
    layouts = [Layout(dp_shard=8, zero=3, policies=("full",), offload=o) for o in ("none", *words)]
    busy = table_of(setting, layouts[0])[0].layers[0].total[0]
    moved = 2 * 8192 * 4096 * 2 + 2 * LAYER / 8 + 2 * 2 * LAYER / 8
    setting.__dict__["rates"] = replace(setting.rates, host_bytes_per_s=0.5 * moved / busy)
    table, _, _ = table_of(setting, *layouts)
    waits = table.layers[0].parts["offload"]
    np.testing.assert_allclose(waits[[0, 1, 2, 3]], 0.0, atol=1e-15)
    assert waits[4] == pytest.approx(2 * busy - busy, rel=1e-9)


def test_gradients_sum_on_the_host_in_every_micro_batch() -> None:
    """16 micro-batches instead of 1: 16 times the bytes over the link; a sum of fp32 beside the bf16 that arrive."""
    one, many = (
        Layout(dp_shard=4, zero=2, pp=2, micro_batch=b, offload="optimizer+gradients") for b in (16, 1)
    )
    setting = hosted()
    (first, _, _), (second, _, _) = table_of(setting, one), table_of(setting, many)
    for table, layout, micro_batches in ((first, one, 1), (second, many, 16)):
        found = estimate(setting, layout)
        per_step = micro_batches * 16 * table.layers[0].parts["offload"][0]  # 16 layers a stage
        ends = micro_batches * 2 * 128256 * 4096 / 4 / LINK
        assert per_step == pytest.approx(micro_batches * 16 * 2 * LAYER / 4 / LINK, rel=1e-12)
        assert per_step + 0.99 * ends < found.parts["offload"] < per_step + 1.01 * ends
    # norms stay whole on every rank (jax): their shard is all of them
    held = MATRICES / 4 + NORMS
    grown = second.memory.host_state[0, 0] - first.memory.host_state[0, 0]
    assert grown == pytest.approx(4 * held, rel=1e-12)


def test_offload_rules_speak() -> None:
    for text, message in (
        (
            "dp=8,zero=2,offload=parameters",
            "offload=parameters streams the shards of weights from the host, and zero=2 does not shard them; use zero=3, or leave parameters out",
        ),
        (
            "dp_replicate=2,dp_shard=4,zero=2,offload=optimizer+gradients",
            "offload=optimizer+gradients sends each micro-batch's gradients to the host once they are reduced, but zero=2 with dp_replicate=2 reduces them at the end of the step; use zero>=2 and dp_replicate=1, or leave gradients out",
        ),
    ):
        with pytest.raises(LayoutError) as caught:
            estimate(hosted(), parse_layout(text))
        assert str(caught.value) == message
    # A single data rank has nobody to reduce with: gradients leave as they are made.
    found = estimate(hosted(), parse_layout("tp=8,offload=optimizer+gradients"))
    assert found.parts["offload"] > 0 and found.memory[0]["gradients"] == 0
