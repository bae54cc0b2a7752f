"""estimate(): the one oracle. Prices a complete layout: step time by exposed part, and memory of every stage."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.bands import band_of
from meshwright.costmodel.comm import Comm, PlacedComm
from meshwright.costmodel.flops import model_flops
from meshwright.costmodel.hosts import fullest_host_bytes
from meshwright.costmodel.lanes import Lanes, lane_counts
from meshwright.costmodel.layout import DIMENSIONS, Layout, Placement, with_stages
from meshwright.costmodel.legal import check_layout, chunk_unit
from meshwright.costmodel.memory import ROUNDING_BYTES
from meshwright.costmodel.pipeline import step_s
from meshwright.costmodel.placement import (
    check_placement,
    groups_of,
    groups_of_arrays,
    joint_splits,
    least_strides,
    orders,
    placement_of,
    unplaceable,
)
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import COMM_CLASSES, Setting
from meshwright.costmodel.stages import StageTable
from meshwright.hardware.errors import LayoutError, check_type

Array = NDArray[Any]

# Exposed parts of a step in the order they are shown. `bubble` is what the pipeline waits beyond the slowest
# stage's own work.
PARTS = ("compute", "recompute", "launch", *COMM_CLASSES, "bubble", "optimizer")


@dataclass(frozen=True)
class StepEstimate:
    """What a layout costs.

    Attributes:
        lower_s: ideal rates, everything hidden: the roofline floor.
        step_s: the chosen mode. upper_s: the chosen mode's rates with nothing hidden.
        band_s: seconds between which 80% of runs of this kind lie; None where nothing was measured (`costmodel.bands`).
        parts: exposed seconds, summing to step_s.
        mfu: FLOPs the model needs over what the *used* devices could do in step_s, at the compute dtype's peak.
        tokens_per_s: of the whole job.
        memory: per stage, bytes on one device by part.
        host_bytes: per stage, bytes that one device keeps on its host.
        fullest_host_bytes: what all devices of one host keep there, of the host that keeps most.
        capacity_bytes: what the device's tensors may fill.
        host_capacity_bytes: memory of one host; None where nobody states it.
        sequences: sequences per step.
    """

    lower_s: float
    step_s: float
    upper_s: float
    band_s: tuple[float, float] | None
    parts: dict[str, float]
    mfu: float
    tokens_per_s: float
    memory: tuple[dict[str, float], ...]
    host_bytes: tuple[float, ...]
    fullest_host_bytes: float
    capacity_bytes: int
    host_capacity_bytes: int | None
    sequences: int

    @property
    def stage_bytes(self) -> tuple[float, ...]:
        return tuple(sum(stage.values()) for stage in self.memory)

    @property
    def heaviest_stage(self) -> int:
        return int(np.argmax(self.stage_bytes))

    @property
    def short_bytes(self) -> float:
        """Bytes by which the heaviest stage passes the capacity of a device; 0 where it fits."""
        return _beyond(max(self.stage_bytes), self.capacity_bytes)

    @property
    def host_short_bytes(self) -> float:
        """Bytes by which the fullest host passes its memory; 0 where it fits."""
        return _beyond(self.fullest_host_bytes, self.host_capacity_bytes or 0)

    @property
    def fits(self) -> bool:
        """Whether every stage fits the memory of its devices, and of their hosts."""
        return self.short_bytes == 0 and self.host_short_bytes == 0

    def to_dict(self) -> dict[str, Any]:
        """JSON types, floats at 10 significant digits."""
        return {
            "lower_s": digits(self.lower_s),
            "step_s": digits(self.step_s),
            "upper_s": digits(self.upper_s),
            "band_s": None if self.band_s is None else [digits(s) for s in self.band_s],
            "parts": {k: digits(v) for k, v in self.parts.items()},
            "mfu": digits(self.mfu),
            "tokens_per_s": digits(self.tokens_per_s),
            "host_bytes": [digits(b) for b in self.host_bytes],
            "fullest_host_bytes": digits(self.fullest_host_bytes),
            "capacity_bytes": self.capacity_bytes,
            "host_capacity_bytes": self.host_capacity_bytes,
            "sequences": self.sequences,
        }

    def memory_dict(self) -> list[dict[str, float]]:
        return [{k: digits(v) for k, v in stage.items()} for stage in self.memory]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], memory: list[dict[str, float]]) -> "StepEstimate":
        band = None if data["band_s"] is None else tuple(data["band_s"])
        return cls(
            **{**data, "memory": tuple(memory), "host_bytes": tuple(data["host_bytes"]), "band_s": band}
        )


def _beyond(need_bytes: float, capacity_bytes: int) -> float:
    short = need_bytes - capacity_bytes
    return short if short > ROUNDING_BYTES else 0.0


def digits(value: float) -> float:
    """A float at 10 significant digits, so that files compare byte for byte."""
    return float(f"{value:.10g}")


def estimate(setting: Setting, layout: Layout) -> StepEstimate:
    """Price a layout; where it gives no placement, the fastest one.

    Raises:
        LayoutError: the layout breaks a rule of the model, the batch or the network.
        InputError: no Setting, or no Layout.
    """
    layout = complete(setting, layout)
    counts, stages = stage_counts(setting, [layout])
    table = table_of(setting, [layout])
    step, parts = _priced(table, stages, counts)
    lower, _ = _priced(table_of(setting.floor, [layout]), stages, counts)
    upper, _ = _priced(table_of(setting.serial, [layout]), stages, counts)
    training = setting.training
    sequences = layout.sequences or training.sequences
    flops = model_flops(setting) * sequences / training.sequences
    peak = setting.cluster.chip.peak_flop_per_s(training.compute_dtype)
    memory, band = table.stage_parts(stages, counts), band_of(setting)
    host = tuple(float(b) for b in table.host_bytes(stages, counts)[0, : layout.pp])
    return StepEstimate(
        # Rounding must not turn the order of three roundings of one sum around.
        lower_s=min(float(lower[0]), float(step[0])),
        step_s=float(step[0]),
        upper_s=max(float(upper[0]), float(step[0])),
        band_s=None if band is None else (band[0] * float(step[0]), band[1] * float(step[0])),
        parts={p: float(parts[p][0]) for p in PARTS},
        mfu=flops / (float(step[0]) * layout.devices * peak),
        tokens_per_s=sequences * training.seq_len / float(step[0]),
        memory=tuple({p: float(v[0, s]) for p, v in memory.items()} for s in range(layout.pp)),
        host_bytes=host,
        fullest_host_bytes=fullest_host_bytes(setting, layout, host),
        capacity_bytes=setting.capacity_bytes,
        host_capacity_bytes=setting.cluster.host_memory_bytes,
        sequences=sequences,
    )


def complete(setting: Setting, layout: Layout, allowed: Callable[[Array], Array] | None = None) -> Layout:
    """The layout with stages and placement written out, checked against every rule.

    `allowed` says which splits of the degrees over the levels may be chosen, [splits, dimensions, levels]; None for all.
    """
    check_type("setting", setting, Setting, "what resolve(model, cluster, training) returns")
    check_type("layout", layout, Layout, "a Layout, or parse_layout('tp=8,pp=4')")
    layout = with_stages(layout, setting.model.layers, chunk_unit(setting, layout.vpp))
    check_layout(setting, layout)
    levels = setting.cluster.levels
    if layout.placement:
        check_placement(layout, levels)
        return layout
    return replace(layout, placement=_best_placement(setting, layout, allowed))


def _best_placement(setting: Setting, layout: Layout, allowed: Callable[[Array], Array] | None) -> Placement:
    """The fastest placement of a layout with stages; raises LayoutError where there is none.

    Splits of the degrees over the levels go first, each as if every dimension were innermost on its axes: no order
    on them is faster. Then orders, best split first, until no split left can hold a faster one.
    """
    levels = setting.cluster.levels
    factors = joint_splits(tuple(getattr(layout, d) for d in DIMENSIONS), tuple(x.size for x in levels))
    factors = factors if allowed is None else factors[allowed(factors)]
    counts, stages = stage_counts(setting, [layout])
    row, lanes = Rows.of([layout], setting), Lanes.of(setting.model, [layout]).kinds

    def seconds(of: Array, strides: Array) -> Array:
        """Step seconds by placement; inf where the expert ranks do not fit it."""
        rows = row[np.zeros(len(of), np.int64)]
        groups = groups_of_arrays(of, strides, rows.ep, rows.etp)
        table = StageTable.of(setting, rows, PlacedComm(setting.network, groups), lanes)
        priced = step_seconds(table, stages, np.broadcast_to(counts, (len(rows), *counts.shape[1:])))
        return np.where(groups.ep.size == rows.ep, priced, np.inf)

    best: tuple[float, int, Array | None] = (np.inf, 0, None)
    floors = seconds(factors, least_strides(factors, setting.network.torus)) if len(factors) else np.zeros(0)
    for split in np.argsort(floors, kind="stable"):
        if floors[split] > best[0]:
            break
        strides = orders(factors[split], levels)
        priced = seconds(np.broadcast_to(factors[split], strides.shape), strides)
        fastest = int(np.argmin(priced))
        if (priced[fastest], split) < best[:2]:
            best = float(priced[fastest]), int(split), strides[fastest]
    if best[2] is None:
        raise LayoutError(unplaceable(layout, levels))
    return placement_of(factors[best[1]], best[2])


def table_of(setting: Setting, layouts: list[Layout]) -> StageTable:
    """Stage coefficients of complete layouts, a lane per policy of a layer kind."""
    rows = Rows.of(layouts, setting)
    groups = groups_of([x.placement for x in layouts], rows.ep, rows.etp)
    comm: Comm = PlacedComm(setting.network, groups)
    return StageTable.of(setting, rows, comm, Lanes.of(setting.model, layouts).kinds)


def stage_counts(setting: Setting, layouts: list[Layout]) -> tuple[Array, Array]:
    """Layers of each lane on each stage [R, S, Q], zero beyond a row's stages, and stage numbers [1, S]."""
    counts = lane_counts(setting.model, layouts, Lanes.of(setting.model, layouts))
    return counts, np.arange(counts.shape[1])[None, :]


