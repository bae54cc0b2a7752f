"""What a stage does once per step: it reduces gradients, exchanges a tied table and updates the weights."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.collectives import duration
from meshwright.costmodel.comm import Comm
from meshwright.costmodel.flops import BF16
from meshwright.costmodel.hostlink import update_s
from meshwright.costmodel.memory import MASTER_BYTES
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import Shapes
from meshwright.costmodel.workload import OPTIMIZER_STATE_BYTES
from meshwright.costmodel.zero import expert_zero_ways, zero_ways

Array = NDArray[Any]


@dataclass(frozen=True)
class Once:
    """Seconds once per step of stages of R rows, nothing hidden."""

    setting: Setting
    shapes: Shapes
    comm: Comm

    @property
    def rows(self) -> Rows:
        return self.shapes.rows

    @property
    def trained(self) -> Shapes:
        """Only what is trained is reduced and updated."""
        return self.shapes.trained

    def params(self, stage: Array, counts: Array) -> tuple[Array, Array]:
        """Plain and routed parameters that are trained on stages with `counts` layers of each kind, on one device before
        ZeRO."""
        params, last = self.trained.params, self.rows.last_stage[:, None]
        plain = np.einsum("rsk,rk->rs", counts, np.stack([p for p, _ in params], axis=1))
        routed = np.einsum("rsk,rk->rs", counts, np.stack([r for _, r in params], axis=1))
        first_s, at_last = (stage == 0) * self.trained.first_params[:, None], stage == last
        plain = plain + first_s + at_last * self.trained.last_params[:, None]
        return plain, routed + at_last * self.trained.last_routed[:, None]

    @cached_property
    def mean_params(self) -> tuple[Array, Array]:
        """The same of a stage with the mean share of everything, [R, 1] each."""
        params, counts, pp = self.trained.params, self.shapes.layers_by_lane, self.rows.pp
        plain = sum(n * p for n, (p, _) in zip(counts, params, strict=True))
        plain = plain + self.trained.first_params + self.trained.last_params
        routed = sum(n * r for n, (_, r) in zip(counts, params, strict=True)) + self.trained.last_routed
        return (plain / pp)[:, None], (routed / pp)[:, None]

    def reduction_s(self, plain: Array, routed: Array) -> Array:
        """Seconds of gradient reduction for parameters of shape [R, S]."""
        return reduction_s(self.setting, self.rows, self.comm, plain, routed)

    def tied_s(self, stage: Array) -> Array:
        """First and last stage add the gradients of their copies of a table that is tied, or that modules need."""
        rows = self.rows
        if not (self.setting.model.tied or self.setting.training.mtp):
            return np.zeros(np.broadcast_shapes(stage.shape, (len(rows), 1)))
        size = np.where(
            rows.last_stage > 0, self.setting.framework.reduce_bytes * self.trained.table_params, 0.0
        )
        at_end = (stage == 0) | (stage == rows.last_stage[:, None])
        seconds: Array = at_end * duration(self.comm.send("pp", size))[:, None]
        return seconds

    def optimizer_s(self, plain: Array, routed: Array) -> Array:
        """Reads and writes of master, state and gradient, on the host if the optimizer lives there; and what every step
        takes."""
        setting, rows = self.setting, self.rows
        owned = plain / zero_ways(rows)[0][:, None] + routed / expert_zero_ways(rows)[0][:, None]
        state = MASTER_BYTES + OPTIMIZER_STATE_BYTES[setting.training.optimizer]
        moved = 2 * state + MASTER_BYTES + BF16
        on_device = moved * owned / setting.rates.hbm_bytes_per_s
        return update_s(setting, rows, owned, on_device) + setting.rates.step_s


@dataclass(frozen=True)
class SomeStage:
    """A stage that every cut has, from below: what it holds at least, and each further layer as light as any.

    Exact for no and for one further layer of the lightest kind; the line through both lies below for more, by
    convexity. Arrays of shape [R, S]: S such stages of every row.

    Attributes:
        stage_s, stage_step_s: seconds per micro-batch with no further layer, and per further layer.
        comm_s, comm_step_s: the same of reductions once per step.
        optimizer_s, optimizer_step_s: the same of the optimizer.
        backward_s, backward_step_s: the same of what can hide reductions, at most.
        most: further layers at most, [R, 1].
        share: of the reductions that can be hidden.
    """

    stage_s: Array
    stage_step_s: Array
    comm_s: Array
    comm_step_s: Array
    optimizer_s: Array
    optimizer_step_s: Array
    backward_s: Array
    backward_step_s: Array
    most: Array
    share: float

    def __getitem__(self, index: Any) -> "SomeStage":
        arrays = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "share"}
        return SomeStage(**arrays, share=self.share)

    def once_s(self, further: Array) -> Array:
        """Seconds once per step with so many further layers."""
        comm = self.comm_s + further * self.comm_step_s
        hidden = self.backward_s + further * self.backward_step_s
        exposed = (1.0 - self.share) * comm + np.maximum(self.share * comm - hidden, 0.0)
        total: Array = exposed + self.optimizer_s + further * self.optimizer_step_s
        return total

    def least_s(self, rounds: Array, slowest: Array) -> Array:
        """Least of rounds * max(slowest, this stage) + once per step over further layers, the largest of S; [R].

        A convex function with straight pieces is least at an end or where pieces meet: where this stage becomes
        the slowest, or where all of the reduction that can be hidden is.
        """
        rounds, slowest = rounds[:, None], slowest[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            slows = (slowest - self.stage_s) / self.stage_step_s
            closes = self.backward_step_s - self.share * self.comm_step_s
            hides = np.where(closes > 0, (self.share * self.comm_s - self.backward_s) / closes, np.inf)
        turns = np.stack([np.zeros_like(slows), slows, hides, self.most + np.zeros_like(slows)])
        further = np.clip(turns, 0.0, self.most)
        stage = np.maximum(slowest, self.stage_s + further * self.stage_step_s)
        least: Array = (rounds * stage + self.once_s(further)).min(axis=0).max(axis=1)
        return least


def reduction_s(setting: Setting, rows: Rows, comm: Comm, plain: Array, routed: Array) -> Array:
    """Gradients to all data ranks and updated weights back, whatever ZeRO leaves for the end of a step, [R, S].

    Args:
        plain, routed: parameters on one device before ZeRO, [R, S].
    """
    wire = setting.framework.reduce_bytes
    zero = rows.zero[:, None]
    # Over dp_replicate all-reduce what the shard ranks hold; over edp everything, experts know no replicas.
    loads = comm.reduce("dp_replicate", wire * plain / rows.shard[:, None])
    scatters, gathers = (zero <= 1), (zero <= 2)  # ZeRO-0 gathers summed gradients instead of weights
    count = scatters * 1 + gathers  # of their mean size, as in layer.fsdp_loads
    mean = (scatters * wire + gathers * np.where(zero == 0, wire, BF16)) / np.maximum(count, 1)
    for group, params in (("shard", plain), ("edp", routed)):
        if params.any():
            loads = loads + count[:, :, None] * comm.gather(group, mean * params)
    return duration(loads)
