"""Stage tables: seconds and bytes of a pipeline stage, linear in its number of layers of each lane.

The planner, the bounds and the single estimate all read these coefficients; nothing else prices a stage.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel import mtp, tower
from meshwright.costmodel.comm import Comm
from meshwright.costmodel.layer import Seconds, ends_seconds, hop_seconds, layer_seconds
from meshwright.costmodel.legal import chunk_periods, pattern_period
from meshwright.costmodel.memory import STATE_PARTS, MemoryCosts, memory_costs, transient
from meshwright.costmodel.once import Once, SomeStage
from meshwright.costmodel.pipeline import hidden_s, in_flight, peaks
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import Shapes

Array = NDArray[Any]


def hidden_of(shapes: Shapes) -> Array:
    """Seconds by which the schedule of each row shortens a step, [R]: of all layers, the head and what runs beside them."""
    rows = shapes.rows
    if not rows.splits.any():
        return np.zeros(len(rows))
    counts = (*shapes.setting.model.layers_by_kind, 1)
    forward = (*(k.forward[shapes.of_row] for k in shapes.kinds), shapes.head_s)
    each = [(n * f, n * w) for n, f, w in zip(counts, forward, shapes.weight_grad_s, strict=True)]
    if shapes.setting.training.mtp:
        each.append(mtp.hideable_s(shapes.setting, shapes))
    if shapes.setting.training.images:
        each.append(tower.hideable_s(shapes.setting, shapes))
    ahead, apart = (np.sum(x, axis=0) for x in zip(*each, strict=True))
    return hidden_s(rows, ahead, apart)


def ends_of(rows: Rows, stage: Array) -> tuple[Array, Array]:
    """Whether each stage is the first and the last of its row, [R, S] each."""
    first, last = np.broadcast_arrays(stage == 0, stage == rows.last_stage[:, None])
    return first, last


def beside_layers_s(rows: Rows, stage: Array, first_s: Array, last_s: Array, hop_s: Array) -> Array:
    """Seconds per micro-batch of a stage beside its layers, [R, S]: what first and last run, and sends, [R] each."""
    first, last = ends_of(rows, stage)
    ends: Array = first * first_s[:, None] + last * last_s[:, None]
    return hop_s[:, None] + ends


@dataclass(frozen=True)
class StageCosts:
    """What one stage of each of R rows costs, as numbers: the coefficients that cuts are chosen by.

    Attributes:
        layer_s: seconds of one layer per micro-batch, [R, Q].
        state, saved: bytes of one layer's state, and per micro-batch in flight, [R, Q].
        deferred: bytes of one layer per micro-batch whose weight gradients are still to run, [R, Q].
        working: bytes while a layer runs backward, [R, Q]. gathers: of gathered weights, [R].
        tower, loss: bytes while the vision tower runs backward, on the first stage, and in the loss, on the last, [R].
        first_s, last_s, hop_s: seconds per micro-batch of what first and last stage run beside layers, and of sends, [R].
        first_bytes, last_bytes: what these hold, [R].
        once_s: seconds once per step of a stage with the mean share of everything, [R].
        hidden_s: seconds by which the schedule's weight gradients shorten a step, whatever the cut, [R].
        longest: share of a stage's layers by which its last chunk is longer than its others, at most, [R].
    """

    rows: Rows
    layer_s: Array
    state: Array
    saved: Array
    deferred: Array
    first_s: Array
    last_s: Array
    hop_s: Array
    first_bytes: Array
    last_bytes: Array
    working: Array
    gathers: Array
    tower: Array
    loss: Array
    once_s: Array
    hidden_s: Array
    longest: Array

    def __getitem__(self, index: Any) -> "StageCosts":
        return StageCosts(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def ends(self, stage: Array) -> tuple[Array, Array]:
        """Whether each stage is the first and the last of its row, [R, S] each."""
        return ends_of(self.rows, stage)

    def ends_s(self, stage: Array) -> Array:
        """Seconds per micro-batch of a stage beside its layers, [R, S]."""
        return beside_layers_s(self.rows, stage, self.first_s, self.last_s, self.hop_s)

    def ends_bytes(self, stage: Array, working: Array) -> Array:
        """Bytes of a stage beside its layers' state and saved activations, [R, S].

        `working` is what the heaviest of its layers needs while it runs backward, [R, S].
        """
        return self.ends_state(stage) + transient(working, self.gathers, self.beside(stage))

    def beside(self, stage: Array) -> Array:
        """Bytes while the vision tower or the loss runs on a stage, the larger of the two, [R, S]."""
        first, last = self.ends(stage)
        most: Array = np.maximum(first * self.tower[:, None], last * self.loss[:, None])
        return most

    def ends_state(self, stage: Array) -> Array:
        """Bytes of state of a stage beside its layers, [R, S]."""
        first, last = self.ends(stage)
        ends: Array = first * self.first_bytes[:, None] + last * self.last_bytes[:, None]
        return ends

    def heaviest(self, counts: Array) -> Array:
        """`working` of stages with `counts` layers of each lane, [R, S] from [R, S, Q]."""
        most: Array = np.where(counts > 0, self.working[:, None, :], 0.0).max(axis=2)
        return most


@dataclass(frozen=True)
class StageTable:
    """Coefficients of R rows for stages of any cut.

    Attributes:
        layers: exposed seconds of one layer of each lane.
        first, last: exposed seconds of the embedding with the vision tower, and of the head with multi-token-prediction
            modules.
        mtp, tower: those of the modules and of the tower; None where none are trained.
        hop_s: exposed seconds of stage-to-stage sends, per micro-batch and stage.
    """

    setting: Setting
    shapes: Shapes
    comm: Comm
    layers: tuple[Seconds, ...]
    first: Seconds
    last: Seconds
    hop_s: Array
    mtp: Seconds | None = None
    tower: Seconds | None = None

    @staticmethod
    def of(setting: Setting, rows: Rows, comm: Comm, lanes: tuple[int, ...] | None = None) -> "StageTable":
        """Of rows whose policies are those of some lanes (`costmodel.lanes`), by default one per layer kind."""
        shapes = Shapes.of(setting, rows, lanes)
        layers = tuple(layer_seconds(setting, q, shapes, comm) for q in range(len(shapes.lanes)))
        first, last = ends_seconds(setting, shapes, comm)
        compute = sum(n * s.parts["compute"] for n, s in zip(shapes.layers_by_lane, layers, strict=True))
        hop = hop_seconds(setting, shapes, comm, compute / rows.pp)
        trained = setting.training
        modules = mtp.mtp_seconds(setting, shapes, comm) if trained.mtp else None
        images = tower.tower_seconds(setting, shapes, comm) if trained.images else None
        first = first if images is None else mtp.added(first, images)
        last = last if modules is None else mtp.added(last, modules)
        return StageTable(setting, shapes, comm, layers, first, last, hop, modules, images)

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
            deferred=memory.deferred,
            first_s=self.first.total,
            last_s=self.last.total,
            hop_s=self.hop_s,
            first_bytes=memory.first_bytes,
            last_bytes=memory.last_bytes,
            working=memory.working,
            gathers=memory.gathers,
            tower=memory.tower_peak,
            loss=memory.loss,
            once_s=self.once_mean_s(),
            hidden_s=self.hidden_s,
            longest=np.where(self._each > 0, 1.0 / (self.rows.vpp * self._each + 1.0), 0.0),
        )

    @cached_property
    def hidden_s(self) -> Array:
        """Seconds by which the schedule shortens a step, [R]; what is hidden is the same for every cut and policy."""
        return hidden_of(self.shapes)

    @cached_property
    def layer_s(self) -> Array:
        """Seconds of one layer per micro-batch, [R, Q]."""
        return np.stack([s.total for s in self.layers], axis=1)

    def stage_s(self, stage: Array, counts: Array) -> Array:
        """Seconds per micro-batch of stages with `counts` layers of each lane, [R, S] from [R, S, Q]."""
        layers: Array = np.einsum("rsk,rk->rs", counts, self.layer_s)
        return beside_layers_s(self.rows, stage, self.first.total, self.last.total, self.hop_s) + layers

    def stage_bytes(self, stage: Array, counts: Array) -> Array:
        """Bytes of stages on one device, [R, S]."""
        state = np.einsum("rsk,rk->rs", counts, self.costs.state)
        layers: Array = state + self._activations(stage, counts)
        return self.costs.ends_bytes(stage, self.costs.heaviest(counts)) + layers

    @cached_property
    def _each(self) -> Array:
        return chunk_periods(self.setting, self.rows)

    def longer(self, counts: Array) -> Array | float:
        """Share of each stage's layers by which its last chunk is longer than its others, [R, S]; below 0 where shorter."""
        if not self._each.any():
            return 0.0
        period = pattern_period(self.setting.model.pattern)
        layers, vpp = counts.sum(axis=2), self.rows.vpp[:, None] * period
        apart = (self._each[:, None] > 0) & (layers % vpp != 0)
        return np.where(apart, 1.0 - vpp * self._each[:, None] / np.maximum(layers, 1), 0.0)

    def _activations(self, stage: Array, counts: Array) -> Array:
        """Bytes of saved activations, and of what weight gradients still to run need, [R, S]."""
        saved, kept = (np.einsum("rsk,rk->rs", counts, x) for x in (self.costs.saved, self.costs.deferred))
        moments = peaks(self.rows, stage, self.longer(counts))
        held: Array = np.max([f * saved + w * kept for f, w in moments], axis=0)
        return held

    def stage_parts(self, stage: Array, counts: Array) -> dict[str, Array]:
        """Bytes of stages on one device by part; the parts sum to `stage_bytes`."""
        at_first, at_last = self.costs.ends(stage)
        mem, beside = self.memory, self.costs.beside(stage)
        out = {
            p: np.einsum("rsk,rk->rs", counts, mem.state[p])
            + at_first * mem.first[p][:, None]
            + at_last * mem.last[p][:, None]
            for p in STATE_PARTS
        }
        out["activations"] = self._activations(stage, counts)
        working = self.costs.heaviest(counts)
        outside = beside > working + mem.gathers[:, None]
        in_loss = outside & at_last & (beside == mem.loss[:, None])
        out["working"] = np.where(outside, 0.0, working)
        out["gathers"] = np.where(outside, 0.0, mem.gathers[:, None])
        out["loss"] = np.where(in_loss, beside, 0.0)
        if self.mtp is not None:  # the peak of a module is in place of the loss's
            peak = in_loss & (mem.mtp_peak >= mem.loss)[:, None]
            out["mtp"] = at_last * mem.mtp[:, None] + np.where(peak, out["loss"], 0.0)
            out["loss"] = np.where(peak, 0.0, out["loss"])
        if self.tower is not None:
            out["tower"] = at_first * mem.tower[:, None] + np.where(outside & ~in_loss, beside, 0.0)
        return out

    def host_bytes(self, stage: Array, counts: Array) -> Array:
        """Bytes that one device of a stage keeps in host memory, [R, S]."""
        saved = in_flight(self.rows, stage, self.longer(counts)) * np.einsum(
            "rsk,rk->rs", counts, self.memory.host_saved
        )
        held: Array = self.host_state(stage, counts) + saved
        return held

    def host_state(self, stage: Array, counts: Array) -> Array:
        """The same without saved activations."""
        at_first, at_last = self.costs.ends(stage)
        mem = self.memory
        ends = at_first * mem.host_first[:, None] + at_last * mem.host_last[:, None]
        held: Array = ends + np.einsum("rsk,rk->rs", counts, mem.host_state)
        return held

    @cached_property
    def once(self) -> Once:
        """What a stage does once per step, apart from what its layers hide of it."""
        return Once(self.setting, self.shapes, self.comm)

    def once_parts(self, stage: Array, counts: Array) -> dict[str, Array]:
        """Exposed seconds of a stage once per step: gradient reduction `dp`, `optimizer`; [R, S] each."""
        plain, routed = self.once.params(stage, counts)
        backward = np.einsum("rsk,rk->rs", counts, np.stack([s.backward_s for s in self.layers], axis=1))
        comm_s = self.once.reduction_s(plain, routed) + self.once.tied_s(stage)
        return {"dp": self._exposed(comm_s, backward), "optimizer": self.once.optimizer_s(plain, routed)}

    def once_s(self, stage: Array, counts: Array) -> Array:
        """Seconds of a stage once per step, [R, S]; convex in the counts (more layers also hide more)."""
        parts = self.once_parts(stage, counts)
        return parts["dp"] + parts["optimizer"]

    def once_most_s(self) -> Array:
        """Seconds once per step that no stage passes: everything on one stage, nothing hidden, [R]."""
        stage = np.zeros((1, 1), np.int64)
        counts = np.array(self.shapes.layers_by_lane, float)[None, None, :]
        counts = np.broadcast_to(counts, (len(self.rows), 1, counts.shape[2]))
        plain, routed = self.once.params(stage, counts)
        ends = self.shapes.trained
        plain, routed = plain + ends.last_params[:, None], routed + ends.last_routed[:, None]
        comm_s = self.once.reduction_s(plain, routed) + self.once.tied_s(stage)
        most: Array = (comm_s + self.once.optimizer_s(plain, routed))[:, 0]
        return most

    def once_mean_s(self, reduction_s: Array | None = None) -> Array:
        """`once_s` of a stage with the mean share of everything, [R]: never above the largest stage's.

        By convexity; the exchange of a tied table, which only two stages pay, is left out. `reduction_s` replaces
        the seconds of its gradient reduction.
        """
        plain, routed = self.once.mean_params
        comm_s = self.once.reduction_s(plain, routed)[:, 0] if reduction_s is None else reduction_s
        counts = self.shapes.layers_by_lane
        backward = sum(n * s.backward_s for n, s in zip(counts, self.layers, strict=True)) / self.rows.pp
        exposed: Array = self._exposed(comm_s, backward) + self.once.optimizer_s(plain, routed)[:, 0]
        return exposed

    def some_stages(self) -> SomeStage:
        """Stages that every cut of a row has: the heavier end with a layer; one with the mean of the commonest
        layers, rounded up; one with the mean of all layers, each as light as any."""
        rows, shapes, model = self.rows, self.shapes.trained, self.setting.model
        common = int(np.argmax(model.layers_by_kind))
        unit = np.where(rows.vpp > 1, rows.vpp * pattern_period(model.pattern), 1)
        units = -(-(model.layers // unit) // rows.pp)
        in_unit = unit * model.layers_by_kind[common] // model.layers
        fullest = np.where(rows.vpp > 1, units * in_unit, -(-model.layers_by_kind[common] // rows.pp))
        at_last = shapes.last_params >= shapes.first_params
        stage = np.where(at_last, rows.last_stage, 0)[:, None]
        ends = np.where(at_last, shapes.last_params, shapes.first_params)
        ends = np.where(
            (rows.pp > 1) & (rows.last_stage == 0), shapes.first_params + shapes.last_params, ends
        )
        plain, routed = (np.stack([p[i] for p in shapes.params], axis=1) for i in (0, 1))
        backward = np.stack([s.backward_s for s in self.layers], axis=1)

        def held(of_layer: Array, light: Array, end: Array | float = 0.0) -> Array:
            """With no further layer and with one, [R, 6]."""
            least = np.stack([end + light, fullest * of_layer[:, common], units * unit * light], axis=1)
            return np.concatenate([least, least + light[:, None]], axis=1)

        at_end = np.where(at_last | (rows.last_stage == 0), shapes.last_routed, 0.0)
        params = held(plain, plain.min(axis=1), ends), held(routed, routed.min(axis=1), at_end)
        comm, optimizer = self.once.reduction_s(*params), self.once.optimizer_s(*params)
        comm[:, [0, 3]] += self.once.tied_s(stage)
        light_s, hides = self.layer_s.min(axis=1), backward.max(axis=1)
        stage_s = held(self.layer_s, light_s, self.costs.ends_s(stage)[:, 0] - self.hop_s)[:, :3]
        return SomeStage(
            stage_s=stage_s + self.hop_s[:, None], stage_step_s=light_s[:, None],
            comm_s=comm[:, :3], comm_step_s=comm[:, 3:] - comm[:, :3],
            optimizer_s=optimizer[:, :3], optimizer_step_s=optimizer[:, 3:] - optimizer[:, :3],
            backward_s=held(backward, hides)[:, :3], backward_step_s=hides[:, None],
            most=(model.layers - rows.pp + 0.0)[:, None], share=self.setting.rates.hideable["dp"],
        )  # fmt: skip

    def _exposed(self, comm_s: Array, backward_s: Array) -> Array:
        """What the backward pass of the last micro-batch leaves of a reduction."""
        share = self.setting.rates.hideable["dp"]
        return (1.0 - share) * comm_s + np.maximum(share * comm_s - backward_s, 0.0)
