"""Small configurations counted by hand, one per family and per switch that no built-in model turns."""

from typing import Any

import pytest

from meshwright.costmodel.model import Shard
from meshwright.costmodel.readers import load_model
from meshwright.hardware.errors import ModelError

# Width 8, 4 heads of 2, 2 kv heads, feed-forward 12, vocabulary 20, 2 layers.
TINY: dict[str, Any] = {
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 20,
    "num_hidden_layers": 2,
    "max_position_embeddings": 32,
}
Q, KV, O, FFN = 8 * 8, 2 * 8 * 4, 8 * 8, 3 * 8 * 12  # 64, 64, 64, 288
LLAMA_LAYER = Q + KV + O + FFN + 2 * 8  # 496
ENDS = 2 * 20 * 8 + 8  # table, head, final norm: 328
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 6}
MLA = {
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 2,
    "v_head_dim": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    **MOE,
}
# kv_a 8 x 7, norm 5, kv_b 5 x 4*7, o 16 x 8, straight q 8 x 20, two norms
MLA_LAYER = 8 * 7 + 5 + 5 * 28 + 16 * 8 + 8 * 20 + 2 * 8  # 505
GPT_LAYER = 4 * (8 * 8 + 8) + (8 * 32 + 32) + (32 * 8 + 8) + 2 * 16  # 872
FALCON = {"num_attention_heads": 4, "hidden_size": 8, "vocab_size": 20, "num_hidden_layers": 2}

CASES: list[tuple[str, dict[str, Any], int]] = [
    ("llama", TINY, 2 * LLAMA_LAYER + ENDS),
    ("llama", TINY | {"tie_word_embeddings": True}, 2 * LLAMA_LAYER + ENDS - 160),
    ("llama", TINY | {"attention_bias": True}, 2 * (LLAMA_LAYER + 8 + 4 + 4 + 8) + ENDS),
    ("llama", TINY | {"mlp_bias": True}, 2 * (LLAMA_LAYER + 12 + 12 + 8) + ENDS),
    ("llama", TINY | {"head_dim": 5}, 2 * (8 * 20 + 2 * 8 * 10 + 20 * 8 + FFN + 16) + ENDS),
    ("llama", TINY | {"num_key_value_heads": None}, 2 * (LLAMA_LAYER + 64) + ENDS),  # null: one per head
    ("mistral", TINY, 2 * LLAMA_LAYER + ENDS),
    ("phi3", TINY, 2 * LLAMA_LAYER + ENDS),
    ("qwen2", TINY, 2 * (LLAMA_LAYER + 8 + 4 + 4) + ENDS),
    ("qwen3", TINY | {"head_dim": 2}, 2 * (LLAMA_LAYER + 2 + 2) + ENDS),
    ("olmo2", TINY, 2 * (LLAMA_LAYER + 8 + 4) + ENDS),
    ("olmo3", TINY, 2 * (LLAMA_LAYER + 8 + 4) + ENDS),
    ("gemma", TINY | {"head_dim": 2}, 2 * LLAMA_LAYER + ENDS - 160),
    ("gemma2", TINY | {"head_dim": 2}, 2 * (LLAMA_LAYER + 16) + ENDS - 160),
    ("gemma3_text", TINY | {"head_dim": 2}, 2 * (LLAMA_LAYER + 16 + 4) + ENDS - 160),
    (
        "mixtral",
        TINY | {"num_local_experts": 4, "num_experts_per_tok": 2},
        2 * (LLAMA_LAYER + 3 * FFN + 8 * 4) + ENDS,
    ),
    (
        "olmoe",
        TINY | {"num_experts": 4, "num_experts_per_tok": 2},
        2 * (LLAMA_LAYER + 8 + 4 + 3 * FFN + 8 * 4) + ENDS,
    ),
    (
        "qwen3_moe",  # layer 0 dense, layer 1 with 4 experts of 6
        TINY | MOE | {"num_experts": 4, "head_dim": 2, "decoder_sparse_step": 2},
        (LLAMA_LAYER + 4) + (LLAMA_LAYER + 4 - FFN + 4 * 144 + 8 * 4) + ENDS,
    ),
    (
        "gpt_oss",  # biases q 8, k 4, v 4, o 8, router 4, experts 12 + 12 + 8; a sink per head
        TINY | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 2},
        2 * (LLAMA_LAYER + 24 + 4 + 3 * FFN + 8 * 4 + 4 + 4 * 32) + ENDS,
    ),
    (
        "deepseek_v2",  # layer 0 dense, layer 1: router, 6 experts and one shared of 6
        TINY | MLA | {"q_lora_rank": None, "first_k_dense_replace": 1},
        (MLA_LAYER + FFN) + (MLA_LAYER + 8 * 6 + 7 * 144) + ENDS,
    ),
    (
        "deepseek_v3",  # q through a rank of 3 with its norm; biases on q_a, kv_a, o
        TINY | MLA | {"q_lora_rank": 3, "first_k_dense_replace": 2, "attention_bias": True},
        2 * (MLA_LAYER - 160 + 8 * 3 + 3 + 3 * 20 + 3 + 7 + 8 + FFN) + ENDS,
    ),
    (
        "gpt2",
        {"n_embd": 8, "n_head": 4, "n_layer": 2, "n_positions": 32, "vocab_size": 20},
        2 * GPT_LAYER + 160 + 256 + 16,
    ),
    (
        "gpt2",
        {"n_embd": 8, "n_head": 4, "n_layer": 2, "n_positions": 32, "vocab_size": 20, "n_inner": 12},
        2 * (GPT_LAYER - 20 * 16 - 20) + 160 + 256 + 16,
    ),
    (
        "gpt_neox",
        {k: v for k, v in TINY.items() if k != "num_key_value_heads"} | {"intermediate_size": 32},
        2 * GPT_LAYER + 320 + 16,
    ),
    (
        "opt",
        {
            **{k: v for k, v in TINY.items() if k not in ("num_key_value_heads", "intermediate_size")},
            "ffn_dim": 32,
        },
        2 * GPT_LAYER + 160 + 34 * 8 + 16,
    ),
    (
        "opt",  # a table of 4, projected up and down; post-norm, so no final norm
        {
            **{k: v for k, v in TINY.items() if k not in ("num_key_value_heads", "intermediate_size")},
            "ffn_dim": 32,
            "word_embed_proj_dim": 4,
            "do_layer_norm_before": False,
        },
        2 * GPT_LAYER + 80 + 34 * 8 + 2 * 32,
    ),
    (
        "bloom",
        {"hidden_size": 8, "n_head": 4, "n_layer": 2, "vocab_size": 20},
        2 * GPT_LAYER + 160 + 16 + 16,
    ),
    # one kv head of 2, one norm, no biases
    ("falcon", FALCON, 2 * (64 + 32 + 64 + 512 + 16) + 160 + 16),
    (
        "falcon",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
        2 * (64 + 64 + 64 + 512 + 32) + 160 + 16,
    ),
    # falcon-rw: as many kv heads as heads, biases, one part after the other
    (
        "falcon",
        FALCON | {"multi_query": False, "bias": True, "parallel_attn": False},
        2 * GPT_LAYER + 160 + 16,
    ),
]


