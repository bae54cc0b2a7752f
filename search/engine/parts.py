"""What shapes and the sides of their layers cost.

Every operator belongs to one side of a layer, attention or feed-forward, or to the ends, and a layer's cost repeats in
every layer. So for each resource

    cost(width, l, a, f) = ends(width) + l (attention(width, a) + ffn(width, f))

and memory has besides, not growing with l, activations(width, a, f) = max of both sides'. A side's cost is what a layer
with the option costs over one with a reference option, so these few shapes stand for their whole product.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meshwright.costmodel.inference import seconds
from meshwright.search.architecture import counts_of, stack_of
from meshwright.search.engine.question import RESOURCES, Question
from meshwright.search.grid import Side
from meshwright.search.price import Pricer
from meshwright.search.shape import Floats, Ints, Shapes

ACTIVATIONS = "activation_bytes"
LAW_SIZES = ("law parameters", "law active_parameters")  # as the law counts them
LINEAR = (*RESOURCES, *LAW_SIZES)

Columns = Mapping[str, Floats]


@dataclass
class Meter:
    """Prices shapes in every resource, and counts how many."""

    question: Question
    pricer: Pricer = field(init=False)

    def __post_init__(self) -> None:
        q = self.question
        self.pricer = Pricer(q.grid.ends, q.device, q.request, q.latency)

    @property
    def priced(self) -> int:
        return self.pricer.priced

    def costs(self, shapes: Shapes) -> dict[str, Floats]:
        """RESOURCES of every shape; the sizes as the law counts them; bytes of activations, which are in the memory."""
        q, found = self.question, self.pricer.costs(shapes)
        held = seconds.memory_bytes(stack_of(shapes, q.grid.ends), q.request)
        counts = counts_of(shapes, q.grid.ends)
        of_law = q.law.columns(shapes, counts)
        sizes = (counts.params, counts.active_params)
        as_law = (of_law.parameters, of_law.active_parameters)
        out: dict[str, Any] = {
            "prefill_s": found.prefill_s, "token_s": found.token_s, "total_s": found.total_s,
            "memory_bytes": found.memory_bytes, "params": sizes[0], "active_params": sizes[1],
            "kv_bytes": held["cache"],
            ACTIVATIONS: held["activations"] if q.latency == "full" else 0.0,
            **{name: size if law is None else law for name, size, law in zip(LAW_SIZES, sizes, as_law, strict=True)},
        }  # fmt: skip
        return {name: np.broadcast_to(np.asarray(x, float), len(shapes)) for name, x in out.items()}


@dataclass(frozen=True)
class Half:
    """Options of one side with what they cost.

    Attributes:
        start: [W + 1] where each width's options begin.
        layer: [O] by name in LINEAR, what a layer with the option adds.
        activations: [O] bytes where this side is the wider one.
    """

    side: Side
    start: Ints
    layer: Columns
    activations: Floats


@dataclass(frozen=True)
class Parts:
    """A grid as ends and halves. ends: [W] by name in LINEAR. priced: shapes that the cost model priced for it."""

    ends: Columns
    attention: Half
    ffn: Half
    priced: int


def price_parts(question: Question, attention: Side, ffn: Side) -> Parts:
    """Price the ends at every width, and every option of either side in one layer.

    The reference options are the smallest, so that of two activations the option's own is the wider; PLAS' forms
    know no activations, and want heads that fill the width.
    """
    meter, widths = Meter(question), np.array(question.grid.width)
    thin = attention_reference(widths, question.latency == "plas")
    bare = _beside(thin, ffn_reference(widths))
    ends = _linear(meter.costs(replace(bare, layers=np.zeros_like(widths))))
    reference = _linear(meter.costs(bare))
    of_attention = meter.costs(_beside(attention.shapes, ffn_reference(attention.shapes.width)))
    of_ffn = meter.costs(_beside(thin[ffn.width_at], ffn.shapes))
    return Parts(
        ends,
        _half(question, attention, of_attention, ends),
        _half(question, ffn, of_ffn, reference),
        meter.priced,
    )


def attention_reference(widths: Ints, filled: bool) -> Shapes:
    """One head of one channel, or of the whole width."""
    one = np.ones_like(widths)
    return Shapes(one, widths, one, one, widths if filled else one, 1 / widths, one, one, 0 * one)


def ffn_reference(widths: Ints) -> Shapes:
    """A dense feed-forward part of one channel."""
    return attention_reference(widths, True)


def _beside(attention: Shapes, ffn: Shapes) -> Shapes:
    """The attention of one and the feed-forward of the other."""
    names = ("ffn_ratio", "experts", "top_k", "shared")
    return replace(attention, **{name: getattr(ffn, name) for name in names})


def _linear(costs: Columns) -> Columns:
    """Without the activations, which do not repeat in layers."""
    return {n: costs[n] - costs[ACTIVATIONS] if n == "memory_bytes" else costs[n] for n in LINEAR}


def _half(question: Question, side: Side, costs: Columns, beside: Columns) -> Half:
    layer = {name: column - beside[name][side.width_at] for name, column in _linear(costs).items()}
    start = np.concatenate(([0], np.cumsum(side.per_width(len(question.grid.width)))))
    return Half(side, start, layer, costs[ACTIVATIONS])
