"""Bytes on a device and on its host, by part, as coefficients of the number of layers of each kind on a stage.

Per parameter on the device: a bf16 compute copy (over shard ranks under ZeRO-3), an fp32 master copy and
optimizer state (under ZeRO >= 1), gradients (under ZeRO >= 2). Routed experts are sharded over the ranks that
hold the same experts (edp). Activations: saved bytes times micro-batches in flight, plus what one layer and
the loss need while they run; the larger of the two counts on the last stage.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.backward import trains_tower
from meshwright.costmodel.flops import BF16
from meshwright.costmodel.framework import Framework
from meshwright.costmodel.hostlink import BUFFERS, ON_HOST, shards
from meshwright.costmodel.layer import ALL_GATHER
from meshwright.costmodel.mtp import saved_beside_layer
from meshwright.costmodel.operators import dispatch_bytes, kv_width
from meshwright.costmodel.pipeline import at_end, at_start
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import Shapes
from meshwright.costmodel.tower import saved_beside_layers
from meshwright.costmodel.workload import OPTIMIZER_STATE_BYTES
from meshwright.costmodel.zero import expert_zero_ways, zero_ways

Array = NDArray[Any]

MASTER_BYTES = 4
ROUNDING_BYTES = 0.1  # sums of the same bytes in another order differ by less
_Held = tuple[Array, Array, Array]  # plain and routed parameters, and the plain ones in vectors
STATE_PARTS = ("parameters", "master", "optimizer", "gradients")


@dataclass(frozen=True)
class MemoryCosts:
    """Coefficients per row.

    Attributes:
        state: bytes of each state part per layer of a kind, shape [R, Q].
        first, last: bytes of each state part of the first and of the last stage beside their layers, shape [R].
        saved: bytes saved per layer, micro-batch in flight and kind on the device, [R, Q].
        working: while a layer of a lane runs backward: what it makes again or fetches, with gradients, [R, Q].
        gathers: whole weights gathered under ZeRO-3, [R].
        loss: on the last stage while the loss runs, [R]; or a multi-token-prediction module backward, if that is more.
        tower: on the first stage of what the vision tower saves, [R]. tower_peak: while it runs backward, [R].
        mtp: on the last stage of what multi-token-prediction modules save, [R]. mtp_peak: while one runs backward, [R].
        deferred: bytes that one layer keeps per micro-batch whose weight gradients are still to run, [R, Q].
        host_state: bytes in host memory per layer of a kind, [R, Q]; `host_ends` of embedding and head.
        host_saved: bytes in host memory per layer, micro-batch in flight and kind, [R, Q].
    """

    state: dict[str, Array]
    first: dict[str, Array]
    last: dict[str, Array]
    saved: Array
    deferred: Array
    working: Array
    gathers: Array
    loss: Array
    tower: Array
    tower_peak: Array
    mtp: Array
    mtp_peak: Array
    host_state: Array
    host_first: Array
    host_last: Array
    host_saved: Array

    @property
    def state_bytes(self) -> Array:
        """Bytes of state of one layer, [R, Q]."""
        total: Array = np.sum([self.state[p] for p in STATE_PARTS], axis=0)
        return total

    @property
    def first_bytes(self) -> Array:
        """Bytes of state of the embedding and the vision tower, and of what this saves, [R]."""
        total: Array = np.sum([self.first[p] for p in STATE_PARTS], axis=0) + self.tower
        return total

    @property
    def last_bytes(self) -> Array:
        """Bytes of state of the head, of multi-token-prediction modules, and of what these save, [R]."""
        total: Array = np.sum([self.last[p] for p in STATE_PARTS], axis=0) + self.mtp
        return total


def transient(working: Array, gathers: Array, beside: Array) -> Array:
    """Bytes beside state and saved activations: the larger of what a layer and what runs beside the layers needs, [R, S].

    Args:
        working: bytes of the heaviest layer of each stage, [R, S]. gathers: [R].
        beside: bytes while the vision tower or the loss runs, 0 on stages without, [R, S].
    """
    held: Array = np.maximum(working + gathers[:, None], beside)
    return held


def memory_costs(setting: Setting, shapes: Shapes) -> MemoryCosts:
    """All coefficients of the rows."""
    rows, kinds = shapes.rows, range(len(shapes.lanes))
    nothing = np.zeros(len(rows))

    def of_lane(lane: int) -> dict[str, Array]:
        return _state(setting, shapes, lambda x: (*x.params[lane], x.vectors[lane]))

    per_kind = [of_lane(k) for k in kinds]
    stays = np.stack([_kept(setting, shapes, k) for k in kinds], axis=1)
    saved, kept = (
        np.stack([getattr(shapes.chosen[k], at) for k in kinds], axis=1) for at in ("device", "host")
    )
    embedding = _state(setting, shapes, lambda x: (x.first_params, nothing, x.first_vectors))
    last = _state(setting, shapes, lambda x: (x.last_params, x.last_routed, x.last_vectors))
    mtp, mtp_away, mtp_peak = _mtp(setting, shapes) if setting.training.mtp else (nothing,) * 3
    tower, tower_peak = _tower(setting, shapes) if setting.training.images else (nothing,) * 2
    moved = {part: rows.offloads(what) for what, parts in ON_HOST.items() for part in parts}

    def on_host(state: dict[str, Array]) -> Array:
        total: Array = np.sum([np.where(moved[p], state[p], 0.0) for p in STATE_PARTS], axis=0)
        return total

    state = {p: np.stack([np.where(moved[p], 0.0, s[p]) for s in per_kind], axis=1) for p in STATE_PARTS}
    state["parameters"] = state["parameters"] + stays
    return MemoryCosts(
        state=state,
        first={p: np.where(moved[p], 0.0, embedding[p]) for p in STATE_PARTS},
        last={p: np.where(moved[p], 0.0, last[p]) for p in STATE_PARTS},
        saved=saved,
        deferred=_deferred(shapes),
        working=_working(setting, shapes) + _state_in_transit(setting, shapes)[:, None],
        gathers=_gathers(setting, shapes),
        loss=np.maximum(_loss(setting, shapes), mtp_peak),
        tower=tower,
        tower_peak=tower_peak,
        mtp=mtp,
        mtp_peak=mtp_peak,
        host_state=np.stack([on_host(s) for s in per_kind], axis=1),
        host_first=on_host(embedding),
        host_last=on_host(last) + mtp_away,
        host_saved=kept,
    )


def bytes_per_param(framework: Framework, optimizer: str, accumulates: bool | Array) -> dict[str, Any]:
    """Bytes of each state part per parameter. `accumulates`: a step has more than one micro-batch."""
    return {
        "parameters": BF16,
        "master": MASTER_BYTES,
        "optimizer": OPTIMIZER_STATE_BYTES[optimizer],
        "gradients": framework.grad_bytes + np.where(accumulates, framework.accum_bytes, 0),
    }


def _state(setting: Setting, shapes: Shapes, held: Callable[[Shapes], _Held]) -> dict[str, Array]:
    """Bytes by part of what is held of all parameters and of those that are trained."""
    fw, rows, cut = setting.framework, shapes.rows, []
    every, trained = held(shapes), held(shapes.trained)
    ways = zip(zero_ways(rows), expert_zero_ways(rows), strict=True)
    for (z, ze), (plain, routed, vectors) in zip(ways, (trained, trained, every), strict=True):
        whole = 0.0 if fw.shards_vectors else vectors
        cut.append((plain - whole) / z + whole + routed / ze)
    opt, grad, par = cut
    each = bytes_per_param(fw, setting.training.optimizer, rows.micro_batches > 1)
    own = {"parameters": par, "master": opt, "optimizer": opt, "gradients": grad}
    return {part: each[part] * own[part] for part in STATE_PARTS}


def _deferred(shapes: Shapes) -> Array:
    """Inputs of a layer's products and gradients of their outputs, [R, Q]: together what a fused layer saves.

    A gradient is as large as the output, and each output is saved once as an input or beside it. They stay whatever
    the policy: what recompute repeats for the input gradient, the weight gradient needs too. Layers of which nothing is
    trained have none.
    """
    rows, lanes = shapes.rows, range(len(shapes.lanes))
    if not rows.splits.any():
        return np.zeros((len(rows), len(lanes)))
    own = [any(w.trained for w in kind.weights) for kind in shapes.setting.model.kinds]
    kept = np.stack([own[shapes.lanes[q]] * shapes.of_lane(q).fused[shapes.of_row] for q in lanes], axis=1)
    return np.where(rows.splits[:, None], kept, 0.0)


def _kept(setting: Setting, shapes: Shapes, kind: int) -> Array:
    """Gathered weights of a layer that stay beside the shards without `reshard`, the same for all micro-batches in
    flight."""
    (plain, routed), vectors, rows = shapes.params[kind], shapes.vectors[kind], shapes.rows
    gathered = plain - (0.0 if setting.framework.shards_vectors else vectors)
    # What a group of one rank holds is whole already.
    stays = gathered * (rows.shard > 1) + routed * (rows.edp > 1)
    return BF16 * np.where(rows.reshard > 0, 0.0, stays)


def _state_in_transit(setting: Setting, shapes: Shapes) -> Array:
    """Gradients on their way to the host and weights on their way from it, of the heaviest layer or end."""
    rows, nothing = shapes.rows, np.zeros(len(shapes.rows))
    held = nothing
    for what, size, of in (
        ("gradients", setting.framework.grad_bytes, shapes.trained),
        ("parameters", BF16, shapes),
    ):
        if rows.offloads(what).any():
            pieces = [*of.params, (of.embedding_params, nothing), (of.head_held, nothing)]
            if setting.training.images:
                pieces += [*of.tower_layer.params, (of.tower_ends[0], nothing)]
            heaviest = np.max([shards(rows, plain, routed, what) for plain, routed in pieces], axis=0)
            held = held + BUFFERS * size * heaviest
    return held


def _working(setting: Setting, shapes: Shapes) -> Array:
    """One layer in backward: all its activations but those saved on the device, gradients of all, and what its
    experts exchange, [R, Q].

    Where the host may keep activations they pass tensor by tensor, through two buffers of the largest.
    """
    rows, shape, out = shapes.rows, shapes.shape, []
    for lane, chosen in enumerate(shapes.chosen):
        kind, spec = shapes.of_lane(lane), setting.model.kinds[shapes.lanes[lane]]
        fused = kind.whole[shapes.of_row]
        again = np.maximum(fused - chosen.device, 0.0)
        away = chosen.repeats | (chosen.host > 0)
        buffers = BUFFERS * kind.policies.largest(setting.framework)[shapes.of_row]
        own = fused + np.where(away, again, 0.0) + np.where(rows.offloads("activations"), buffers, 0.0)
        own = own + dispatch_bytes(spec, shape)
        kv = BF16 * shape.tokens * kv_width(spec, shape.tp)
        gathered = rows.cp_kind == ALL_GATHER
        out.append(own + np.where(gathered, kv * (rows.cp - 1), np.where(rows.cp > 1, kv, 0.0)))
    return np.stack(out, axis=1)


def _gathers(setting: Setting, shapes: Shapes) -> Array:
    """Whole layers gathered at once and the whole gradient of one; the heaviest kind. Weights that stay gathered
    are state."""
    rows = shapes.rows
    heaviest, trained = (
        np.max([plain + routed for plain, routed in x.params], axis=0) for x in (shapes, shapes.trained)
    )
    copies = np.where((rows.zero == 3) & (rows.reshard > 0), setting.framework.gather_depth * BF16, 0)
    # A gradient that is not kept where it is made: reduced to a shard, or gone to the host.
    apart = (rows.zero >= 2) | (rows.offloads("gradients") & (rows.dp * rows.cp == 1))
    grads = np.where(apart, setting.framework.grad_bytes, 0)
    held: Array = heaviest * (copies + grads) - (heaviest - trained) * grads
    return held


def _loss(setting: Setting, shapes: Shapes) -> Array:
    """Logits with their gradient, the head gathered with its gradient, and the residual in fp32.

    Multi-token-prediction modules make logits of their own, which all wait for the backward pass.
    """
    fw, head = setting.framework, setting.model.head_matrix
    rows, shape = shapes.rows, shapes.shape
    per_logit = fw.logits_bytes + np.where(rows.tp > 1, fw.logits_tp_bytes, 0)
    logits = per_logit * shape.tokens * head.params / setting.model.hidden / rows.tp
    copies = 1 + head.trained  # its gradient is as large
    gathered = np.where(rows.zero == 3, copies * BF16 * head.params / rows.tp, 0.0)
    passes = 1 + setting.training.mtp
    held: Array = passes * (logits + fw.loss_width_bytes * shape.tokens * setting.model.hidden) + gathered
    return held


def _mtp(setting: Setting, shapes: Shapes) -> tuple[Array, Array, Array]:
    """Bytes that all multi-token-prediction modules save on the last stage and on its host, and bytes while one of them
    runs backward, [R] each."""
    own = memory_costs(setting.mtp_layer, shapes.mtp_layer)
    held, late = at_end(shapes.rows)
    beside, kept = saved_beside_layer(setting, shapes), _kept(setting, shapes.mtp_layer, 0)
    deferred = np.where(shapes.rows.splits, own.deferred[:, 0] + beside, 0.0)
    saved = held * (own.saved[:, 0] + beside) + late * deferred + kept
    modules, away = setting.training.mtp, held * own.host_saved[:, 0]
    return modules * saved, modules * away, own.working[:, 0] + own.gathers


def _tower(setting: Setting, shapes: Shapes) -> tuple[Array, Array]:
    """Bytes that the vision tower saves on the first stage, and bytes while it runs backward, [R] each.

    One that is not trained saves nothing; while it runs it counts as if it ran backward.
    """
    tower, layer, one = setting.model.tower, setting.tower_layer, shapes.tower_layer
    assert tower is not None
    rows, (ends, vectors) = one.rows, shapes.tower_ends
    held, late = at_start(shapes.rows)
    beside = saved_beside_layers(setting, shapes)
    deferred = np.where(rows.splits, tower.layers * _deferred(one)[:, 0] + beside, 0.0)
    gathers = ends - (0.0 if setting.framework.shards_vectors else vectors)
    stays = np.where((rows.reshard == 0) & (rows.shard > 1), gathers, 0.0)
    kept = tower.layers * _kept(layer, one, 0) + BF16 * stays
    saved = held * (tower.layers * one.chosen[0].device + beside) + late * deferred + kept
    saved = saved * trains_tower(setting.model)
    gathered = np.where(rows.zero == 3, 2 * BF16 * ends, 0.0)  # with the gradient, as of the head
    peak = np.maximum(_working(layer, one)[:, 0] + _gathers(layer, one), beside + gathered)
    return saved, peak + _state_in_transit(setting, shapes)
