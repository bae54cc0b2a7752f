"""Forward seconds of every operator of a layer, and the tensors a layer can save.

Operators of a layer in order (those a kind does not have are absent):

    norm1 -> latent -> qkv -> core -> out -> norm2 -> router, up -> act -> down
                                              expert_up -> expert_act -> expert_down

`latent` holds products that tensor parallelism does not cut (down-projections of latent attention), `core`
is the attention kernel, `up` holds gate and up. A matrix product of m tokens takes the larger of
2 m k n / rate and its bytes / HBM rate; the rate falls for few tokens or a narrow matrix as
1 / ((1 + m0/m) (1 + n0/min(k, n))), and where k or n is no multiple of 64, the width of a tile. Attention that is not
fused computes what the mask hides and moves its scores. Backward is twice forward for products, 2.5 times for the attention
kernel (it repeats the forward product), twice for elementwise work.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.backward import FIRST, READS, unread_tensors
from meshwright.costmodel.flops import (
    BF16,
    OPERATORS,
    attention_bytes,
    attention_span,
    core_flops,
    product_bytes,
    product_flops,
)
from meshwright.costmodel.model import Attention, LayerKind, Shard, Weight, operator_of
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Rates, Setting

Array = NDArray[Any]

BACKWARD = dict.fromkeys(OPERATORS, 2.0) | {"core": 2.5}
PERMUTES = frozenset({"router", "expert_down"})  # what moves tokens into the order of their experts, and back
TILE = 64  # elements: widths that matrix units and caches take whole
# Elements of a head at which attention runs at its full rate, and that vector loads take.
FULL_HEAD, HEAD_STEP = 128, 8

# Traffic of elementwise work in tensor widths read or written once, forward: a norm with its residual moves 6
# of the model width, rotary embedding 4 of the query width, a gated activation 4 of its width (3 if plain).
# These are the counts fitted on published runs by the prototype that precedes this project.
NORM_WIDTHS, _ROPE_WIDTHS, _GATED_WIDTHS, _PLAIN_WIDTHS = 6, 4, 4, 3


@dataclass(frozen=True)
class Shape:
    """What a layer sees of a row; arrays of shape [R]."""

    tokens: Array  # of one micro-batch in one tp group
    seq_len: int
    tp: Array
    spread: Array  # ways the residual is split over tp
    ep: Array
    etp: Array
    imbalance: float  # rows that an expert rank computes over the mean

    @staticmethod
    def of(rows: Rows, setting: Setting) -> "Shape":
        training = setting.training
        return Shape(
            rows.tokens(training.seq_len).astype(float),
            training.seq_len,
            rows.tp,
            rows.spread,
            rows.ep,
            rows.etp,
            training.expert_load,
        )

    def routed_tokens(self, kind: LayerKind) -> Array:
        """Token copies that one device sends to experts, and with balance receives."""
        return self.tokens * kind.ffn.top_k * self.etp / self.tp


def tp_ways(weight: Weight, kind: LayerKind | None, tp: Array) -> Array:
    """Ways tensor parallelism cuts a weight; key and value projections not beyond the kv heads."""
    if weight.shard in (Shard.REPLICATED, Shard.COPY) or weight.routed:
        return np.ones_like(tp)
    if kind is not None and weight.name.startswith(("attn.k", "attn.v")) and weight.shard is Shard.COLUMN:
        return np.minimum(tp, kind.attention.kv_heads)
    return tp


def product_s(rates: Rates, m: Array, k: Array | float, n: Array | float, flop_per_s: float) -> Array:
    """Seconds of an [m, k] x [k, n] product in bf16 traffic; sources in the module docstring."""
    shape = (1.0 + rates.m0 / np.maximum(m, 1e-9)) * (1.0 + rates.n0 / np.minimum(k, n))
    if rates.misaligned:
        off = (np.mod(k, TILE) != 0) | (np.mod(n, TILE) != 0)
        shape = shape * np.where(off, 1.0 + rates.misaligned, 1.0)
    compute = product_flops(m, k, n) / flop_per_s * shape
    seconds: Array = np.maximum(compute, product_bytes(m, k, n) / rates.hbm_bytes_per_s)
    return seconds


def kv_width(kind: LayerKind, tp: Array) -> Array:
    """Width of keys and values together on one tp rank; ranks beyond the kv heads hold copies."""
    a = kind.attention
    width: Array = a.kv_heads / np.minimum(tp, a.kv_heads) * (a.qk_head_dim + a.v_head_dim)
    return width


def forward_s(setting: Setting, kind: LayerKind, shape: Shape) -> dict[str, Array]:
    """Seconds of each operator of one layer, forward, one micro-batch on one device."""
    rates = setting.rates
    out = dict.fromkeys(OPERATORS, np.zeros_like(shape.tokens))
    for weight in kind.weights:
        if weight.matmul:
            name = operator_of(weight)
            out[name] = out[name] + _weight_s(rates, kind, weight, shape)
    out["core"] = _core_s(rates, kind, shape)
    for name, moved in elementwise_bytes(kind, shape).items():
        times = rates.permute if name in PERMUTES else rates.elementwise
        out[name] = out[name] + times * moved / rates.hbm_bytes_per_s
    return out


def backward_s(
    setting: Setting, kind: LayerKind, shape: Shape, forward: dict[str, Array]
) -> dict[str, Array]:
    """Seconds of each operator backward, from those forward: products with frozen weights make no weight gradient."""
    rates = setting.rates
    out = {name: BACKWARD[name] * seconds for name, seconds in forward.items()}
    for weight in kind.weights:
        if weight.matmul:
            name = operator_of(weight)
            more = (
                _sum_s(rates, kind, weight, shape)
                if weight.trained
                else -_weight_s(rates, kind, weight, shape)
            )
            out[name] = out[name] + more
    return out


def weight_grad_s(setting: Setting, kind: LayerKind, shape: Shape) -> Array:
    """Seconds of the weight gradients of one layer: of every product that is trained the half of its backward pass.

    What else runs backward, the attention kernel's and elementwise work, makes gradients of the input.
    """
    rates = setting.rates
    products = (
        _weight_s(rates, kind, w, shape) + _sum_s(rates, kind, w, shape)
        for w in kind.weights
        if w.matmul and w.trained
    )
    return sum(products, np.zeros_like(shape.tokens))


def head_s(setting: Setting, shape: Shape) -> Array:
    """Seconds of head product and loss, forward."""
    rates, vocab = setting.rates, setting.model.head_matrix.params / setting.model.hidden / shape.tp
    traffic = rates.elementwise * 2 * setting.framework.logits_bytes * shape.tokens * vocab
    return head_product_s(setting, shape) + traffic / rates.hbm_bytes_per_s


def head_product_s(setting: Setting, shape: Shape) -> Array:
    """Seconds of the head product, forward; of its weight gradient as well."""
    rates, width = setting.rates, setting.model.hidden
    vocab = setting.model.head_matrix.params / width / shape.tp
    return product_s(rates, shape.tokens, width, vocab, rates.head_flop_per_s)


def embedding_s(setting: Setting, shape: Shape) -> Array:
    """Seconds of the table look-up, forward."""
    moved = 2 * BF16 * shape.tokens / shape.spread * setting.model.hidden
    return moved / setting.rates.hbm_bytes_per_s


def saved_bytes(kind: LayerKind, shape: Shape) -> dict[str, Array]:
    """Bytes of each tensor that backward wants from one layer, one micro-batch on one device.

    Inputs of products with frozen weights alone are not among them.
    """
    unread = unread_tensors(kind)
    return {name: size for name, size in tensor_bytes(kind, shape).items() if name not in unread}


def tensor_bytes(kind: LayerKind, shape: Shape) -> dict[str, Array]:
    """Bytes of each tensor of one layer that some backward pass wants, one micro-batch on one device.

    Named after the operator that makes it; `input` is the layer's input.
    """
    a, ffn = kind.attention, kind.ffn
    hidden = _hidden(kind)
    residual = BF16 * shape.tokens / shape.spread * hidden
    cut = BF16 * shape.tokens / shape.tp
    kv = BF16 * shape.tokens * kv_width(kind, shape.tp)
    log_sum = 4 * shape.tokens / shape.tp * a.heads
    out = {
        "input": residual,
        "norm1": residual,
        "qkv": cut * a.heads * a.qk_head_dim + kv,
        "core": cut * a.heads * a.v_head_dim + log_sum,
    }
    if latent := sum(
        w.cols for w in kind.weights if operator_of(w) == "latent" and w.matmul and not w.adapts
    ):
        out["latent"] = BF16 * shape.tokens / shape.spread * latent
    if not kind.parallel:
        out |= {"out": residual, "norm2": residual}
    if ffn.width:
        out |= {"up": cut * ffn.width * (2 if ffn.gated else 1), "act": cut * ffn.width}
    if ffn.experts:
        routed = BF16 * shape.routed_tokens(kind) * shape.imbalance
        out |= {
            "router": routed * hidden,  # the dispatched tokens
            "expert_up": routed / shape.etp * ffn.expert_width * (2 if ffn.gated else 1),
            "expert_act": routed / shape.etp * ffn.expert_width,
            "expert_down": routed * hidden,
        }
    # What lies between the two matrices of an adapter is saved and made again with the input of both.
    for weight in kind.weights:
        if weight.name.endswith(FIRST):
            name = next(t for t in READS[weight.adapts] if t in out)
            met = shape.tokens / (shape.spread if weight.shard is Shard.REPLICATED else 1)
            met = shape.routed_tokens(kind) * shape.imbalance if weight.routed else met
            out[name] = out[name] + BF16 * met * weight.cols
    return out


def dispatch_bytes(kind: LayerKind, shape: Shape) -> Array:
    """Buffers of the exchange of tokens with experts on other ranks, beside the tokens that backward wants, [R].

    As Megatron-Core's all-to-all dispatcher does it: copies are put in the order of their experts, sent, gathered over
    etp, and sorted by local expert. While they travel the ordered copies and what arrives are both there; what is
    sorted is the saved tensor `router`. The way back and backward need the same. Both are taken for as uneven as the
    fullest rank.
    """
    if not kind.ffn.experts:
        return np.zeros_like(shape.tokens)
    sent = shape.tokens * kind.ffn.top_k / shape.tp
    arrives = shape.routed_tokens(kind)
    apart = shape.ep * shape.etp > 1
    held: Array = np.where(apart, BF16 * _hidden(kind) * shape.imbalance * (sent + arrives), 0.0)
    return held


def _hidden(kind: LayerKind) -> int:
    return next(w.rows for w in kind.weights if w.name.startswith("attn.") and w.matmul)


def _weight_s(rates: Rates, kind: LayerKind, weight: Weight, shape: Shape) -> Array:
    k: Array | float = weight.rows
    n: Array | float = weight.cols
    if weight.routed:
        local = weight.count / shape.ep
        m = shape.routed_tokens(kind) * shape.imbalance / local
        k = k / shape.etp if weight.shard is Shard.EXPERT_ROW else k
        n = n / shape.etp if weight.shard is Shard.EXPERT_COLUMN else n
        return local * product_s(rates, m, k, n, rates.matmul_flop_per_s * rates.expert_share)
    if weight.shard is Shard.REPLICATED:
        return product_s(rates, shape.tokens / shape.spread, k, n, rates.matmul_flop_per_s)
    ways = tp_ways(weight, kind, shape.tp)
    k, n = (k / ways, n) if weight.shard is Shard.ROW else (k, n / ways)
    return product_s(rates, shape.tokens, k, n, rates.matmul_flop_per_s)


def _sum_s(rates: Rates, kind: LayerKind, weight: Weight, shape: Shape) -> Array:
    """Seconds of adding a weight's gradient to the sum over micro-batches, beside the product that makes it."""
    ways = shape.ep * shape.etp if weight.routed else tp_ways(weight, kind, shape.tp)
    seconds: Array = rates.sum_bytes * weight.params / ways / rates.hbm_bytes_per_s
    return seconds


