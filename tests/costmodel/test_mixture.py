"""Mixtures of experts: what one rank sends, holds and computes under capacity or imbalance, by hand."""

import numpy as np
import pytest
from costmodel_cases import best_rows, make_setting

from meshwright.costmodel.estimate import estimate
from meshwright.costmodel.layout import Layout, parse_layout
from meshwright.costmodel.operators import Shape, dispatch_bytes, saved_bytes
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.costmodel.workload import Training
from meshwright.hardware.errors import WorkloadError

# mixtral-8x7b: 2 of 8 experts of 4096 x 14336, gated.
TOKENS, TOP_K, HIDDEN, WIDTH = 4096, 2, 4096, 14336
LAYOUTS = {
    "alone": Layout(dp_replicate=8),
    "ep": Layout(dp_replicate=8, ep=8),
    "tp, ep": Layout(tp=4, dp_replicate=2, ep=8),
    "tp, etp": Layout(tp=4, dp_replicate=2, ep=2, etp=4),
    "etp alone": Layout(tp=4, dp_replicate=2, etp=4),
}


def mixture(**training: float) -> Setting:
    return make_setting("mixtral-8x7b", "h100:8x8", 64, 4096, training=tuple(training.items()))


def shape_of(setting: Setting) -> Shape:
    return Shape.of(Rows.of(list(LAYOUTS.values()), setting), setting)


@pytest.mark.parametrize("load", [1.0, 1.5])
def test_rows_of_an_expert_rank_by_hand(load: float) -> None:
    """top_k * tokens * etp / tp copies are sent, top_k * tokens * width / tp intermediates computed."""
    setting = mixture(expert_capacity=load)
    saved = saved_bytes(setting.model.kinds[0], shape_of(setting))
    copies = np.array([1, 1, 1 / 4, 1, 1]) * TOP_K * TOKENS * load  # etp / tp
    np.testing.assert_allclose(saved["router"], 2 * copies * HIDDEN)
    np.testing.assert_allclose(saved["expert_down"], 2 * copies * HIDDEN)
    tp = np.array([1, 1, 4, 4, 4])
    np.testing.assert_allclose(saved["expert_act"], 2 * TOP_K * TOKENS * load * WIDTH / tp)
    np.testing.assert_allclose(saved["expert_up"], 2 * 2 * TOP_K * TOKENS * load * WIDTH / tp)  # gate and up


def test_dispatch_buffers_by_hand() -> None:
    """What leaves (top_k * tokens / tp copies) and what arrives (etp times as many); nothing without the exchange."""
    setting = mixture(expert_capacity=1.25)
    one = 2 * TOP_K * TOKENS * HIDDEN * 1.25  # bytes of all copies of a micro-batch
    assert one == 83886080
    expected = np.array([0, 2, 2 / 4, 1 / 4 + 1, 1 / 4 + 1]) * one
    found = dispatch_bytes(setting.model.kinds[0], shape_of(setting))
    np.testing.assert_allclose(found, expected)
    dense = make_setting("llama-3-8b", "h100:8x8", 64, 4096)
    assert (dispatch_bytes(dense.model.kinds[0], Shape.of(Rows.of([Layout()], dense), dense)) == 0).all()


def test_dispatch_buffers_are_working_memory() -> None:
    """The working memory of a layer falls by the buffers where experts are at home, all else being equal."""
    setting = mixture()
    rows = Rows.of([LAYOUTS["ep"], LAYOUTS["alone"]], setting)
    working = StageTable.of(setting, rows, best_rows(setting, rows)).memory.working
    assert working[0] - working[1] == pytest.approx(2 * 2 * TOP_K * TOKENS * HIDDEN, rel=1e-12)


def test_capacity_is_a_load_that_every_rank_has() -> None:
    """To the cost model the same as an imbalance of that size; below 1 it computes and holds less."""
    layout = parse_layout("dp_replicate=8,ep=8,recompute=full")
    even, uneven, padded, lean = (
        estimate(mixture(**words), layout)
        for words in ({}, {"moe_imbalance": 1.5}, {"expert_capacity": 1.5}, {"expert_capacity": 0.8})
    )
    assert padded.step_s == uneven.step_s and padded.stage_bytes == uneven.stage_bytes
    assert lean.step_s < even.step_s < padded.step_s
    assert lean.stage_bytes[0] < even.stage_bytes[0] < padded.stage_bytes[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"expert_capacity": 0.0}, "expert_capacity 0.0 is outside 0.1 to 100 (rows of every expert over the mean)"),
        ({"expert_capacity": float("nan")}, "expert_capacity nan is outside 0.1 to 100 (rows of every expert over the mean)"),
        ({"expert_capacity": "big"}, "expert_capacity is 'big'; give a number from 0.1 to 100 (rows of every expert over the mean)"),
        (
            {"expert_capacity": 1.25, "moe_imbalance": 1.3},
            "expert_capacity 1.25 gives every expert as many rows, moe_imbalance 1.3 the fullest more; give one of them",
        ),
    ],
)  # fmt: skip
def test_what_a_capacity_cannot_be(words: dict[str, float], message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        Training(4096, 4096, **words)  # type: ignore[arg-type]
    assert str(caught.value) == message
