"""Layers that do not divide over the stages: the solver balances them against embedding and head unaided."""

from dataclasses import replace
from itertools import product

import pytest
from instances import with_memory
from tiny_models import assemble, layer_kind

from meshwright.costmodel.estimate import estimate
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.model import Attention, Ffn, LayerKind, ModelSpec
from meshwright.costmodel.readers import blocks
from meshwright.costmodel.setting import Setting, setting
from meshwright.costmodel.workload import Training
from meshwright.hardware.cluster import parse_cluster
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.decode import layout_of
from meshwright.optimizer.solve import Search, SolveOptions
from meshwright.optimizer.space import Space


def question(layers: int, stages: int, capacity: int = 10**15) -> Setting:
    """A dense model whose head takes as long as about two layers, two chips a stage."""
    model = assemble(
        4096,
        128_000,
        (layer_kind("dense", 4096, Attention(16, 8, 128, 128), Ffn(14_336, gated=True)),),
        (0,) * layers,
        tied=False,
    )
    asked = setting(model, parse_cluster(f"h100:2x{stages}"), Training(64 * 4096, 4096), efficiency="ideal")
    return with_memory(
        replace(
            asked, framework=replace(asked.framework, chooses=frozenset(), reserve_bytes=0, reserve_share=0.0)
        ),
        capacity,
        None,
    )


def plan(asked: Setting, stages: int) -> Layout:
    pins = f"pp == {stages}, vpp == 1, tp == 2, micro_batch == 1, recompute == none, devices == {2 * stages}"
    search = Search(Space(asked, parse_constraints(pins)), SolveOptions(runner_ups=0))
    search.run()
    assert not search.undecided
    return layout_of(asked, search.ranked[0])


def balanced(layers: int, stages: int) -> list[tuple[int, ...]]:
    """Every share of the layers whose stages between the first and the last differ by one layer at most."""
    out = []
    for first, last in product(range(1, layers // stages + 3), repeat=2):
        between, more = divmod(layers - first - last, stages - 2)
        if between > 0:
            out.append((first, *(between + (n < more) for n in range(stages - 2)), last))
    return out


def in_order(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Which of the stages between the first and the last are longer is no matter."""
    return (lengths[0], *sorted(lengths[1:-1]), lengths[-1])


@pytest.mark.parametrize("stages", [4, 8, 16])
@pytest.mark.parametrize("layers", [43, 61, 78])
def test_no_balanced_share_of_the_layers_is_faster(layers: int, stages: int) -> None:
    asked = question(layers, stages)
    found = plan(asked, stages)
    steps = {
        lengths: estimate(asked, replace(found, layers_per_stage=lengths)).step_s
        for lengths in balanced(layers, stages)
    }
    own, best = estimate(asked, found).step_s, min(steps.values())
    assert own <= best * (1 + 1e-7)
    best_shares = [lengths for lengths, step_s in steps.items() if step_s <= best * (1 + 1e-7)]
    nearest = min(
        max(abs(a - b) for a, b in zip(in_order(found.layers_per_stage), in_order(lengths), strict=True))
        for lengths in best_shares
    )
    assert nearest <= 1
    assert found.layers_per_stage[-1] < max(found.layers_per_stage)  # the head takes the place of layers


def test_the_heaviest_stage_decides_the_memory() -> None:
    """1, 2, 2 and 3 layers: the last stage has three and the head, far more than a quarter of the model."""
    asked = question(8, 4)
    layout = Layout(tp=2, pp=4, layers_per_stage=(1, 2, 2, 3))
    made = estimate(asked, layout)
    need, mean = max(made.stage_bytes), sum(made.stage_bytes) / 4
    assert need == made.stage_bytes[3] > 1.3 * mean
    short = with_memory(asked, int((need + mean) / 2), None)
    assert not estimate(short, layout).fits
    assert estimate(with_memory(asked, int(need) + 1, None), layout).fits


def test_parameters_of_the_heaviest_stage_to_the_last_one() -> None:
    """1, 2, 2 and 3 layers of hidden size 16: 9,952 parameters on the last stage, where layers shared evenly give 6,792.

    A layer has 4 * 16 * 16 of attention, 2 * 16 * 64 of feed-forward and two LayerNorms of 2 * 16: 3,136. The token table and the
    head have 32 * 16 = 512 each, the last LayerNorm 32. So the last stage has 3 * 3,136 + 32 + 512 = 9,952, and even shares say
    (8 * 3,136 + 32) / 4 + 512 = 6,792, 31.8% less: the case of Megatron-Bridge pull request 5077.
    """
    attention, ffn = Attention(4, 4, 4, 4), Ffn(64, gated=False)
    norms = (blocks.norm(name, 16, bias=True) for name in ("norm1", "norm2", "norm"))
    layer = next(norms) + blocks.attention(16, attention) + next(norms) + blocks.plain_ffn(16, 64, bias=False)
    kind = LayerKind("dense", layer, attention, ffn, norms=2)
    head = next(norms) + blocks.head(32, 16, False)
    model = ModelSpec("tiny", "tiny", 16, 32, (kind,), (0,) * 8, blocks.table(32, 16), head, False)
    asked = setting(model, parse_cluster("h100:4x1"), Training(8 * 64, 64), framework="megatron")
    made = estimate(asked, Layout(pp=4, layers_per_stage=(1, 2, 2, 3)))
    assert model.params == 512 + 8 * 3136 + 32 + 512
    counts = [3136 + 512, 2 * 3136, 2 * 3136, 9952]
    assert [stage["parameters"] for stage in made.memory] == [2 * n for n in counts]  # bf16
    assert [stage["gradients"] for stage in made.memory] == [4 * n for n in counts]
    assert [stage["master"] + stage["optimizer"] for stage in made.memory] == [12 * n for n in counts]
    even = (8 * 3136 + 32) / 4 + 512
    assert (even, round(1 - even / 9952, 3)) == (6792, 0.318)
