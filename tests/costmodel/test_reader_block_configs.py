"""`nemotron-nas`: parameters by hand, key by key as the published class reads them, and what is refused."""

from typing import Any

import pytest

from meshwright.costmodel.readers import load_model
from meshwright.costmodel.readers.block_configs import width_of
from meshwright.hardware.errors import ModelError

ATTENTION = {
    "n_heads_in_group": 2, "no_op": False, "num_sink_tokens": None, "replace_with_linear": False, "sparsify": None,
    "unshifted_sink": False, "use_prefill_window_in_sink_attention": False, "window_length": None,
}  # fmt: skip
FFN = {"ffn_mult": 1.0, "no_op": False, "replace_with_linear": False, "sparsify": None}
D, HEADS, C = 768, 6, 128


def config(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"], "hidden_size": D, "vocab_size": 1000,
        "num_attention_heads": HEADS, "num_hidden_layers": len(blocks), "intermediate_size": None,
        "num_key_value_heads": None, "tie_word_embeddings": False, "max_position_embeddings": 4096,
        "block_configs": list(blocks), **more,
    }  # fmt: skip


def block(attention: dict[str, Any] | None = None, ffn: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"attention": ATTENTION | (attention or {}), "ffn": FFN | (ffn or {})}


def layer(kv_heads: int, width: int) -> int:
    return 2 * D * HEADS * C + 2 * D * kv_heads * C + 3 * D * width + 2 * D


def test_layers_by_hand() -> None:
    moe = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "expert_intermediate_dim": 100,
        "shared_expert_intermediate_dim": 50,
    }
    model = load_model(config(
        block(), block({"n_heads_in_group": 6}, {"ffn_mult": 0.5}), block({"window_length": 64}),
        block(ffn={"ffn_mult": None, "intermediate_size": 100}), block(ffn={"ffn_mult": None, "moe": moe}),
    ))  # fmt: skip
    assert width_of(1.0, D) == 512 and width_of(0.5, D) == 256  # 2 * 768 / 3, and half of it
    kept = 2 * D * HEADS * C + 2 * D * 3 * C + 2 * D
    assert model.params == (
        2 * layer(3, 512)
        + layer(1, 256)
        + layer(3, 100)
        + (kept + D * 4 + 3 * D * (4 * 100 + 50))
        + 2 * 1000 * D
        + D
    )
    assert [model.kinds[k].attention.kv_heads for k in model.pattern] == [3, 1, 3, 3, 3]
    assert [model.kinds[k].attention.window for k in model.pattern] == [None, None, 64, None, None]
    assert model.kinds[model.pattern[4]].ffn.top_k == 2
    names = ["kv3_f512", "kv1_f256", "kv3_f512_w64", "kv3_f100", "kv3_e4k2x100s50"]
    assert [kind.name for kind in model.kinds] == names and model.notes == ()


def test_biases_ties_and_a_head_size_of_its_own() -> None:
    plain, more = load_model(config(block())), {"attention_bias": True, "mlp_bias": True}
    assert load_model(config(block(), **more)).params - plain.params == (6 + 3 + 3) * C + D + 2 * 512 + D
    assert plain.params - load_model(config(block(), tie_word_embeddings=True)).params == 1000 * D
    assert plain.params - load_model(config(block(), head_dim=64)).params == 2 * D * (6 + 3) * 64


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (config(block({"no_op": True})), "block_configs[0].attention: no_op is true; a layer without its attention"),
        (config(block(ffn={"replace_with_linear": True})), "block_configs[0].ffn: replace_with_linear is true"),
        (config(block({"num_sink_tokens": 4})), "attention: num_sink_tokens 4 is not read"),
        (config(block(ffn={"sparsify": ["2:4"]})), "ffn: sparsify a list of 1 is not read"),
        (config(block({"n_heads_in_group": 4})), "num_attention_heads 6 is not a multiple of n_heads_in_group 4"),
        (config(block({"mamba": {}})), "attention: mamba {} is not read"),
        (config(block({"rotor": 1})), "attention: keys not read: 'rotor'; leave them out if they change nothing"),
        (config(block() | {"parallel_blocks": []}), "parallel_blocks [] is not read"),
        (config(block(ffn={"ffn_mult": None})), "none of ffn_mult, intermediate_size and moe is given"),
        (config(block(ffn={"ffn_mult": "1"})), "ffn_mult must be a number above 0, got '1'"),
        (config(block(ffn={"ffn_mult": 1e300})), "it must be from 1 to 1000000000"),
        (config(block(ffn={"ffn_mult": 1e-9})), "makes a width of 0"),
        (config(block(ffn={"intermediate_size": 500})), "makes a width of 512 and intermediate_size is 500; keep one"),
        (config(block(ffn={"moe": {}})), "moe stands beside ffn_mult"),
        (config(block(ffn={"hidden_rank": 3})), "the key 'hidden_rank' is not known"),
        (config(block(), num_hidden_layers=2), "block_configs lists 1 layers and the model has 2"),
        (config(block(), block_configs=None), "the key block_configs is missing"),
        (config({"attention": ATTENTION}), "block_configs[0]: ffn must be an object, got null"),
        (config(block(), intermediate_size=4), "intermediate_size 4 is not read"),
    ],
)  # fmt: skip
def test_refusals(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(wrong)
    assert told in str(caught.value) and "\n" not in str(caught.value)
