"""Limits of training: the book's rules come out of the planner's functions, and hold in the planner's own layers.

Golden figures: jax-ml/scaling-book, chapters 5, 6 and 12 (recomputed where print is wrong).
"""

from dataclasses import replace

import numpy as np
import pytest
from costmodel_cases import make_setting

from meshwright.costmodel.collectives import duration
from meshwright.costmodel.estimate import complete, table_of
from meshwright.costmodel.layout import DIMENSIONS, Layout
from meshwright.costmodel.limits.answer import limits, scaling
from meshwright.costmodel.limits.strong_scaling import Reach, curve
from meshwright.costmodel.limits.thresholds import (
    best_tensor_ways,
    block_work,
    data_comm_s,
    data_tokens,
    exact_tensor_ways,
    expert_width_needed,
    gather_s_per_byte,
    layers_work,
    mixed_comm_s,
    mixed_tokens,
    nearest_powers,
    reduce_s_per_byte,
    switched_network,
    tensor_comm_s,
    tensor_ways,
    torus_network,
)
from meshwright.costmodel.limits.tilings import batch_for_whole, legal_splits, tiling, tilings
from meshwright.costmodel.limits.training import Limits
from meshwright.costmodel.placement import enumerate_placements, placeable
from meshwright.costmodel.setting import Setting
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import ClusterError, WorkloadError

PEAK, RING = 459e12, 1.8e11  # v5p in the book
LLAMA = block_work(PEAK, 8192, 28672)


def ring(axes: int, rate: float = RING) -> float:
    network = torus_network(rate, axes)
    return float(duration(gather_s_per_byte(network, np.array(network.sizes), exact=False)))


def ask(
    cluster: str,
    sequences: int = 1024,
    model: str = "llama-3-70b",
    streams: str = "independent",
    dtype: str = "bf16",
) -> Setting:
    setting = make_setting(
        model,
        cluster.split("~")[0],
        sequences,
        4096,
        training=(("compute_dtype", dtype),),
        efficiency="ideal",
        overlap="full",
        streams=streams,
    )
    return replace(setting, cluster=parse_cluster(cluster, profile="book"))


# The rules


@pytest.mark.parametrize(("axes", "tokens"), [(1, 2550), (2, 1275), (3, 850)])
def test_fsdp_needs_alpha_over_the_axes(axes: int, tokens: float) -> None:
    assert data_tokens(LLAMA, ring(axes)) == pytest.approx(tokens)


def test_tensor_parallelism_ends_at_f_over_alpha_whatever_the_width() -> None:
    for width in (512, 8192):
        assert tensor_ways(block_work(PEAK, width, 28672), ring(1)) == pytest.approx(28672 / 2550)
    # int8: twice the rate, half the bytes (chapter 5)
    int8 = block_work(2 * PEAK, 8192, 28672, element_bytes=1)
    assert tensor_ways(int8, ring(1)) == pytest.approx(28672 / 2550)


def test_the_mix_needs_alpha_squared_and_four_times_that_where_streams_queue() -> None:
    assert mixed_tokens(LLAMA, ring(2), ring(1), "independent") == pytest.approx(113.39, rel=1e-4)
    assert mixed_tokens(LLAMA, ring(2), ring(1), "shared") == pytest.approx(453.58, rel=1e-4)


@pytest.mark.parametrize("streams", ["independent", "shared"])
def test_no_split_beats_the_best_one(streams: str) -> None:
    x, y, tokens = ring(2), ring(1), 468.0
    best = float(best_tensor_ways(LLAMA, x, y, tokens))
    ways = best * np.geomspace(0.2, 5.0, 41)
    late = mixed_comm_s(data_comm_s(LLAMA, x, ways), tensor_comm_s(LLAMA, y, tokens * ways), streams)
    assert np.argmin(late) == 20 and 8960 / best == pytest.approx(1618.3, rel=1e-3)
    # At the threshold's batch the best split takes just as long as the products.
    needed = float(mixed_tokens(LLAMA, x, y, streams))
    at = float(best_tensor_ways(LLAMA, x, y, needed))
    both = data_comm_s(LLAMA, x, at), tensor_comm_s(LLAMA, y, needed * at)
    assert mixed_comm_s(*both, streams) == pytest.approx(needed * LLAMA.math_s)


