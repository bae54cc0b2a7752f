"""glm4_moe: grouped-query attention and shared experts, against counts that are not ours."""

from typing import Any

import pytest

from meshwright.costmodel.readers import load_model
from meshwright.hardware.errors import ModelError

# zai-org/GLM-4.5 and GLM-4.5-Air as their training scripts give them (THUDM/slime, scripts/models/glm4.5-*.sh).
GLM: dict[str, Any] = {
    "model_type": "glm4_moe",
    "architectures": ["Glm4MoeForCausalLM"],
    "vocab_size": 151552,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "attention_bias": True,
    "num_nextn_predict_layers": 1,
    "n_group": 1,
    "topk_group": 1,
    "partial_rotary_factor": 0.5,
}
LARGE = GLM | {
    "hidden_size": 5120,
    "num_hidden_layers": 92,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "first_k_dense_replace": 3,
    "use_qk_norm": True,
}
AIR = GLM | {
    "hidden_size": 4096,
    "num_hidden_layers": 46,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "first_k_dense_replace": 1,
    "use_qk_norm": False,
}
# deepseek-ai/deepseek-moe-16b-base in this spelling; transformers 5.24 built Glm4MoeForCausalLM from it on the meta
# device and counted; the model hub shows the same total.
DEEPSEEK_MOE = {
    "model_type": "glm4_moe",
    "vocab_size": 102400,
    "hidden_size": 2048,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
}


def test_the_count_of_the_class() -> None:
    model = load_model(DEEPSEEK_MOE)
    assert (model.params, model.active_params) == (16375728128, 2828650496)
    assert [kind.name for kind in model.kinds] == ["dense", "moe"]
    assert model.layers_by_kind == (1, 27)


@pytest.mark.parametrize(
    ("config", "total", "active"),
    # published: 355B with 32B active, 106B with 12B active; neither end is among the active ones
    [(LARGE, 355e9, 32e9), (AIR, 106e9, 12e9)],
    ids=["GLM-4.5", "GLM-4.5-Air"],
)
def test_published_sizes(config: dict[str, Any], total: float, active: float) -> None:
    model = load_model(config)
    assert model.params == pytest.approx(total, rel=0.01)
    table = config["vocab_size"] * config["hidden_size"]
    assert model.active_params - 2 * table == pytest.approx(active, rel=0.02)
    assert "1 multi-token-prediction layer not counted" in model.notes


def test_biases_reach_queries_keys_and_values_only() -> None:
    bare, biased = (load_model(AIR | {"attention_bias": on}) for on in (False, True))
    assert biased.params - bare.params == 46 * (96 + 8 + 8) * 128
    normed = load_model(AIR | {"use_qk_norm": True})
    assert normed.params - biased.params == 46 * 2 * 128


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"n_shared_experts": None, "n_routed_experts": "64"}, "n_routed_experts must be a whole number"),
        ({"num_experts_per_tok": 65}, "num_experts_per_tok 65 is more than the 64 experts"),
        ({"use_qk_norm": 1}, "use_qk_norm must be true or false, got 1"),
        ({"moe_layer_freq": 2}, "the key 'moe_layer_freq' is not known for this model type"),
        ({"num_nextn_predict_layers": 1, "num_mtp_layers": 2}, "mean the same and disagree"),
    ],
)
def test_refusals(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelError, match=told.replace("(", r"\(")):
        load_model(DEEPSEEK_MOE | change)
