"""What travels and how often: bytes of every collective by hand and against a compiler's collectives.

With a network on which a second is a byte and overlap `none`, exposed seconds are bytes.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from costmodel_cases import make_setting

from meshwright.costmodel.estimate import stage_counts
from meshwright.costmodel.layout import DIMENSIONS, Layout, Placement, with_stages
from meshwright.costmodel.placement import groups_of
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable


@dataclass(frozen=True)
class Ledger:
    """Loads are bytes on one resource; `only` leaves one communicator."""

    only: str | None = None

    def gather(self, group: str, sizes: Any) -> np.ndarray:
        return np.asarray(sizes, float)[..., None] * (self.only in (None, group))

    reduce = all_to_all = send = gather


def table(
    setting: Setting, layout: Layout, only: str | None = None
) -> tuple[StageTable, np.ndarray, np.ndarray]:
    layout = with_stages(layout, setting.model.layers, 1)
    counts, stages = stage_counts(setting, [layout])
    return StageTable.of(setting, Rows.of([layout], setting), Ledger(only)), stages, counts


def layer_bytes(setting: Setting, layout: Layout, part: str, kind: int = 0) -> float:
    return float(table(setting, layout)[0].layers[kind].parts[part][0])


def plain(model: str, sequences: int, seq_len: int, **words: Any) -> Setting:
    return make_setting(model, "v5p:4x4x4", sequences, seq_len, overlap="none", **words)


def test_tensor_parallel_traffic_is_the_compilers() -> None:
    """8B, fsdp 32 x tp 2, full recompute, 4 sequences of 8,192 a rank, compiled by XLA:TPU ahead of time (two
    programs, one of them not ours): 6L + 2 gathers and 5L + 2 scatters of 268,435,456 bytes.
    """
    setting = plain("llama-3-8b", 128, 8192)
    layout = Layout(dp_shard=32, tp=2, zero=3, micro_batch=4, policies=("full",))
    found, _, _ = table(setting, layout)
    layers = 32 * found.layers[0].parts["tp"][0]
    assert layers == 32 * 11 * 268435456
    ends = found.first.parts["tp"][0] + found.last.parts["tp"][0]
    assert layers + ends == pytest.approx(52076478464 + 43487068160, rel=0.01)
    # Without recompute the scatters of forward are not repeated: one less, since the last is never needed.
    assert layer_bytes(setting, Layout(dp_shard=32, tp=2, zero=3, micro_batch=4), "tp") == 10 * 268435456


def test_weight_traffic_is_the_compilers() -> None:
    """8B, fsdp 64: gathered 28,967,960,576 bytes, of which the head once 1,050,673,152; scattered 2 bytes a
    parameter. Layers only, norms (kept whole there) within 1e-4.
    """
    setting = plain("llama-3-8b", 128, 8192)
    moved = 32 * layer_bytes(setting, Layout(dp_shard=64, zero=3, micro_batch=2), "fsdp")
    gathered, scattered = 28967960576 - 1050673152, 2 * 32 * 218112000
    assert moved == pytest.approx(gathered + scattered, rel=1e-4)
    # ZeRO-2 scatters only, ZeRO-1 leaves everything for the end of the step; megatron's gradients are fp32.
    assert 32 * layer_bytes(setting, Layout(dp_shard=64, zero=2), "fsdp") == scattered
    assert "fsdp" not in table(setting, Layout(dp_shard=64, zero=1))[0].layers[0].parts
    wide = plain("llama-3-8b", 128, 8192, framework="megatron")
    assert 32 * layer_bytes(wide, Layout(dp_shard=64, zero=2), "fsdp") == 2 * scattered


def test_weights_are_gathered_once_per_micro_batch() -> None:
    """Smaller micro-batches move the same weights, fewer tokens."""
    setting = plain("llama-3-8b", 128, 8192)
    two, one = (layer_bytes(setting, Layout(dp_shard=8, zero=3, micro_batch=b, tp=2), "fsdp") for b in (2, 1))
    assert two == one
    two, one = (layer_bytes(setting, Layout(dp_shard=8, zero=3, micro_batch=b, tp=2), "tp") for b in (2, 1))
    assert two == 2 * one


def test_expert_traffic() -> None:
    """Mixtral: each token's two copies out and back, forward and backward; full recompute sends forward again."""
    setting = plain("mixtral-8x7b", 64, 4096)
    once = 2 * 4096 * 2 * 4096  # bf16, tokens, top-2, width
    layout = Layout(dp_replicate=8, dp_shard=8, zero=1, ep=8)
    assert layer_bytes(setting, layout, "ep") == 4 * once
    for policy, exchanges in (("elementwise", 4), ("attention", 4), ("mlp", 6), ("full", 6)):
        repeated = Layout(dp_replicate=8, dp_shard=8, zero=1, ep=8, policies=(policy,))
        assert layer_bytes(setting, repeated, "ep") == exchanges * once, policy
    uneven = plain("mixtral-8x7b", 64, 4096, training=(("moe_imbalance", 1.5),))
    assert layer_bytes(uneven, layout, "ep") == 1.5 * 4 * once


