"""What a model is: weights, attention geometry and layer kinds. No file format is known here.

A layer kind lists its weights; from that one list come the exact parameter count, the bytes on a device
under a sharding, and the matrix products with their FLOPs.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Shard(StrEnum):
    """How tensor (and expert) parallelism cuts a weight."""

    COLUMN = "column"  # output dimension over tp
    ROW = "row"  # input dimension over tp; its product is reduced over tp
    REPLICATED = "replicated"  # a copy on every tp rank
    VOCAB = "vocab"  # vocabulary dimension over tp
    EXPERT_COLUMN = "expert_column"  # routed expert: `count` over ep, output dimension over etp
    EXPERT_ROW = "expert_row"  # routed expert: `count` over ep, input dimension over etp
    COPY = "copy"  # of adapters: a copy on every tp rank, that meets all tokens there
    EXPERT_COPY = "expert_copy"  # of a routed expert's adapters: `count` over ep, a copy on every etp rank


@dataclass(frozen=True)
class Weight:
    """`count` equal tensors of `rows x cols` (input width x output width; a vector has rows = 1)."""

    name: str
    rows: int
    cols: int
    shard: Shard
    matmul: bool = True  # every token (or every routed token) is multiplied by it
    count: int = 1  # experts
    trained: bool = True  # it has gradients
    adapts: str = ""  # of a low-rank adapter (costmodel/trainable.py): the operator that it is part of

    @property
    def params(self) -> int:
        return self.rows * self.cols * self.count

    @property
    def routed(self) -> bool:
        return self.shard in (Shard.EXPERT_COLUMN, Shard.EXPERT_ROW, Shard.EXPERT_COPY)


def operator_of(weight: Weight) -> str:
    """The operator of a layer (costmodel/operators.py) that a product belongs to."""
    if weight.adapts:
        return weight.adapts
    if weight.name.startswith("attn."):
        return {Shard.ROW: "out", Shard.REPLICATED: "latent"}.get(weight.shard, "qkv")
    if weight.name.startswith("router"):
        return "router"
    if weight.routed:
        return "expert_down" if weight.shard is Shard.EXPERT_ROW else "expert_up"
    return "down" if weight.shard is Shard.ROW else "up"


@dataclass(frozen=True)
class Attention:
    """Geometry of one attention layer; widths are per head. The projections are in the kind's weights."""

    heads: int
    kv_heads: int  # for latent attention: as the training-time product sees it, equal to heads
    qk_head_dim: int
    v_head_dim: int
    window: int | None = None  # sliding window in tokens; None is full causal attention
    latent_width: int | None = None  # cached width per token of latent attention (kv_lora_rank + rope part)
    causal: bool = True  # a query meets itself and what is before it; not in a vision tower


@dataclass(frozen=True)
class Ffn:
    """Feed-forward part. Dense: `width`. Mixture: `experts` of `expert_width`, `top_k` of them a token."""

    width: int  # dense width; for a mixture the summed width of its shared experts (0 if none)
    gated: bool  # three matrices (gate, up, down) instead of two
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0
    # Further passes of the expert width where no fused kernel has the activation, as one with biases and clamps.
    plain_widths: int = 0


