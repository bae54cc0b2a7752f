"""Counts against the weights they come from, the book's figures and its rules; properties of caches and activations.

Origin of figures: jax-ml/scaling-book, chapter by chapter, and the published counts in the models' own files.
"""

import math

import pytest

from meshwright.costmodel.counting import counts
from meshwright.costmodel.counting.activations import (
    BOOK_POLICIES,
    checkpoint_bytes,
    saved_by,
    saved_by_all,
    training_ratio,
)
from meshwright.costmodel.counting.counts import (
    KERNEL,
    PROJECTIONS,
    crossover,
    parts_of,
    rule_crossover,
    rule_flops,
)
from meshwright.costmodel.counting.kvcache import SAVINGS, cache_bytes, without
from meshwright.costmodel.counting.on_chip import count_batch, count_state, count_utilisation
from meshwright.costmodel.counting.parts import count_activations, count_cache, count_parts
from meshwright.costmodel.flops import TRAIN, token_flops
from meshwright.costmodel.framework import load_framework
from meshwright.costmodel.readers import load_model, model_names
from meshwright.costmodel.textbook import parse_shape
from meshwright.hardware.errors import InputError
from meshwright.hardware.profile import book_chip

JAX = load_framework("jax")
BOOK_Q1 = "D=4096,F=16384,L=64,N=16,K=16,H=256,V=32000"  # chapter 4, question 1
MIXTURE_Q5 = "D=4096,F=16384,L=64,N=32,K=8,H=256,V=32128,E=16,k=2,tied=yes"  # chapter 7, question 5


@pytest.mark.parametrize("name", model_names())
def test_parts_sum_to_the_model(name: str) -> None:
    model = load_model(name)
    parts = parts_of(model, 2048).values()
    assert sum(p.params for p in parts) == model.params
    assert sum(p.active for p in parts) == model.active_params
    assert sum(p.flops for p in parts) == pytest.approx(token_flops(model, 2048), rel=1e-12)


def test_parts_of_the_book_s_first_question() -> None:
    """17.4e9 recomputed (the book rounds to 16e9); attention a quarter of the layers' matrices."""
    parts = parts_of(parse_shape(BOOK_Q1), 1)
    assert counts.matrices(parts).params == 64 * (3 * 4096 * 16384 + 4 * 4096**2) + 2 * 4096 * 32000
    assert counts.layer_share(parts, *PROJECTIONS) == 0.25


def test_mixture_of_the_book() -> None:
    """Chapter 7, question 5: 212e9 parameters, 31.2e9 active."""
    found = counts.matrices(parts_of(parse_shape(MIXTURE_Q5), 1))
    assert (found.params, found.active) == (211658735616, 31270109184)


def test_flops_of_parts_are_the_table_of_chapter_4() -> None:
    """Training FLOPs of one layer and token: 18DF, 12D(N+K)H, 12TNH of all keys and half of it causal, 6DV."""
    d, f, n, k, h, v, t = 8192, 28672, 64, 8, 128, 128256, 4096
    model = parse_shape(f"D={d},F={f},L=1,N={n},K={k},H={h},V={v}")
    whole, useful = parts_of(model, t, causal=False), parts_of(model, t)
    assert TRAIN * whole["mlp"].flops == 18 * d * f
    assert TRAIN * sum(whole[p].flops for p in PROJECTIONS if p in whole) == 12 * d * (n + k) * h
    assert TRAIN * whole[KERNEL].flops == 12 * t * n * h
    assert useful[KERNEL].flops / whole[KERNEL].flops == (t + 1) / (2 * t)
    assert TRAIN * whole["head"].flops == 6 * d * v


@pytest.mark.parametrize("width", [4096, 4608, 8192])
def test_crossovers_of_a_plain_layer_are_8d_and_2d(width: int) -> None:
    """Chapter 4: T = 8D for F = 4D, N H = D, all heads; 2D against the projections."""
    assert rule_crossover(width) == 8 * width
    assert rule_crossover(width, "projections") == 2 * width


