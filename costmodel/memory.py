"""Bytes on a device and on its host, by part, as coefficients of the number of layers of each kind on a stage.

Per parameter on the device: a bf16 compute copy (over shard ranks under ZeRO-3), an fp32 master copy and
optimizer state (under ZeRO >= 1), gradients (under ZeRO >= 2). Routed experts are sharded over the ranks that
hold the same experts (edp). Activations: saved bytes times micro-batches in flight, plus what one layer and
the loss need while they run; the larger of the two counts on the last stage.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.layer import local_params, pick, saved_layer_bytes
from meshwright.costmodel.layout import CP_KINDS
from meshwright.costmodel.model import LayerKind, Weight
from meshwright.costmodel.operators import BF16, Shape
from meshwright.costmodel.policies import policies_of, saved_by_policy
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.workload import OPTIMIZER_STATE_BYTES

Array = NDArray[Any]

MASTER_BYTES = 4
STATE_PARTS = ("parameters", "master", "optimizer", "gradients")


@dataclass(frozen=True)
class MemoryCosts:
    """Coefficients per row.

    Attributes:
        state: bytes of each state part per layer of a kind, shape [R, K].
        first, last: bytes of each state part of the embedding and of the head, shape [R].
        saved: bytes saved per layer, micro-batch in flight and kind on the device, [R, K].
        working: while a layer runs: repeated activations with gradients, [R].
        gathers: whole weights gathered under ZeRO-3, [R].
        loss: on the last stage while the loss runs, [R].
        host_state: bytes in host memory per layer of a kind, [R, K]; `host_ends` of embedding and head.
        host_saved: bytes in host memory per layer, micro-batch in flight and kind, [R, K].
    """

    state: dict[str, Array]
    first: dict[str, Array]
    last: dict[str, Array]
    saved: Array
    working: Array
    gathers: Array
    loss: Array
    host_state: Array
    host_first: Array
    host_last: Array
    host_saved: Array

    @property
    def transient(self) -> Array:
        """Bytes beside state and saved activations on any stage but the last."""
        return self.working + self.gathers

    @property
    def transient_last(self) -> Array:
        return np.maximum(self.transient, self.loss)


def memory_costs(setting: Setting, rows: Rows) -> MemoryCosts:
    """All coefficients of the rows."""
    model, shape = setting.model, Shape.of(rows, setting)
    kinds = range(len(model.kinds))
    per_kind = [_state(setting, model.kinds[k].weights, model.kinds[k], rows) for k in kinds]
    saved = np.stack([saved_layer_bytes(setting, k, rows, shape) for k in kinds], axis=1)
    away = rows.offloads_activations[:, None]
    # A saved tensor on its way to or from the host passes through two buffers.
    in_transit = np.where(away[:, 0], 2.0 * saved.max(axis=1), 0.0)
    head = (model.head_matrix, *(w for w in model.head if w is not model.head_matrix))
    embedding = _state(setting, model.embedding, None, rows)
    last = _state(setting, head if not model.tied else model.head, None, rows)
    # A tied table is held once on one stage, and copied to the last stage of a pipeline.
    tied_copy = _state(setting, (model.head_matrix,), None, rows)
    if model.tied:
        last = {p: last[p] + np.where(rows.pp > 1, tied_copy[p], 0.0) for p in last}
    host = [p for p in ("master", "optimizer")]
    moved = rows.offloads_optimizer
    host_state = np.stack([np.where(moved, sum(s[p] for p in host), 0.0) for s in per_kind], axis=1)
    ends = [np.where(moved, sum(s[p] for p in host), 0.0) for s in (embedding, last)]
    keep = np.where(moved, 0.0, 1.0)
    scale = {p: keep if p in host else 1.0 for p in STATE_PARTS}
    return MemoryCosts(
        state={p: np.stack([s[p] * scale[p] for s in per_kind], axis=1) for p in STATE_PARTS},
        first={p: embedding[p] * scale[p] for p in STATE_PARTS},
        last={p: last[p] * scale[p] for p in STATE_PARTS},
        saved=np.where(away, 0.0, saved),
        working=_working(setting, rows, shape) + in_transit,
        gathers=_gathers(setting, rows),
        loss=_loss(setting, rows, shape),
        host_state=host_state,
        host_first=ends[0],
        host_last=ends[1],
        host_saved=np.where(away, saved, 0.0),
    )


def zero_ways(rows: Rows) -> tuple[Array, Array, Array]:
    """Ways that ZeRO cuts optimizer state, gradients and parameters of plain weights."""
    return tuple(np.where(rows.zero >= level, rows.shard, 1) for level in (1, 2, 3))  # type: ignore[return-value]


def expert_zero_ways(rows: Rows) -> tuple[Array, Array, Array]:
    """The same for routed experts, whose group is edp."""
    return tuple(np.where(rows.zero >= level, rows.edp, 1) for level in (1, 2, 3))  # type: ignore[return-value]


def _state(
    setting: Setting, weights: tuple[Weight, ...], kind: LayerKind | None, rows: Rows
) -> dict[str, Array]:
    fw = setting.framework
    plain, routed = local_params(weights, kind, rows)
    opt, grad, par = (
        plain / z + routed / ze for z, ze in zip(zero_ways(rows), expert_zero_ways(rows), strict=True)
    )
    grad_bytes = fw.grad_bytes + np.where(rows.micro_batches > 1, fw.accum_bytes, 0)
    return {
        "parameters": BF16 * par,
        "master": MASTER_BYTES * opt,
        "optimizer": OPTIMIZER_STATE_BYTES[setting.training.optimizer] * opt,
        "gradients": grad_bytes * grad,
    }


def _working(setting: Setting, rows: Rows, shape: Shape) -> Array:
    """One layer in backward: the activations it repeats and the gradients of all; the heaviest kind."""
    repeats = np.array([bool(p.repeated) for p in policies_of(setting.framework)])
    heaviest = np.zeros(len(rows))
    for index, kind in enumerate(setting.model.kinds):
        by_policy = saved_by_policy(setting.framework, kind, shape)
        policy = rows.policies[:, index]
        full = by_policy[1]  # fused tensors: policy `elementwise` saves products, `none` all of them
        fused = np.maximum(full, by_policy[0] / setting.framework.unfused_factor)
        own = fused + np.where(repeats[policy], np.maximum(fused - pick(by_policy, policy), 0.0), 0.0)
        gathered = CP_KINDS.index("all_gather")
        a = kind.attention
        kv = BF16 * shape.tokens * a.kv_heads / np.minimum(shape.tp, a.kv_heads) * (a.qk_head_dim + a.v_head_dim)
        own = own + np.where(rows.cp_kind == gathered, kv * (rows.cp - 1), np.where(rows.cp > 1, kv, 0.0))
        heaviest = np.maximum(heaviest, own)
    return heaviest


def _gathers(setting: Setting, rows: Rows) -> Array:
    """Whole layers gathered at once and the whole gradient of one; the heaviest kind."""
    heaviest = np.zeros(len(rows))
    for kind in setting.model.kinds:
        plain, routed = local_params(kind.weights, kind, rows)
        heaviest = np.maximum(heaviest, plain + routed)
    copies = np.where(rows.zero == 3, setting.framework.gather_depth * BF16, 0)
    return heaviest * (copies + np.where(rows.zero >= 2, setting.framework.grad_bytes, 0))


def _loss(setting: Setting, rows: Rows, shape: Shape) -> Array:
    """Logits with their gradient, the head gathered with its gradient, and the residual in fp32."""
    fw, head = setting.framework, setting.model.head_matrix
    per_logit = fw.logits_bytes + np.where(rows.tp > 1, fw.logits_tp_bytes, 0)
    logits = per_logit * shape.tokens * head.params / setting.model.hidden / rows.tp
    gathered = np.where(rows.zero == 3, 2 * BF16 * head.params / rows.tp, 0.0)
    return logits + gathered + fw.loss_width_bytes * shape.tokens * setting.model.hidden
