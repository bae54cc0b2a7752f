"""The vision tower of gemma-3 configurations: every weight of a small one, and what is refused or not read."""

from typing import Any

import pytest

from meshwright.costmodel.readers import load_model
from meshwright.hardware.errors import ModelError

SIGLIP = {
    "hidden_size": 6,
    "image_size": 12,
    "intermediate_size": 10,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "patch_size": 3,
    "vision_use_head": False,
}
TEXT = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}


def config(outside: dict[str, Any] | None = None, **vision: Any) -> dict[str, Any]:
    """A small model with a tower of 16 patches, averaged to 4 tokens."""
    whole = {"model_type": "gemma3", "mm_tokens_per_image": 4, "text_config": TEXT}
    return whole | {"vision_config": SIGLIP | vision} | (outside or {})


def test_weights_by_hand() -> None:
    tower = load_model(config()).tower
    assert tower is not None
    assert (tower.hidden, tower.layers, tower.patches, tower.tokens) == (6, 3, 16, 4)
    a = tower.kind.attention
    assert (a.heads, a.kv_heads, a.qk_head_dim, a.causal, tower.kind.ffn.gated) == (2, 2, 3, False, False)
    assert tower.kind.params == 4 * (36 + 6) + (60 + 10) + (60 + 6) + 4 * 6
    assert [(w.name, w.params) for w in tower.ends] == [
        ("patches", 27 * 6),
        ("patches.bias", 6),
        ("positions", 16 * 6),
        ("last_norm", 6),
        ("last_norm.bias", 6),
        ("projector_norm", 6),
        ("projector", 6 * 8),
    ]


@pytest.mark.parametrize("key", [*SIGLIP, "mm_tokens_per_image", "vision_config"])
def test_a_tower_whose_sizes_are_not_all_given_is_not_read(key: str) -> None:
    raw = config()
    sparse = {k: v for k, v in raw.items() if k != key}
    if key in SIGLIP:
        sparse["vision_config"] = {k: v for k, v in SIGLIP.items() if k != key}
    assert load_model(raw).tower is not None
    assert load_model(sparse).tower is None
    assert load_model(sparse).tower_params == 0
    assert load_model(sparse).params == load_model(raw).params


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    (config(image_size=13), "vision_config: image_size 13 is not a multiple of patch_size 3; correct one of them"),
    *(
        (
            config({"mm_tokens_per_image": tokens}),
            (
                f"vision_config: mm_tokens_per_image {tokens} does not average the 4 x 4 patches of an image in equal "
                "squares; make it the square of a divisor"
            ),
        )
        for tokens in (8, 9)
    ),
    (config({"mm_tokens_per_image": 0}), "mm_tokens_per_image is 0; it must be from 1 to 1000000000"),
    (
        config(vision_use_head=True),
        "vision_config: vision_use_head true is not read for this model type; it may be false, or absent",
    ),
    (config(num_attention_heads=4), "vision_config: hidden_size 6 is not a multiple of num_attention_heads 4"),
    (
        config(window_size=4),
        "vision_config: the key 'window_size' is not known for this model type and may change the arithmetic; remove it",
    ),
    (config(model_type="pixtral"), "vision_config has model_type 'pixtral' and gemma3 needs siglip_vision_model"),
    (config(hidden_size="six"), "vision_config: hidden_size must be a whole number, got 'six'"),
    (
        config(hidden_size=10**9, num_attention_heads=1, intermediate_size=10**9),
        "the vision tower makes 1.800e+19 parameters and the cost model is exact below 9.0e+15; check the sizes",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("raw", "told"), REFUSED)
def test_what_is_refused(raw: dict[str, Any], told: str) -> None:
    with pytest.raises(ModelError) as refused:
        load_model(raw)
    assert told in str(refused.value)