@pytest.mark.parametrize("name", ["llama-3-70b", "deepseek-v3", "gpt-oss-120b", "gpt2"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_crossover_is_the_first_length_that_attention_wins(name: str, causal: bool) -> None:
    model = load_model(name)
    found = crossover(model, "model", causal)
    assert found is not None
    matmuls = token_flops(model, found, causal) - counts.attention_flops(model, found, causal)
    assert counts.attention_flops(model, found - 1, causal) < matmuls
    assert counts.attention_flops(model, found, causal) >= matmuls


def test_windows_in_every_layer_keep_attention_below() -> None:
    assert crossover(load_model("mistral-7b-v0.1"), "layers") is None
    page = count_parts(load_model("mistral-7b-v0.1"), 4096)
    assert page["crossover"] == "never" and "outweigh all products never" in page.binds


def test_six_n_d_is_three_times_forward_and_misses_attention_only() -> None:
    model = parse_shape("D=8192,F=28672,L=80,N=64,K=8,H=128,V=128256")
    embedding = 8192 * 128256  # looked up, but in the rule
    norms = parts_of(model, 1)["vectors"].params
    products = TRAIN * (token_flops(model, 1) - counts.attention_flops(model, 1))
    assert rule_flops(model.params) == products + rule_flops(embedding + norms)
    assert rule_flops(70e9) == 4.2e11  # chapter 6: 6 FLOPs per parameter
    assert rule_flops(70e9, training=False) * 3 == rule_flops(70e9)


def test_utilisation_of_deepseek_v3() -> None:
    """Chapter 4, question 7: 37e9 active, 14.8e12 tokens, 2.79e6 hours at 1.513e15 FLOP/s: 21.7%."""
    assert counts.utilisation(rule_flops(37e9, 14.8e12), 2.79e6 * 3600, 1.513e15) == pytest.approx(
        0.217, abs=1e-3
    )
    answer = count_utilisation(load_model("deepseek-v3"), 4096, 14_800_000_000_000, 2.788e6 * 3600, 1.513e15)
    assert answer.number("mfu_rule") == pytest.approx(0.2197, abs=1e-3)  # the file's 37.55e9 are active
    assert answer.number("mfu") > answer.number("mfu_rule")  # attention counts too


def test_impossible_runs_are_refused_or_told() -> None:
    model = load_model("llama-3-8b")
    with pytest.raises(InputError, match="chip_s is 0; give a number above zero"):
        count_utilisation(model, 4096, 10**9, 0, 1e15)
    assert "more than there are" in count_utilisation(model, 4096, 10**15, 3600, 1e15).binds


# Caches


def test_cache_of_llama_70b() -> None:
    """Chapter 8: 163,840 B per token in int8, an eighth of what 64 cached heads would take."""
    model = load_model("llama-3-70b")
    assert cache_bytes(model, 1, 1) == 163840
    assert cache_bytes(without(model, "grouped heads"), 1, 1) == 1310720


@pytest.mark.parametrize(
    "name", ["llama-3-70b", "deepseek-v3", "gemma-3-27b-it", "gpt-oss-120b", "falcon-7b"]
)
@pytest.mark.parametrize("tokens", [1, 1000, 131072])
def test_every_saving_saves_and_dtype_and_length_scale(name: str, tokens: int) -> None:
    model = load_model(name)
    held = cache_bytes(model, tokens, 2)
    assert all(cache_bytes(without(model, saving), tokens, 2) >= held for saving in SAVINGS)
    assert cache_bytes(model, tokens, 1) == held / 2
    assert held <= cache_bytes(model, 1, 2) * tokens  # windows


def test_latent_attention_caches_one_vector_per_token_and_layer() -> None:
    """DeepSeek-V3: kv_lora_rank 512 and a rotary part of 64, 61 layers (its published config)."""
    assert cache_bytes(load_model("deepseek-v3"), 1, 2) == 2 * 61 * (512 + 64)


def test_a_window_stops_the_cache_from_growing() -> None:
    """Mistral 7B v0.1: 4,096 tokens, 32 layers, 8 heads of 128."""
    model = load_model("mistral-7b-v0.1")
    assert cache_bytes(model, 32768, 2) == cache_bytes(model, 4096, 2) == 4096 * 2 * 2 * 32 * 8 * 128


def test_cache_page_weighs_caches_against_weights() -> None:
    answer = count_cache(load_model("llama-3-70b"), 32768, 240, "int8")
    assert answer["bytes_of_batch"] == 240 * 32768 * 163840
    assert answer.number("without_grouped_heads") == 8 * answer.number("bytes_per_sequence")
    ratio = answer.number("bytes_of_batch") / answer.number("weights_bf16")
    assert f"{ratio:.3g} times the weights" in answer.binds


# Activations


def test_the_book_s_policies_over_the_planner_s_tensors() -> None:
    """Block input: 2D a layer; feed-forward products: 2(D + 2F); seven products: outputs of q k v o gate up down."""
    d, f, n, k, h = 8192, 28672, 64, 8, 128
    model = parse_shape(f"D={d},F={f},L=1,N={n},K={k},H={h},V=128256")
    saved = {name: saved_by(policy, model, JAX, 4096) for name, policy in BOOK_POLICIES.items()}
    assert saved["block input"].saved_bytes == checkpoint_bytes(1, 1, d, 1) == 2 * d
    assert saved["mlp products"].saved_bytes == 2 * (d + 2 * f)
    assert saved["big products"].saved_bytes == 2 * (n * h + 2 * k * h + d + 2 * f + d)


def test_saving_seven_products_repeats_attention_only() -> None:
    """Chapter 4, question 6: 4BT^2NH a layer, forward, all keys counted."""
    model = parse_shape(BOOK_Q1)
    found = saved_by(BOOK_POLICIES["big products"], model, JAX, 2048, causal=False)
    assert found.repeated_flops == 64 * 4 * 2048 * 4096


def test_repeating_everything_costs_a_third() -> None:
    """Chapter 4: 6 FLOPs per parameter and token become 8."""
    assert training_ratio(1.0) == pytest.approx(8 / 6)


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3", "gpt2"])
@pytest.mark.parametrize("framework", ["jax", "megatron"])
def test_who_saves_less_repeats_more(name: str, framework: str) -> None:
    found = saved_by_all(load_model(name), load_framework(framework), 4096)
    none, full = found[0], found[4]
    assert (none.policy, full.policy) == ("none", "full")
    for saved in found:
        assert full.saved_bytes <= saved.saved_bytes <= none.saved_bytes
        assert 1.0 <= saved.training_ratio <= training_ratio(1.0)
    assert full.training_ratio > none.training_ratio == 1.0


def test_activation_page_has_planner_and_book_side_by_side() -> None:
    rows = count_activations(load_model("llama-3-70b"), JAX, 4096, 4 * 2**20).table
    assert [r["policy"] for r in rows].count("block input") == 2  # exact, and by the rule
    exact, rule = (r for r in rows if r["policy"] == "block input")
    assert exact["B"] == rule["B"] == 2 * 4 * 2**20 * 8192 * 80


# State, critical batch


def test_state_by_the_book_and_by_the_planner() -> None:
    """Chapter 5: 10 bytes per parameter, 9.6e9 parameters on a v5p of 96 GB."""
    answer = count_state(load_model("llama-3-70b"), JAX, "adamw", book_chip("v5p"), shards=64)
    assert answer["book_bytes_per_param"] == 10 and answer["planner_bytes_per_param"] == 16
    assert answer.number("book_most_params") == 9.6e9
    assert answer.number("planner_most_params") < 9.6e9 * 10 / 16
    assert "does not fit" in answer.steps["book_most_params"].note


def test_zero_shards_optimizer_then_gradients_then_parameters() -> None:
    each = {"parameters": 2, "gradients": 2, "master": 4, "optimizer": 8}
    held = [sum(counts.state_bytes(each, 1e9, level, 8).values()) / 1e9 for level in range(4)]
    assert held == [16, 2 + 2 + 12 / 8, 2 + 14 / 8, 16 / 8]


def test_critical_batch_dense_and_mixture() -> None:
    """Chapter 1: 240 tokens on v5e (197e12 / 8.2e11), half with int8 weights; chapter 4: times E/k."""
    v5e = book_chip("v5e")
    dense = count_batch(parse_shape(BOOK_Q1), v5e)
    assert dense.number("dense") == pytest.approx(197e12 / 8.2e11)
    mixture = count_batch(parse_shape(MIXTURE_Q5), v5e, weights="int8")
    assert mixture.number("dense") == dense.number("dense") / 2
    assert mixture.number("experts") == pytest.approx(8 * mixture.number("dense"))
    # All weights against all that a token meets: between a dense model and nothing but experts.
    assert mixture.number("dense") < mixture.number("model") < mixture.number("experts")


def test_params_page_gives_the_run_s_flops() -> None:
    """Chapter 6: 15e12 tokens at 6 FLOPs per parameter; 6.3e24 with 70e9 parameters, 6.35e24 with all 70.55e9."""
    answer = count_parts(load_model("llama-3-70b"), 4096, tokens=15 * 10**12)
    assert answer.number("run_flops_rule") == pytest.approx(6.35e24, rel=1e-3)
    assert math.isclose(
        answer.number("rule_over_exact"), answer.number("run_flops_rule") / answer.number("run_flops")
    )
