"""Stage tables: seconds and bytes of a pipeline stage, linear in its number of layers of each kind.

The planner, the bounds and the single estimate all read these coefficients; nothing else prices a stage.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.collectives import duration
from meshwright.costmodel.comm import Comm
from meshwright.costmodel.layer import Seconds, ends_seconds, hop_seconds, layer_seconds
from meshwright.costmodel.memory import (
    MASTER_BYTES,
    STATE_PARTS,
    MemoryCosts,
    expert_zero_ways,
    memory_costs,
    zero_ways,
)
from meshwright.costmodel.operators import BF16
from meshwright.costmodel.pipeline import in_flight
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import Shapes
from meshwright.costmodel.workload import OPTIMIZER_STATE_BYTES

Array = NDArray[Any]


@dataclass(frozen=True)
class StageCosts:
    """What one stage of each of R rows costs, as numbers: the coefficients that cuts are chosen by.

    Attributes:
        layer_s: seconds of one layer per micro-batch, [R, K].
        state, saved: bytes of one layer's state, and per micro-batch in flight, [R, K].
        first_s, last_s, hop_s: seconds per micro-batch of embedding, head and sends, [R].
        first_bytes, last_bytes: state of embedding and head, [R].
        transient, transient_last: bytes that are neither state nor saved activations, [R].
        once_s: seconds once per step of a stage with the mean share of everything, [R].
    """

    rows: Rows
    layer_s: Array
    state: Array
    saved: Array
    first_s: Array
    last_s: Array
    hop_s: Array
    first_bytes: Array
    last_bytes: Array
    transient: Array
    transient_last: Array
    once_s: Array

    def __getitem__(self, index: Any) -> "StageCosts":
        return StageCosts(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def ends(self, stage: Array) -> tuple[Array, Array]:
        """Whether each stage is the first and the last of its row, [R, S] each."""
        first, last = np.broadcast_arrays(stage == 0, stage == self.rows.pp[:, None] - 1)
        return first, last

    def ends_s(self, stage: Array) -> Array:
        """Seconds per micro-batch of a stage beside its layers, [R, S]."""
        first, last = self.ends(stage)
        ends: Array = first * self.first_s[:, None] + last * self.last_s[:, None]
        return self.hop_s[:, None] + ends

    def ends_bytes(self, stage: Array) -> Array:
        """Bytes of a stage beside its layers and their saved activations, [R, S]."""
        first, last = self.ends(stage)
        transient = np.where(last, self.transient_last[:, None], self.transient[:, None])
        ends: Array = first * self.first_bytes[:, None] + last * self.last_bytes[:, None]
        return ends + transient


@dataclass(frozen=True)
class StageTable:
    """Coefficients of R rows for stages of any cut.

    Attributes:
        layers: exposed seconds of one layer of each kind.
        first, last: exposed seconds of the embedding and of the head.
        hop_s: exposed seconds of stage-to-stage sends, per micro-batch and stage.
    """

    setting: Setting
    shapes: Shapes
    comm: Comm
    layers: tuple[Seconds, ...]
    first: Seconds
    last: Seconds
    hop_s: Array

    @staticmethod
    def of(setting: Setting, rows: Rows, comm: Comm) -> "StageTable":
        model = setting.model
        shapes = Shapes.of(setting, rows)
        layers = tuple(layer_seconds(setting, k, shapes, comm) for k in range(len(model.kinds)))
        first, last = ends_seconds(setting, shapes, comm)
        compute = sum(n * s.parts["compute"] for n, s in zip(model.layers_by_kind, layers, strict=True))
        hop = hop_seconds(setting, shapes, comm, compute / rows.pp)
        return StageTable(setting, shapes, comm, layers, first, last, hop)

    @property
    def rows(self) -> Rows:
        return self.shapes.rows

    @cached_property
    def memory(self) -> MemoryCosts:
        return memory_costs(self.setting, self.shapes)

    @cached_property
    def costs(self) -> StageCosts:
        """The coefficients as plain numbers."""
        memory = self.memory
        return StageCosts(
            rows=self.rows,
            layer_s=self.layer_s,
            state=memory.state_bytes,
            saved=memory.saved,
            first_s=self.first.total,
            last_s=self.last.total,
            hop_s=self.hop_s,
            first_bytes=memory.first_bytes,
            last_bytes=memory.last_bytes,
            transient=memory.transient,
            transient_last=memory.transient_last,
            once_s=self.once_mean_s(),
        )

    @cached_property
    def layer_s(self) -> Array:
        """Seconds of one layer per micro-batch, [R, K]."""
        return np.stack([s.total for s in self.layers], axis=1)

    def stage_s(self, stage: Array, counts: Array) -> Array:
        """Seconds per micro-batch of stages with `counts` layers of each kind, [R, S] from [R, S, K]."""
        layers: Array = np.einsum("rsk,rk->rs", counts, self.layer_s)
        return self.costs.ends_s(stage) + layers

    def stage_bytes(self, stage: Array, counts: Array) -> Array:
        """Bytes of stages on one device, [R, S]."""
        held = in_flight(self.rows, stage)
        state = np.einsum("rsk,rk->rs", counts, self.costs.state)
        saved = np.einsum("rsk,rk->rs", counts, self.costs.saved)
        layers: Array = state + held * saved
        return self.costs.ends_bytes(stage) + layers

    def stage_parts(self, stage: Array, counts: Array) -> dict[str, Array]:
        """Bytes of stages on one device by part; the parts sum to `stage_bytes`."""
        at_first, at_last = self.costs.ends(stage)
        mem, held = self.memory, in_flight(self.rows, stage)
        out = {
            p: np.einsum("rsk,rk->rs", counts, mem.state[p])
            + at_first * mem.first[p][:, None]
            + at_last * mem.last[p][:, None]
            for p in STATE_PARTS
        }
        out["activations"] = held * np.einsum("rsk,rk->rs", counts, mem.saved)
        in_loss = at_last & (mem.loss > mem.transient)[:, None]
        out["working"] = np.where(in_loss, 0.0, mem.working[:, None])
        out["gathers"] = np.where(in_loss, 0.0, mem.gathers[:, None])
        out["loss"] = np.where(in_loss, mem.loss[:, None], 0.0)
        return out

    def host_bytes(self, stage: Array, counts: Array) -> Array:
        """Bytes that one device of a stage keeps in host memory, [R, S]."""
        at_first, at_last = self.costs.ends(stage)
        mem = self.memory
        ends = at_first * mem.host_first[:, None] + at_last * mem.host_last[:, None]
        saved = in_flight(self.rows, stage) * np.einsum("rsk,rk->rs", counts, mem.host_saved)
        held: Array = ends + saved + np.einsum("rsk,rk->rs", counts, mem.host_state)
        return held

    def once_parts(self, stage: Array, counts: Array) -> dict[str, Array]:
        """Exposed seconds of a stage once per step: gradient reduction `dp`, `optimizer`; [R, S] each."""
        plain, routed = self._stage_params(stage, counts)
        backward = np.einsum("rsk,rk->rs", counts, np.stack([s.backward_s for s in self.layers], axis=1))
        comm = duration(self._reduction_loads(plain, routed)) + self._tied_s(stage)
        share = self.setting.rates.hideable["dp"]
        exposed = (1.0 - share) * comm + np.maximum(share * comm - backward, 0.0)
        return {"dp": exposed, "optimizer": self._optimizer_s(plain, routed)}

    def once_s(self, stage: Array, counts: Array) -> Array:
        """Seconds of a stage once per step, [R, S]; convex in the counts (more layers also hide more)."""
        parts = self.once_parts(stage, counts)
        return parts["dp"] + parts["optimizer"]

    def once_most_s(self) -> Array:
        """Seconds once per step that no stage passes: everything on one stage, nothing hidden, [R]."""
        stage = np.zeros((1, 1), np.int64)
        counts = np.array(self.setting.model.layers_by_kind, float)[None, None, :]
        plain, routed = self._stage_params(
            stage, np.broadcast_to(counts, (len(self.rows), 1, counts.shape[2]))
        )
        plain = plain + self.shapes.last_params[:, None]
        comm = duration(self._reduction_loads(plain, routed)) + self._tied_s(stage)
        most: Array = (comm + self._optimizer_s(plain, routed))[:, 0]
        return most

    def once_mean_s(self) -> Array:
        """`once_s` of a stage with the mean share of everything, [R]: never above the largest stage's.

        By convexity; the exchange of a tied table, which only two stages pay, is left out.
        """
        rows, params = self.rows, self.shapes.params
        counts = self.setting.model.layers_by_kind
        plain = sum(n * p for n, (p, _) in zip(counts, params, strict=True))
        plain = plain + self.shapes.first_params + self.shapes.last_params
        routed = sum(n * r for n, (_, r) in zip(counts, params, strict=True))
        plain, routed = (plain / rows.pp)[:, None], (routed / rows.pp)[:, None]
        backward = sum(n * s.backward_s for n, s in zip(counts, self.layers, strict=True)) / rows.pp
        comm = duration(self._reduction_loads(plain, routed))[:, 0]
        share = self.setting.rates.hideable["dp"]
        exposed = (1.0 - share) * comm + np.maximum(share * comm - backward, 0.0)
        return exposed + self._optimizer_s(plain, routed)[:, 0]

    def _stage_params(self, stage: Array, counts: Array) -> tuple[Array, Array]:
        """Plain and routed parameters of a stage on one device before ZeRO."""
        at_first, at_last = self.costs.ends(stage)
        params = self.shapes.params
        plain = np.einsum("rsk,rk->rs", counts, np.stack([p for p, _ in params], axis=1))
        routed = np.einsum("rsk,rk->rs", counts, np.stack([r for _, r in params], axis=1))
        ends = at_first * self.shapes.first_params[:, None] + at_last * self.shapes.last_params[:, None]
        return plain + ends, routed

    def _reduction_loads(self, plain: Array, routed: Array) -> Array:
        """Gradients to all data ranks and updated weights back, whatever ZeRO leaves for the end of a step."""
        rows, wire = self.rows, self.setting.framework.reduce_bytes
        zero = rows.zero[:, None]
        # Over dp_replicate all-reduce what the shard ranks hold; over edp everything, experts know no replicas.
        loads = self.comm.reduce("dp_replicate", wire * plain / rows.shard[:, None])
        scatters, gathers = (zero <= 1), (zero <= 2)  # ZeRO-0 gathers summed gradients instead of weights
        count = scatters * 1 + gathers  # of their mean size, as in layer._fsdp_loads
        mean = (scatters * wire + gathers * np.where(zero == 0, wire, BF16)) / np.maximum(count, 1)
        for group, params in (("shard", plain), ("edp", routed)):
            if params.any():
                loads = loads + count[:, :, None] * self.comm.gather(group, mean * params)
        return loads

    def _tied_s(self, stage: Array) -> Array:
        """First and last stage add the gradients of their copies of a tied table."""
        model, rows = self.setting.model, self.rows
        if not model.tied:
            return np.zeros(np.broadcast_shapes(stage.shape, (len(rows), 1)))
        size = np.where(rows.pp > 1, self.setting.framework.reduce_bytes * self.shapes.head_params, 0.0)
        at_first, at_last = self.costs.ends(stage)
        return (at_first | at_last) * duration(self.comm.send("pp", size))[:, None]

    def _optimizer_s(self, plain: Array, routed: Array) -> Array:
        """Reads and writes of master, state and gradient; on the host if the optimizer lives there."""
        setting, rows = self.setting, self.rows
        owned = plain / zero_ways(rows)[0][:, None] + routed / expert_zero_ways(rows)[0][:, None]
        state = MASTER_BYTES + OPTIMIZER_STATE_BYTES[setting.training.optimizer]
        moved = 2 * state + MASTER_BYTES + BF16
        on_device = moved * owned / setting.rates.hbm_bytes_per_s
        away = rows.offloads_optimizer[:, None]
        cluster, link = setting.cluster, setting.rates.host_bytes_per_s
        if not away.any() or link is None or cluster.cpu_update_params_per_s is None:
            return on_device
        per_host = cluster.devices_per_host or 1
        update = owned * per_host / cluster.cpu_update_params_per_s
        carry = (setting.framework.reduce_bytes + BF16) * owned / link
        return np.where(away, np.maximum(update, carry), on_device)
