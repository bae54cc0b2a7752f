"""One layer: FLOPs by hand, what overlap may and may not do, and what recompute costs."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from costmodel_cases import best_rows, legal_layouts, make_setting

from meshwright.costmodel.estimate import estimate
from meshwright.costmodel.flops import attention_span, model_flops
from meshwright.costmodel.layer import Seconds
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.operators import BACKWARD, Shape, forward_s, head_s
from meshwright.costmodel.policies import policies_of
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.costmodel.tensors import POLICIES

WORLDS = [
    ("llama-3-8b", "v5p:4x4x4"),
    ("llama-3-8b", "h100:8x16"),
    ("mixtral-8x7b", "v5e:8x16"),
    ("deepseek-v2-lite", "h100:8x8"),
    ("gemma-2-2b", "tpu7x:4x4x4"),
]


def layers(setting: Setting, layouts: tuple[Layout, ...]) -> list[Seconds]:
    """Every kind of the model, one column over all layouts."""
    rows = Rows.of(layouts, setting)
    return list(StageTable.of(setting, rows, best_rows(setting, rows)).layers)


def part(seconds: Seconds, name: str) -> np.ndarray:
    """Seconds of a part; one that no layout has is left out."""
    return seconds.parts.get(name, np.zeros_like(seconds.backward_s))


@pytest.fixture(params=WORLDS, ids=lambda w: "@".join(w))
def world(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


def test_parts_are_exposed_seconds_that_sum(world: tuple[str, str]) -> None:
    """None negative, none lost, for random layouts of dense and mixture models on tori and switches."""
    for streams in ("shared", "independent"):
        setting = make_setting(*world, 128, 4096, streams=streams)
        for seconds in layers(setting, legal_layouts(make_setting(*world, 128, 4096))):
            assert all((part >= 0).all() for part in seconds.parts.values())
            np.testing.assert_allclose(seconds.total, sum(seconds.parts.values()), rtol=1e-12)
            assert (seconds.backward_s <= seconds.parts["compute"]).all()


def test_more_overlap_is_never_slower(world: tuple[str, str]) -> None:
    """full <= calibrated <= none, and free streams <= queueing ones, per layer and for the ends."""
    found = legal_layouts(make_setting(*world, 128, 4096))

    def total(**words: str) -> np.ndarray:
        return np.array([s.total for s in layers(make_setting(*world, 128, 4096, **words), found)])

    for streams in ("shared", "independent"):
        full, calibrated, none = (total(overlap=o, streams=streams) for o in ("full", "calibrated", "none"))
        assert (full <= calibrated * (1 + 1e-12)).all()
        assert (calibrated <= none * (1 + 1e-12)).all()
        assert (full < none).any()
    for overlap in ("full", "calibrated", "none"):
        free, queued = total(overlap=overlap, streams="independent"), total(overlap=overlap, streams="shared")
        assert (free <= queued * (1 + 1e-12)).all()


def test_full_overlap_is_the_longer_of_compute_and_communication(world: tuple[str, str]) -> None:
    """The book's lower bound; with no overlap its upper bound, the sum. The host link overlaps like the others."""
    found = legal_layouts(make_setting(*world, 128, 4096))
    full, none = (make_setting(*world, 128, 4096, overlap=o) for o in ("full", "none"))
    for hidden, shown in zip(layers(full, found), layers(none, found), strict=True):
        work = shown.parts["compute"] + shown.parts["recompute"]
        comm = sum(part(shown, c) for c in ("tp", "cp", "ep", "fsdp"))
        host = part(shown, "offload")
        longest = np.maximum(np.maximum(work, comm), host)
        np.testing.assert_allclose(hidden.total - hidden.parts["launch"], longest, rtol=1e-9)
        np.testing.assert_allclose(shown.total - shown.parts["launch"], work + comm + host, rtol=1e-9)


@pytest.mark.parametrize("framework", ["jax", "megatron"])
def test_dropping_more_saves_bytes_and_costs_work(world: tuple[str, str], framework: str) -> None:
    """Policies whose dropped tensors contain another's: fewer bytes, at least the work, never neither."""
    setting = make_setting(*world, 128, 4096, framework=framework)
    policies = policies_of(setting.framework)
    rows = Rows.of([Layout(tp=2, dp_shard=4, zero=3, policies=(p,)) for p in POLICIES], setting)
    pairs = [
        (a, b) for a, b in permutations(range(len(POLICIES)), 2) if policies[a].dropped > policies[b].dropped
    ]
    table = StageTable.of(setting, rows, best_rows(setting, rows))
    assert len(pairs) >= 7  # every one over none, full over every one
    for kind in range(len(setting.model.kinds)):
        saved, seconds = table.memory.saved[:, kind], table.layers[kind]
        work = seconds.parts["compute"] + seconds.parts["recompute"]
        for lean, rich in pairs:
            assert saved[lean] < saved[rich]
            assert work[lean] >= work[rich]
        assert seconds.parts["recompute"][POLICIES.index("none")] == 0


