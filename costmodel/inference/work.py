"""FLOPs and bytes of every operator of a pass on one device.

Products read their weights once and move their activations; of a mixture's experts those are read that any token of the
pass meets. Attention reads queries, keys and values and keeps its scores on the chip. Operators carry the names of
`costmodel.operators`; the ends are `embedding` and `head`. All sizes may be columns (`inference.stack`).
"""

from dataclasses import dataclass, replace

import numpy as np

from meshwright.costmodel.counting.kvcache import cached_width
from meshwright.costmodel.flops import (
    BF16,
    attention_bytes,
    attention_span,
    core_flops,
    product_bytes,
    product_flops,
)
from meshwright.costmodel.inference.request import Pass
from meshwright.costmodel.inference.stack import Size, Stack
from meshwright.costmodel.model import Attention, LayerKind, Weight, operator_of
from meshwright.costmodel.operators import Shape, elementwise_bytes

ATTENTION = ("norm1", "latent", "qkv", "core", "out")
FFN = ("norm2", "router", "up", "act", "down", "expert_up", "expert_act", "expert_down")
ENDS = ("embedding", "head")


@dataclass(frozen=True)
class Work:
    """Of one operator, or several as sums.

    Attributes:
        weight_bytes: of weights read. moved_bytes: activations and cache. elementwise_bytes: of work beside the
            product (norms, rotary embedding, gates, permutation), which a compiler may hide.
    """

    flops: Size = 0.0
    weight_bytes: Size = 0.0
    moved_bytes: Size = 0.0
    elementwise_bytes: Size = 0.0


def experts_met(experts: Size, top_k: Size, tokens: Size) -> Size:
    """Different experts that so many tokens meet, in the mean of independent draws."""
    return experts * (1.0 - (1.0 - top_k / experts) ** tokens)


def decode_attention(kind: LayerKind) -> Attention:
    """Attention as decode does it. Latent attention works on the cached vector itself: what would expand it is
    multiplied into queries and outputs instead, which is the same weight and the same FLOPs as in training."""
    a = kind.attention
    if a.latent_width is None:
        return a
    values = next(w.rows for w in kind.weights if w.name == "attn.kv_b")
    return replace(a, qk_head_dim=a.latent_width, v_head_dim=values)


def product_work(weight: Weight, tokens: Size, weight_bytes: float, kind: LayerKind | None = None) -> Work:
    """The product of so many tokens with a weight; of routed experts all that the tokens meet."""
    rows, met = tokens, 1.0
    if kind is not None and weight.routed:
        met = experts_met(kind.ffn.experts, kind.ffn.top_k, tokens)
        rows = tokens * kind.ffn.top_k / met
    k, n = weight.rows, weight.cols
    return Work(
        flops=met * product_flops(rows, k, n),
        weight_bytes=met * product_bytes(0, k, n, w=weight_bytes),
        moved_bytes=met * product_bytes(rows, k, n, w=0),
    )


def attention_work(kind: LayerKind, p: Pass) -> Work:
    """The attention kernel: new queries meet what is cached, and each other under the causal mask."""
    decode = p.new == 1
    a = decode_attention(kind) if decode else kind.attention
    span = _keys_met(p.cached + p.new, a.window) - _keys_met(
        p.cached, a.window
    )  # of all new queries together
    held = p.cached if a.window is None else min(p.cached, a.window - 1)
    keys = cached_width(kind) if decode or kind.attention.latent_width is None else _expanded_width(kind)
    queries = a.heads * (a.qk_head_dim + a.v_head_dim)
    moved = attention_bytes(p.new, queries, held + p.new, keys, kv=p.kv_bytes)
    return Work(flops=p.sequences * core_flops(a, span), moved_bytes=p.sequences * moved)


def layer_work(kind: LayerKind, p: Pass) -> dict[str, Work]:
    """One layer, by operator; only those that the kind has. Products that read one input (q, k and v; gate and up) run as one."""
    out: dict[str, Work] = {}
    for name, weight in _fused(kind):
        out[name] = add(out.get(name, Work()), product_work(weight, p.tokens, p.weight_bytes, kind))
    out["core"] = attention_work(kind, p)
    one = np.asarray(1)
    shape = Shape(np.asarray(p.tokens, float), int(p.new), one, one, one, one, 1.0)
    for name, moved in elementwise_bytes(kind, shape).items():
        out[name] = add(out.get(name, Work()), Work(elementwise_bytes=moved))
    return out


def ends_work(stack: Stack, p: Pass) -> dict[str, Work]:
    """The look-up of every token's row, and the head for the last token of each sequence."""
    row = stack.hidden * p.tokens
    return {
        "embedding": Work(weight_bytes=p.head_bytes * row, moved_bytes=BF16 * row),
        "head": product_work(stack.head, p.sequences, p.head_bytes),
    }


def add(a: Work, b: Work) -> Work:
    return Work(
        a.flops + b.flops,
        a.weight_bytes + b.weight_bytes,
        a.moved_bytes + b.moved_bytes,
        a.elementwise_bytes + b.elementwise_bytes,
    )


def _fused(kind: LayerKind) -> list[tuple[str, Weight]]:
    """(operator, product) of a layer, those of an operator that are as wide on the input side side by side."""
    out: list[tuple[str, Weight]] = []
    for weight in kind.weights:
        if not weight.matmul:
            continue
        name = operator_of(weight)
        same = next(
            (i for i, (n, w) in enumerate(out) if n == name and np.array_equal(w.rows, weight.rows)), None
        )
        if same is None:
            out.append((name, weight))
        else:
            out[same] = (name, replace(out[same][1], cols=out[same][1].cols + weight.cols))
    return out


def _keys_met(tokens: float, window: int | None) -> float:
    """Keys that all queries of a causal sequence meet together."""
    return tokens * attention_span(tokens, window) if tokens else 0.0


def _expanded_width(kind: LayerKind) -> Size:
    """Keys and values of latent attention as a prefill kernel sees them, of every head."""
    a = kind.attention
    return a.heads * (a.qk_head_dim + a.v_head_dim)
