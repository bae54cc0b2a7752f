"""What of a model is trained, as text: all of it, all but some parts, or low-rank adapters on frozen layers (LoRA).

    all                     every weight
    all-embedding-tower     all but parts of PARTS: table and positions, layers, final norm and head, vision tower with projector
    lora:16                 adapters of rank 16 on every product of the layers but the router; all of the model is frozen
    lora:16:qkv+out         on products of TARGETS, named after the operators of costmodel/operators.py

An adapter of a weight [k, n] is A [k, r] and B [r, n], one pair per matrix of the model (queries, keys and values apart, as
Hugging Face PEFT has them; arXiv 2106.09685). Where tensor parallelism cuts k or n, the one of A and B that has that side
is cut with it and the other is a copy on every rank, which meets all tokens; sums over ranks ride on those of the weight.

Frozen weights have no gradient, master copy or optimizer state, and their products run backward once, for the gradient of the
input. Some weight must be trained in the layers or before them: without, no backward pass runs through the layers.
"""

import re
from dataclasses import dataclass, replace

from meshwright.costmodel.backward import FIRST
from meshwright.costmodel.model import LayerKind, ModelSpec, Shard, Weight, operator_of
from meshwright.hardware.errors import WorkloadError, shown

PARTS = ("embedding", "layers", "head", "tower")
TARGETS = ("latent", "qkv", "out", "up", "down", "expert_up", "expert_down")
ALL = "all"
_MOST_RANK = 2**16
_FORM = "write all, all-embedding (parts: embedding, layers, head, tower), lora:16 or lora:16:qkv+out"

# How the two matrices of an adapter are cut, by how the weight is.
_CUTS = {
    Shard.COLUMN: (Shard.COPY, Shard.COLUMN),
    Shard.ROW: (Shard.ROW, Shard.COPY),
    Shard.REPLICATED: (Shard.REPLICATED, Shard.REPLICATED),
    Shard.EXPERT_COLUMN: (Shard.EXPERT_COPY, Shard.EXPERT_COLUMN),
    Shard.EXPERT_ROW: (Shard.EXPERT_ROW, Shard.EXPERT_COPY),
}


@dataclass(frozen=True)
class Trainable:
    """Attributes:
    frozen: parts of PARTS that are not trained.
    rank, targets: of adapters; rank 0 has none, no targets are all.
    """

    frozen: frozenset[str] = frozenset()
    rank: int = 0
    targets: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.rank:
            return ":".join(["lora", str(self.rank), *(["+".join(self.targets)] if self.targets else [])])
        return "-".join([ALL, *(part for part in PARTS if part in self.frozen)])


def parse_trainable(text: str) -> Trainable:
    """Reads the forms of the module docstring. Raises WorkloadError for anything else."""
    if not isinstance(text, str) or len(text) > 200:
        raise WorkloadError(f"trainable is {shown(text)}; {_FORM}")
    if text == ALL or text.startswith(f"{ALL}-"):
        return Trainable(frozenset(_named("part", text.split("-")[1:], PARTS, text)))
    match = re.fullmatch(r"lora:(\d{1,7})(?::([^:]+))?", text, re.ASCII)
    if match is None:
        raise WorkloadError(f"cannot read trainable {shown(text)}; {_FORM}")
    if not 1 <= (rank := int(match[1])) <= _MOST_RANK:
        raise WorkloadError(f"trainable {text}: the rank is {rank}; give a number from 1 to {_MOST_RANK}")
    targets = _named("product", match[2].split("+") if match[2] else [], TARGETS, text)
    return Trainable(frozenset(PARTS), rank, tuple(t for t in TARGETS if t in targets))


def _named(what: str, names: list[str], known: tuple[str, ...], text: str) -> list[str]:
    for name in names:
        if name not in known:
            raise WorkloadError(
                f"trainable {shown(text)}: no {what} {shown(name)}; known: {', '.join(known)}"
            )
    return names


