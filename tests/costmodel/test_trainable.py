"""Frozen weights and adapters: counts and bytes by hand, what backward leaves out, and what training less may not do."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from costmodel_cases import best_rows, legal_layouts, make_setting

from meshwright.costmodel.estimate import complete, estimate, stage_counts
from meshwright.costmodel.flops import model_flops
from meshwright.costmodel.layout import Layout, parse_layout, with_stages
from meshwright.costmodel.legal import chunk_unit
from meshwright.costmodel.limits.answer import limits
from meshwright.costmodel.memory import STATE_PARTS
from meshwright.costmodel.operators import saved_bytes, tensor_bytes
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.costmodel.tensors import CODES
from meshwright.costmodel.trainable import parse_trainable, trained_params, untouched
from meshwright.costmodel.workload import Training
from meshwright.hardware.errors import WorkloadError

# llama-3-8b: width, width of keys and values, feed-forward width, layers.
D, KV, F, LAYERS = 4096, 1024, 14336, 32
R = 16
LAYER = 2 * D * D + 2 * D * KV + 3 * D * F + 2 * D


def given(trainable: str, model: str = "llama-3-8b", cluster: str = "h100:8x4", **words: Any) -> Setting:
    training = (*words.pop("training", ()), ("trainable", trainable))
    return make_setting(model, cluster, 128, 4096, training=training, **words)


def table(setting: Setting, layout: Layout) -> tuple[StageTable, np.ndarray, np.ndarray]:
    """Stage coefficients, stage numbers, and layers by stage."""
    layouts = [with_stages(layout, setting.model.layers, chunk_unit(setting, layout.vpp))]
    rows = Rows.of(layouts, setting)
    counts, stages = stage_counts(setting, layouts)
    return StageTable.of(setting, rows, best_rows(setting, rows)), stages, counts


@pytest.mark.parametrize(
    ("trainable", "count"),
    # The first two are what Hugging Face PEFT prints for q, k, v, o_proj and for all linear layers of Llama-3-8B at rank 16.
    [
        ("lora:16:qkv+out", 13_631_488),
        ("lora:16", 41_943_040),
        ("lora:1:down", LAYERS * (F + D)),
        ("all", 8_030_261_248),
        ("all-embedding-head", 8_030_261_248 - 2 * 128_256 * D - D),
        ("all-layers", 2 * 128_256 * D + D),
    ],
)
def test_trained_parameters(trainable: str, count: int) -> None:
    setting = given(trainable)
    assert trained_params(setting.model) == count
    assert setting.model.params == 8_030_261_248  # adapters are no part of the model
    assert untouched(setting.model) == given("all").model


@pytest.mark.parametrize(("tp", "dp", "zero"), [(1, 8, 1), (2, 4, 1), (2, 4, 3), (2, 4, 2), (4, 2, 0)])
def test_state_of_adapters_by_hand(tp: int, dp: int, zero: int) -> None:
    """Rank 16 on qkv and out, four stages of 8 layers; megatron's fp32 gradients.

    tp cuts what a projection's adapter puts out (B of q, k, v) or takes in (A of out); the other half is whole.
    """
    shard = f"dp_replicate={dp}" if zero == 0 else f"dp={dp}"
    layout = parse_layout(f"pp=4,tp={tp},{shard},zero={zero}")
    costs, stages, counts = table(given("lora:16:qkv+out", framework="megatron"), layout)
    parts = costs.stage_parts(stages, counts)
    whole = 3 * D * R + R * D  # A of q, k and v, B of out
    cut = R * D + 2 * R * KV + D * R  # B of q, k and v, A of out
    adapters = 8 * (whole + cut / tp)
    frozen = 8 * ((LAYER - 2 * D) / tp + 2 * D)
    state, gradients, weights = {0: (1, 1, 1), 1: (dp, 1, 1), 2: (dp, dp, 1), 3: (dp, dp, dp)}[zero]
    expected = {
        "parameters": 2 * (frozen + adapters) / weights,
        "master": 4 * adapters / state,
        "optimizer": 8 * adapters / state,
        "gradients": 4 * adapters / gradients,
    }
    for part, size in expected.items():
        assert parts[part][0, 1] == pytest.approx(size, rel=1e-12), part
    # Embedding and head are frozen: bf16 weights alone.
    for stage, params in ((0, 128_256 * D / tp), (3, 128_256 * D / tp + D)):
        more = {part: parts[part][0, stage] - parts[part][0, 1] for part in expected}
        assert more.pop("parameters") == pytest.approx(2 * params / weights, rel=1e-9)
        assert set(more.values()) == {0.0}


def test_adapters_of_experts_by_hand() -> None:
    """A pair per expert and matrix, held by the ranks that hold the expert; etp cuts the side that it cuts of the expert."""
    setting = given("lora:8", "mixtral-8x7b", "h100:8x1", framework="megatron")
    costs, _, _ = table(setting, parse_layout("tp=4,ep=2,etp=4,dp=2"))
    ((plain, routed),) = costs.shapes.trained.params
    gate, down = (4096 * 8) + (8 * 14336) / 4, (14336 * 8) / 4 + 8 * 4096
    assert routed[0] == pytest.approx(8 / 2 * (2 * gate + down), rel=1e-12)
    q, kv, out = 4096 * 8 + 8 * 4096 / 4, 4096 * 8 + 8 * 1024 / 4, 4096 * 8 / 4 + 8 * 4096
    assert plain[0] == pytest.approx(q + 2 * kv + out, rel=1e-12)  # the router is not adapted


def test_flops_by_hand() -> None:
    """Frozen products twice forward, adapters and attention three times; the head is frozen, the table a look-up."""
    tokens = 128 * 4096
    products = LAYERS * (LAYER - 2 * D) + D * 128_256
    attention = LAYERS * D * 2 * 4097 / 2
    lora = tokens * (4 * products + 6 * (attention + 13_631_488))
    assert model_flops(given("lora:16:qkv+out")) == pytest.approx(lora, rel=1e-12)
    head = tokens * (4 * (products - D * 128_256) + 6 * (attention + D * 128_256))
    assert model_flops(given("all-layers")) == pytest.approx(head, rel=1e-12)
    assert model_flops(given("all")) == pytest.approx(6 * tokens * (products + attention), rel=1e-12)


def test_a_frozen_layer_is_faster_by_its_weight_gradients() -> None:
    """Compute is less by one forward pass of the products, no more and no less."""
    layout = Layout(dp_shard=8, zero=3, tp=2)
    (all_, *_), (frozen, *_) = (table(given(t), layout) for t in ("all", "all-layers"))
    less = all_.layers[0].parts["compute"] - frozen.layers[0].parts["compute"]
    np.testing.assert_allclose(less, all_.shapes.weight_grad_s[0], rtol=1e-12)
    assert not frozen.shapes.weight_grad_s[0].any()
    # The embedding is trained, so layers run backward; its look-up and the head cost what they did.
    for end in ("first", "last"):
        np.testing.assert_array_equal(
            getattr(all_, end).parts["compute"], getattr(frozen, end).parts["compute"]
        )


def test_a_frozen_model_takes_about_two_thirds_of_a_step() -> None:
    """Adapters of rank 1 on one product at large shapes and pinned rates: two passes in place of three, but for attention."""
    all_, lora = (
        estimate(given(t, "llama-3.1-405b", "v5p:2x2x1", efficiency="mfu=0.5"), Layout())
        for t in ("all", "lora:1:down")
    )
    assert lora.parts["compute"] / all_.parts["compute"] == pytest.approx(2 / 3, abs=0.02)
    assert lora.step_s / all_.step_s == pytest.approx(2 / 3, abs=0.02)
    assert lora.mfu == pytest.approx(all_.mfu, rel=0.05)  # the numerator follows


def test_weights_are_gathered_and_adapters_reduced() -> None:
    """ZeRO-3 without overlap: two gathers and one scatter of a layer become two gathers."""
    layout = Layout(dp_shard=32, zero=3)
    words: dict[str, Any] = {"efficiency": "ideal", "overlap": "none"}
    (all_, *_), (lora, *_) = (table(given(t, **words), layout) for t in ("all", "lora:1:out"))
    ratio = lora.layers[0].parts["fsdp"] / all_.layers[0].parts["fsdp"]
    assert ratio == pytest.approx(2 / 3, rel=0.02)
    (all_, stages, counts), (lora, *_) = (
        table(given(t, **words), replace(layout, zero=1)) for t in ("all", "lora:1:out")
    )
    once, less = (x.once_parts(stages, counts) for x in (all_, lora))
    share = trained_params(lora.setting.model) / trained_params(all_.setting.model)
    assert less["optimizer"] == pytest.approx(once["optimizer"] * share, rel=1e-3)
    assert less["dp"].max() < 0.05 * once["dp"].max()


def test_inputs_of_frozen_products_are_not_saved() -> None:
    """Of an 8B layer with adapters on qkv and out the inputs of the feed-forward products go, and adapters add their middle."""
    for name, gone in (
        ("lora:16:qkv+out", {"norm2", "act"}),
        ("all-layers", {"norm1", "norm2", "act"}),
        ("lora:16", set()),
    ):
        setting = given(name)
        costs, _, _ = table(setting, Layout(tp=2, dp_shard=8, zero=1))
        kind, shape = setting.model.kinds[0], costs.shapes.shape
        kept, every = saved_bytes(kind, shape), tensor_bytes(given("all").model.kinds[0], shape)
        assert set(every) - set(kept) == gone
        middle = {"norm1": 3, "core": 1, "norm2": 2, "act": 1} if name.startswith("lora") else {}
        for tensor, size in kept.items():
            assert size == pytest.approx(every[tensor] + middle.get(tensor, 0) * 2 * R * 4096), tensor


@pytest.mark.parametrize("framework", ["jax", "megatron"])
@pytest.mark.parametrize("model", ["llama-3-8b", "deepseek-v2-lite", "mixtral-8x7b"])
def test_what_is_not_saved_is_still_made_again(framework: str, model: str) -> None:
    """Full recompute repeats what it does of a model that is trained: what nobody saves runs with what is made of it."""
    for seconds in zip(
        *(_again(given(t, model, framework=framework), "full") for t in ("all", "all-layers")), strict=True
    ):
        np.testing.assert_allclose(seconds[1], seconds[0], rtol=1e-12)
    # Where the products stay, nothing that only their weights' gradients read is made again.
    plain, frozen = (
        _again(given(t, model, framework=framework), "elementwise") for t in ("all", "all-layers")
    )
    assert all((f <= p).all() for p, f in zip(plain, frozen, strict=True))


def _again(setting: Setting, policy: str) -> list[np.ndarray]:
    """Seconds that a policy repeats, by layer kind."""
    costs, _, _ = table(setting, Layout(tp=2, dp_shard=2, zero=1))
    return [
        k.policies.priced(np.array([CODES[policy]]), np.zeros(1, int)).repeated_s for k in costs.shapes.kinds
    ]


CHAINS = [
    ("all-layers-head", "all-head", "all"),
    ("all-layers", "all"),
    ("all-embedding-head", "all-embedding", "all"),
    ("lora:8:qkv", "lora:8:qkv+out", "lora:64:qkv+out", "lora:64"),
]  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS, ids="<".join)
@pytest.mark.parametrize(
    ("model", "cluster"), [("llama-3-8b", "h100:8x16"), ("deepseek-v2-lite", "h100:8x8")]
)
def test_training_more_is_never_faster_or_smaller(model: str, cluster: str, chain: tuple[str, ...]) -> None:
    """Over random legal layouts with offload, every schedule and every policy."""
    asked = [given(t, model, cluster, host=True) for t in chain]
    for layout in legal_layouts(make_setting(model, cluster, 128, 4096, host=True))[::20]:
        placed = complete(asked[0], layout)  # the times beside step_s are those of one placement
        less, *others = (estimate(setting, placed) for setting in asked)
        for more in others:
            for name in ("lower_s", "step_s", "upper_s"):
                assert getattr(more, name) >= getattr(less, name) * (1 - 1e-9), (layout, name)
            for stages in zip(less.memory, more.memory, strict=True):
                for part in (*STATE_PARTS, "activations"):
                    assert stages[1][part] >= stages[0][part] * (1 - 1e-12), (layout, part)
                assert sum(stages[1].values()) >= sum(stages[0].values()) * (1 - 1e-12), layout
            less = more


def test_a_frozen_tower_runs_forward_alone() -> None:
    """Of gemma-3 with images: bf16 weights on the first stage, nothing saved, less than a third of the tower's time."""
    layout = parse_layout("pp=4,dp=8,tp=2,zero=1")
    words: dict[str, Any] = {
        "framework": "megatron",
        "model": "gemma-3-27b-it",
        "cluster": "h100:8x8",
        "training": (("images", 2),),
    }
    (all_, stages, counts), (frozen, *_) = (table(given(t, **words), layout) for t in ("all", "all-tower"))
    assert all_.tower is not None and frozen.tower is not None
    kind, ends = frozen.shapes.tower_layer.kinds[0], frozen.setting.model.tower
    assert ends is not None
    before = all_.tower.parts["compute"] - ends.layers * (
        kind.forward + all_.shapes.tower_layer.kinds[0].backward
    )
    assert frozen.tower.parts["compute"] == pytest.approx(ends.layers * kind.forward + before / 3, rel=1e-9)
    assert not frozen.tower.parts.get("recompute", np.zeros(1)).any()
    assert all_.memory.tower > 0 and frozen.memory.tower == 0
    more, less = (x.stage_parts(stages, counts) for x in (all_, frozen))
    tower = all_.shapes.tower_params[0]
    assert less["parameters"][0, 0] == more["parameters"][0, 0]
    assert more["master"][0, 0] - less["master"][0, 0] == pytest.approx(4 * tower[0] / 8, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("all", "all"), ("all-head-embedding", "all-embedding-head"), ("lora:16", "lora:16"),
        ("lora:016:out+qkv", "lora:16:qkv+out"),
    ],
)  # fmt: skip
def test_one_thing_has_one_text(text: str, read: str) -> None:
    assert str(parse_trainable(text)) == Training(4096, 4096, trainable=text).trainable == read