def bound_by_compute(setting: Setting) -> Setting:
    """The setting on a chip whose memory costs no time."""
    free = replace(setting)
    free.__dict__["rates"] = replace(setting.rates, hbm_bytes_per_s=1e30)
    return free


def ideal_flops(model: str, tp: int = 1) -> tuple[float, float]:
    """Forward FLOPs per token of all layers on one device: products, attention kernel; from ideal seconds."""
    setting = bound_by_compute(make_setting(model, "v5p:4x4x4", 128, 4096, efficiency="mfu=1.0"))
    rows = Rows.of([Layout(tp=tp)], setting)
    shape, peak = Shape.of(rows, setting), setting.cluster.chip.peak_flop_per_s("bf16")
    products = core = 0.0
    for count, kind in zip(setting.model.layers_by_kind, setting.model.kinds, strict=True):
        forward = forward_s(setting, kind, shape)
        core += count * float(forward["core"][0])
        products += count * float(sum(s[0] for name, s in forward.items() if name != "core"))
    return products * peak / 4096, core * peak / 4096


def test_forward_flops_of_llama_3_70b() -> None:
    """By hand: 2 FLOPs per weight and token, and half of the causal square; at peak rates time is FLOPs.

    80 layers of q, o 8192 x 8192, k, v 8192 x 1024, gate, up, down 8192 x 28672.
    """
    weights = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    products, core = ideal_flops("llama-3-70b")
    assert products == pytest.approx(2 * weights, rel=1e-12)
    assert core == pytest.approx(80 * 2 * 2 * 64 * 128 * 4097 / 2, rel=1e-12)  # q k^T and p v
    assert ideal_flops("llama-3-70b", tp=8) == pytest.approx((2 * weights / 8, core / 8), rel=1e-12)


def test_kv_projections_are_repeated_beyond_the_kv_heads() -> None:
    """tp=16 over 8 kv heads: keys and values are computed twice, everything else is cut 16 ways."""
    kv = 80 * 2 * 8192 * 1024
    weights = 80 * (2 * 8192 * 8192 + 3 * 8192 * 28672)
    assert ideal_flops("llama-3-70b", tp=16)[0] == pytest.approx(2 * (weights / 16 + kv / 8), rel=1e-12)


def test_a_mixture_computes_its_chosen_experts_only() -> None:
    """Mixtral 8x7B: 2 of 8 experts and the router a token, whatever ep."""
    active = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 8 + 2 * 3 * 4096 * 14336)
    assert ideal_flops("mixtral-8x7b")[0] == pytest.approx(2 * active, rel=1e-12)
    setting = bound_by_compute(make_setting("mixtral-8x7b", "v5p:4x4x4", 128, 4096, efficiency="mfu=1.0"))
    rows = Rows.of([Layout(dp_shard=8, zero=1, ep=e) for e in (1, 2, 8)], setting)
    expert = forward_s(setting, setting.model.kinds[0], Shape.of(rows, setting))["expert_up"]
    np.testing.assert_allclose(expert, expert[0], rtol=1e-12)


def test_backward_is_twice_forward_and_attention_two_and_a_half_times() -> None:
    """The flash kernel recomputes its scores: five products backward for two forward."""
    setting = make_setting("llama-3-70b", "v5p:4x4x4", 128, 4096, efficiency="mfu=1.0")
    rows = Rows.of([Layout()], setting)
    forward = forward_s(setting, setting.model.kinds[0], Shape.of(rows, setting))
    seconds = layers(setting, (Layout(),))[0]
    plain = sum(forward.values()) - forward["core"]
    assert seconds.parts["compute"] == pytest.approx(3 * plain + 3.5 * forward["core"], rel=1e-12)
    assert BACKWARD["core"] == 2.5