@pytest.mark.parametrize(
    ("model_type", "config", "params"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_counted_by_hand(model_type: str, config: dict[str, Any], params: int) -> None:
    assert load_model({"model_type": model_type, **config}).params == params


def windows(config: dict[str, Any]) -> list[int | None]:
    spec = load_model(TINY | {"num_hidden_layers": 4} | config)
    return [spec.kinds[k].attention.window for k in spec.pattern]


FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "mistral"}, [4096] * 4),  # a missing key is the class default, null is no window
        ({"model_type": "mistral", "sliding_window": None}, [None] * 4),
        ({"model_type": "mistral", "sliding_window": 16}, [16] * 4),
        ({"model_type": "phi3"}, [None] * 4),
        ({"model_type": "qwen2", "sliding_window": 16, "max_window_layers": 1}, [None] * 4),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
            [None, 16, 16, 16],
        ),
        (
            {
                "model_type": "qwen3",
                "use_sliding_window": True,
                "sliding_window": 16,
                "max_window_layers": 1,
                "layer_types": [SLIDING, FULL, FULL, FULL],
            },
            [16, None, None, None],
        ),
        ({"model_type": "gemma2", "sliding_window": 16}, [16, None, 16, None]),
        ({"model_type": "olmo3", "sliding_window": 16}, [16, 16, 16, None]),
        ({"model_type": "gemma3_text", "sliding_window": 16}, [16] * 4),
        (
            {"model_type": "gemma3_text", "sliding_window": 16, "sliding_window_pattern": 3},
            [16, 16, None, 16],
        ),
        (
            {"model_type": "olmo3", "sliding_window": 16, "layer_types": [FULL, SLIDING, FULL, FULL]},
            [None, 16, None, None],
        ),
    ],
)
def test_windows(config: dict[str, Any], expected: list[int | None]) -> None:
    assert windows(config) == expected