def test_thresholds_fall_as_bandwidth_rises_and_rise_with_the_peak() -> None:
    rates = [ring(1, rate) for rate in np.geomspace(1e10, 1e12, 9)]
    tokens = [float(data_tokens(LLAMA, g)) for g in rates]
    ways = [float(tensor_ways(LLAMA, g)) for g in rates]
    assert tokens == sorted(tokens, reverse=True) and ways == sorted(ways)
    assert data_tokens(block_work(2 * PEAK, 8192, 28672), ring(1)) == pytest.approx(2 * 2550)


def test_reducing_gradients_takes_two_gathers_and_a_short_group_takes_less() -> None:
    network = parse_cluster("v5p:4x8x12", profile="book").levels
    of = Limits.of(ask("v5p:4x8x12")).network
    sizes = np.array([level.size for level in network])
    short, exact = (gather_s_per_byte(of, sizes, exact=e) for e in (False, True))
    np.testing.assert_allclose(reduce_s_per_byte(of, sizes, exact=True), 2 * exact)
    np.testing.assert_allclose(exact, short * (1 - 1 / 384))


# GPUs


def test_thresholds_of_a_superpod() -> None:
    network = switched_network(450e9, 400e9, 8)
    work = block_work(990e12, 8192, 28000)
    sizes = np.array(network.sizes)
    np.testing.assert_allclose(
        data_tokens(work, gather_s_per_byte(network, sizes, exact=False)), [2200, 2475]
    )
    # Two nodes relax it to F > alpha (Y - 8); what NVLink itself can hide ends earlier, which the book leaves out.
    np.testing.assert_allclose(exact_tensor_ways(work, network, sizes), [14.545, 19.313], rtol=1e-4)


def test_exact_tensor_limit_is_where_the_crossing_meets_the_products() -> None:
    for network, factors in (
        (torus_network(RING, 1), np.array([2])),
        (switched_network(450e9, 400e9, 8), np.array([8, 2])),
    ):
        work = block_work(PEAK, 4096, 28672)
        bound = exact_tensor_ways(work, network, factors)
        for level in np.flatnonzero(np.isfinite(bound)):
            inner = np.prod(factors[:-1]) if len(factors) > 1 else 1
            for ways, hidden in ((0.98 * bound[level], True), (1.02 * bound[level], False)):
                grown = factors.astype(float)
                grown[-1] = ways / inner
                whole = replace(
                    network, levels=(*network.levels[:-1], replace(network.levels[-1], size=ways / inner))
                )
                late = tensor_comm_s(work, gather_s_per_byte(whole, grown, exact=True)[level], 1.0)
                assert (late <= work.math_s / ways) == hidden