@pytest.mark.parametrize(
    ("model", "trainable", "further", "message"),
    [
        ("llama-3-8b", "most", {}, "cannot read trainable 'most'; write all, all-embedding (parts: embedding, layers, head, tower), lora:16 or lora:16:qkv+out"),
        ("llama-3-8b", 5, {}, "trainable is 5; write all, all-embedding (parts: embedding, layers, head, tower), lora:16 or lora:16:qkv+out"),
        ("llama-3-8b", "all-norm", {}, "trainable 'all-norm': no part 'norm'; known: embedding, layers, head, tower"),
        ("llama-3-8b", "lora:0", {}, "trainable lora:0: the rank is 0; give a number from 1 to 65536"),
        ("llama-3-8b", "lora:4:q_proj", {}, "trainable 'lora:4:q_proj': no product 'q_proj'; known: latent, qkv, out, up, down, expert_up, expert_down"),
        ("llama-3-8b", "lora:4:expert_up", {}, "trainable lora:4:expert_up: llama-3-8b has no product expert_up; it has qkv, out, up, down"),
        ("llama-3-8b", "all-tower", {}, "trainable all-tower freezes a vision tower, and images is 0; leave tower out, or give images"),
        ("llama-3-8b", "all-embedding-layers", {}, "trainable all-embedding-layers trains nothing in the layers or before them, so that no backward pass runs through them, which is not priced; train the layers or the embedding, or use lora:16"),
        ("llama-3.2-1b", "all-head", {}, "trainable all-head: the head of llama-3.2-1b is its token table; freeze embedding and head together, or neither"),
        ("deepseek-v3", "lora:8", {"mtp": 1}, "multi-token-prediction modules are priced with the whole model trained, and trainable is lora:8; use mtp=0, or trainable=all"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(model: str, trainable: Any, further: dict[str, int], message: str) -> None:
    with pytest.raises(WorkloadError) as refused:
        given(trainable, model, training=tuple(further.items()))
    assert str(refused.value) == message


def test_limits_are_of_training_all() -> None:
    with pytest.raises(
        WorkloadError,
        match="limits are those of training all weights, and trainable is lora:16; ask with all",
    ):
        limits(given("lora:16"))