def kinds(config: dict[str, Any]) -> str:
    spec = load_model(TINY | {"num_hidden_layers": 6} | config)
    return "".join(spec.kinds[k].name[0] for k in spec.pattern)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"first_k_dense_replace": 2}, "ddmmmm"),
        ({"first_k_dense_replace": 0}, "mmmmmm"),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, "ddmdmd"),
        ({"first_k_dense_replace": 1, "moe_layer_freq": [1, 1, 0, 1, 0, 1]}, "dmdmdm"),
        ({}, "dddmmm"),  # the class default of V3 is three dense layers
        ({"n_routed_experts": None}, "dddddd"),
    ],
)
def test_dense_layers_of_deepseek(config: dict[str, Any], expected: str) -> None:
    assert kinds({"model_type": "deepseek_v3", "q_lora_rank": None, **MLA, **config}) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "mmmmmm"),
        ({"decoder_sparse_step": 2}, "dmdmdm"),
        ({"mlp_only_layers": [0, 5]}, "dmmmmd"),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, "dddmdm"),
    ],
)
def test_dense_layers_of_qwen3_moe(config: dict[str, Any], expected: str) -> None:
    assert kinds({"model_type": "qwen3_moe", "num_experts": 4, **MOE, **config}) == expected


def test_how_weights_are_cut() -> None:
    """One layer with a dense block, latent attention, routed and shared experts, and biases."""
    spec = load_model(
        TINY
        | MLA
        | {"model_type": "deepseek_v3", "q_lora_rank": 3, "first_k_dense_replace": 1, "attention_bias": True}
    )
    dense, moe = ({w.name: (w.shard, w.matmul) for w in k.weights} for k in spec.kinds)
    assert dense["mlp.gate"] == dense["mlp.up"] == dense["attn.q_b"] == dense["attn.kv_b"]
    assert dense["mlp.up"] == (Shard.COLUMN, True)
    assert dense["mlp.down"] == dense["attn.o"] == (Shard.ROW, True)
    assert dense["attn.q_a"] == dense["attn.kv_a"] == moe["router"] == (Shard.REPLICATED, True)
    assert dense["attn.o.bias"] == dense["attn.q_a.bias"] == dense["input_norm"] == (Shard.REPLICATED, False)
    assert moe["experts.gate"] == moe["experts.up"] == (Shard.EXPERT_COLUMN, True)
    assert moe["experts.down"] == (Shard.EXPERT_ROW, True)
    assert moe["shared.up"] == (Shard.COLUMN, True)
    qwen = load_model(TINY | {"model_type": "qwen2"}).kinds[0]
    biases = [(w.name, w.rows, w.cols, w.shard) for w in qwen.weights if w.name.endswith(".bias")]
    assert biases == [(f"attn.{n}.bias", 1, c, Shard.COLUMN) for n, c in (("q", 8), ("k", 4), ("v", 4))]


def test_shared_experts_are_one_dense_block_of_their_summed_width() -> None:
    spec = load_model(TINY | MLA | {"model_type": "deepseek_v2", "q_lora_rank": None, "n_shared_experts": 3})
    assert spec.kinds[0].ffn.width == 18
    assert {w.name: w.cols for w in spec.kinds[0].weights}["shared.up"] == 18


def test_text_part_of_gemma3() -> None:
    """Outer tying holds where the text part says nothing; heads and vocabulary come from the class."""
    text = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
    tied = load_model({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    loose = load_model({"model_type": "gemma3", "text_config": text, "tie_word_embeddings": False})
    assert (tied.tied, loose.tied) == (True, False)
    assert loose.params - tied.params == 262208 * 8
    assert tied.kinds[0].attention.heads == 8
    assert tied.notes[1].startswith("not in the file, taken from the class: vocab_size 262208")


def test_the_type_is_never_taken_from_architectures() -> None:
    with pytest.raises(
        ModelError, match="the key model_type is missing; architectures says 'LlamaForCausalLM', so add"
    ):
        load_model(TINY | {"architectures": ["LlamaForCausalLM"]})
    noted = load_model(TINY | {"model_type": "llama", "architectures": ["LLaMAForCausalLM"]})
    assert noted.notes == ("architectures says 'LLaMAForCausalLM'; read as a language model of type llama",)


def test_keys_without_bearing_are_passed_over() -> None:
    """What `save_pretrained` of transformers 4 writes beside the sizes, and one key that nobody knows."""
    noise = {
        "_name_or_path": "some/where",
        "add_cross_attention": False,
        "attention_dropout": 0.0,
        "bad_words_ids": None,
        "bos_token_id": 1,
        "chunk_size_feed_forward": 0,
        "cross_attention_hidden_size": None,
        "hidden_act": "silu",
        "id2label": {"0": "LABEL_0"},
        "initializer_range": 0.02,
        "no_repeat_ngram_size": 0,
        "output_hidden_states": False,
        "pretraining_tp": 1,
        "pruned_heads": {},
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "tie_encoder_decoder": False,
        "top_k": 50,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.46.3",
    }
    spec = load_model(TINY | noise | {"model_type": "llama", "frobnicate": 3})
    assert spec.params == 2 * LLAMA_LAYER + ENDS
    assert spec.notes == ("keys not read: 'frobnicate'",)
    assert spec.name == "where"
