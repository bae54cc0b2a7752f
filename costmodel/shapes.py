"""Layer properties by shape: computed on the few distinct shapes of a table, read by every row.

What a layer computes, saves and holds depends on micro-batch, cp, tp, sp, ep and etp only; a table of a hundred
thousand rows has a few hundred such shapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.model import LayerKind, Shard, Weight
from meshwright.costmodel.operators import (
    Shape,
    backward_s,
    embedding_s,
    forward_s,
    head_product_s,
    head_s,
    saved_bytes,
    tensor_bytes,
    tp_ways,
    weight_grad_s,
)
from meshwright.costmodel.policies import Chosen, Costs
from meshwright.costmodel.rows import Rows, distinct_values
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.tensors import CODES
from meshwright.costmodel.trainable import ALL

Array = NDArray[Any]
SHAPE_COLUMNS = ("micro_batch", "cp", "tp", "sp", "ep", "etp")


def distinct(rows: Rows, names: Sequence[str]) -> tuple[Array, Array]:
    """(first row of each distinct combination, combination of each row)."""
    key = np.zeros(len(rows), np.int64)
    for name in names:
        unique, code = distinct_values(getattr(rows, name))
        key = key * len(unique) + code
        # Numbers of combinations stay small: renumber those that occur.
        _, key = distinct_values(key)
    count = int(key.max(initial=-1)) + 1
    first = np.zeros(count, np.int64)
    first[key[::-1]] = np.arange(len(rows))[::-1]
    return first, key


@dataclass(frozen=True)
class KindShapes:
    """One layer kind on the U distinct shapes.

    Attributes:
        forward, backward: compute seconds of one layer and micro-batch, [U].
        policies: what policies are priced with.
        fused: bytes of every tensor a fused layer saves when nothing is repeated, [U]; `whole` of those, too, that only
            products with frozen weights read.
        plain, routed: parameters on one device before ZeRO, [U].
        vectors: those of `plain` that lie in vectors (norms, biases), [U].
    """

    forward: Array
    backward: Array
    policies: Costs
    fused: Array
    whole: Array
    plain: Array
    routed: Array
    vectors: Array


@dataclass(frozen=True)
class Shapes:
    """All kinds and both ends of the model, with the shape of each of R rows in `of_row`; `lanes` are layer kinds.

    Parameters are those of all weights, or of the trained ones alone (`trained`).
    """

    setting: Setting
    rows: Rows
    of_row: Array
    kinds: tuple[KindShapes, ...]
    lanes: tuple[int, ...]
    _sub: Rows
    trained_only: bool = False

    @staticmethod
    def of(setting: Setting, rows: Rows, lanes: tuple[int, ...] | None = None) -> "Shapes":
        """Shapes of rows whose policies are those of some lanes (`costmodel.lanes`), by default one per layer kind."""
        first, of_row = distinct(rows, SHAPE_COLUMNS)
        sub = rows[first]
        shape = Shape.of(sub, setting)
        kinds = tuple(_kind(setting, kind, shape, sub) for kind in setting.model.kinds)
        return Shapes(setting, rows, of_row, kinds, lanes or tuple(range(len(kinds))), sub)

    @cached_property
    def trained(self) -> "Shapes":
        """The same with parameters of trained weights alone: those that have gradients, master copies and states."""
        if self.trained_only or self.setting.training.trainable == ALL:
            return self
        kinds = []
        for kind, spec in zip(self.kinds, self.setting.model.kinds, strict=True):
            weights = tuple(w for w in spec.weights if w.trained)
            plain, routed = local_params(weights, spec, self._sub)
            vectors = local_params(vectors_of(weights), spec, self._sub)[0]
            kinds.append(replace(kind, plain=plain, routed=routed, vectors=vectors))
        return replace(self, kinds=tuple(kinds), trained_only=True)

    @cached_property
    def shape(self) -> Shape:
        """The Shape of every row."""
        return Shape.of(self.rows, self.setting)

    def of_lane(self, lane: int) -> KindShapes:
        return self.kinds[self.lanes[lane]]

    @cached_property
    def layers_by_lane(self) -> tuple[int, ...]:
        """Layers of the model by lane, as if every kind had the policy of its first."""
        counts = self.setting.model.layers_by_kind
        return tuple(counts[k] * (self.lanes.index(k) == q) for q, k in enumerate(self.lanes))

    @cached_property
    def embedding_s(self) -> Array:
        return embedding_s(self.setting, Shape.of(self._sub, self.setting))[self.of_row]

    @cached_property
    def head_s(self) -> Array:
        return head_s(self.setting, Shape.of(self._sub, self.setting))[self.of_row]

    @cached_property
    def weight_grad_s(self) -> tuple[Array, ...]:
        """Seconds of the weight gradients of one layer of each kind and of the head, [R] each."""
        shape = Shape.of(self._sub, self.setting)
        layers = (weight_grad_s(self.setting, kind, shape) for kind in self.setting.model.kinds)
        head = head_product_s(self.setting, shape) * self.setting.model.head_matrix.trained
        return tuple(s[self.of_row] for s in (*layers, head))

    @cached_property
    def frozen_ends_s(self) -> tuple[Array, Array]:
        """Seconds that embedding and head are faster backward where they are not trained, [R] each.

        Nothing is trained before an embedding that is not; a head that is not still makes the gradient of its input.
        """
        model, shape = self.setting.model, Shape.of(self._sub, self.setting)
        product = head_product_s(self.setting, shape)[self.of_row]
        return (
            2.0 * self.embedding_s * (not model.table.trained),
            product * (not model.head_matrix.trained),
        )

    @cached_property
    def mtp_layer(self) -> "Shapes":
        """Of the layer in a multi-token-prediction module, the only one of its model.

        Where the framework chooses by tensor, layer and stage it repeats nothing: on the last stage little is in flight.
        Where a policy is one setting for all layers of a kind it has that of its kind.
        """
        assert self.setting.model.mtp is not None
        policies = self.rows.policies[:, [self.lanes.index(self.setting.model.mtp.kind)]]
        if self.setting.framework.chooses:
            policies = np.full_like(policies, CODES["none"])
        return Shapes.of(self.setting.mtp_layer, self.rows.with_columns(policies=policies))

    @cached_property
    def mtp_join(self) -> tuple[Array, Array]:
        """Parameters of one module beside its layer, and those in vectors, [R] each."""
        assert self.setting.model.mtp is not None
        weights = self.setting.model.mtp.weights
        return self._plain(weights), self._plain(vectors_of(weights))

    @cached_property
    def mtp_params(self) -> tuple[Array, Array, Array]:
        """Plain and routed parameters of all modules, and the plain ones in vectors, on one device before ZeRO, [R]."""
        modules = self.setting.training.mtp
        if not modules:
            return (np.zeros(len(self.rows)),) * 3
        ((plain, routed),), (vectors,) = self.mtp_layer.params, self.mtp_layer.vectors
        join, in_vectors = self.mtp_join
        return modules * (plain + join), modules * routed, modules * (vectors + in_vectors)

    @cached_property
    def tower_layer(self) -> "Shapes":
        """Of a layer of the vision tower, the only one of its model.

        As Megatron-LM's multimodal example runs it (examples/multimodal/model.py), neither sequences nor norms are cut: every
        rank of cp has all images of its sequences, as if it were one of dp, and tp ranks repeat the norms. Each layer
        saves its input alone, on the device, and is made again: on the first stage most micro-batches are in flight.
        """
        rows, images = self.rows, self.setting.training.images
        one = np.ones_like(rows.tp)
        seen = rows.with_columns(
            micro_batch=rows.micro_batch * images,
            sequences=rows.sequences * images * rows.cp,
            dp_shard=rows.shard,
            cp=one,
            sp=0 * one,
            ep=one,
            etp=one,
            policies=np.full((len(rows), 1), CODES["full"]),
        )
        layer = Shapes.of(self.setting.tower_layer, seen)
        return layer.trained if self.trained_only else layer

    @cached_property
    def tower_ends(self) -> tuple[Array, Array]:
        """Parameters of patch product, positions, last norm and projector, and those in vectors, [R] each."""
        assert self.setting.model.tower is not None
        ends = self.setting.model.tower.ends
        return self._plain(ends), self._plain(vectors_of(ends))

    @cached_property
    def tower_params(self) -> tuple[Array, Array]:
        """Of tower and projector, if they are trained, and those in vectors, on one device before ZeRO, [R] each."""
        tower = self.setting.model.tower
        if tower is None or not self.setting.training.images:
            return (np.zeros(len(self.rows)),) * 2
        ((plain, _),), (vectors,) = self.tower_layer.params, self.tower_layer.vectors
        ends, in_vectors = self.tower_ends
        return tower.layers * plain + ends, tower.layers * vectors + in_vectors

    @cached_property
    def table_params(self) -> Array:
        """Of the token table."""
        return self._plain((self.setting.model.table,))

    @cached_property
    def table_copy(self) -> Array:
        """Of a copy of the token table that modules need on a last stage which holds none, [R]."""
        if not self.setting.training.mtp or self.setting.model.tied:
            return np.zeros(len(self.rows))
        return np.where(self.rows.last_stage > 0, self.table_params, 0.0)

    @cached_property
    def params(self) -> tuple[tuple[Array, Array], ...]:
        """(plain, routed) parameters of one layer of each lane on one device before ZeRO, [R] each."""
        each = [(k.plain[self.of_row], k.routed[self.of_row]) for k in self.kinds]
        return tuple(each[k] for k in self.lanes)

    @cached_property
    def vectors(self) -> tuple[Array, ...]:
        """Of `params`, the plain ones in norms and biases, [R] each."""
        return tuple(self.kinds[k].vectors[self.of_row] for k in self.lanes)

    @cached_property
    def first_vectors(self) -> Array:
        return self._plain(vectors_of(self.setting.model.embedding)) + self.tower_params[1]

    @cached_property
    def last_vectors(self) -> Array:
        return self._plain(vectors_of(self.setting.model.head)) + self.mtp_params[2]

    @cached_property
    def embedding_params(self) -> Array:
        return self._plain(self.setting.model.embedding)

    @cached_property
    def first_params(self) -> Array:
        """Of the first stage beside its layers."""
        return self.embedding_params + self.tower_params[0]

    @cached_property
    def head_params(self) -> Array:
        """Of the matrix that makes logits, the token table when tied."""
        return self._plain((self.setting.model.head_matrix,))

    @cached_property
    def last_params(self) -> Array:
        """Plain ones of the last stage beside its layers."""
        return self.head_held + self.mtp_params[0] + self.table_copy

    @property
    def last_routed(self) -> Array:
        """Routed ones of the last stage beside its layers."""
        return self.mtp_params[1]

    @cached_property
    def head_held(self) -> Array:
        """Of norm and head on the last stage; with a pipeline it holds its own copy of a tied table."""
        model = self.setting.model
        own = self._plain(model.head)
        # Where the pipeline turns, the first stage is the last and its table serves both ends.
        return own + np.where(self.rows.last_stage > 0, self.head_params, 0.0) if model.tied else own

    @cached_property
    def chosen(self) -> tuple[Chosen, ...]:
        """What each row's policy of every lane saves and repeats, [R] each; priced once per policy and shape."""
        out = []
        for q, kind in enumerate(self.of_lane(q) for q in range(len(self.lanes))):
            codes, of_code = distinct_values(self.rows.policies[:, q])
            pairs, of_pair = distinct_values(of_code * len(self._sub) + self.of_row)
            priced = kind.policies.priced(codes[pairs // len(self._sub)], pairs % len(self._sub))
            out.append(Chosen(**{f.name: getattr(priced, f.name)[of_pair] for f in fields(priced)}))
        return tuple(out)

    def _plain(self, weights: Sequence[Weight]) -> Array:
        met = [w for w in weights if w.trained or not self.trained_only]
        return local_params(met, None, self._sub)[0][self.of_row]


def local_params(weights: Sequence[Weight], kind: LayerKind | None, rows: Rows) -> tuple[Array, Array]:
    """Parameters of plain and of routed weights on one device before ZeRO, shape [R] each."""
    plain = np.zeros(len(rows))
    routed = np.zeros(len(rows))
    for weight in weights:
        if weight.routed:
            routed += weight.params / (rows.ep * (1 if weight.shard is Shard.EXPERT_COPY else rows.etp))
        else:
            plain += weight.params / tp_ways(weight, kind, rows.tp)
    return plain, routed


def vectors_of(weights: Sequence[Weight]) -> tuple[Weight, ...]:
    """Norms and biases outside routed experts."""
    return tuple(w for w in weights if w.rows == 1 and not w.routed and not w.adapts)


def _kind(setting: Setting, kind: LayerKind, shape: Shape, sub: Rows) -> KindShapes:
    forward = forward_s(setting, kind, shape)
    plain, routed = local_params(kind.weights, kind, sub)
    return KindShapes(
        forward=np.sum(list(forward.values()), axis=0),
        backward=np.sum(list(backward_s(setting, kind, shape, forward).values()), axis=0),
        policies=Costs.of(setting.framework, kind, shape, forward),
        fused=np.sum(list(saved_bytes(kind, shape).values()), axis=0),
        whole=np.sum(list(tensor_bytes(kind, shape).values()), axis=0),
        plain=plain,
        routed=routed,
        vectors=local_params(vectors_of(kind.weights), kind, sub)[0],
    )