def _core_s(rates: Rates, kind: LayerKind, shape: Shape) -> Array:
    a = kind.attention
    if rates.score_bytes:
        return _unfused_core_s(rates, a, shape)
    flops = shape.tokens / shape.tp * core_flops(a, attention_span(shape.seq_len, a.window, a.causal))
    queries = a.heads / shape.tp * (a.qk_head_dim + a.v_head_dim)  # and the output, as wide as the values
    moved = attention_bytes(shape.tokens, queries, shape.tokens, kv_width(kind, shape.tp))
    width = (a.qk_head_dim + a.v_head_dim) / 2.0
    rate = rates.attention_flop_per_s * np.minimum(1.0, width / FULL_HEAD) ** rates.narrow_heads
    seconds: Array = np.maximum(flops / rate * _off_step(rates, a), moved / rates.hbm_bytes_per_s)
    return seconds


def _unfused_core_s(rates: Rates, a: Attention, shape: Shape) -> Array:
    """Batched products over all keys, as they skip nothing, and a softmax between them that moves every score."""
    keys = attention_span(shape.seq_len, a.window, causal=False)
    queries = shape.tokens / shape.tp
    products = queries * core_flops(a, keys) / rates.matmul_flop_per_s * _off_step(rates, a)
    seconds: Array = products + rates.score_bytes * queries * a.heads * keys / rates.hbm_bytes_per_s
    return seconds


