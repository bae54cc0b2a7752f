"""Models of a few layers, drawn at random: dense, mixtures, dense-first mixtures, sliding and global layers."""

from dataclasses import replace
from random import Random

from meshwright.costmodel.model import Attention, Ffn, LayerKind, ModelSpec, Shard, Tower
from meshwright.costmodel.readers import blocks
from meshwright.costmodel.readers.fields import Fields
from meshwright.costmodel.readers.mtp import with_modules

# (heads, kv heads): primes, shared kv heads, and kv heads that tp passes.
_HEADS = ((2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (3, 3), (6, 2), (6, 6), (8, 2))


def draw_model(random: Random, layers: int, mixture: bool, two_kinds: bool) -> ModelSpec:
    """A model whose head may outweigh its layers."""
    heads, kv = random.choice(_HEADS)
    head_dim = random.choice((64, 128, 256))
    hidden = random.choice((512, 1024, 1536, 2048, 4096))
    attention = Attention(heads, kv, head_dim, head_dim)
    width = random.choice((1024, 1536, 3072, 8192, 6 * 1024 + 2))
    dense = layer_kind("dense", hidden, attention, Ffn(width, gated=random.random() < 0.7))
    kinds: tuple[LayerKind, ...] = (dense,)
    pattern = (0,) * layers
    if mixture:
        experts = random.choice((2, 3, 4, 6, 8))
        ffn = Ffn(
            width=random.choice((0, 0, 1024)),
            gated=True,
            experts=experts,
            top_k=random.randint(1, 2),
            expert_width=random.choice((512, 1024, 2048, 1026)),
        )
        moe = layer_kind("moe", hidden, attention, ffn)
        first = random.randint(1, max(1, layers - 1))
        alternate = tuple(i % 2 for i in range(layers))
        kinds = (dense, moe) if two_kinds else (moe,)
        if two_kinds:
            pattern = random.choice((tuple(int(i >= first) for i in range(layers)), alternate))
    elif two_kinds:
        near = replace(
            dense, name="sliding", attention=replace(attention, window=random.choice((64, 256, 1000)))
        )
        every = random.choice((2, 3))
        kinds, pattern = (near, dense), tuple(int(i % every == every - 1) for i in range(layers))
    kinds, pattern = _used(kinds, pattern)
    vocab = random.choice((2_000, 16_000, 64_000, 128_000, 250_001))
    return assemble(hidden, vocab, kinds, pattern, tied=random.random() < 0.4)


def assemble(
    hidden: int, vocab: int, kinds: tuple[LayerKind, ...], pattern: tuple[int, ...], tied: bool
) -> ModelSpec:
    return ModelSpec(
        "tiny",
        "tiny",
        hidden,
        vocab,
        kinds,
        pattern,
        blocks.table(vocab, hidden),
        blocks.norm("norm", hidden) + blocks.head(vocab, hidden, tied),
        tied,
    )


def looking_ahead(model: ModelSpec, modules: int) -> ModelSpec:
    """The model with multi-token-prediction modules."""
    return with_modules(Fields({}, "tiny", "tiny"), model, modules)


def seeing(random: Random, model: ModelSpec) -> ModelSpec:
    """The model with a vision tower, which may outweigh its layers."""
    heads, width = random.choice(((2, 1024), (4, 1536), (6, 3072), (4, 1026)))
    return replace(
        model,
        tower=tower(
            model.hidden,
            width=heads * random.choice((64, 128)),
            heads=heads,
            ffn=width,
            layers=random.choice((1, 2, 3, 6)),
            patches=random.choice((144, 576, 1600, 4096)),
            tokens=random.choice((36, 144, 256)),
        ),
    )


def some_trained(model: ModelSpec) -> list[str]:
    """What of the model may be trained where it is not all, as text."""
    experts, dense = (any(getattr(k.ffn, name) for k in model.kinds) for name in ("experts", "width"))
    out = ["lora:4", "lora:16:qkv", "lora:300:out", "all-embedding-head", "all-layers"]
    out += ["lora:8:up+down", "lora:64:down"] if dense else []
    out += ["lora:8:expert_up+expert_down", "lora:2:qkv+expert_up"] if experts else []
    out += [] if model.tied else ["all-head", "all-embedding", "all-layers-head"]
    return out + (["all-tower", "all-layers-tower", "all-embedding-layers-head"] if model.tower else [])


def tower(hidden: int, width: int, heads: int, ffn: int, layers: int, patches: int, tokens: int) -> Tower:
    a, part = Attention(heads, heads, width // heads, width // heads, causal=False), Ffn(ffn, gated=False)
    return Tower(
        hidden=width,
        kind=layer_kind("vision", width, a, part),
        layers=layers,
        patches=patches,
        tokens=tokens,
        of_patches=blocks.linear("patches", 588, width, Shard.REPLICATED, bias=True)
        + blocks.positions(patches, width)
        + blocks.norm("last_norm", width),
        projector=blocks.linear("projector", width, hidden, Shard.REPLICATED),
    )


def layer_kind(name: str, hidden: int, a: Attention, ffn: Ffn) -> LayerKind:
    weights = blocks.norm("norm1", hidden) + blocks.attention(hidden, a) + blocks.norm("norm2", hidden)
    if ffn.experts:
        weights += blocks.mixture(hidden, ffn)
    elif ffn.gated:
        weights += blocks.gated_ffn(hidden, ffn.width)
    else:
        weights += blocks.plain_ffn(hidden, ffn.width, bias=False)
    return LayerKind(name, weights, a, ffn, norms=2)


def _used(
    kinds: tuple[LayerKind, ...], pattern: tuple[int, ...]
) -> tuple[tuple[LayerKind, ...], tuple[int, ...]]:
    """Without kinds that no layer has; kinds numbered as they first appear."""
    order = list(dict.fromkeys(pattern))
    return tuple(kinds[k] for k in order), tuple(order.index(k) for k in pattern)
