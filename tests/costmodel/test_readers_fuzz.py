"""Damaged configurations end in a model or in one line, never in a traceback."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.readers import load_model, model_names
from meshwright.costmodel.readers.families import READERS
from meshwright.costmodel.readers.source import _files
from meshwright.hardware.errors import ModelError

# Of the one type without a built-in model.
BLOCKS: dict[str, Any] = {
    "model_type": "nemotron-nas", "hidden_size": 768, "num_attention_heads": 6, "num_hidden_layers": 2, "vocab_size": 100,
    "block_configs": [
        {"attention": {"n_heads_in_group": 3}, "ffn": {"ffn_mult": 1.0}},
        {"attention": {"n_heads_in_group": 6, "window_length": 64}, "ffn": {"intermediate_size": 100}},
    ],
}  # fmt: skip
RAW: dict[str, dict[str, Any]] = {n: json.loads(p.read_bytes()) for n, p in sorted(_files().items())}
RAW["blocks"] = BLOCKS
ONE_PER_TYPE = {c["model_type"]: n for n, c in RAW.items()}

deep: list[Any] = []
for _ in range(10_000):
    deep = [deep]

WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.integers(),
    st.sampled_from([10**9, 10**9 + 1, 10**10, 2**63, 10**400, -(10**400)]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["128", "full_attention", "llama", "\ud800", "a\nb"]),
    st.builds(dict),  # fresh each time: a later step may write into it
    st.just(deep),
    st.lists(st.integers(-1, 3), max_size=4),
)
NEW_KEYS = st.sampled_from(
    [
        "n_layer",
        "n_head_kv",
        "hidden_size",
        "layer_types",
        "sliding_window",
        "text_config",
        "architectures",
        "head_dim",
        "moe_layer_freq",
        "mlp_only_layers",
        "model_type",
        "_name_or_path",
        "n_shared_experts",
        "x",
        "expert_x\n",
    ]
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(
        json.dumps(RAW[ONE_PER_TYPE[draw(st.sampled_from(sorted(ONE_PER_TYPE)))]])
    )
    for _ in range(draw(st.integers(1, 3))):
        target = config
        if isinstance(config.get("text_config"), dict) and draw(st.booleans()):
            target = config["text_config"]
        if config.get("block_configs") and draw(st.booleans()):
            block = config["block_configs"][-1]
            target = block.get("ffn") or block.get("attention") or block
        key = draw(st.one_of(st.sampled_from(sorted(target) or ["x"]), NEW_KEYS))
        if draw(st.booleans()) or key not in target:
            target[key] = draw(WRONG)
        else:
            del target[key]
    return config


def test_every_type_has_a_built_in_model_to_damage() -> None:
    assert set(ONE_PER_TYPE) == set(READERS)
    assert len(RAW) == len(model_names()) + 1


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(damaged())
def test_a_damaged_config_is_a_model_or_one_line(config: dict[str, Any]) -> None:
    try:
        spec = load_model(config)
    except ModelError as error:
        text = str(error)
        assert "\n" not in text and text.isprintable() and len(text) < 700
    else:
        assert isinstance(spec, ModelSpec)
        assert 0 < spec.active_params <= spec.params < 2**53


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    )
)
def test_any_object_is_refused_in_one_line(value: Any) -> None:
    with pytest.raises(ModelError) as caught:
        load_model({"model_type": value, "architectures": value})
    assert "\n" not in str(caught.value)


SIZES = ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "gemma-2-2b", "qwen3-8b", "phi-4"])
def test_a_size_that_is_dropped_is_always_missed(name: str, key: str) -> None:
    """No family fills in a size of its own accord."""
    with pytest.raises(ModelError, match=f"the key {key} is missing"):
        load_model({k: v for k, v in RAW[name].items() if k != key})