@pytest.mark.parametrize(("gpus", "needed"), [(16, 2475.0), (64, 2475 * 56 / 8), (2**20, 8 * 2475.0)])
def test_experts_need_width_to_leave_a_node(gpus: int, needed: float) -> None:
    """F > alpha (Z-8)/k while 8k >= Z; F > 8 alpha far beyond."""
    network = switched_network(450e9, 400e9, 8, gpus // 8)
    found = expert_width_needed(990e12, network, np.array(network.sizes), 8)
    assert found == pytest.approx(needed, rel=1e-4)


# The planner's own layers


@pytest.mark.parametrize("seq_len", [512, 640, 800, 864, 960, 1152])
def test_the_planner_waits_for_weights_just_below_the_threshold(seq_len: int) -> None:
    """One sequence a chip under FSDP on a cube: tokens per chip is the sequence length."""
    setting = make_setting("llama-3-70b", "v5p:4x4x4", 64, seq_len, efficiency="ideal", overlap="full")
    setting = replace(setting, cluster=parse_cluster("v5p:4x4x4", profile="book"))
    needed = limits(setting).number("fsdp_model")
    assert abs(seq_len / needed - 1) > 0.02  # the kernel's repeated product backward is not in the threshold
    seconds = table_of(setting, [complete(setting, Layout(dp_shard=64, zero=3))]).layers[0]
    assert (float(seconds.parts["fsdp"][0]) == 0) == (seq_len > needed)


def test_work_of_the_model_is_what_the_planner_computes() -> None:
    setting = make_setting("llama-3-8b", "v5p:4x4x4", 64, 4096, efficiency="ideal", overlap="full")
    table = table_of(setting, [complete(setting, Layout(dp_shard=64, zero=3))])
    forward = float(table.layers[0].parts["compute"][0] - table.layers[0].backward_s[0])
    assert layers_work(setting).math_s * 4096 / 32 == pytest.approx(forward, rel=1e-9)


# Tilings


def test_the_books_2048_by_4_is_no_tiling_of_a_pod_and_2240_by_4_is() -> None:
    setting = ask("v5p:16x20x28")
    found = {(t.ways, t.tensor): t for t in tilings(setting, LLAMA)}
    assert (2048, 4) not in found and not placeable((4, 1, 2048, 1, 1), (16, 20, 28))
    assert found[2240, 4].compute_bound and not found[2240, 4].fits_batch  # 1,024 sequences
    assert max(t.devices for t in found.values() if t.fits_batch) == 4096
    said = " ".join(limits(setting).notes)
    assert "2048 x 4 = 8,192 is no tiling of 16 x 20 x 28" in said
    assert "let FSDP x TP use 4,096 of 8,960 devices at most" in said


@pytest.mark.parametrize("streams", ["independent", "shared"])
@pytest.mark.parametrize(
    ("cluster", "pairs"), [("v5e:4x8", [(8, 4), (16, 2), (4, 8)]), ("h100:8x4", [(8, 4), (4, 8)])]
)
def test_a_tiling_is_at_its_fastest_placement(
    cluster: str, pairs: list[tuple[int, int]], streams: str
) -> None:
    """Against every placement, one at a time."""
    setting = ask(cluster, 32, "llama-3-8b", streams)
    network, tokens = setting.network, setting.training.global_batch_tokens
    work = layers_work(setting)
    for ways, tensor in pairs:
        found = tiling(setting, work, ways, tensor, {})
        assert found is not None
        degrees = dict.fromkeys(DIMENSIONS, 1) | {"dp_shard": ways, "tp": tensor}
        slowest = []
        for placement in enumerate_placements(degrees, setting.cluster.levels):
            loads = _loads_alone(network, placement, work, ways, tensor, tokens)
            late = sum(x.max() for x in loads) if streams == "shared" else sum(loads).max()
            slowest.append(max(work.math_s * tokens / (ways * tensor), late))
        assert found.seconds == pytest.approx(min(slowest), rel=1e-9)


def _loads_alone(network, placement, work, ways, tensor, tokens):
    from meshwright.costmodel.collectives import gather_loads

    out = []
    for name, size in (("dp_shard", work.weight_bytes / tensor), ("tp", work.crossing_bytes * tokens / ways)):
        factors, strides = np.ones(len(placement), int), np.ones(len(placement), int)
        for level, members in enumerate(placement):
            inside = 1
            for dimension, factor in members:
                if dimension == name:
                    factors[level], strides[level] = factor, inside
                inside *= factor
        out.append(gather_loads(network, size, factors, strides))
    return out


def test_every_legal_split_is_one_for_the_planner_and_no_other_is() -> None:
    setting = ask("v5e:4x8", 24, "llama-3-8b")
    legal = legal_splits(setting)
    for (ways, tensor), (data, context) in legal.items():
        assert data * context == ways
        if placeable((tensor, context, data, 1, 1), (4, 8)):
            complete(setting, Layout(dp_shard=data, cp=context, tp=tensor, zero=3 if ways > 1 else 0))
    assert (24, 1) in legal and (7, 1) not in legal and (1, 3) not in legal


def test_the_batch_that_is_proposed_uses_every_device() -> None:
    setting = ask("v5p:16x20x28")
    proposed = batch_for_whole(setting, tilings(setting, layers_work(setting)))
    assert proposed is not None
    sequences, data, context, tensor = proposed
    assert data * context * tensor == 8960 and abs(sequences - 1024) <= 102
    other = tilings(ask("v5p:16x20x28", sequences), LLAMA)
    assert any((t.data, t.context, t.tensor) == (data, context, tensor) and t.fits_batch for t in other)


@pytest.mark.parametrize(
    ("x", "devices", "rounded"),
    [
        (13.69, 64, (16, 4)),
        (1618.3, 8960, (2048, 4)),
        (1333.3, 4096, (1024, 4)),
        (0.7, 1, (1, 1)),
        (500, 64, (64, 1)),
    ],
)
def test_rounding_to_powers_of_two(x: float, devices: int, rounded: tuple[int, int]) -> None:
    assert nearest_powers(x, devices) == rounded


# Strong scaling


def test_more_chips_shorten_a_step_until_communication_binds() -> None:
    reach = Reach(ring(3), ring(2), ring(1))
    devices = np.geomspace(16, 2**20, 60)
    for streams in ("independent", "shared"):
        drawn = curve(LLAMA, reach, 4e6, devices, streams)
        assert (np.diff(drawn.best_s) < 0).all()
        last = 4e6 / float(mixed_tokens(LLAMA, ring(2), ring(1), streams))
        waits = np.array(["waits" in s for s in drawn.scheme])
        assert (waits == (devices > last)).all()
        # Beyond, halving the time takes four times the chips, not two.
        late = drawn.best_s[devices > 4 * last]
        np.testing.assert_allclose(late[1:] / late[:-1], (devices[1] / devices[0]) ** -0.5)


# The answers


def test_llama_on_four_pods() -> None:
    """Open exercise of chapter 6: 117 tokens a chip clear 113, 1.05M tokens a pod clear 73k, X about 809."""
    found = limits(ask("v5p:16x20x28*4"))
    for name, value in (
        ("tokens_per_chip", 117.03), ("mixed", 113.39), ("mixed_added", 453.6), ("tokens_per_slice", 1048576),
        ("dcn_tokens_per_slice", 73440), ("X_opt", 809.5), ("context_ways", 4),
    ):  # fmt: skip
        assert found.number(name) == pytest.approx(value, rel=1e-3), name
    assert "FSDP x TP is compute bound" in found.binds and "1.03x the rule's 113.4" in found.binds
    assert "DP over 4 slices hides" in found.binds


def test_the_convention_of_the_first_edition_turns_the_verdict() -> None:
    assert "FSDP x TP waits too" in limits(ask("v5p:16x20x28*4", streams="shared")).binds


def test_a_dense_model_on_4096_h100() -> None:
    """Chapter 12, quiz 5: 976 tokens (1,024 with 4Mi) miss 2475; pipelining over nodes divides it."""
    found = limits(ask("h100:8x512"))
    assert found.number("fsdp_all") == pytest.approx(989 / 0.4)
    assert found.number("dp_in_switches") == pytest.approx(989 / 0.8)
    assert found["domains_per_replica"] == 3
    assert found.number("zero1_8_domains") == pytest.approx(989 / 0.4 / 8)  # 309 in the book, at 990


def test_a_mixture_needs_e_over_k_times_the_tokens() -> None:
    found = limits(ask("h100:8x64", model="mixtral-8x7b"))
    assert found.number("fsdp_all") == pytest.approx(989 / 0.4 * 8 / 2)
    assert found.number("tp_nvlink") == pytest.approx(14336 * 2 / (989 / 0.45))


def test_per_chip_figures_do_not_depend_on_how_many_devices_a_chip_shows() -> None:
    found = limits(ask("tpu7x:4x4x8"))
    assert found.number("fsdp_1_axis") == pytest.approx(2300e12 / 1.8e11, rel=1e-3)


def test_stages_divide_what_data_parallelism_needs() -> None:
    """16 stages on one axis, DP on the other two: alpha / (2 x 16)."""
    assert limits(ask("v5p:16x16x16")).number("zero1_pp16") == pytest.approx(2550 / 32)


def test_a_slice_sends_more_the_larger_it_is() -> None:
    small, large = (limits(ask(c)).number("dcn_tokens_per_slice") for c in ("v5p:4x4x4", "v5p:8x8x8"))
    assert small == pytest.approx(large) == pytest.approx(73440)


def test_scaling_ends_where_the_mix_does() -> None:
    working, drawn = scaling(ask("v5p:16x16x16"))
    assert working.number("chips_mixed_model") == pytest.approx(4194304 / working.number("mixed_model"))
    assert [row["chips"] for row in working.table] == sorted(row["chips"] for row in working.table)
    assert drawn.math_s[1] == pytest.approx(drawn.math_s[0] / 2)


def test_what_has_no_limits_is_refused() -> None:
    with pytest.raises(ClusterError, match="one device communicates with nobody; give a cluster of several"):
        limits(ask("v5e:1x1"))
    with pytest.raises(ClusterError, match="one network level, which FSDP and TP cannot share whole"):
        scaling(ask("h100:8x1"))
    with pytest.raises(WorkloadError, match="1024 sequences are not a multiple of the 3 slices"):
        limits(ask("v5p:4x4x4*3"))
