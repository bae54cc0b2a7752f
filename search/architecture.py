"""Shapes as models: gated feed-forward, a norm of every query and key head, no biases, one token table.

That is `qwen3` where a shape is dense, `qwen3_moe` where it has experts and `glm4_moe` where shared ones stand beside
them, so winners load back from a config.json (`search.output.config`).
Columns of shapes become one stack: a kind for dense rows, one for rows with experts and one for rows with shared ones
too, each with 0 layers in rows of another kind.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.costmodel.inference.stack import Stack
from meshwright.costmodel.model import Attention, Ffn, LayerKind, ModelSpec, Shard
from meshwright.costmodel.readers.blocks import (
    attention,
    gated_ffn,
    head,
    mixture,
    norm,
    table,
)
from meshwright.hardware.errors import check_type
from meshwright.search.shape import Floats, Shapes


@dataclass(frozen=True)
class Ends:
    """What every shape of a search has around its layers."""

    vocab: int
    tied: bool


@dataclass(frozen=True)
class Counts:
    """Parameters of R shapes: all of them, those that a token meets, and those of embedding and head (in both)."""

    params: Floats
    active_params: Floats
    end_params: Floats


FAMILY = {
    "dense": "qwen3",
    "moe": "qwen3_moe",
    "moe_shared": "glm4_moe",
}  # who publishes such a kind of layer


def stack_of(shapes: Shapes, ends: Ends) -> Stack:
    """All rows as one stack of columns [R]."""
    dense = shapes.experts == 1
    routed = ~dense & (shapes.shared == 0)
    masks = {"dense": dense, "moe": routed, "moe_shared": ~dense & ~routed}
    parts = tuple((shapes.layers * mask, _kind(shapes, name)) for name, mask in masks.items() if mask.any())
    width: Any = shapes.width  # the blocks take columns as well as numbers
    embedding = table(ends.vocab, width)
    final = norm("final_norm", width) + head(ends.vocab, width, ends.tied)
    matrix = next(w for w in (embedding if ends.tied else final) if w.shard is Shard.VOCAB)
    return Stack(parts, width, embedding, final, matrix)


def counts_of(shapes: Shapes, ends: Ends) -> Counts:
    """Exact parameter counts of every row."""
    stack = stack_of(shapes, ends)
    around = np.asarray(stack.end_params, float)
    return Counts(stack.layer_params + around, stack.active_layer_params + around, around)


def model_of(shapes: Shapes, row: int, ends: Ends, name: str = "searched") -> ModelSpec:
    """One row as a model.

    Errors: InputError for a row that is no whole number; IndexError for one that is not there.
    """
    check_type("row", row, int, "the number of a shape")
    one = shapes[np.array([row])]
    number = {f: int(getattr(one, f)[0]) for f in ("layers", "width", "experts", "shared")}
    kind = _kind(_Scalar(one), kind_name(number["experts"], number["shared"]))
    width = number["width"]
    return ModelSpec(
        name=name,
        model_type=FAMILY[kind.name],
        hidden=width,
        vocab=ends.vocab,
        kinds=(kind,),
        pattern=(0,) * number["layers"],
        embedding=table(ends.vocab, width),
        head=norm("final_norm", width) + head(ends.vocab, width, ends.tied),
        tied=ends.tied,
    )


class _Scalar:
    """One row's decisions as whole numbers, in place of columns."""

    def __init__(self, one: Shapes) -> None:
        for name in ("width", "heads", "kv_heads", "head_dim", "experts", "top_k", "shared", "expert_width"):
            setattr(self, name, int(getattr(one, name)[0]))


def kind_name(experts: int, shared: int) -> str:
    """Of the layers of a shape."""
    return "dense" if experts == 1 else "moe_shared" if shared else "moe"


def _kind(shapes: Any, name: str) -> LayerKind:
    """The layer of that kind, as numbers or as columns."""
    hidden = shapes.width
    a = Attention(shapes.heads, shapes.kv_heads, shapes.head_dim, shapes.head_dim)
    wide = shapes.expert_width
    if name == "dense":
        part = Ffn(wide, gated=True)
        matrices = gated_ffn(hidden, wide)
    else:
        part = Ffn(0, True, shapes.experts, shapes.top_k, wide)
        matrices = mixture(hidden, part)
        if name == "moe_shared":
            together = shapes.shared * wide
            part = Ffn(together, True, part.experts, part.top_k, wide)
            matrices += gated_ffn(hidden, together, name="shared")
    norms = norm("input_norm", hidden) + norm("post_attention_norm", hidden)
    return LayerKind(name, attention(hidden, a, qk_norm="head") + norms + matrices, a, part, norms=2)