def _off_step(rates: Rates, a: Attention) -> Array:
    """Time over that of a head whose width vector loads take whole."""
    off = (np.mod(a.qk_head_dim, HEAD_STEP) != 0) | (np.mod(a.v_head_dim, HEAD_STEP) != 0)
    return np.where(off, 1.0 + rates.misaligned_heads, 1.0)


def elementwise_bytes(kind: LayerKind, shape: Shape) -> dict[str, Array]:
    """Bytes that work beside the products of one layer moves, by the operator it follows; forward."""
    a, ffn = kind.attention, kind.ffn
    hidden, residual = _hidden(kind), BF16 * shape.tokens / shape.spread
    act = _GATED_WIDTHS if ffn.gated else _PLAIN_WIDTHS
    norms = NORM_WIDTHS * kind.norms * residual * hidden
    out = {"qkv": _ROPE_WIDTHS * BF16 * shape.tokens / shape.tp * a.heads * a.qk_head_dim}
    out |= {"norm1": norms} if kind.parallel else {"norm1": norms / 2, "norm2": norms / 2}
    if np.any(ffn.width):
        out["act"] = act * BF16 * shape.tokens / shape.tp * ffn.width
    if np.any(ffn.experts):
        routed = BF16 * shape.routed_tokens(kind) * shape.imbalance
        out["router"] = NORM_WIDTHS / 2 * routed * hidden  # permute, and its reverse after the experts
        out["expert_down"] = NORM_WIDTHS / 2 * routed * hidden
        out["expert_act"] = (act + ffn.plain_widths) * routed / shape.etp * ffn.expert_width
    return out
