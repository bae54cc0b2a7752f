"""The model of a published run from the sizes that its row gives."""

from collections.abc import Mapping
from typing import Any

from meshwright.costmodel.model import Attention, Ffn, LayerKind, ModelSpec
from meshwright.costmodel.readers import load_model
from meshwright.costmodel.readers.blocks import (
    attention,
    gated_ffn,
    head,
    mixture,
    norm,
    plain_ffn,
    table,
)
from meshwright.hardware.errors import InputError

HEAD_DIM = 128  # where a row gives no heads, and its width is a multiple of it: a declared assumption
# GPT-OSS: biases of both halves, two clamps, a scaled sigmoid and two products, each read and written, in place of one
# fused pass. XLA fuses them; the programs of the rows on GPUs do not.
PLAIN_WIDTHS = 16
SIZES = ("layers", "hidden", "ffn", "vocab")


def model_of(row: Mapping[str, Any]) -> ModelSpec:
    """Errors: InputError where a size is missing, or layers are of shapes that the row does not give."""
    given = row["model"] | {"on_gpu": not row["hardware"]["chip"].startswith("TPU")}
    if missing := [name for name in SIZES if given.get(name) is None]:
        raise InputError(f"no shape: {', '.join(missing)} not given")
    if given.get("attn_pattern"):
        raise InputError("no shape: layers differ in shapes that the row does not give")
    if given.get("mla"):
        return _latent(given, row)
    width, kinds = given["hidden"], []
    a = _attention(given)
    windows = [None]
    if swa := given.get("swa"):
        if swa["global_fraction"] != 0.5:
            raise InputError(
                f"no shape: sliding windows on {1 - swa['global_fraction']:.0%} of layers is not read"
            )
        windows = [swa["window"], None]
    for window in windows:
        for ffn in _ffns(given):
            kinds.append(_kind(given, width, Attention(*a, window=window), ffn))
    pattern = _pattern(given, len(windows), len(kinds) // len(windows))
    tied = bool(given.get("tied_embedding"))
    return ModelSpec(
        name=given["name"],
        model_type="published run",
        hidden=width,
        vocab=given["vocab"],
        kinds=tuple(kinds),
        pattern=pattern,
        embedding=table(given["vocab"], width),
        head=norm("final_norm", width) + head(given["vocab"], width, tied),
        tied=tied,
    )


def _attention(given: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Heads, kv heads, and the width of a head for queries and values."""
    width, heads = given["hidden"], given.get("heads")
    if heads is None:
        heads = width // HEAD_DIM
        if heads * HEAD_DIM != width:
            # Of BigScience's trials of h = 14400: 100 heads of 144 divide over tp 4, not over 8; 96 of 150 do.
            fits = (n for n in range(heads, 0, -1) if width % n == 0 and n % 8 == 0)
            heads = next(fits, 0)
            if not heads:
                raise InputError(f"no shape: heads not given, and hidden {width} tells none")
    dim = given.get("head_dim") or width // heads
    return heads, given.get("kv_heads") or heads, dim, dim


def _ffns(given: Mapping[str, Any]) -> tuple[Ffn, ...]:
    """Feed-forward parts by kind, the dense one first."""
    gated = _gated(given)
    if not given.get("experts"):
        return (Ffn(given["ffn"], gated),)
    shared = (given.get("shared_experts") or 0) * given["moe_ffn"]
    plain = PLAIN_WIDTHS if given["name"].startswith("GPT-OSS") and given["on_gpu"] else 0
    mix = Ffn(shared, gated, given["experts"], given["topk"], given["moe_ffn"], plain)
    has_dense = given.get("first_dense_layers") or int(given.get("moe_layer_step") or 1) > 1
    return (Ffn(given["ffn"], gated), mix) if has_dense else (mix,)


def _gated(given: Mapping[str, Any]) -> bool:
    kind = given.get("mlp_type")
    if kind is None:
        raise InputError("no shape: mlp_type not given")
    return bool(kind == "gated")


def _kind(given: Mapping[str, Any], width: int, a: Attention, ffn: Ffn) -> LayerKind:
    norms = norm("input_norm", width) + norm("post_attention_norm", width)
    if ffn.experts:
        part = mixture(width, ffn)
        if ffn.width:
            part = part + gated_ffn(width, ffn.width, name="shared")
    else:
        part = gated_ffn(width, ffn.width) if ffn.gated else plain_ffn(width, ffn.width, bias=False)
    name = ("moe" if ffn.experts else "dense") + ("" if a.window is None else "_sliding")
    return LayerKind(name, attention(width, a) + norms + part, a, ffn, norms=2)


def _pattern(given: Mapping[str, Any], windows: int, parts: int) -> tuple[int, ...]:
    layers = given["layers"]
    if windows == 2:
        return tuple(i % 2 for i in range(layers))
    if parts == 1:
        return (0,) * layers
    step, first = int(given.get("moe_layer_step") or 1), given.get("first_dense_layers") or 0
    if step > 1:
        return tuple(1 if i % step == step - 1 else 0 for i in range(layers))
    return tuple(0 if i < first else 1 for i in range(layers))


def _latent(given: Mapping[str, Any], row: Mapping[str, Any]) -> ModelSpec:
    """Models of DeepSeek's attention, as its configuration file says them."""
    mla = given["mla"]
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": given["layers"],
        "hidden_size": given["hidden"],
        "intermediate_size": given["ffn"],
        "num_attention_heads": given["heads"],
        "num_key_value_heads": given["heads"],
        "vocab_size": given["vocab"],
        "n_routed_experts": given["experts"],
        "num_experts_per_tok": given["topk"],
        "moe_intermediate_size": given["moe_ffn"],
        "n_shared_experts": given.get("shared_experts") or 0,
        "first_k_dense_replace": given.get("first_dense_layers") or 0,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": bool(given.get("tied_embedding")),
        **mla,
    }
    return load_model(config)
