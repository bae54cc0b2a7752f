"""Recompute policies: what a layer saves, what it repeats, and which collectives it repeats.

A policy is the same for all layers of a kind. `unfused` stands for the intermediate tensors that a framework
saves beside the named ones when nothing is recomputed (`Framework.unfused_factor`).
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.framework import Framework
from meshwright.costmodel.layout import POLICIES
from meshwright.costmodel.model import LayerKind
from meshwright.costmodel.operators import OPERATORS, Shape, saved_bytes

Array = NDArray[Any]


@dataclass(frozen=True)
class Policy:
    """Attributes:
    dropped: tensors not saved.
    repeated: operators run again in backward.
    cp, ep: forward collectives of context and expert parallelism repeated (0 or 1).
    tp_scatters: tp reduce-scatters repeated. Gathers add nothing: backward gathers its sharded inputs under
        every policy.
    """

    name: str
    dropped: frozenset[str]
    repeated: frozenset[str]
    cp: int = 0
    ep: int = 0
    tp_scatters: int = 0


_ELEMENTWISE = frozenset({"norm1", "norm2", "act", "expert_act"})
_FEED_FORWARD = frozenset({"norm2", "router", "up", "act", "expert_up", "expert_act", "expert_down"})


# Index of the policy that is not chosen yet: saves as little as full recompute and repeats nothing, so what it
# costs is below every policy's. For bounds only; no layout can name it.
OPEN = len(POLICIES)


@cache
def policies_of(framework: Framework) -> tuple[Policy, ...]:
    """The policies in the order of POLICIES, as this framework runs them, and after them OPEN.

    - none: every tensor is saved.
    - elementwise: norms and activations are repeated, products are saved.
    - attention: the attention kernel is repeated.
    - mlp: the feed-forward part and its norm are repeated, with its expert exchange.
    - full: only the layer's input is saved.
    """
    everything = frozenset(OPERATORS) - {"down"}
    if framework.recomputes_last_product:
        everything |= {"down"}
    unfused = frozenset({"unfused"})
    by_name = {
        "none": Policy("none", frozenset(), frozenset()),
        "elementwise": Policy("elementwise", _ELEMENTWISE | unfused, _ELEMENTWISE),
        "attention": Policy("attention", frozenset({"core"}), frozenset({"core"}), cp=1),
        "mlp": Policy("mlp", _FEED_FORWARD | unfused, _FEED_FORWARD, ep=1),
        "full": Policy("full", frozenset(OPERATORS) | unfused, everything, cp=1, ep=1, tp_scatters=1),
    }
    leanest = Policy("open", by_name["full"].dropped, frozenset())
    return (*(by_name[name] for name in POLICIES), leanest)


def saved_tensors(framework: Framework, kind: LayerKind, shape: Shape) -> dict[str, Array]:
    """Bytes of every tensor that a layer saves per micro-batch when nothing is recomputed, `unfused` included."""
    tensors = saved_bytes(kind, shape)
    tensors["unfused"] = (framework.unfused_factor - 1.0) * np.sum(list(tensors.values()), axis=0)
    return tensors


def kept_bytes(policy: Policy, tensors: dict[str, Array]) -> Array:
    """Bytes that a policy keeps of them."""
    kept: Array = sum((b for name, b in tensors.items() if name not in policy.dropped), np.zeros(1))
    return kept


def saved_by_policy(framework: Framework, kind: LayerKind, shape: Shape) -> Array:
    """Bytes saved per layer and micro-batch under each policy, shape [policies, R]."""
    tensors = saved_tensors(framework, kind, shape)
    return np.array([kept_bytes(p, tensors) for p in policies_of(framework)])


def repeated_by_policy(framework: Framework, forward: dict[str, Array]) -> Array:
    """Seconds of repeated operators under each policy, shape [policies, R]."""
    zero = np.zeros_like(forward["core"])
    return np.array([zero + sum(forward[o] for o in p.repeated) for p in policies_of(framework)])
