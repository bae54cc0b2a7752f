"""DeepSeek V2 and V3: latent attention, dense layers first, then experts with shared ones beside them.

Sources: DeepseekV2Config, DeepseekV3Config and their modelling files (`transformers` 5.24); the rule of
`moe_layer_freq` from deepseek-ai's own modelling file. The router's score correction of V3 is a buffer, not a
parameter.
"""

from meshwright.costmodel.model import Attention, Ffn, LayerKind, ModelSpec, Shard
from meshwright.costmodel.readers.blocks import (
    Weights,
    assemble,
    gated_ffn,
    head,
    linear,
    mixture,
    norm,
    read_experts,
    read_layers,
    read_top_k,
    table,
)
from meshwright.costmodel.readers.fields import Fields
from meshwright.costmodel.readers.mtp import read_modules, with_modules

FIRST_DENSE = {"deepseek_v2": 0, "deepseek_v3": 3}  # class defaults of first_k_dense_replace


def read_latent(f: Fields, name: str) -> ModelSpec:
    hidden, vocab, layers = f.size("hidden_size"), f.size("vocab_size"), read_layers(f)
    geometry, attention_weights = read_latent_attention(f, hidden)
    names = moe_layers(f, layers)
    f.only("mlp_bias", False)
    dense_width = f.size("intermediate_size") if "dense" in names else 0
    experts = read_mixture_part(f) if "moe" in names else None
    f.skip("intermediate_size", "n_routed_experts", "num_experts_per_tok", "n_shared_experts")
    f.skip("moe_intermediate_size")
    modules = read_modules(f, "num_nextn_predict_layers")
    tied = f.flag("tie_word_embeddings", False)

    def build(kind: str, window: int | None) -> LayerKind:
        if kind == "moe" and experts is not None:
            ffn, ffn_weights = experts, mixture(hidden, experts)
        else:
            ffn, ffn_weights = Ffn(dense_width, gated=True), gated_ffn(hidden, dense_width)
        norms = norm("input_norm", hidden) + norm("post_attention_norm", hidden)
        return LayerKind(kind, attention_weights + norms + ffn_weights, geometry, ffn, norms=2)

    spec = assemble(
        f,
        name,
        [(kind, None) for kind in names],
        build,
        hidden=hidden,
        vocab=vocab,
        embedding=table(vocab, hidden),
        final=norm("final_norm", hidden) + head(vocab, hidden, tied),
        tied=tied,
        max_seq_len=f.size_or_none("max_position_embeddings"),
    )
    return with_modules(f, spec, modules)


def read_latent_attention(f: Fields, hidden: int) -> tuple[Attention, Weights]:
    """q D x R x H*(N+P) through a norm of R, or straight D x H*(N+P); keys and values D x (L+P), L x H*(N+V).

    R `q_lora_rank` (null: straight), L `kv_lora_rank`, N and P the plain and rotary parts of a key's width.
    The two down projections are needed whole by every head, so each rank holds them. One rotary key serves
    all heads, and `num_key_value_heads` means nothing: the cache holds L+P per token.
    """
    heads = f.size("num_attention_heads")
    plain, rope, v_width = f.size("qk_nope_head_dim"), f.size("qk_rope_head_dim"), f.size("v_head_dim")
    latent = f.size("kv_lora_rank")
    if not f.has("q_lora_rank"):
        # the class default is 1536 and DeepSeek-V2-Lite has null: guessing costs 42.5 M parameters either way
        f.fail("the key q_lora_rank is missing; give the rank, or null where queries are projected directly")
    rank = f.size_or_none("q_lora_rank")
    bias = f.flag("attention_bias", False)
    f.only("qk_head_dim", plain + rope)
    f.skip("head_dim")
    if (kv_heads := f.size("num_key_value_heads", missing=heads, null=heads)) != heads:
        f.note(f"num_key_value_heads {kv_heads} is not used: latent attention has one key per head ({heads})")

    if rank is None:
        query = linear("attn.q", hidden, heads * (plain + rope), Shard.COLUMN)
    else:
        query = (
            linear("attn.q_a", hidden, rank, Shard.REPLICATED, bias)
            + norm("attn.q_a_norm", rank)
            + linear("attn.q_b", rank, heads * (plain + rope), Shard.COLUMN)
        )
    weights = (
        query
        + linear("attn.kv_a", hidden, latent + rope, Shard.REPLICATED, bias)
        + norm("attn.kv_a_norm", latent)
        + linear("attn.kv_b", latent, heads * (plain + v_width), Shard.COLUMN)
        + linear("attn.o", heads * v_width, hidden, Shard.ROW, bias)
    )
    return Attention(heads, heads, plain + rope, v_width, latent_width=latent + rope), weights


def moe_layers(f: Fields, layers: int) -> tuple[str, ...]:
    """Kind of each layer: experts from `first_k_dense_replace` on, where `moe_layer_freq` allows.

    `moe_layer_freq` is a period, or a list of 0 and 1 per layer.
    """
    first = f.count("first_k_dense_replace", missing=FIRST_DENSE[f.model_type])
    if f.has("n_routed_experts") and f.raw["n_routed_experts"] is None:
        return ("dense",) * layers
    f.has("moe_layer_freq")
    if isinstance(f.raw.get("moe_layer_freq"), list | tuple):
        on = f.items("moe_layer_freq", layers, "0 or 1", lambda v: type(v) is int and v in (0, 1))
        sparse = [v == 1 for v in on or []]
    else:
        period = f.size("moe_layer_freq", missing=1, null=1)
        sparse = [i % period == 0 for i in range(layers)]
    return tuple("moe" if i >= first and sparse[i] else "dense" for i in range(layers))


def read_mixture_part(f: Fields) -> Ffn:
    experts, width = read_experts(f, "n_routed_experts"), f.size("moe_intermediate_size")
    shared = f.count("n_shared_experts")
    if not f.has("n_shared_experts"):
        f.fail("the key n_shared_experts is missing; give the number of shared experts, 0 or null for none")
    return Ffn(shared * width, gated=True, experts=experts, top_k=read_top_k(f, experts), expert_width=width)
