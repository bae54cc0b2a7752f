"""glm4_moe: grouped-query attention and shared experts, against counts that are not ours."""

from typing import Any

import pytest

from meshwright.costmodel.readers import load_model
from meshwright.hardware.errors import ModelError

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
    ("name", "total", "active"),
    # published: 355B with 32B active, 106B with 12B active; neither end is among the active ones
    [("glm-4.5", 355e9, 32e9), ("glm-4.5-air", 106e9, 12e9)],
)
def test_published_sizes(name: str, total: float, active: float) -> None:
    model = load_model(name)
    assert model.params == pytest.approx(total, rel=0.01)
    assert model.active_params - 2 * model.vocab * model.hidden == pytest.approx(active, rel=0.02)
    assert "1 multi-token-prediction layer not counted" in model.notes


def test_biases_reach_queries_keys_and_values_only() -> None:
    bare, biased = (load_model(DEEPSEEK_MOE | {"attention_bias": on}) for on in (False, True))
    assert biased.params - bare.params == 28 * (16 + 16 + 16) * 128
    normed = load_model(DEEPSEEK_MOE | {"use_qk_norm": True})
    assert normed.params - bare.params == 28 * 2 * 128


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
