"""What a pass goes through: kinds of layers, how many of each, and the ends. Sizes are numbers or columns.

A `ModelSpec` is one model. A stack of columns is many: every size of its kinds (heads, widths, experts) may be an array
of shape [R], and layers are an array that is 0 where a candidate has none of that kind.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.costmodel.model import LayerKind, ModelSpec, Weight

Size = Any  # a number, or an array [R]


@dataclass(frozen=True)
class Stack:
    """One model or R of them.

    Attributes:
        parts: (layers, kind); embedding, final norm and head lie outside.
        embedding, final: weights of the ends. head: the matrix that makes logits, among `embedding` where tied.
    """

    parts: tuple[tuple[Size, LayerKind], ...]
    hidden: Size
    embedding: tuple[Weight, ...]
    final: tuple[Weight, ...]
    head: Weight

    @staticmethod
    def of(model: ModelSpec) -> "Stack":
        parts = tuple(zip(model.layers_by_kind, model.kinds, strict=True))
        return Stack(parts, model.hidden, model.embedding, model.head, model.head_matrix)

    @property
    def layers(self) -> Size:
        return sum(np.asarray(layers) for layers, _ in self.parts)

    @property
    def layer_params(self) -> Size:
        """Parameters of all layers, every expert counted."""
        return sum(layers * kind.params for layers, kind in self.parts)

    @property
    def active_layer_params(self) -> Size:
        """Those that one token meets."""
        return sum(layers * kind.active_params for layers, kind in self.parts)

    @property
    def end_params(self) -> Size:
        """Embedding, final norm and head; a tied head once."""
        return sum(w.params for w in (*self.embedding, *self.final))
