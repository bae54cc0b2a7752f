"""Bytes of the key-value cache of a served model, over all devices.

A token leaves keys and values of every kv head in every layer: 2 K H elements (jax-ml/scaling-book, chapter 4), or
with latent attention one latent vector and the rotary key that all heads share. A layer with a sliding window needs
the last `window` tokens only.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.costmodel.model import LayerKind, ModelSpec
from meshwright.costmodel.operators import kv_width


def cached_width(kind: LayerKind) -> Any:
    """Elements that one token leaves in one layer: a whole number, or a column where the kind's sizes are columns."""
    latent = kind.attention.latent_width
    if latent is not None:
        return latent
    width = kv_width(kind, np.array(1))
    return width if np.ndim(width) else int(width)


def cache_bytes(model: ModelSpec, tokens: float, dtype_bytes: float) -> float:
    """The cache of one sequence of `tokens`; of one token, what a sequence grows by before any window is full.

    Args:
        dtype_bytes: per element: 2 for bf16, 1 for int8, 0.5 for int4.
    """
    kinds = zip(model.layers_by_kind, model.kinds, strict=True)
    return float(sum(layers * layer_cache_bytes(kind, tokens, dtype_bytes) for layers, kind in kinds))


def layer_cache_bytes(kind: LayerKind, tokens: float, dtype_bytes: float) -> Any:
    """The same of one layer; a column where the kind's sizes are columns."""
    window = kind.attention.window
    kept = tokens if window is None else min(tokens, window)
    return kept * cached_width(kind) * dtype_bytes


# What makes a cache smaller than keys and values of every query head over the whole sequence.
SAVINGS = ("grouped heads", "latent vectors", "sliding windows")


def without(model: ModelSpec, saving: str) -> ModelSpec:
    """The model as it would be cached without one of SAVINGS; itself where it has no such saving.

    For cache sizes only: the weights stay as they are.
    """

    def plain(kind: LayerKind) -> LayerKind:
        a = kind.attention
        changed = {
            "grouped heads": replace(a, kv_heads=a.heads),
            "latent vectors": replace(a, latent_width=None),
            "sliding windows": replace(a, window=None),
        }[saving]
        return replace(kind, attention=changed)

    return replace(model, kinds=tuple(plain(kind) for kind in model.kinds))
