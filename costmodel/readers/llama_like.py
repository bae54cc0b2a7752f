"""Decoders in the Llama spelling: RMSNorm, rotary positions, gated feed-forward, one style per family.

Sources: the configuration and modelling classes of `transformers` 5.24, by class name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from meshwright.costmodel.model import Ffn, LayerKind, ModelSpec
from meshwright.costmodel.readers import windows
from meshwright.costmodel.readers.blocks import (
    Weights,
    assemble,
    attention,
    gated_ffn,
    head,
    norm,
    read_attention,
    read_layers,
    sinks,
    table,
)
from meshwright.costmodel.readers.fields import Fields
from meshwright.costmodel.readers.tower import TEXT_ONLY, read_siglip, with_tower

PRE = ("input_norm", "post_attention_norm")
POST = ("post_attention_norm", "post_feedforward_norm")
SANDWICH = ("input_norm", "post_attention_norm", "pre_feedforward_norm", "post_feedforward_norm")


@dataclass(frozen=True)
class Style:
    """What a family does without saying so in its file."""

    norms: tuple[str, ...] = PRE  # over the full width, one application each
    qk_norm: str = ""  # '', 'head' or 'full'
    qkv_bias: bool = False  # always there, whatever the file says
    attention_bias: bool | None = False  # default of the key of that name (q, k, v, o); None: not a switch
    o_bias: bool = True  # whether that key reaches o
    tied: bool = False
    head_dim: int | None = None  # class default; None is hidden / heads
    kv_required: bool = False  # the class default of num_key_value_heads is a number of its own
    sinks: bool = False  # one learned logit per head
    window_rule: windows.WindowRule = windows.full


# Names of the feed-forward kinds layer by layer, and how to build each kind.
FeedForward = tuple[tuple[str, ...], Callable[[str], tuple[Ffn, Weights]]]
FeedForwardReader = Callable[[Fields, int, int], FeedForward]


def dense(bias_key: bool = False) -> FeedForwardReader:
    """The same gated block in every layer; with `bias_key`, `mlp_bias` adds biases to its matrices."""

    def read(f: Fields, hidden: int, layers: int) -> FeedForward:
        width = f.size("intermediate_size")
        if not bias_key:
            f.only("mlp_bias", False)
        weights = gated_ffn(hidden, width, bias=bias_key and f.flag("mlp_bias", False))
        return ("dense",) * layers, lambda _: (Ffn(width, gated=True), weights)

    return read


def read_decoder(f: Fields, name: str, style: Style, feed_forward: FeedForwardReader) -> ModelSpec:
    """A model of one style: token table, layers, final norm, head."""
    hidden, vocab, layers = f.size("hidden_size"), f.size("vocab_size"), read_layers(f)
    geometry = read_attention(f, hidden, style.head_dim, style.kv_required)
    qkv_bias = o_bias = False
    if style.attention_bias is None:
        f.only("attention_bias", style.qkv_bias)
        qkv_bias = style.qkv_bias
    else:
        qkv_bias = f.flag("attention_bias", style.attention_bias)
        o_bias = qkv_bias and style.o_bias
    window_of = style.window_rule(f, layers)
    windowed = any(w is not None for w in window_of)
    ffn_of, build_ffn = feed_forward(f, hidden, layers)
    tied = f.flag("tie_word_embeddings", style.tied)

    def build(kind: str, window: int | None) -> LayerKind:
        ffn, ffn_weights = build_ffn(kind)
        reach = "global" if window is None else "sliding"
        weights = (
            attention(hidden, geometry, qkv_bias, o_bias, style.qk_norm)
            + (sinks(geometry.heads) if style.sinks else ())
            + tuple(w for n in style.norms for w in norm(n, hidden))
            + ffn_weights
        )
        return LayerKind(
            name=kind if not windowed else reach if kind == "dense" else f"{reach}_{kind}",
            weights=weights,
            attention=replace(geometry, window=window),
            ffn=ffn,
            norms=len(style.norms),
        )

    return assemble(
        f,
        name,
        list(zip(ffn_of, window_of, strict=True)),
        build,
        hidden=hidden,
        vocab=vocab,
        embedding=table(vocab, hidden),
        final=norm("final_norm", hidden) + head(vocab, hidden, tied),
        tied=tied,
        max_seq_len=f.size_or_none("max_position_embeddings", missing=f.size_or_none("max_sequence_length")),
    )


STYLES: Mapping[str, Style] = {
    "llama": Style(),  # LlamaConfig
    # MistralConfig: window 4096 unless the file says null; kv heads 8 unless it says so
    "mistral": Style(attention_bias=None, kv_required=True, window_rule=windows.every(4096)),
    # Qwen2Attention: biases on q, k, v and none on o, with no key for them
    "qwen2": Style(attention_bias=None, qkv_bias=True, kv_required=True, window_rule=windows.switched),
    "qwen3": Style(qk_norm="head", head_dim=128, kv_required=True, window_rule=windows.switched),
    "phi3": Style(attention_bias=None, window_rule=windows.every(None)),
    "olmo2": Style(norms=POST, qk_norm="full"),
    "olmo3": Style(norms=POST, qk_norm="full", window_rule=windows.alternating(4096, 4)),
    "gemma": Style(tied=True, head_dim=256, kv_required=True),
    "gemma2": Style(
        norms=SANDWICH, tied=True, head_dim=256, kv_required=True, window_rule=windows.alternating(4096, 2)
    ),
    "gemma3_text": Style(
        norms=SANDWICH,
        qk_norm="head",
        tied=True,
        head_dim=256,
        window_rule=windows.alternating(4096, 6, "sliding_window_pattern", "_sliding_window_pattern"),
    ),
}


def read_llama_like(f: Fields, name: str) -> ModelSpec:
    if f.model_type == "phi3":
        for key in ("lm_head_bias", "mlp_bias"):
            f.only(key, False)
        f.only("full_attn_mod", 1)
    return read_decoder(f, name, STYLES[f.model_type], dense(bias_key=f.model_type == "llama"))


# Gemma3TextConfig's own values, which published files leave out (gemma-3-4b-it has seven text keys).
GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
}


def read_gemma3_text(f: Fields, name: str) -> ModelSpec:
    taken = {k: v for k, v in GEMMA3_DEFAULTS.items() if k not in f.raw}
    filled = Fields({**taken, **f.raw}, f.where, f.model_type)
    filled.notes = f.notes
    if taken:
        filled.note(
            f"not in the file, taken from the class: {', '.join(f'{k} {v}' for k, v in taken.items())}"
        )
    return read_decoder(filled, name, STYLES["gemma3_text"], dense())


def read_gemma3(f: Fields, name: str) -> ModelSpec:
    """The text part, with the vision tower where the file gives all of its sizes. Whether the head is tied: the text part's
    word, then the outer one, then the class's."""
    text = f.inner("text_config", "gemma3_text")
    if "tie_word_embeddings" not in text.raw and f.has("tie_word_embeddings"):
        text.raw = {**text.raw, "tie_word_embeddings": f.raw["tie_word_embeddings"]}
    f.skip("tie_word_embeddings", "vision_config")
    tokens = f.size_or_none("mm_tokens_per_image")
    text.notes = [*f.finish(), TEXT_ONLY]
    spec = replace(read_gemma3_text(text, name), model_type="gemma3")
    return with_tower(f, spec, read_siglip(f, tokens, spec.hidden))