@dataclass(frozen=True)
class LayerKind:
    """One kind of layer: everything that layers of the kind share."""

    name: str  # 'dense', 'moe', 'sliding', 'global', 'sliding_moe' ...
    weights: tuple[Weight, ...]
    attention: Attention
    ffn: Ffn
    norms: int  # norm applications over the full width per token
    parallel: bool = False  # attention and feed-forward read the same normed input (gpt_neox, falcon)

    @property
    def params(self) -> int:
        return sum(w.params for w in self.weights if not w.adapts)

    @property
    def active_params(self) -> int:
        """Parameters that one token meets."""
        own = [w for w in self.weights if not w.adapts]
        return sum(w.params if not w.routed else w.params // w.count * self.ffn.top_k for w in own)


@dataclass(frozen=True)
class Mtp:
    """Multi-token prediction: modules after the last layer, each of which predicts one token further on.

    A module normalizes the hidden states before it and the embeddings of shifted tokens, joins both in a product
    2 D -> D, runs a layer, and has its own norm before the head. Token table and head are the model's own. As released
    with deepseek-ai/DeepSeek-V3 (README_WEIGHTS.md: enorm, hnorm, eh_proj, a layer, shared_head.norm) and as
    Megatron-Core builds it (megatron/core/transformer/multi_token_prediction.py).
    """

    modules: int  # that the model was published with
    kind: int  # of the layer in each
    weights: tuple[Weight, ...]  # of one module beside its layer


@dataclass(frozen=True)
class Tower:
    """A vision tower with its projector: what makes tokens of images before the first layer of the language model.

    An image is cut into patches, which all layers see; the projector turns them into fewer tokens of the sequence.
    """

    hidden: int
    kind: LayerKind
    layers: int
    patches: int  # of one image
    tokens: int  # that one image takes of a sequence
    of_patches: tuple[Weight, ...]  # beside the layers: patch product, positions, last norm
    projector: tuple[Weight, ...]  # of what becomes tokens

    @property
    def ends(self) -> tuple[Weight, ...]:
        """Weights beside the layers."""
        return self.of_patches + self.projector


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only language model.

    `embedding` holds the input side (token table, learned positions, embedding norm or projection);
    `head` the output side (final norm, head matrix unless tied). `pattern[i]` is the kind of layer i.
    """

    name: str
    model_type: str
    hidden: int
    vocab: int
    kinds: tuple[LayerKind, ...]
    pattern: tuple[int, ...]
    embedding: tuple[Weight, ...]
    head: tuple[Weight, ...]
    tied: bool
    max_seq_len: int | None = None
    notes: tuple[str, ...] = ()  # what the reader left out or assumed, for the user
    mtp: Mtp | None = None  # counted neither in `params` nor in `active_params`
    tower: Tower | None = None  # likewise

    @property
    def layers(self) -> int:
        return len(self.pattern)

    @cached_property
    def layers_by_kind(self) -> tuple[int, ...]:
        counts = Counter(self.pattern)
        return tuple(counts[k] for k in range(len(self.kinds)))

    @cached_property
    def params(self) -> int:
        """Every distinct weight once; a tied head once."""
        ends = sum(w.params for w in (*self.embedding, *self.head))
        return ends + sum(n * k.params for n, k in zip(self.layers_by_kind, self.kinds, strict=True))

    @cached_property
    def active_params(self) -> int:
        """Parameters that one token meets, both embeddings included."""
        ends = sum(w.params for w in (*self.embedding, *self.head))
        return ends + sum(n * k.active_params for n, k in zip(self.layers_by_kind, self.kinds, strict=True))

    @cached_property
    def mtp_params(self) -> int:
        """Parameters of one multi-token-prediction module that only it has; 0 where the model has none."""
        if self.mtp is None:
            return 0
        return self.kinds[self.mtp.kind].params + sum(w.params for w in self.mtp.weights)

    @cached_property
    def mtp_stored_params(self) -> int:
        """Parameters of one module as model files store it: with copies of the token table and of the head."""
        return self.mtp_params and self.mtp_params + self.table.params + self.head_matrix.params

    @cached_property
    def tower_params(self) -> int:
        """Parameters of vision tower and projector; 0 where the model has none."""
        if self.tower is None:
            return 0
        return self.tower.layers * self.tower.kind.params + sum(w.params for w in self.tower.ends)

    @cached_property
    def table(self) -> Weight:
        """The token table."""
        return next(w for w in self.embedding if w.shard is Shard.VOCAB)

    @cached_property
    def head_matrix(self) -> Weight:
        """The matrix that makes logits: its own, or the token table when tied."""
        weights = self.embedding if self.tied else self.head
        return next(w for w in weights if w.shard is Shard.VOCAB)
