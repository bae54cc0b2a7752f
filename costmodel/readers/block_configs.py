"""`nemotron-nas`: Llama layers whose kv heads, window and feed-forward are listed layer by layer in `block_configs`.

Sources: DeciLMConfig, block_config.py and modeling_decilm.py of nvidia/Llama-3_3-Nemotron-Super-49B-v1; `moe` and
`intermediate_size` of a feed-forward as in block_config.py of NVIDIA Model-Optimizer. A layer without one of its parts
is refused: the cost model has no such kind.
"""

from collections.abc import Mapping
from math import isfinite

from meshwright.costmodel.model import Attention, Ffn, LayerKind, ModelSpec
from meshwright.costmodel.readers.blocks import (
    assemble,
    attention,
    gated_ffn,
    head,
    mixture,
    norm,
    read_experts,
    read_layers,
    read_top_k,
    split_heads,
    table,
)
from meshwright.costmodel.readers.fields import MAX_SIZE, Fields, show
from meshwright.costmodel.readers.llama_like import PRE

_STEP = 256
Block = tuple[Attention, Ffn]


def width_of(ffn_mult: float, hidden: int) -> int:
    """The feed-forward width that the class takes from ffn_mult: 256 ceil(floor(2 ffn_mult hidden / 3) / 256).

    The class rounds ffn_mult to six digits first.
    """
    return -(-int(2 * round(ffn_mult, 6) * hidden / 3) // _STEP) * _STEP


def read_block_configs(f: Fields, name: str) -> ModelSpec:
    hidden, vocab, layers = f.size("hidden_size"), f.size("vocab_size"), read_layers(f)
    heads = f.size("num_attention_heads")
    head_dim = f.size_or_none("head_dim") or split_heads(f, hidden, heads)
    for key in ("intermediate_size", "num_key_value_heads"):  # each layer has its own
        f.only(key, None)
    attention_bias, mlp_bias = f.flag("attention_bias", False), f.flag("mlp_bias", False)
    tied = f.flag("tie_word_embeddings", False)
    listed = f.items("block_configs", layers, "an object", lambda block: isinstance(block, Mapping))
    if listed is None:
        f.fail("the key block_configs is missing; give one object per layer, with attention and ffn")
    blocks: dict[str, Block] = {}
    order = []
    for i, raw in enumerate(listed):
        block = Fields(raw, f"{f.where}, block_configs[{i}]", f.model_type)  # type: ignore[arg-type]
        a = _attention(_part(block, "attention"), heads, head_dim)
        ffn = _ffn(_part(block, "ffn"), hidden)
        block.only("parallel_blocks", None)
        _finish(block)
        kind = f"kv{a.kv_heads}_{_name(ffn)}"
        blocks[kind] = (a, ffn)
        order.append((kind, a.window))

    def build(kind: str, window: int | None) -> LayerKind:
        plain, ffn = blocks[kind]
        a = Attention(plain.heads, plain.kv_heads, head_dim, head_dim, window)
        fed = mixture(hidden, ffn, mlp_bias) if ffn.experts else gated_ffn(hidden, ffn.width, mlp_bias)
        weights = attention(hidden, a, attention_bias, attention_bias) + tuple(
            w for n in PRE for w in norm(n, hidden)
        )
        return LayerKind(kind if window is None else f"{kind}_w{window}", weights + fed, a, ffn, len(PRE))

    return assemble(
        f, name, order, build, hidden=hidden, vocab=vocab, embedding=table(vocab, hidden),
        final=norm("final_norm", hidden) + head(vocab, hidden, tied), tied=tied,
        max_seq_len=f.size_or_none("max_position_embeddings"),
    )  # fmt: skip


def _part(block: Fields, key: str) -> Fields:
    """attention or ffn of a layer, which must be there and as the class has it by default."""
    value = block.raw.get(key) if block.has(key) else None
    if not isinstance(value, Mapping):
        block.fail(f"{key} must be an object, got {show(value)}")
    part = Fields(value, f"{block.where}.{key}", block.model_type)
    for gone in ("no_op", "replace_with_linear"):
        if part.flag(gone, False):
            part.fail(f"{gone} is true; a layer without its {key} is not read, costs of one are not known")
    part.only("sparsify", None)
    return part


def _attention(part: Fields, heads: int, head_dim: int) -> Attention:
    for key, value in (("num_sink_tokens", None), ("unshifted_sink", False)):
        part.only(key, value)
    for key in ("mamba", "llama4"):  # other kinds of layers, in later configurations of the line
        part.only(key, None)
    part.skip("use_prefill_window_in_sink_attention")  # of sinks
    group = part.size("n_heads_in_group")
    if heads % group:
        part.fail(
            f"num_attention_heads {heads} is not a multiple of n_heads_in_group {group}; give a divisor of {heads}"
        )
    window = part.size_or_none("window_length")
    _finish(part)
    return Attention(heads, heads // group, head_dim, head_dim, window)


def _ffn(part: Fields, hidden: int) -> Ffn:
    mult = part.raw.get("ffn_mult") if part.has("ffn_mult") else None
    width = part.size_or_none("intermediate_size")
    if part.has("moe") and part.raw["moe"] is not None:
        if mult is not None or width is not None:
            part.fail("moe stands beside ffn_mult or intermediate_size; give one of them")
        experts = part.inner("moe", part.model_type)
        count = read_experts(experts, "num_local_experts")
        ffn = Ffn(
            experts.count("shared_expert_intermediate_dim", most=MAX_SIZE), True, count,
            read_top_k(experts, count), experts.size("expert_intermediate_dim"),
        )  # fmt: skip
        _finish(experts)
    elif mult is not None:
        if isinstance(mult, bool) or not isinstance(mult, int | float) or not (isfinite(mult) and mult > 0):
            part.fail(f"ffn_mult must be a number above 0, got {show(mult)}")
        made = width_of(min(float(mult), MAX_SIZE), hidden)
        if not 0 < made <= MAX_SIZE:
            part.fail(f"ffn_mult {show(mult)} makes a width of {made:.4g}; it must be from 1 to {MAX_SIZE}")
        if width not in (None, made):
            part.fail(
                f"ffn_mult {show(mult)} makes a width of {made} and intermediate_size is {width}; keep one"
            )
        ffn = Ffn(made, gated=True)
    elif width is not None:
        ffn = Ffn(width, gated=True)
    else:
        part.fail("none of ffn_mult, intermediate_size and moe is given; give the one that the layer has")
    _finish(part)
    return ffn


def _name(ffn: Ffn) -> str:
    """f14336, or e8k2x3584 with s1000 where shared experts stand beside."""
    if not ffn.experts:
        return f"f{ffn.width}"
    return f"e{ffn.experts}k{ffn.top_k}x{ffn.expert_width}" + (f"s{ffn.width}" if ffn.width else "")


def _finish(part: Fields) -> None:
    """Nothing of a layer is passed over."""
    for note in part.finish():
        part.fail(f"{note}; leave them out if they change nothing")
