"""Mixtures of experts in the Llama spelling: every expert gated, a linear router in front.

Sources: MixtralConfig, Qwen3MoeConfig, OlmoeConfig, GptOssConfig, Glm4MoeConfig and their modelling files
(`transformers` 5.24). The router's score correction of Glm4Moe is a buffer, not a parameter.
"""

from collections.abc import Mapping
from dataclasses import replace

from meshwright.costmodel.model import Ffn, ModelSpec
from meshwright.costmodel.readers import windows
from meshwright.costmodel.readers.blocks import Weights, gated_ffn, mixture, read_experts, read_top_k
from meshwright.costmodel.readers.fields import Fields
from meshwright.costmodel.readers.latent import read_mixture_part
from meshwright.costmodel.readers.llama_like import FeedForward, FeedForwardReader, Style, read_decoder
from meshwright.costmodel.readers.mtp import read_modules, with_modules

_MTP_KEYS = ("num_nextn_predict_layers", "num_mtp_layers")


def every_layer(experts_key: str, *top_k_keys: str, bias: bool = False) -> FeedForwardReader:
    """Experts in all layers; `intermediate_size` is the width of one expert."""

    def read(f: Fields, hidden: int, layers: int) -> FeedForward:
        width, experts = f.size("intermediate_size"), read_experts(f, experts_key)
        top_k = read_top_k(f, experts, *top_k_keys)
        ffn = Ffn(0, gated=True, experts=experts, top_k=top_k, expert_width=width)
        weights = mixture(hidden, ffn, bias)
        return ("moe",) * layers, lambda _: (ffn, weights)

    return read


def qwen3_moe(f: Fields, hidden: int, layers: int) -> FeedForward:
    """Experts in every `decoder_sparse_step`-th layer, but not in those of `mlp_only_layers`."""
    step = f.size("decoder_sparse_step", missing=1)
    plain = f.indices("mlp_only_layers", layers)
    names = tuple("moe" if i not in plain and (i + 1) % step == 0 else "dense" for i in range(layers))
    f.only("use_qk_norm", True)
    f.only("qkv_bias", False)
    f.only("shared_expert_intermediate_size", 0, None)
    f.skip(
        "intermediate_size",
        "moe_intermediate_size",
        "num_experts",
        "num_local_experts",
        "num_experts_per_tok",
    )

    def build(kind: str) -> tuple[Ffn, Weights]:
        if kind == "dense":
            width = f.size("intermediate_size")
            return Ffn(width, gated=True), gated_ffn(hidden, width)
        experts = read_experts(f, "num_experts", "num_local_experts")  # transformers 5 saves the latter
        top_k, width = read_top_k(f, experts), f.size("moe_intermediate_size")
        ffn = Ffn(0, gated=True, experts=experts, top_k=top_k, expert_width=width)
        return ffn, mixture(hidden, ffn)

    return names, build


def glm4_moe(f: Fields, hidden: int, layers: int) -> FeedForward:
    """Experts with shared ones beside them from layer `first_k_dense_replace` on; it is 1 where the file is silent."""
    first = f.count("first_k_dense_replace", missing=1)
    names = tuple("moe" if i >= first else "dense" for i in range(layers))
    f.skip("intermediate_size", "moe_intermediate_size", "n_routed_experts", "n_shared_experts")
    f.skip("num_experts_per_tok")

    def build(kind: str) -> tuple[Ffn, Weights]:
        if kind == "dense":
            width = f.size("intermediate_size")
            return Ffn(width, gated=True), gated_ffn(hidden, width)
        ffn = read_mixture_part(f)
        return ffn, mixture(hidden, ffn)

    return names, build


# A family's style and its feed-forward part.
FAMILIES: Mapping[str, tuple[Style, FeedForwardReader]] = {
    "mixtral": (
        Style(attention_bias=None, kv_required=True, window_rule=windows.every(None)),
        every_layer("num_local_experts"),
    ),
    "qwen3_moe": (
        Style(qk_norm="head", kv_required=True, window_rule=windows.never),
        qwen3_moe,
    ),
    "olmoe": (Style(qk_norm="full"), every_layer("num_experts")),
    # biases on q, k, v, o, on the router and on every expert matrix
    "gpt_oss": (
        Style(
            attention_bias=True,
            head_dim=64,
            kv_required=True,
            sinks=True,
            window_rule=windows.alternating(128, 2),
        ),
        every_layer("num_local_experts", "num_experts_per_tok", "experts_per_token", bias=True),
    ),
    "glm4_moe": (
        Style(kv_required=True, o_bias=False),
        glm4_moe,
    ),  # norms of q and k where `use_qk_norm` says
}


def read_mixture(f: Fields, name: str) -> ModelSpec:
    if f.model_type == "olmoe" and f.has("head_dim"):
        # its class sizes the q and k norms by hidden / heads, whatever head_dim says
        f.only("head_dim", f.size("hidden_size") // f.size("num_attention_heads"), None)
    style, feed_forward = FAMILIES[f.model_type]
    if f.model_type == "glm4_moe" and f.flag("use_qk_norm", False):
        style = replace(style, qk_norm="head")
    modules = read_modules(f, *_MTP_KEYS) if f.model_type == "glm4_moe" else 0
    return with_modules(f, read_decoder(f, name, style, feed_forward), modules)
