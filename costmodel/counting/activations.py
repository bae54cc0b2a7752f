"""Activations that backward wants, and what recomputing them costs, of a model on one device.

By the planner's own policies (costmodel/policies.py) and by the three ways in which the scaling book saves
(jax-ml/scaling-book, chapters 4 to 6), as policies over the same tensors. Beside those the book counts tensors of the
model's width: about 20 where everything is saved, 7 for the outputs of the big products, 1 for the block's input.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.costmodel.flops import BF16, OPERATORS, TRAIN, operator_flops, token_flops
from meshwright.costmodel.framework import Framework
from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.operators import Shape
from meshwright.costmodel.policies import Policy, kept_bytes, policies_of, saved_tensors
from meshwright.costmodel.tensors import POLICIES

_ALL = frozenset(OPERATORS) | {"input", "unfused"}
# The outputs of the big products; that of the last one is the next layer's input.
_PRODUCTS = frozenset({"input", "latent", "qkv", "out", "up", "expert_up", "expert_down"})
_MLP_PRODUCTS = frozenset({"input", "up", "expert_up", "expert_down"})
_REPEATED_BESIDE_PRODUCTS = frozenset({"norm1", "core", "norm2", "router", "act", "expert_act"})

BOOK_POLICIES = {
    "big products": Policy("big products", _ALL - _PRODUCTS, _REPEATED_BESIDE_PRODUCTS),
    "mlp products": Policy(
        "mlp products", _ALL - _MLP_PRODUCTS, _REPEATED_BESIDE_PRODUCTS | {"latent", "qkv", "out"}
    ),
    "block input": Policy("block input", _ALL - {"input"}, frozenset(OPERATORS)),
}
# Tensors of the model's width per layer by which the book estimates. Where only the products of the feed-forward part
# are saved it counts D + 2F itself, and its LLaMA example takes 4.
BOOK_WIDTHS = {"none": 20, "big products": 7, "block input": 1}


@dataclass(frozen=True)
class Saved:
    """What one policy saves and repeats for one token of the whole model, on one device.

    Attributes:
        saved_bytes: kept from forward to backward.
        repeated_flops: forward FLOPs that backward runs again; elementwise work is not counted as FLOPs.
        training_ratio: FLOPs of a training step with the repeated ones over those without; 4/3 if all is repeated.
    """

    policy: str
    saved_bytes: float
    repeated_flops: float
    training_ratio: float


def saved_by(
    policy: Policy, model: ModelSpec, framework: Framework, seq_len: int, causal: bool = True
) -> Saved:
    """One policy for all layers."""
    kept, repeated = 0.0, 0.0
    for layers, kind in zip(model.layers_by_kind, model.kinds, strict=True):
        tensors = saved_tensors(framework, kind, _one_token(seq_len))
        kept += layers * float(kept_bytes(policy, tensors)[0])
        flops = operator_flops(kind, seq_len, causal)
        repeated += layers * sum(flops[o] for o in policy.repeated)
    share = repeated / token_flops(model, seq_len, causal)
    return Saved(policy.name, kept, repeated, training_ratio(share))


def saved_by_all(
    model: ModelSpec, framework: Framework, seq_len: int, causal: bool = True
) -> tuple[Saved, ...]:
    """The planner's policies, then the book's."""
    own = policies_of(framework)[: len(POLICIES)]
    return tuple(saved_by(p, model, framework, seq_len, causal) for p in (*own, *BOOK_POLICIES.values()))


def training_ratio(repeated_share: float) -> float:
    """FLOPs of a training step over those without recompute, when that share of forward is repeated."""
    return (TRAIN + repeated_share) / TRAIN


def checkpoint_bytes(
    tokens: float, layers: int, width: float, tensors: float, dtype_bytes: float = BF16
) -> float:
    """The book's count: so many tensors of `width` per token and layer."""
    return float(dtype_bytes * tokens * layers * width * tensors)


def _one_token(seq_len: int) -> Shape:
    one = np.ones(1)
    return Shape(one, seq_len, tp=one, spread=one, ep=one, etp=one, imbalance=1.0)