def seconds_of(setting: Setting, layout: Layout) -> float:
    """`step_s` alone, of a complete layout."""
    counts, stages = stage_counts(setting, [layout])
    return float(step_seconds(table_of(setting, [layout]), stages, counts)[0])


def step_seconds(table: StageTable, stages: Array, counts: Array) -> Array:
    """Seconds of a step, [R]."""
    used = stages < table.rows.pp[:, None]
    seconds = np.where(used, table.stage_s(stages, counts), 0.0)
    once = np.where(used, table.once_s(stages, counts), 0.0)
    return step_s(table.rows, seconds.max(axis=1), seconds.sum(axis=1), once.max(axis=1), table.hidden_s)


def _priced(table: StageTable, stages: Array, counts: Array) -> tuple[Array, dict[str, Array]]:
    """Seconds of a step and its exposed parts, told from the slowest stage's point of view."""
    total = step_seconds(table, stages, counts)
    rows, used = table.rows, stages < table.rows.pp[:, None]
    seconds = np.where(used, table.stage_s(stages, counts), 0.0)
    slowest = np.argmax(seconds, axis=1)
    once = np.where(used, table.once_s(stages, counts), -1.0)
    latest = np.argmax(once, axis=1)
    parts = parts_of(table, stages, counts, slowest, latest)
    # With one stage nobody waits; the difference of sums would be noise.
    parts["bubble"] = np.where(rows.pp > 1, total - sum(parts.values()), 0.0)
    return total, parts


def parts_of(
    table: StageTable, stages: Array, counts: Array, stage: Array, at_end: Array
) -> dict[str, Array]:
    """Exposed seconds of a step on one `stage` of each row, and once per step those of stage `at_end`; no bubble, [R]."""
    rows, each = table.rows, np.arange(len(table.rows))
    parts = dict.fromkeys(PARTS, np.zeros(len(rows)))
    n, m = counts[each, stage], rows.micro_batches
    sources = [(n[:, k], s) for k, s in enumerate(table.layers)]
    sources += [((stage == 0) * 1.0, table.first), ((stage == rows.last_stage) * 1.0, table.last)]
    for amount, source in sources:
        for part, value in source.parts.items():
            parts[part] = parts[part] + m * amount * value
    parts["pp"] = parts["pp"] + m * table.hop_s
    for part, value in table.once_parts(stages, counts).items():
        parts[part] = parts[part] + value[each, at_end]
    return parts
