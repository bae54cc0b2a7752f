"""Where state lives: weights kept or gathered again. Bytes and seconds by hand, and what no choice may do."""

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
