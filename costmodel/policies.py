"""Recompute policies: what a layer saves and where, what it repeats, and which collectives it repeats.

The tensors of a layer depend on each other:

    input -> norm1 -> latent -> qkv -> core -> out -> norm2 -> up -> act
                                                           -> router -> expert_up -> expert_act -> expert_down

Backward wants all of them. One that is not saved is made again by its operator, from tensors that are saved or made
again themselves. Making `core` again repeats the pass of keys and values over context-parallel ranks, `out` a
reduce-scatter over tp, `router` and `expert_down` an exchange with the experts (and with etp a scatter). Gathers over
tp add nothing: backward gathers its sharded inputs under every policy. Intermediate results (`unfused`) are made
again by running the feed-forward part's elementwise work again.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.backward import unread_tensors
from meshwright.costmodel.flops import OPERATORS
from meshwright.costmodel.framework import Framework
from meshwright.costmodel.model import LayerKind, operator_of
from meshwright.costmodel.operators import Shape, saved_bytes
from meshwright.costmodel.tensors import CODES, DROPPED, HOST, OPEN, POLICIES, TENSORS, bits

Array = NDArray[Any]

# Operators that run again for the intermediate results.
UNFUSED_OPERATORS = frozenset({"norm2", "act", "expert_act"})
_AT = {name: i for i, name in enumerate(TENSORS)}
_EVERY = bits(TENSORS)


@dataclass(frozen=True)
class Policy:
    """Attributes:
    dropped: tensors not saved.
    repeated: operators run again in backward.
    """

    name: str
    dropped: frozenset[str]
    repeated: frozenset[str]


@cache
def policies_of(framework: Framework) -> tuple[Policy, ...]:
    """The named policies in the order of POLICIES, as this framework runs them.

    - none: every tensor is saved.
    - elementwise: norms and activations are repeated, products are saved.
    - attention: the attention kernel is repeated.
    - mlp: the feed-forward part and its norm are repeated, with its expert exchange.
    - full: only the layer's input is saved.
    """
    last = {"down"} if framework.recomputes_last_product else set()
    everything = DROPPED["full"]
    return tuple(
        Policy(name, dropped, repeated_operators(dropped) | (last if dropped == everything else frozenset()))
        for name, dropped in DROPPED.items()
    )


def repeated_operators(dropped: frozenset[str]) -> frozenset[str]:
    """Operators that run again where these tensors are not saved."""
    return dropped & set(OPERATORS) | (UNFUSED_OPERATORS if "unfused" in dropped else frozenset())


def tensor_bits(framework: Framework, kind: LayerKind) -> int:
    """Bits of the tensors that a layer of the kind has."""
    ffn = kind.ffn
    names = {"input", "norm1", "qkv", "core"}
    names |= set() if kind.parallel else {"out", "norm2"}
    names |= {"up", "act"} if ffn.width else set()
    names |= {"router", "expert_up", "expert_act", "expert_down"} if ffn.experts else set()
    names |= {"latent"} if any(operator_of(w) == "latent" and w.matmul for w in kind.weights) else set()
    names -= set(unread_tensors(kind))
    return bits(names | ({"unfused"} if framework.unfused_factor > 1 else set()))


def saved_tensors(framework: Framework, kind: LayerKind, shape: Shape) -> dict[str, Array]:
    """Bytes of every tensor that a layer saves per micro-batch when nothing is recomputed, `unfused` included."""
    tensors = saved_bytes(kind, shape)
    tensors["unfused"] = (framework.unfused_factor - 1.0) * np.sum(list(tensors.values()), axis=0)
    return tensors


def kept_bytes(policy: Policy, tensors: dict[str, Array]) -> Array:
    """Bytes that a policy keeps of them."""
    kept: Array = sum((b for name, b in tensors.items() if name not in policy.dropped), np.zeros(1))
    return kept


@dataclass(frozen=True)
class Chosen:
    """What the policies of Q layers cost, per layer and micro-batch; shape [Q].

    Attributes:
        device, host: bytes saved on the device and on its host.
        repeated_s: seconds of operators that run again. repeats: whether any does.
        passes, scatters, exchanges: forward collectives of cp, tp and ep that are repeated; of `expert_scatters`,
            those over tp inside experts.
    """

    device: Array
    host: Array
    repeated_s: Array
    repeats: Array
    passes: Array
    scatters: Array
    expert_scatters: Array
    exchanges: Array

    @property
    def saved(self) -> Array:
        return self.device + self.host


@dataclass(frozen=True)
class Costs:
    """What policies of one layer kind are priced with, on U shapes.

    Attributes:
        present: bits of the tensors that the kind has.
        tensor_bytes: [U, tensors]. operator_s: forward seconds of the operator of each tensor, [U, tensors].
        last_s: seconds of the last product where repeating everything repeats it too, [U].
    """

    present: int
    tensor_bytes: Array
    operator_s: Array
    last_s: Array

    @staticmethod
    def of(framework: Framework, kind: LayerKind, shape: Shape, forward: dict[str, Array]) -> "Costs":
        tensors = saved_tensors(framework, kind, shape)
        none = np.zeros_like(shape.tokens)
        last = forward["down"] if framework.recomputes_last_product else none
        if kind.parallel and framework.recomputes_last_product:
            last = last + forward["out"]  # summed into the layer's output like the last product
        again = {name: seconds for name, seconds in forward.items() if name in tensors}
        for name, made in unread_tensors(kind).items():
            # Made again together with what is made of it, or with the intermediate results that come of it too.
            of = "unfused" if framework.unfused_factor > 1 and name in UNFUSED_OPERATORS else made
            if of:
                again[of] = again.get(of, none) + forward[name]
            elif framework.recomputes_last_product:
                last = last + forward[name]
        return Costs(
            tensor_bits(framework, kind),
            np.stack([tensors.get(name, none) for name in TENSORS], axis=-1),
            np.stack([again.get(name, none) for name in TENSORS], axis=-1),
            last,
        )

    def largest(self, framework: Framework) -> Array:
        """Bytes of the largest tensor that may be on the host, [U]; of any where the framework offloads all it saves."""
        able = [_AT[n] for n in framework.offloads] or list(range(len(TENSORS)))
        out: Array = self.tensor_bytes[:, able].max(axis=1)
        return out

    def priced(self, codes: Array, at: Array) -> Chosen:
        """Policies `codes` on shapes `at`, [Q] each."""
        present = (self.present >> np.arange(len(TENSORS))) & 1
        opened = (codes & OPEN) > 0
        dropped, on_host = dropped_bits(codes) * present, host_bits(codes) * present
        again = dropped.copy()
        for name in UNFUSED_OPERATORS:
            again[:, _AT[name]] |= dropped[:, _AT["unfused"]]
        again[opened] = 0
        everything = dropped.sum(axis=1) == present.sum() - 1
        size = self.tensor_bytes[at]
        repeated = np.einsum("qt,qt->q", again, self.operator_s[at])
        repeated = repeated + np.where(everything & ~opened, self.last_s[at], 0.0)
        crosses = {name: again[:, _AT[name]] for name in ("core", "out", "router", "expert_down")}
        return Chosen(
            device=np.einsum("qt,qt->q", present * (1 - dropped) * (1 - on_host), size),
            host=np.einsum("qt,qt->q", on_host, size),
            repeated_s=repeated,
            repeats=again.any(axis=1),
            passes=crosses["core"],
            scatters=crosses["out"],
            expert_scatters=crosses["expert_down"],
            exchanges=crosses["router"] + crosses["expert_down"],
        )


def open_code(offloads: bool) -> int:
    """The policy not chosen yet: only the input is saved, on the device unless the host may have it; nothing repeats.

    What the host holds of it is not counted, since a policy may keep there as little as it likes.
    """
    return OPEN | bits(set(TENSORS) - (set() if offloads else {"input"}))


def named_column(codes: Array) -> Array:
    """Index of `named` in (*POLICIES, OTHER) of each code."""
    out = np.full(codes.shape, len(POLICIES))
    for index, name in enumerate(POLICIES):
        out[(codes & _EVERY) == CODES[name]] = index
    return out


def dropped_bits(codes: Array) -> Array:
    """1 where backward makes a tensor again, [..., tensors]."""
    out: Array = (codes[..., None] >> np.arange(len(TENSORS))) & 1
    return out


def host_bits(codes: Array) -> Array:
    """1 where a tensor is saved on the host, [..., tensors]."""
    out: Array = (codes[..., None] >> np.arange(HOST, HOST + len(TENSORS))) & 1
    return out
