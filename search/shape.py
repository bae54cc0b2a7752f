"""Model shapes as columns: one row per architecture, one array per decision.

The letters of the PLAS paper (arXiv 2602.10377): l layers, d width, d_m = head_dim * kv_heads the width of keys,
gqa = heads / kv_heads, r the activated feed-forward expansion summed over the chosen experts, rho = K / E the share
of experts that a token meets. rho moves storage, never compute of a token.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Shapes:
    """Decisions of R architectures; every array has shape [R].

    Attributes:
        layers, width, heads, kv_heads, head_dim: of the transformer; heads * head_dim need not be the width.
        ffn_ratio: activated feed-forward width over the model's width, summed over chosen and shared experts.
        experts, top_k: routed ones; 1 and 1 where the feed-forward is dense.
        shared: experts that every token meets beside the chosen ones, each as wide as a routed one.
    """

    layers: Ints
    width: Ints
    heads: Ints
    kv_heads: Ints
    head_dim: Ints
    ffn_ratio: Floats
    experts: Ints
    top_k: Ints
    shared: Ints

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: Any) -> "Shapes":
        """Rows at an index array or mask."""
        return Shapes(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    @property
    def kv_width(self) -> Ints:
        """d_m: width of the keys of a token in one layer."""
        return self.head_dim * self.kv_heads

    @property
    def gqa(self) -> Floats:
        return self.heads / self.kv_heads

    @property
    def activation(self) -> Floats:
        """rho: share of the experts that a token meets, shared ones counted."""
        return (self.top_k + self.shared) / (self.experts + self.shared)

    @property
    def expert_width(self) -> Ints:
        """Width of one expert, or of the feed-forward part where it is dense, rounded to a whole channel."""
        return np.rint(self.ffn_ratio * self.width / (self.top_k + self.shared)).astype(np.int64)

    @property
    def stored_ratio(self) -> Floats:
        """Feed-forward width of all experts over the model's width."""
        return self.ffn_ratio / self.activation
