"""FLOPs and bytes of products and of attention, and those that a model needs for a token and a step."""

from typing import Any

from meshwright.costmodel.backward import trains_tower
from meshwright.costmodel.model import Attention, LayerKind, ModelSpec, Weight, operator_of
from meshwright.costmodel.setting import Setting

BF16 = 2  # bytes of an activation or a compute copy of a weight
OPERATORS = (
    "norm1", "latent", "qkv", "core", "out", "norm2",
    "router", "up", "act", "down", "expert_up", "expert_act", "expert_down",
)  # fmt: skip
TRAIN = 3.0  # forward and backward over forward, of what the model needs: no kernel's repeated product counts


def product_flops(m: Any, k: Any, n: Any) -> Any:
    """FLOPs of an [m, k] x [k, n] product: a multiplication and an addition per term."""
    return 2.0 * m * k * n


def product_bytes(m: Any, k: Any, n: Any, x: float = BF16, w: float = BF16, out: float = BF16) -> Any:
    """Bytes of an [m, k] x [k, n] product, each operand moved once; `x`, `w`, `out` are bytes per element."""
    return x * (m * k) + w * (k * n) + out * (m * n)


def attention_bytes(
    queries: Any, query_width: Any, keys: Any, key_width: Any, query: float = BF16, kv: float = BF16
) -> Any:
    """Bytes of an attention kernel that keeps its scores on the chip: queries and output, keys and values.

    `queries` and `keys` are tokens, `query_width` the elements of a query and of its output over all heads,
    `key_width` those of a key and its value, `query` and `kv` bytes per element.
    """
    return query * (queries * query_width) + kv * (keys * key_width)


def attention_span(seq_len: float, window: int | None, causal: bool = True) -> float:
    """Keys that an average query meets under a causal mask, with a sliding window if given.

    Not causal: what a kernel computes that skips nothing masked, all keys (of the window).
    """
    if not causal:
        return float(seq_len if window is None else min(window, seq_len))
    if window is None or window >= seq_len:
        return (seq_len + 1) / 2.0
    return window - window * (window - 1) / (2.0 * seq_len)


def core_flops(attention: Attention, span: float) -> float:
    """FLOPs of the attention kernel for one query that meets `span` keys: scores, and values weighted by them."""
    return 2.0 * span * attention.heads * (attention.qk_head_dim + attention.v_head_dim)


def operator_flops(kind: LayerKind, seq_len: int, causal: bool = True) -> dict[str, float]:
    """Forward FLOPs of one token in one layer, by operator; of experts those that the token meets."""
    flops = dict.fromkeys(OPERATORS, 0.0)
    for weight in kind.weights:
        flops[operator_of(weight)] += weight_flops(weight, kind)
    a = kind.attention
    flops["core"] = core_flops(a, attention_span(seq_len, a.window, causal and a.causal))
    return flops


def weight_flops(weight: Weight, kind: LayerKind | None = None) -> float:
    """Forward FLOPs of one token in the product with a weight; 0 for what is no product (norms, look-ups)."""
    copies = kind.ffn.top_k if kind and weight.routed else weight.count
    return float(product_flops(copies, weight.rows, weight.cols)) if weight.matmul else 0.0


def token_flops(model: ModelSpec, seq_len: int, causal: bool = True) -> float:
    """Forward FLOPs of one token of a sequence: products of active parameters, the head and the attention kernel."""
    layers = zip(model.layers_by_kind, model.kinds, strict=True)
    products = (n * sum(operator_flops(kind, seq_len, causal).values()) for n, kind in layers)
    return head_flops(model) + sum(products)


def head_flops(model: ModelSpec) -> float:
    """Forward FLOPs of one token in the head: a product also where the token table, a look-up on the way in, serves."""
    return float(product_flops(1, model.head_matrix.rows, model.head_matrix.cols))


def model_flops(setting: Setting) -> float:
    """FLOPs of one training step that the model itself needs, without recompute.

    Three times forward: products of active parameters (the token table is a look-up), and the attention
    kernel with its causal half only; multi-token-prediction modules and the vision tower, if they are trained, among
    them. This is the numerator of MFU. Of frozen weights products count twice forward: once there and once for the
    gradient of the input, and once in a vision tower, before which nothing is trained.
    """
    model, training = setting.model, setting.training
    token = token_flops(model, training.seq_len) + training.mtp * mtp_flops(model, training.seq_len)
    images = training.images * image_flops(model) if training.images else 0.0
    most = TRAIN * (token * training.global_batch_tokens + images * training.sequences)
    unseen = 0.0 if model.tower is None or trains_tower(model) else (TRAIN - 1.0) * images
    return most - frozen_flops(model) * training.global_batch_tokens - unseen * training.sequences


def frozen_flops(model: ModelSpec) -> float:
    """Forward FLOPs of one token in products with frozen weights, the head among them."""
    layers = zip(model.layers_by_kind, model.kinds, strict=True)
    still = (n * sum(weight_flops(w, kind) for w in kind.weights if not w.trained) for n, kind in layers)
    return sum(still, 0.0 if model.head_matrix.trained else head_flops(model))


def mtp_flops(model: ModelSpec, seq_len: int) -> float:
    """Forward FLOPs of one token in one multi-token-prediction module with its pass of the head; 0 without any."""
    if model.mtp is None:
        return 0.0
    layer = sum(operator_flops(model.kinds[model.mtp.kind], seq_len).values())
    return float(layer) + sum(weight_flops(w) for w in model.mtp.weights) + head_flops(model)


def image_flops(model: ModelSpec) -> float:
    """Forward FLOPs of one image in vision tower and projector; 0 without any."""
    tower = model.tower
    if tower is None:
        return 0.0
    layers = tower.layers * sum(operator_flops(tower.kind, tower.patches).values())
    patch = layers + sum(weight_flops(w) for w in tower.of_patches)
    return tower.patches * patch + tower.tokens * sum(weight_flops(w) for w in tower.projector)
