"""What variants cost on one device, by the cost model operator by operator (`costmodel.inference`).

An attention variant has the operators up to its output product and the first norm, a feed-forward variant the rest, so
costs of the two parts add. What belongs to no part is constant: token table, head, and the launches of every layer,
also of one that loses a part, since nobody measured how launches divide.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.costmodel.doors import check_positive, check_whole
from meshwright.costmodel.inference.request import Pass, Request
from meshwright.costmodel.inference.seconds import Device, Machine, cache_of, ends_s, memory_bytes, operator_s
from meshwright.costmodel.inference.stack import Stack
from meshwright.costmodel.inference.work import ATTENTION, FFN, layer_work
from meshwright.costmodel.model import LayerKind, ModelSpec, Weight
from meshwright.hardware.errors import ModelError, WorkloadError
from meshwright.search.layers.problem import Floats
from meshwright.search.layers.variants import AttentionVariant, FfnVariant, Variants, is_ffn

# Costs of a table; a scores file may give all but the last, the activations of a prefill, which are a constant.
COSTS = ("prefill_s", "decode_s", "weight_bytes", "kv_bytes", "params", "activation_bytes")


@dataclass(frozen=True)
class Asked:
    """A batch of equal sequences: `prompt` tokens are prefilled, a step decodes with `context` tokens in the cache."""

    batch: int
    prompt: int
    context: int
    weight_bytes: float
    kv_bytes: float

    def __post_init__(self) -> None:
        check_whole(WorkloadError, batch=self.batch, prompt=self.prompt)
        check_whole(WorkloadError, 2, context=self.context)
        check_positive(WorkloadError, weight_bytes=self.weight_bytes, kv_bytes=self.kv_bytes)

    @property
    def prefill(self) -> Pass:
        return self.filled.prefill

    @property
    def decode(self) -> Pass:
        """The token that is made is the last of the context."""
        return self.held.decode

    @property
    def held(self) -> Request:
        """The request that ends with the context in the cache."""
        return self._request(self.context - 1)

    @property
    def filled(self) -> Request:
        """The request of the prompt alone."""
        return self._request(self.prompt)

    def _request(self, prompt: int) -> Request:
        return Request(self.batch, prompt, 1, self.weight_bytes, self.kv_bytes)


@dataclass(frozen=True)
class Prices:
    """Costs by layer, variant and kind of cost; NaN where the cost model has no operators for a variant.

    Attributes:
        attention: [L, A, K]; ffn: [L, F, K]; constant: [K].
    """

    attention: Floats
    ffn: Floats
    constant: Floats


def price(model: ModelSpec, variants: Variants, device: Device, asked: Asked) -> Prices:
    """Errors: ModelError where parts of a layer cannot be told apart; InputError where a variant does not fit the base."""
    for kind in model.kinds:
        _check(model, kind)
    attention = np.array([[_attention(v, k, device, asked) for v in variants.attention] for k in model.kinds])
    ffn = np.array([[_ffn(v, k, device, asked) for v in variants.ffn] for k in model.kinds])
    pattern = list(model.pattern)
    return Prices(attention[pattern], ffn[pattern], _constant(model, variants, device, asked))


def _attention(variant: AttentionVariant, base: LayerKind, device: Device, asked: Asked) -> list[float]:
    if variant.linear or variant.none:
        return _nothing(known=variant.none)
    kind = variant.of(base)
    weights = [w for w in kind.weights if not _in_ffn(kind, w)]
    return _costs(kind, ATTENTION, weights, float(cache_of(kind, asked.held)), device, asked)


def _ffn(variant: FfnVariant, base: LayerKind, device: Device, asked: Asked) -> list[float]:
    if variant.none:
        return _nothing(known=True)
    kind = variant.of(base)
    weights = [w for w in kind.weights if _in_ffn(kind, w)]
    return _costs(kind, FFN, weights, 0.0, device, asked)


def _nothing(known: bool) -> list[float]:
    return [0.0 if known or name == "activation_bytes" else np.nan for name in COSTS]


def _costs(
    kind: LayerKind,
    names: tuple[str, ...],
    weights: list[Weight],
    kv_bytes: float,
    device: Device,
    asked: Asked,
) -> list[float]:
    params = sum(w.params for w in weights)
    prefill = _seconds(kind, names, asked.prefill, device.prefill)
    decode = _seconds(kind, names, asked.decode, device.decode)
    return [prefill, decode, params * asked.weight_bytes, kv_bytes, float(params), 0.0]


def _seconds(kind: LayerKind, names: tuple[str, ...], p: Pass, machine: Machine) -> float:
    work = layer_work(kind, p)
    return float(sum(operator_s(name, work[name], machine) for name in names if name in work))


def _constant(model: ModelSpec, variants: Variants, device: Device, asked: Asked) -> Floats:
    stack = Stack.of(model)
    prefill = (
        sum(ends_s(stack, asked.prefill, device.prefill).values()) + model.layers * device.prefill.layer_s
    )
    decode = sum(ends_s(stack, asked.decode, device.decode).values()) + model.layers * device.decode.layer_s
    ends = float(stack.end_params)
    widest = [(1, variant) for variant in _kinds(model, variants)]
    every = Stack(tuple(widest), stack.hidden, stack.embedding, stack.final, stack.head)
    activations = memory_bytes(every, asked.filled)["activations"]
    return np.array([prefill, decode, ends * asked.weight_bytes, 0.0, ends, float(activations)])


def _kinds(model: ModelSpec, variants: Variants) -> list[LayerKind]:
    """Every layer that some choice makes, each variant beside the base's other part."""
    made = [v.of(k) for k in model.kinds for v in variants.attention if not (v.linear or v.none)]
    return made + [v.of(k) for k in model.kinds for v in variants.ffn if not v.none] + list(model.kinds)


def _in_ffn(kind: LayerKind, weight: Weight) -> bool:
    """Norms stand before the part that reads them, and after it where a family norms outputs."""
    if weight.name.startswith("post_attention_norm"):
        return not any("feedforward_norm" in w.name for w in kind.weights)
    return is_ffn(weight) or "feedforward_norm" in weight.name


def _check(model: ModelSpec, kind: LayerKind) -> None:
    if kind.parallel:
        raise ModelError(
            f"{model.name}: attention and feed-forward of a layer read the same norm and run side by side, so their costs "
            "do not part; take a base whose layers run one after the other"
        )
