"""One width of a grid as a table: options of both sides, what they cost, and how a sum meets a rule.

Costs of a shape are `ends + layers * (attention + ffn)` (`engine.parts`); the activations in memory come on top. Arrays
over layers, feed-forward options and attention options have the axes [L], [F] and [A], in this order.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.search.engine.parts import ACTIVATIONS, Columns, Half, Parts
from meshwright.search.engine.question import Rule
from meshwright.search.shape import Array, Floats, Ints, Shapes

EXACT = 1e-11  # relative: tables and the cost model add in different orders


@dataclass(frozen=True)
class Table:
    """One width.

    Attributes:
        at: which width of the grid. layers, layer_place: [L] values of the axis and where they stand on it.
        ends: by resource. attention, ffn: [A], [F] by resource, and ACTIVATIONS; their places are in a listing.
    """

    at: int
    width: int
    layers: Ints
    layer_place: Ints
    ends: Mapping[str, float]
    attention_shapes: Shapes
    ffn_shapes: Shapes
    attention_place: Ints
    ffn_place: Ints
    attention: Columns
    ffn: Columns

    @property
    def pairs(self) -> int:
        return len(self.attention_shapes) * len(self.ffn_shapes)

    def cost(self, resource: str, layers: Array, ffn: Array, attention: Array) -> Floats:
        """Of shapes at numbers of layers and options that broadcast; exact but for the order of adding."""
        layer = self.ffn[resource][ffn] + self.attention[resource][attention]
        out: Floats = self.ends[resource] + layers * layer
        if resource == "memory_bytes":
            out = out + np.maximum(self.ffn[ACTIVATIONS][ffn], self.attention[ACTIVATIONS][attention])
        return out

    def room(self, rule: Rule, layers: Array) -> Floats:
        """What a rule leaves both sides of a layer together in the rule's direction, [L, F]: a little more than true,
        and where activations count, as if attention had the least that serve the rule."""
        rest = rule.sign * (rule.limit - self.ends[rule.resource]) + EXACT * (
            abs(rule.limit) + self.ends[rule.resource]
        )
        room = np.broadcast_to(rest / layers, (len(layers),))[:, None]
        if rule.resource != "memory_bytes":
            return room
        least = self.attention[ACTIVATIONS]
        beside = np.maximum(self.ffn[ACTIVATIONS], least.min() if rule.sign > 0 else least.max())
        return np.asarray(room - rule.sign * beside / layers[:, None])


def tables_of(parts: Parts, widths: Ints, layers: Ints, layer_place: Ints) -> list[Table]:
    """A table for every width that has options of both sides."""
    out = []
    for at, width in enumerate(widths.tolist()):
        a, f = _of(parts.attention, at), _of(parts.ffn, at)
        if len(a[0]) and len(f[0]):
            ends = {name: float(column[at]) for name, column in parts.ends.items()}
            out.append(Table(at, width, layers, layer_place, ends, a[0], f[0], a[1], f[1], a[2], f[2]))
    return out


def _of(half: Half, at: int) -> tuple[Shapes, Ints, Columns]:
    rows = slice(int(half.start[at]), int(half.start[at + 1]))
    columns = {name: column[rows] for name, column in half.layer.items()}
    return half.side.shapes[rows], half.side.place[rows], columns | {ACTIVATIONS: half.activations[rows]}
