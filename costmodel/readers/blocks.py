"""Weights of the blocks that all families are made of, and the frame of a model around them.

Shapes are `rows x cols` = input width x output width. Letters: D hidden, H heads, K kv heads, C width of a
head's query and key, V width of a head's value, F feed-forward width, E experts.
"""

from collections.abc import Callable, Sequence

from meshwright.costmodel.model import Attention, Ffn, LayerKind, ModelSpec, Shard, Weight
from meshwright.costmodel.readers.fields import MAX_LAYERS, Fields

# The cost model works in floats where totals stay exact only below this.
MAX_PARAMS = 2**53

Weights = tuple[Weight, ...]


def linear(name: str, rows: int, cols: int, shard: Shard, bias: bool = False, count: int = 1) -> Weights:
    """A matrix and, where asked, its bias.

    The bias of a column-parallel matrix is cut with its outputs; that of a row-parallel one is added after
    the reduction, so every rank holds it. A routed expert's bias keeps its matrix's shard, which says that
    it is routed; with rows = 1 there is nothing to cut by rows.
    """
    matrix = Weight(name, rows, cols, shard, count=count)
    if not bias:
        return (matrix,)
    bias_shard = Shard.REPLICATED if shard is Shard.ROW else shard
    return matrix, Weight(f"{name}.bias", 1, cols, bias_shard, matmul=False, count=count)


def norm(name: str, width: int, bias: bool = False) -> Weights:
    """A norm's scale and, for a LayerNorm, its bias. The same on every rank."""
    scale = Weight(name, 1, width, Shard.REPLICATED, matmul=False)
    return (scale, Weight(f"{name}.bias", 1, width, Shard.REPLICATED, matmul=False)) if bias else (scale,)


def attention(
    hidden: int, a: Attention, qkv_bias: bool = False, o_bias: bool = False, qk_norm: str = ""
) -> Weights:
    """q D x H*C, k D x K*C, v D x K*V, o H*V x D.

    `qk_norm` is 'head' (one scale of C for q and one for k, shared by the heads) or 'full' (scales of H*C
    and K*C). Projections that a checkpoint stores fused are listed apart: the parameters are the same.
    """
    queries, keys = a.heads * a.qk_head_dim, a.kv_heads * a.qk_head_dim
    norms: Weights = ()
    if qk_norm:
        widths = (a.qk_head_dim, a.qk_head_dim) if qk_norm == "head" else (queries, keys)
        norms = norm("attn.q_norm", widths[0]) + norm("attn.k_norm", widths[1])
    return (
        linear("attn.q", hidden, queries, Shard.COLUMN, qkv_bias)
        + linear("attn.k", hidden, keys, Shard.COLUMN, qkv_bias)
        + linear("attn.v", hidden, a.kv_heads * a.v_head_dim, Shard.COLUMN, qkv_bias)
        + linear("attn.o", a.heads * a.v_head_dim, hidden, Shard.ROW, o_bias)
        + norms
    )


def sinks(heads: int) -> Weights:
    """One learned logit per head, cut with the heads."""
    return (Weight("attn.sinks", 1, heads, Shard.COLUMN, matmul=False),)


def gated_ffn(hidden: int, width: int, bias: bool = False, name: str = "mlp") -> Weights:
    """gate and up D x F, down F x D."""
    return (
        linear(f"{name}.gate", hidden, width, Shard.COLUMN, bias)
        + linear(f"{name}.up", hidden, width, Shard.COLUMN, bias)
        + linear(f"{name}.down", width, hidden, Shard.ROW, bias)
    )


def plain_ffn(hidden: int, width: int, bias: bool) -> Weights:
    """up D x F, down F x D."""
    return linear("mlp.up", hidden, width, Shard.COLUMN, bias) + linear(
        "mlp.down", width, hidden, Shard.ROW, bias
    )


