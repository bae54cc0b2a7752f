"""Counts of a model: parameters and FLOPs by part, where attention matters, state bytes, model FLOPs utilisation.

From the weights that a model lists and the planner's own FLOPs (costmodel/operators.py). The rules of thumb beside
them (6 FLOPs per parameter and token, attention as much as the products at 8D tokens, 10 bytes of state) are those of
jax-ml/scaling-book, chapters 4 and 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.costmodel.flops import TRAIN, head_flops, operator_flops, product_flops, weight_flops
from meshwright.costmodel.model import ModelSpec, Weight
from meshwright.costmodel.textbook import textbook_model
from meshwright.costmodel.zero import ZERO_FROM

# In the order of a token's way. `kv latent` are the products of latent attention that make keys and values,
# `vectors` norms, biases and sinks outside experts.
PROJECTIONS = ("attention q", "attention k", "attention v", "attention kv latent", "attention o")
FEED_FORWARD = ("mlp", "shared experts", "experts")
KERNEL = "attention kernel"
PARTS = ("embedding", *PROJECTIONS, KERNEL, "mlp", "router", "experts", "shared experts", "vectors", "head")

# What the book counts: bf16 parameters and two fp32 moments, neither gradients nor an fp32 master copy.
BOOK_STATE = {"parameters": 2, "optimizer": 8}

_LONGEST = 2**40  # tokens; no crossover is looked for beyond


@dataclass(frozen=True)
class Part:
    """One part of a model, summed over layers.

    Attributes:
        params, active: held, and met by one token.
        flops: forward, of one token.
    """

    params: int = 0
    active: int = 0
    flops: float = 0.0

    def __add__(self, other: "Part") -> "Part":
        return Part(self.params + other.params, self.active + other.active, self.flops + other.flops)


def parts_of(model: ModelSpec, seq_len: int, causal: bool = True) -> dict[str, Part]:
    """Every part that the model has; they sum to its parameters and to its forward FLOPs of a token.

    A tied head has FLOPs and no parameters of its own.
    """
    found = dict.fromkeys(PARTS, Part())
    for weight in model.embedding:
        found["embedding"] += Part(weight.params, weight.params)
    for layers, kind in zip(model.layers_by_kind, model.kinds, strict=True):
        for weight in kind.weights:
            met = weight.params // weight.count * kind.ffn.top_k if weight.routed else weight.params
            flops = layers * weight_flops(weight, kind)
            found[part_of(weight)] += Part(layers * weight.params, layers * met, flops)
        found[KERNEL] += Part(flops=layers * operator_flops(kind, seq_len, causal)["core"])
    for weight in model.head:
        found["head" if weight.rows > 1 else "vectors"] += Part(weight.params, weight.params)
    found["head"] += Part(flops=head_flops(model))
    return {name: part for name, part in found.items() if part != Part()}


def part_of(weight: Weight) -> str:
    """The part that a layer's weight belongs to."""
    if weight.rows == 1 and not weight.routed:
        return "vectors"
    block, _, name = weight.name.partition(".")
    if block == "attn":
        of = {"k": "attention k", "v": "attention v", "o": "attention o"}
        return "attention q" if name.startswith("q") else of.get(name, "attention kv latent")
    return {"experts": "experts", "shared": "shared experts"}.get(block, block)


def matrices(parts: Mapping[str, Part]) -> Part:
    """What the book counts: matrices of layers, embedding and head; norms, biases and routers left out."""
    left_out = ("vectors", "router")
    return sum((part for name, part in parts.items() if name not in left_out), Part())


def layer_share(parts: Mapping[str, Part], *names: str) -> float:
    """Parameters of the named parts over all matrices of the layers, embedding, head and vectors left out."""
    of = {
        name: part.params for name, part in parts.items() if name in (*PROJECTIONS, "router", *FEED_FORWARD)
    }
    return sum(of.get(name, 0) for name in names) / sum(of.values())


def rule_flops(params: float, tokens: float = 1.0, training: bool = True) -> float:
    """The rule 6 N D, or 2 N D forward: a multiplication and an addition per (active) parameter and token."""
    forward: float = product_flops(tokens, params, 1)
    return forward * (TRAIN if training else 1.0)


def attention_flops(model: ModelSpec, seq_len: int, causal: bool = True) -> float:
    """Forward FLOPs of one token in all attention kernels."""
    kinds = zip(model.layers_by_kind, model.kinds, strict=True)
    return sum(n * operator_flops(kind, seq_len, causal)["core"] for n, kind in kinds)


def crossover(model: ModelSpec, against: str, causal: bool = False) -> int | None:
    """Shortest sequence at which attention kernels take at least as many FLOPs as products; None if none does.

    Args:
        against: 'layers' (all products of the layers), 'projections' (q, k, v, o of attention) or 'model' (the
            head too).
        causal: count only the keys that a query may see, else all, as the book does.
    """
    parts = parts_of(model, 1, causal)
    names = {"projections": PROJECTIONS, "layers": (*PROJECTIONS, "router", *FEED_FORWARD)}
    within = names.get(against) or (*names["layers"], "head")
    products = sum(part.flops for name, part in parts.items() if name in within)
    low, high = 0, 1
    while attention_flops(model, high, causal) < products:
        low, high = high, 2 * high
        if high > _LONGEST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if attention_flops(model, middle, causal) >= products else (middle, high)
    return high


def rule_crossover(width: int, against: str = "layers") -> int:
    """The rule 8D, or 2D against the projections: of a layer with F = 4D, N H = K H = D, all keys counted."""
    found = crossover(textbook_model(width, 4 * width, 1, 1, 1, width, 1), against)
    assert found is not None  # without a window attention overtakes everything
    return found


def sparsity(held: float, met: float) -> float:
    """Experts (or parameters) held over those that a token meets: how many times the tokens that a product with all
    of them needs to be as busy as a dense one."""
    return held / met


def state_bytes(each: Mapping[str, float], params: float, zero: int = 0, ways: int = 1) -> dict[str, float]:
    """Bytes on one device by state part; `each` is bytes per parameter, `ways` the ranks that ZeRO shards over."""
    return {part: size * params / (ways if zero >= ZERO_FROM[part] else 1) for part, size in each.items()}


def most_params(memory_bytes: float, each: Mapping[str, float]) -> float:
    """Largest model of which every device holds all state: pure data parallelism, activations left out."""
    return memory_bytes / sum(each.values())


def utilisation(flops: float, chip_s: float, flop_per_s: float) -> float:
    """MFU: FLOPs that the model needs over those that the chips could do in the seconds they were held."""
    return flops / (chip_s * flop_per_s)