def test_model_flops_are_six_per_weight_and_token_plus_causal_attention() -> None:
    """Numerator of MFU, by hand for llama-3-70b at 4Mi tokens of 4096; the token table is a look-up."""
    setting = make_setting("llama-3-70b", "v5p:4x4x4", 1024, 4096)
    matmul = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672) + 8192 * 128256
    attention = 80 * 64 * 128 * 2 * 4097 / 2
    assert model_flops(setting) == pytest.approx(6 * 2**22 * (matmul + attention), rel=1e-12)
    # The book counts 6 N D with both embeddings and no attention: 6.3e24 for 15T tokens of 70e9 parameters.
    assert 6 * setting.model.params * 15e12 == pytest.approx(6.3e24, rel=0.01)


def test_attention_span_counts_the_keys_of_a_mean_query() -> None:
    for seq, window in ((8, None), (8, 3), (8, 8), (8, 100), (7, 1)):
        keys = [min(q + 1, window or seq) for q in range(seq)]
        assert attention_span(seq, window) == pytest.approx(sum(keys) / seq)


def test_pinned_mfu_is_the_rate_of_every_product() -> None:
    """mfu=0.4 is 0.4 of peak whatever the shape (until memory binds): wide cuts and the head too."""
    tight, loose = (
        bound_by_compute(make_setting("llama-3-8b", "v5p:4x4x4", 128, 8192, efficiency=f"mfu={x}"))
        for x in (0.4, 0.8)
    )
    rows = Rows.of([Layout(tp=8, cp=4)], tight)
    slow, fast = (forward_s(s, s.model.kinds[0], Shape.of(rows, s)) for s in (tight, loose))
    for name in ("qkv", "core", "out", "up", "down"):
        assert slow[name] == pytest.approx(2 * fast[name], rel=1e-12)
    assert head_s(tight, Shape.of(rows, tight)) == pytest.approx(
        2 * head_s(loose, Shape.of(rows, loose)), rel=1e-12
    )


def test_compute_dtypes_change_the_rate_of_products_alone() -> None:
    """fp16 of an H100 costs what bf16 does; of a B200 fp8 has twice and fp4 four times its peak, less what is kept."""

    def of(chip: str, dtype: str) -> Setting:
        return make_setting("llama-3-8b", f"{chip}:8x1", 128, 8192, training=(("compute_dtype", dtype),))

    layout = Layout(dp_shard=8, zero=3)
    assert estimate(of("h100", "fp16"), layout) == estimate(of("h100", "bf16"), layout)
    wide, narrow, four = (of("b200", dtype).rates for dtype in ("bf16", "fp8", "fp4"))
    kept = of("b200", "bf16").efficiency.low_precision_kept
    assert narrow.matmul_flop_per_s == pytest.approx(2 * kept("fp8") * wide.matmul_flop_per_s, rel=1e-12)
    assert four.matmul_flop_per_s == pytest.approx(4 * kept("fp4") * wide.matmul_flop_per_s, rel=1e-12)
    assert (
        four.head_flop_per_s == wide.head_flop_per_s
        and four.attention_flop_per_s == wide.attention_flop_per_s
    )
    assert estimate(of("b200", "fp4"), layout).memory == estimate(of("b200", "bf16"), layout).memory


def test_mfu_of_an_estimate_is_the_pinned_one_less_what_is_exposed() -> None:
    """One device, no recompute, nothing exposed but the optimizer: MFU is near the pin and below it."""
    setting = make_setting("llama-3.2-1b", "v5p:2x2x1", 64, 4096, efficiency="mfu=0.4")
    found = estimate(setting, Layout())
    peak = setting.cluster.chip.peak_flop_per_s("bf16")
    assert found.mfu == pytest.approx(model_flops(setting) / (found.step_s * peak), rel=1e-12)
    # Attention's backward repeats a product that the model does not need: 3.5 forwards instead of 3.
    assert 0.38 < found.mfu < 0.4


def test_stage_seconds_are_linear_in_layers() -> None:
    """The planner cuts stages by these coefficients."""
    setting = make_setting("llama-3-8b", "v5p:4x4x4", 128, 4096)
    rows = Rows.of([Layout(pp=2, tp=2)], setting)
    table = StageTable.of(setting, rows, best_rows(setting, rows))
    stages, one = np.arange(2)[None, :], np.array([[[1.0], [1.0]]])
    first, second = (table.stage_s(stages, n * one) for n in (3, 5))
    np.testing.assert_allclose(second - first, 2 * table.layer_s[0, 0], rtol=1e-9)
