"""The vision tower and the projector of a configuration: SigLIP as gemma-3 carries it.

Sizes as the classes SiglipVisionModel and Gemma3MultiModalProjector of transformers build them: a convolution that cuts
the image into patches, learned positions, layers with biases and two norms, a last norm; then patches are averaged to
fewer tokens, normalized, and brought to the width of the language model.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Final

from meshwright.costmodel.model import Attention, Ffn, LayerKind, ModelSpec, Shard, Tower
from meshwright.costmodel.readers.blocks import (
    MAX_PARAMS,
    attention,
    linear,
    norm,
    plain_ffn,
    positions,
    read_layers,
    split_heads,
)
from meshwright.costmodel.readers.fields import Fields

TEXT_ONLY: Final = "text only: the vision tower is not trained, and not among the parameters"
# A file that leaves one of them out means a default of its class's version; nothing is guessed, the tower is not read.
_NEEDED: Final = (
    "hidden_size",
    "image_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "patch_size",
    "vision_use_head",
)


def read_siglip(f: Fields, tokens: int | None, hidden: int) -> Tower | None:
    """The tower that the object `vision_config` of the file describes, none where it does not say all sizes.

    Args:
        tokens: of one image in the language model; None where the file does not say.
        hidden: width of the language model.
    """
    given = f.raw.get("vision_config")
    if tokens is None or not isinstance(given, Mapping) or not all(key in given for key in _NEEDED):
        return None
    v = f.inner("vision_config", "siglip_vision_model")
    v.only("vision_use_head", False)  # else weights that the language model never meets
    width, heads, ffn = (v.size(k) for k in ("hidden_size", "num_attention_heads", "intermediate_size"))
    channels, layers = v.size("num_channels", missing=3), read_layers(v)
    side = _side(v, tokens)
    head_dim = split_heads(v, width, heads)
    v.finish()
    a = Attention(heads, heads, head_dim, head_dim, causal=False)
    kind = LayerKind(
        name="vision",
        weights=norm("norm1", width, bias=True)
        + attention(width, a, qkv_bias=True, o_bias=True)
        + norm("norm2", width, bias=True)
        + plain_ffn(width, ffn, bias=True),
        attention=a,
        ffn=Ffn(ffn, gated=False),
        norms=2,
    )
    pixels = channels * v.size("patch_size") ** 2
    return Tower(
        hidden=width,
        kind=kind,
        layers=layers,
        patches=side**2,
        tokens=tokens,
        of_patches=linear("patches", pixels, width, Shard.REPLICATED, bias=True)
        + positions(side**2, width)
        + norm("last_norm", width, bias=True),
        projector=norm("projector_norm", width) + linear("projector", width, hidden, Shard.REPLICATED),
    )


def with_tower(f: Fields, spec: ModelSpec, tower: Tower | None) -> ModelSpec:
    """The model with its tower beside it."""
    spec = replace(spec, tower=tower)
    if spec.params + spec.tower_params >= MAX_PARAMS:
        f.fail(
            f"the vision tower makes {spec.params + spec.tower_params:.3e} parameters and the cost model is exact below "
            f"{MAX_PARAMS:.1e}; check the sizes"
        )
    return spec


def _side(v: Fields, tokens: int) -> int:
    """Patches a side of an image, which the tokens of an image must share evenly."""
    image, patch = v.size("image_size"), v.size("patch_size")
    if image % patch:
        v.fail(f"image_size {image} is not a multiple of patch_size {patch}; correct one of them")
    side, few = image // patch, isqrt(tokens)
    if few**2 != tokens or side % few:
        v.fail(
            f"mm_tokens_per_image {tokens} does not average the {side} x {side} patches of an image in equal squares; "
            "make it the square of a divisor"
        )
    return side