def test_context_parallel_traffic() -> None:
    """8 kv heads of 128: keys and values of all cp ranks pass three times; all_to_all turns q, k, v, o instead."""
    setting = plain("llama-3-8b", 64, 8192)
    kv, q = 2 * 2048 * 8 * 256, 2 * 2048 * 32 * 256  # bf16, tokens of a rank, heads, both widths
    ring, gather, turn = (
        layer_bytes(setting, Layout(cp=4, zero=1, cp_kind=k), "cp")
        for k in ("ring", "all_gather", "all_to_all")
    )
    assert ring == gather == 3 * 4 * kv
    assert turn == 2 * (kv + q)


@pytest.mark.parametrize(("zero", "per_param"), [(0, 2 + 2), (1, 2 + 2), (2, 2), (3, 0)])
def test_what_a_step_reduces_once(zero: int, per_param: int) -> None:
    """Over 8 ranks of cp (ZeRO 0) or dp_shard: all-reduce as scatter and gather; ZeRO-2 has scattered before,
    ZeRO-3 gathered too."""
    setting = plain("llama-3-8b", 64, 8192)
    layout = Layout(dp_shard=8, zero=zero) if zero else Layout(cp=8)
    found, stages, counts = table(setting, layout, "shard")
    assert found.once_parts(stages, counts)["dp"][0, 0] == pytest.approx(per_param * setting.model.params)


def test_replicas_reduce_what_shards_hold() -> None:
    setting = plain("llama-3-8b", 64, 8192)
    found, stages, counts = table(setting, Layout(dp_replicate=4, dp_shard=8, zero=3), "dp_replicate")
    assert found.once_parts(stages, counts)["dp"][0, 0] == pytest.approx(2 * setting.model.params / 8)


def test_only_the_ends_exchange_a_tied_table() -> None:
    """gemma-2-2b over four stages: table gradients of first and last meet."""
    setting = plain("gemma-2-2b", 8, 4096)
    found, stages, counts = table(setting, Layout(pp=4), "pp")
    shared = 2 * setting.model.head_matrix.params
    assert found.once_parts(stages, counts)["dp"][0].tolist() == [shared, 0, 0, shared]


def test_full_recompute_repeats_all_but_the_last_product() -> None:
    """JAX drops the product whose output no gradient needs; Megatron runs the layer again whole."""
    for framework, left_out in (("jax", True), ("megatron", False)):
        setting = plain("llama-3-8b", 64, 8192, framework=framework, efficiency="mfu=1.0")
        parts = table(setting, Layout(policies=("full",)))[0].layers[0].parts
        flops = 2 * 8192 * (218112000 - 2 * 4096 - left_out * 4096 * 14336) + 2 * 8192 * 8193 / 2 * 2 * 4096
        assert parts["recompute"][0] == pytest.approx(flops / 459e12, rel=1e-9)


def test_working_memory_of_a_layer() -> None:
    """While a layer runs backward: gradients of its tensors, and with full recompute the tensors too (its input
    apart, which was saved)."""
    setting = plain("llama-3-8b", 64, 8192)
    none, full = (table(setting, Layout(policies=(p,)))[0].memory for p in ("none", "full"))
    tokens, d, kv, ff = 8192, 4096, 2 * 1024, 14336
    named = (
        2 * tokens * (4 * d + (d + kv) + d + 3 * ff) + 4 * tokens * 32
    )  # input, norms, out; qkv; core; mlp
    assert none.working[0] == pytest.approx(named)
    assert full.working[0] == pytest.approx(2 * named - 2 * tokens * d)
    assert full.saved[0, 0] == 2 * tokens * d


def groups(*placement: Placement, ep: int = 1, etp: int = 1) -> Any:
    return groups_of(list(placement), np.array([ep] * len(placement)), np.array([etp] * len(placement)))


def test_strides_on_an_axis() -> None:
    """16 = tp 2 inside cp 2 inside pp 2 inside dp_shard 2: strides 1, 2, 4, 8. Joined, dp_shard and cp have four
    ranks; the further of them has tp and pp between its neighbours.
    """
    axis: Placement = ((("tp", 2), ("cp", 2), ("pp", 2), ("dp_shard", 2)),)
    found = groups(axis)
    assert [int(getattr(found, d).strides[0, 0]) for d in ("tp", "cp", "pp", "dp_replicate")] == [1, 2, 4, 1]
    assert (found.shard.factors[0, 0], found.shard.strides[0, 0]) == (4, 4)
    swapped = groups(((("dp_shard", 2), ("cp", 2), ("tp", 4)),))
    assert (swapped.shard.factors[0, 0], swapped.shard.strides[0, 0]) == (4, 1)
    split = groups(((("tp", 2), ("dp_shard", 2)), (("cp", 4),)))
    assert split.shard.factors[0].tolist() == [2, 4]
    assert split.shard.strides[0].tolist() == [2, 1]


