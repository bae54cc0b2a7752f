"""The cost model on one device, for one model and for columns of shapes; beside PLAS' forms where they hold."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodel.counting.kvcache import cache_bytes
from meshwright.costmodel.flops import head_flops, token_flops
from meshwright.costmodel.inference import seconds, work
from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device, Machine
from meshwright.costmodel.inference.stack import Stack
from meshwright.costmodel.readers import load_model
from meshwright.search import plas
from meshwright.search.architecture import Ends, counts_of, model_of, stack_of
from meshwright.search.grid import list_shapes, load_grid
from meshwright.search.shape import Shapes

ENDS = Ends(vocab=151936, tied=True)
ORIN = Device.ideal(42.5e12, 204.8e9, 64e9)
FP16 = Request(batch=1, prompt=1024, output=16, weight_bytes=2, kv_bytes=2)
PLAS = list_shapes(load_grid("plas")).shapes
PRODUCTS = ("qkv", "out", "up", "down", "expert_up", "expert_down")


def mixed() -> Shapes:
    """Dense, routed and shared rows side by side."""
    columns = {
        "layers": [16, 24, 8, 12], "width": [2048, 1024, 768, 3072], "heads": [16, 16, 6, 24],
        "kv_heads": [4, 16, 1, 8], "head_dim": [128, 64, 128, 128], "ffn_ratio": [4, 0.5, 1.5, 1],
        "experts": [1, 16, 8, 64], "top_k": [1, 2, 1, 4], "shared": [0, 0, 2, 0],
    }  # fmt: skip
    return Shapes(**{name: np.array(column) for name, column in columns.items()})


def test_a_row_of_columns_costs_what_its_model_costs() -> None:
    shapes = mixed()
    stack, device = stack_of(shapes, ENDS), Device(Machine(4e13, 3e13, 2e11, 0.6, 1.4, 1e-4), ORIN.decode, 1)
    for request in (FP16, replace(FP16, batch=7, prompt=300, weight_bytes=0.5, head_bytes=1)):
        for row in range(len(shapes)):
            one = Stack.of(model_of(shapes, row, ENDS))
            for of in (seconds.prefill_s, seconds.token_s):
                assert of(stack, device, request)[row] == pytest.approx(float(of(one, device, request)))
            held, alone = seconds.memory_bytes(stack, request), seconds.memory_bytes(one, request)
            for part in held:
                assert held[part][row] == pytest.approx(float(alone[part])), part


def test_counts_are_those_of_the_models() -> None:
    shapes = mixed()
    counts = counts_of(shapes, ENDS)
    for row in range(len(shapes)):
        model = model_of(shapes, row, ENDS)
        assert (counts.params[row], counts.active_params[row]) == (model.params, model.active_params)
    qwen = load_model("qwen3-8b")
    rebuilt = Shapes(*(np.array([v]) for v in (36, 4096, 32, 8, 128, 12288 / 4096, 1, 1, 0)))
    assert counts_of(rebuilt, Ends(qwen.vocab, qwen.tied)).params[0] == qwen.params


def test_plas_forms_are_the_products_of_layers_where_their_assumptions_hold() -> None:
    """Compute binds prefill, memory decode, and nothing but weights and cache is moved (plas.md 1.4)."""
    stack = stack_of(PLAS, ENDS)
    for layers_of, p, form in (
        (lambda w: w.flops, FP16.prefill, plas.prefill_s(PLAS, ORIN, FP16) * 42.5e12),
        (lambda w: w.weight_bytes, FP16.decode, None),
    ):
        total = 0.0
        for layers, kind in stack.parts:
            done = work.layer_work(kind, p)
            total = total + layers * sum(layers_of(done[name]) for name in PRODUCTS if name in done)
        if form is None:
            cache = sum(
                n * 2 * FP16.mean_context * kind.attention.kv_heads * 128 * 2 for n, kind in stack.parts
            )
            total, form = total + cache, plas.decode_s(PLAS, ORIN, FP16) / 16 * 204.8e9
        np.testing.assert_allclose(total, form, 1e-12)
    norms_and_router = sum(
        n * sum(w.params for w in kind.weights if "norm" in w.name or w.name == "router")
        for n, kind in stack.parts
    )
    np.testing.assert_allclose(
        2 * (stack.layer_params - norms_and_router), plas.memory_bytes(PLAS, FP16), 1e-12
    )


def test_the_full_model_is_never_below_the_paper_s() -> None:
    stack = stack_of(PLAS, ENDS)
    assert (seconds.prefill_s(stack, ORIN, FP16) >= plas.prefill_s(PLAS, ORIN, FP16)).all()
    assert (16 * seconds.token_s(stack, ORIN, FP16) >= plas.decode_s(PLAS, ORIN, FP16)).all()
    assert (sum(seconds.memory_bytes(stack, FP16).values()) > plas.memory_bytes(PLAS, FP16)).all()


def test_prefill_reads_every_expert_that_its_tokens_meet() -> None:
    shapes = mixed()
    moe = stack_of(shapes[[1]], ENDS).parts[0][1]
    few, many = (work.layer_work(moe, replace(FP16, prompt=n).prefill)["expert_up"] for n in (1, 4096))
    one_expert = 2 * 1024 * 256 * 2  # gate and up, d x r d / K, two bytes
    assert few.weight_bytes[0] == pytest.approx(2 * one_expert)  # K of them
    assert many.weight_bytes[0] == pytest.approx(16 * one_expert)  # E of them


def test_long_contexts_shrink_what_sparsity_gains_in_decode() -> None:
    """Reading experts and reading the cache share one bandwidth: a dense model of the same storage over a sparse one."""
    one = {"layers": 16, "width": 2048, "heads": 16, "kv_heads": 16, "head_dim": 128}
    both = {"ffn_ratio": [8.0, 0.5], "experts": [1, 16], "top_k": [1, 1], "shared": [0, 0]}
    shapes = Shapes(**{k: np.full(2, v) for k, v in one.items()}, **{k: np.array(v) for k, v in both.items()})
    stack, gains = stack_of(shapes, ENDS), []
    for context in (64, 1024, 8192, 65536, 524288):
        dense, sparse = seconds.token_s(stack, ORIN, replace(FP16, prompt=context))
        gains.append(dense / sparse)
    assert gains[0] > 3 and gains[-1] < 1.2
    assert (np.diff(gains) < 0).all()


def test_a_batch_meets_more_experts_until_it_meets_all() -> None:
    kind = stack_of(mixed()[[3]], ENDS).parts[0][1]
    read = [
        work.layer_work(kind, replace(FP16, batch=b).decode)["expert_down"].weight_bytes[0]
        for b in (1, 8, 512)
    ]
    one = 768 * 3072 * 2
    assert read[0] == pytest.approx(4 * one)
    assert 4 * one < read[1] < 32 * one  # fewer than 8 times as many: draws repeat
    assert read[2] == pytest.approx(64 * one)


def test_flops_of_a_prefill_are_the_serving_chapter_s() -> None:
    for name in ("llama-3-70b", "mixtral-8x7b", "gpt-oss-120b", "gemma-2-9b"):
        model = load_model(name)
        stack, p = Stack.of(model), replace(FP16, prompt=3000).prefill
        done = [n * sum(w.flops for w in work.layer_work(kind, p).values()) for n, kind in stack.parts]
        head = work.ends_work(stack, p)["head"].flops
        layers = 3000 * (token_flops(model, 3000) - head_flops(model))
        assert sum(done) + head == pytest.approx(layers + head_flops(model)), name


def test_parts_sum_to_the_pass_and_name_every_operator() -> None:
    stack = stack_of(mixed(), ENDS)
    device = Device.ideal(4e13, 2e11, 1)
    parts = seconds.pass_s(stack, FP16.prefill, replace(device.prefill, layer_s=1e-4))
    assert set(parts) <= {*work.ATTENTION, *work.FFN, *work.ENDS, seconds.LAUNCH}
    np.testing.assert_allclose(parts[seconds.LAUNCH], mixed().layers * 1e-4)
    np.testing.assert_allclose(
        sum(parts.values()) - parts[seconds.LAUNCH], seconds.prefill_s(stack, device, FP16)
    )


@pytest.mark.parametrize("name", ["llama-3-70b", "gemma-2-9b", "deepseek-v3"])
def test_the_cache_is_the_one_that_is_counted(name: str) -> None:
    model = load_model(name)
    request = replace(FP16, batch=3, prompt=5000, output=700, kv_bytes=1)
    held = seconds.memory_bytes(Stack.of(model), request)
    assert held["cache"] == pytest.approx(3 * cache_bytes(model, 5700, 1))
    assert held["weights"] == pytest.approx(2 * model.params)


def test_a_shared_bandwidth_is_shared() -> None:
    """Twice the bandwidth and twice the FLOP/s: half the seconds, launches aside."""
    stack = stack_of(mixed(), ENDS)
    slow, fast = (Device.ideal(f * 4e13, f * 2e11, 1) for f in (1, 2))
    for of in (seconds.prefill_s, seconds.token_s):
        np.testing.assert_allclose(of(stack, slow, FP16), 2 * of(stack, fast, FP16))