def mixture(hidden: int, ffn: Ffn, bias: bool = False) -> Weights:
    """Router D x E, then E experts, gated or plain; shared experts as one dense block of their summed width."""
    e, f = ffn.experts, ffn.expert_width
    gate = linear("experts.gate", hidden, f, Shard.EXPERT_COLUMN, bias, e) if ffn.gated else ()
    routed = (
        linear("router", hidden, e, Shard.REPLICATED, bias)
        + gate
        + linear("experts.up", hidden, f, Shard.EXPERT_COLUMN, bias, e)
        + linear("experts.down", f, hidden, Shard.EXPERT_ROW, bias, e)
    )
    return routed + (gated_ffn(hidden, ffn.width, name="shared") if ffn.width else ())


def table(vocab: int, width: int) -> Weights:
    """Token table. A lookup, not a product, on the way in."""
    return (Weight("embed", vocab, width, Shard.VOCAB, matmul=False),)


def positions(rows: int, hidden: int) -> Weights:
    """Learned positions."""
    return (Weight("positions", rows, hidden, Shard.REPLICATED, matmul=False),)


def head(vocab: int, width: int, tied: bool) -> Weights:
    """Head matrix D x vocabulary; none when the token table serves."""
    return () if tied else (Weight("head", width, vocab, Shard.VOCAB),)


def read_layers(f: Fields, *keys: str) -> int:
    return f.size(*(keys or ("num_hidden_layers",)), most=MAX_LAYERS)


def read_attention(
    f: Fields, hidden: int, head_dim: int | None = None, kv_required: bool = False
) -> Attention:
    """Heads, kv heads and their width in the Llama spelling.

    A missing `num_key_value_heads` means as many as heads, unless the family's class has another default
    (`kv_required`): then nothing is guessed. `head_dim` is the class default; without one, hidden / heads.
    """
    heads = f.size("num_attention_heads")
    kv_heads = f.size("num_key_value_heads", missing=None if kv_required else heads, null=heads)
    check_groups(f, heads, kv_heads)
    width = f.size_or_none("head_dim") if head_dim is None else f.size("head_dim", missing=head_dim)
    if width is None:
        width = split_heads(f, hidden, heads)
    return Attention(heads, kv_heads, width, width)


def check_groups(f: Fields, heads: int, kv_heads: int, key: str = "num_key_value_heads") -> None:
    if heads % kv_heads:
        f.fail(
            f"num_attention_heads {heads} is not a multiple of {key} {kv_heads}: every kv head "
            f"serves the same number of heads; make it a divisor of {heads}"
        )


def split_heads(f: Fields, hidden: int, heads: int) -> int:
    """Width of a head where the file gives none."""
    if hidden % heads:
        f.fail(
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}, so the width of a head "
            f"is not known; correct one of them, or give head_dim where the family has it"
        )
    return hidden // heads


def read_experts(f: Fields, *keys: str) -> int:
    return f.size(*keys, most=MAX_LAYERS)


def read_top_k(f: Fields, experts: int, *keys: str) -> int:
    top_k = f.size(*(keys or ("num_experts_per_tok",)))
    if top_k > experts:
        f.fail(f"num_experts_per_tok {top_k} is more than the {experts} experts; use at most {experts}")
    return top_k


def assemble(
    f: Fields,
    name: str,
    layers: Sequence[tuple[str, int | None]],
    build: Callable[[str, int | None], LayerKind],
    *,
    hidden: int,
    vocab: int,
    embedding: Weights,
    final: Weights,
    tied: bool,
    max_seq_len: int | None,
) -> ModelSpec:
    """The whole model. `layers[i]` is the name of layer i's kind and its window; kinds are built once each."""
    order = list(dict.fromkeys(layers))
    number = {key: i for i, key in enumerate(order)}
    spec = ModelSpec(
        name=name,
        model_type=f.model_type,
        hidden=hidden,
        vocab=vocab,
        kinds=tuple(build(kind, window) for kind, window in order),
        pattern=tuple(number[key] for key in layers),
        embedding=embedding,
        head=final,
        tied=tied,
        max_seq_len=max_seq_len,
        notes=f.finish(),
    )
    if spec.params >= MAX_PARAMS:
        f.fail(
            f"the sizes make {spec.params:.3e} parameters and the cost model is exact below {MAX_PARAMS:.1e}; "
            f"check the sizes"
        )
    return spec
