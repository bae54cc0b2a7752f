"""Decoders of the GPT line: LayerNorm with bias, two-matrix feed-forward, as many kv heads as heads.

Sources: GPT2Config, GPTNeoXConfig, OPTConfig, BloomConfig and their modelling files (`transformers` 5.24).
Falcon has its own module.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.costmodel.model import Attention, Ffn, LayerKind, ModelSpec, Shard
from meshwright.costmodel.readers.blocks import (
    Weights,
    assemble,
    attention,
    head,
    linear,
    norm,
    plain_ffn,
    positions,
    read_layers,
    split_heads,
    table,
)
from meshwright.costmodel.readers.fields import Fields


@dataclass(frozen=True)
class Shape:
    """The sizes that every model of the line has."""

    hidden: int
    vocab: int
    layers: int
    geometry: Attention


def read_shape(f: Fields, hidden: Sequence[str], layers: Sequence[str], heads: Sequence[str]) -> Shape:
    width, count = f.size(*hidden), f.size(*heads)
    head_width = split_heads(f, width, count)
    geometry = Attention(count, count, head_width, head_width)
    return Shape(width, f.size("vocab_size"), read_layers(f, *layers), geometry)


def uniform(
    f: Fields,
    name: str,
    shape: Shape,
    width: int,
    *,
    tied: bool,
    embedding: Weights,
    final: Weights,
    max_seq_len: int | None,
    attention_bias: bool = True,
    ffn_bias: bool = True,
    norms: Weights | None = None,
    parallel: bool = False,
) -> ModelSpec:
    """A model whose layers are all alike."""
    hidden = shape.hidden
    layer = LayerKind(
        name="dense",
        weights=attention(hidden, shape.geometry, attention_bias, attention_bias)
        + (two_norms(hidden) if norms is None else norms)
        + plain_ffn(hidden, width, ffn_bias),
        attention=shape.geometry,
        ffn=Ffn(width, gated=False),
        norms=2,
        parallel=parallel,
    )
    return assemble(
        f,
        name,
        [("dense", None)] * shape.layers,
        lambda _kind, _window: layer,
        hidden=hidden,
        vocab=shape.vocab,
        embedding=embedding,
        final=final,
        tied=tied,
        max_seq_len=max_seq_len,
    )


def two_norms(hidden: int) -> Weights:
    return norm("input_norm", hidden, bias=True) + norm("post_attention_norm", hidden, bias=True)


def read_gpt2(f: Fields, name: str) -> ModelSpec:
    """Learned positions; a feed-forward of 4 * width unless `n_inner` says otherwise."""
    shape = read_shape(
        f, ("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"), ("n_head", "num_attention_heads")
    )
    rows = f.size("n_positions", "max_position_embeddings")
    f.skip("n_ctx")
    width = f.size_or_none("n_inner") or 4 * shape.hidden
    tied = f.flag("tie_word_embeddings", True)
    return uniform(
        f,
        name,
        shape,
        width,
        tied=tied,
        embedding=table(shape.vocab, shape.hidden) + positions(rows, shape.hidden),
        final=norm("final_norm", shape.hidden, bias=True) + head(shape.vocab, shape.hidden, tied),
        max_seq_len=rows,
    )


def read_gpt_neox(f: Fields, name: str) -> ModelSpec:
    """With `use_parallel_residual` both parts read the same input, each through its own norm."""
    shape = read_shape(f, ("hidden_size",), ("num_hidden_layers",), ("num_attention_heads",))
    tied = f.flag("tie_word_embeddings", False)
    return uniform(
        f,
        name,
        shape,
        f.size("intermediate_size"),
        tied=tied,
        embedding=table(shape.vocab, shape.hidden),
        final=norm("final_norm", shape.hidden, bias=True) + head(shape.vocab, shape.hidden, tied),
        max_seq_len=f.size_or_none("max_position_embeddings"),
        attention_bias=f.flag("attention_bias", True),
        parallel=f.flag("use_parallel_residual", True),
    )


def read_opt(f: Fields, name: str) -> ModelSpec:
    """Learned positions with two rows more than positions (the class keeps an offset of two).

    OPT-350m alone projects a narrower token table up to the width and back, norms after each part, and so
    has no final norm.
    """
    shape = read_shape(f, ("hidden_size",), ("num_hidden_layers",), ("num_attention_heads",))
    hidden = shape.hidden
    rows = f.size("max_position_embeddings")
    narrow = f.size("word_embed_proj_dim", missing=hidden, null=hidden)
    bias, affine = f.flag("enable_bias", True), f.flag("layer_norm_elementwise_affine", True)
    before, removed = f.flag("do_layer_norm_before", True), f.flag("_remove_final_layer_norm", False)
    tied = f.flag("tie_word_embeddings", True)
    project_in = linear("project_in", narrow, hidden, Shard.REPLICATED) if narrow != hidden else ()
    project_out = linear("project_out", hidden, narrow, Shard.REPLICATED) if narrow != hidden else ()
    last = norm("final_norm", hidden, bias=True) if before and not removed and affine else ()
    return uniform(
        f,
        name,
        shape,
        f.size("ffn_dim"),
        tied=tied,
        embedding=table(shape.vocab, narrow) + positions(rows + 2, hidden) + project_in,
        final=last + project_out + head(shape.vocab, narrow, tied),
        max_seq_len=rows,
        attention_bias=bias,
        ffn_bias=bias,
        norms=two_norms(hidden) if affine else (),
    )


def read_bloom(f: Fields, name: str) -> ModelSpec:
    """No positions (alibi), a norm right after the token table, a feed-forward of 4 * width with no key."""
    shape = read_shape(
        f, ("hidden_size", "n_embed"), ("n_layer", "num_hidden_layers"), ("n_head", "num_attention_heads")
    )
    hidden = shape.hidden
    f.only("n_inner", None, 4 * hidden)
    tied = f.flag("tie_word_embeddings", True)
    return uniform(
        f,
        name,
        shape,
        4 * hidden,
        tied=tied,
        embedding=table(shape.vocab, hidden) + norm("embed_norm", hidden, bias=True),
        final=norm("final_norm", hidden, bias=True) + head(shape.vocab, hidden, tied),
        max_seq_len=f.size_or_none("seq_length"),
    )
