"""Falcon 7B, 40B, 180B and the older RW models: attention and feed-forward side by side, few kv heads.

Source: FalconConfig and FalconDecoderLayer (`transformers` 5.24).
"""

from meshwright.costmodel.model import Attention, Ffn, LayerKind, ModelSpec
from meshwright.costmodel.readers.blocks import (
    Weights,
    assemble,
    attention,
    check_groups,
    head,
    norm,
    plain_ffn,
    read_layers,
    split_heads,
    table,
)
from meshwright.costmodel.readers.fields import Fields


def read_falcon(f: Fields, name: str) -> ModelSpec:
    hidden, vocab = f.size("hidden_size"), f.size("vocab_size")
    layers = read_layers(f, "num_hidden_layers", "n_layer")
    heads = f.size("num_attention_heads", "n_head")
    width = split_heads(f, hidden, heads)
    new, parallel = f.flag("new_decoder_architecture", False), f.flag("parallel_attn", True)
    geometry = Attention(heads, read_kv_heads(f, heads, new), width, width)
    norm_weights = read_norms(f, hidden, new, parallel)
    bias, tied = f.flag("bias", False), f.flag("tie_word_embeddings", True)
    inner = f.size("ffn_hidden_size", missing=4 * hidden, null=4 * hidden)

    layer = LayerKind(
        name="dense",
        weights=attention(hidden, geometry, bias, bias) + norm_weights + plain_ffn(hidden, inner, bias),
        attention=geometry,
        ffn=Ffn(inner, gated=False),
        norms=len(norm_weights) // 2,
        parallel=parallel,
    )
    return assemble(
        f,
        name,
        [("dense", None)] * layers,
        lambda _kind, _window: layer,
        hidden=hidden,
        vocab=vocab,
        embedding=table(vocab, hidden),
        final=norm("final_norm", hidden, bias=True) + head(vocab, hidden, tied),
        tied=tied,
        max_seq_len=f.size_or_none("max_position_embeddings"),
    )


def read_kv_heads(f: Fields, heads: int, new: bool) -> int:
    """`num_kv_heads` counts only in the new architecture; before it, `multi_query` is one kv head."""
    given = f.size("num_kv_heads", "n_head_kv", missing=heads, null=heads)
    multi_query = f.flag("multi_query", True)
    if not new:
        return 1 if multi_query else heads
    check_groups(f, heads, given, "num_kv_heads")
    return given


def read_norms(f: Fields, hidden: int, new: bool, parallel: bool) -> Weights:
    """One norm for both parts side by side (7B), one each (40B, 180B), or one before each in turn (RW)."""
    count = f.size_or_none("num_ln_in_parallel_attn")
    if count is not None and (count > 2 or (count == 2 and not new)):
        f.fail(
            f"num_ln_in_parallel_attn is {count}; it may be 1 or null, or 2 with new_decoder_architecture true"
        )
    first = norm("input_norm", hidden, bias=True)
    if parallel and (count == 1 or not new):
        return first
    return first + norm("mlp_norm", hidden, bias=True)