def test_expert_ranks_fill_a_stage_from_inside() -> None:
    """A stage of 16 on levels of 4 and 4: ep 8 takes the inner level and two of the outer; edp the rest."""
    stage: Placement = ((("tp", 2), ("dp_shard", 2)), (("dp_replicate", 4),))
    flat = groups(stage, ep=8)
    assert (flat.ep.factors[0].tolist(), flat.edp.factors[0].tolist()) == ([4, 2], [1, 2])
    # With etp = tp the tp ranks are inside an expert: ep starts beyond them.
    cut = groups(stage, ep=4, etp=2)
    assert (cut.ep.factors[0].tolist(), cut.ep.strides[0].tolist()) == ([2, 2], [2, 1])
    assert (cut.edp.factors[0].tolist(), cut.edp.strides[0].tolist()) == ([1, 2], [4, 2])
    # Pipeline stages inside push expert ranks apart on their axis.
    apart = groups(((("pp", 2), ("dp_shard", 4)),), ep=4)
    assert (apart.ep.factors[0, 0], apart.ep.strides[0, 0]) == (4, 2)
    assert set(DIMENSIONS) == {"tp", "cp", "dp_shard", "dp_replicate", "pp"}


def test_offload_waits_for_the_slower_of_link_and_host() -> None:
    """v5p: 16 GB/s a chip, four chips a host whose CPUs update 3e9 parameters a second."""
    setting = plain("llama-3-8b", 64, 8192, host=True, efficiency="ideal")
    params = setting.model.params
    found, stages, counts = table(setting, Layout(dp_shard=8, zero=1, offload="optimizer"))
    assert found.once_parts(stages, counts)["optimizer"][0, 0] == pytest.approx(params / 8 * 4 / 3e9)
    slow = replace(setting, cluster=replace(setting.cluster, cpu_update_params_per_s=1e12))
    found, stages, counts = table(slow, Layout(dp_shard=8, zero=1, offload="optimizer"))
    # bf16 gradient there, bf16 weight back
    assert found.once_parts(stages, counts)["optimizer"][0, 0] == pytest.approx(params / 8 * 4 / 16e9)
    # a layer's input goes and comes back; nothing hides in this mode
    layout = Layout(offload="activations", policies=("full",))
    assert layer_bytes(setting, layout, "offload") == pytest.approx(2 * 2 * 8192 * 4096 / 16e9)


def test_saved_bytes_of_a_mixture() -> None:
    """Mixtral, ep 4, tp = etp = 2: a rank routes both copies of all its tokens and holds half of each expert."""
    setting = plain("mixtral-8x7b", 64, 4096, framework="megatron")
    found, _, _ = table(setting, Layout(dp_replicate=4, tp=2, ep=4, etp=2))
    tokens, d, kv, ff = 4096, 4096, 2 * 1024, 14336
    residual = 4 * tokens / 2 * d  # input, two norms, attention's output, cut along the sequence
    attention = tokens / 2 * (d + kv + d) + 2 * tokens / 2 * 32  # qkv and core; log-sums of 4 bytes
    experts = 2 * tokens * (2 * d + 3 * ff / 2)  # dispatched and returned whole, gate, up and product cut
    assert found.memory.saved[0, 0] == pytest.approx(2 * (residual + attention + experts))


def test_experts_cut_by_tp_gather_their_tokens() -> None:
    """Whole experts take a rank's own tokens; cut ones need those of all tp ranks and scatter partial sums: as many
    collectives as a dense feed-forward part. A model with shared experts has them anyway."""
    setting = plain("mixtral-8x7b", 64, 4096)
    full = 2 * 4096 * 4096
    whole, cut = (layer_bytes(setting, Layout(dp_replicate=4, tp=2, ep=4, etp=e), "tp") for e in (1, 2))
    assert (whole, cut) == (5 * full, 10 * full)
    shared = plain("deepseek-v2-lite", 64, 4096)
    kind = next(i for i, k in enumerate(shared.model.kinds) if k.ffn.experts and k.ffn.width)
    both = [layer_bytes(shared, Layout(dp_replicate=4, tp=2, ep=4, etp=e), "tp", kind) for e in (1, 2)]
    assert both[0] == both[1] == 10 * 2 * 4096 * 2048