def with_trained(model: ModelSpec, text: str, mtp: int, images: int) -> ModelSpec:
    """The model with its frozen weights marked and its adapters added.

    Raises WorkloadError where the text does not fit the model, or leaves nothing to run backward for.
    """
    what = parse_trainable(text)
    if what == Trainable():
        return model
    _check(model, what, mtp, images)
    kinds = tuple(replace(kind, weights=_layer(kind, what)) for kind in model.kinds)
    tower = model.tower
    if tower is not None and "tower" in what.frozen:
        kind = replace(tower.kind, weights=_frozen(tower.kind.weights))
        tower = replace(
            tower, kind=kind, of_patches=_frozen(tower.of_patches), projector=_frozen(tower.projector)
        )
    return replace(
        model,
        kinds=kinds,
        embedding=_frozen(model.embedding) if "embedding" in what.frozen else model.embedding,
        head=_frozen(model.head) if "head" in what.frozen else model.head,
        tower=tower,
    )  # fmt: skip


def untouched(model: ModelSpec) -> ModelSpec:
    """The model as it is before anything is said of training; inverse of `with_trained`."""

    def plain(weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
        return tuple(replace(w, trained=True) for w in weights if not w.adapts)

    tower = model.tower
    if tower is not None:
        kind = replace(tower.kind, weights=plain(tower.kind.weights))
        tower = replace(
            tower, kind=kind, of_patches=plain(tower.of_patches), projector=plain(tower.projector)
        )
    kinds = tuple(replace(kind, weights=plain(kind.weights)) for kind in model.kinds)
    return replace(model, kinds=kinds, embedding=plain(model.embedding), head=plain(model.head), tower=tower)


def trained_params(model: ModelSpec) -> int:
    """Parameters of the language model that are trained, adapters among them."""
    layers = zip(model.layers_by_kind, model.kinds, strict=True)
    held = sum(n * sum(w.params for w in kind.weights if w.trained) for n, kind in layers)
    return held + sum(w.params for w in (*model.embedding, *model.head) if w.trained)


def _frozen(weights: tuple[Weight, ...]) -> tuple[Weight, ...]:
    return tuple(replace(w, trained=False) for w in weights)


def _layer(kind: LayerKind, what: Trainable) -> tuple[Weight, ...]:
    if "layers" not in what.frozen:
        return kind.weights
    tapped = (
        w for w in kind.weights if what.rank and w.matmul and operator_of(w) in (what.targets or TARGETS)
    )
    return _frozen(kind.weights) + tuple(half for w in tapped for half in _adapter(w, what.rank))


def _adapter(weight: Weight, rank: int) -> tuple[Weight, Weight]:
    first, second = _CUTS[weight.shard]
    of = operator_of(weight)
    return (
        Weight(f"{weight.name}{FIRST}", weight.rows, rank, first, count=weight.count, adapts=of),
        Weight(f"{weight.name}.lora_b", rank, weight.cols, second, count=weight.count, adapts=of),
    )


def _check(model: ModelSpec, what: Trainable, mtp: int, images: int) -> None:
    has = {operator_of(w) for kind in model.kinds for w in kind.weights if w.matmul}
    if absent := [t for t in what.targets if t not in has]:
        there = ", ".join(t for t in TARGETS if t in has)
        raise WorkloadError(f"trainable {what}: {model.name} has no product {absent[0]}; it has {there}")
    if mtp:
        raise WorkloadError(
            f"multi-token-prediction modules are priced with the whole model trained, and trainable is {what}; "
            "use mtp=0, or trainable=all"
        )
    if what.rank:
        return
    if model.tied and ("embedding" in what.frozen) != ("head" in what.frozen):
        raise WorkloadError(
            f"trainable {what}: the head of {model.name} is its token table; freeze embedding and head together, or neither"
        )
    if "tower" in what.frozen and not images:
        raise WorkloadError(
            f"trainable {what} freezes a vision tower, and images is 0; leave tower out, or give images"
        )
    sees = images and "tower" not in what.frozen
    if {"embedding", "layers"} <= what.frozen and not sees:
        raise WorkloadError(
            f"trainable {what} trains nothing in the layers or before them, so that no backward pass runs through them, "
            "which is not priced; train the layers or the embedding, or use lora:16"
        )
