"""Operators of the slowest stage against their roofline floor, and where the rest of their time goes.

Every figure is the cost model's own, asked again under other rates. `flop_s` is an operator at the peak with memory for
free, `hbm_s` the same with products for free, `floor_s` both at their peak (per product the larger). From the floor to
the seconds of the plan one group of rates after the other is brought in, and each group is charged what it adds:

    rate      the shares of peak and bandwidth that programs reach
    shape     few tokens or a narrow matrix (m0, n0)
    experts   grouped products
    traffic   elementwise work beyond its bytes counted once
"""

from dataclasses import dataclass, replace

from meshwright.costmodel.estimate import stage_counts, table_of
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.operators import backward_s, forward_s
from meshwright.costmodel.setting import Setting
from meshwright.hardware.calibration import Efficiency
from meshwright.optimizer.reasons.machine import with_hbm_rate, with_peak

_FREE = 1e5  # times as fast: nothing waits for it, and figures stay within what units are read up to
GROUPS: dict[str, tuple[str, ...]] = {
    "rate": ("matmul", "attention", "hbm", "low_precision", "straggler", "pinned_mfu"),
    "shape": ("matmul_m0", "matmul_n0", "misaligned", "misaligned_heads", "narrow_heads"),
    "experts": ("expert_matmul",),
    "traffic": ("elementwise", "permute", "sum_bytes", "score_bytes"),
}


@dataclass(frozen=True)
class Operator:
    """One operator of all layers of a kind on the slowest stage, forward and backward of a whole step.

    Attributes:
        layer: kind of layer, or `ends` for embedding and head. Work repeated in backward is an operator `recompute`, of a
            vision tower a part of `tower`.
        seconds: in the plan. floor_s: at peak rates; flop_s, hbm_s: of products and of memory traffic alone.
        rest: seconds above the floor by cause, summing to seconds - floor_s.
    """

    layer: str
    name: str
    seconds: float
    floor_s: float
    flop_s: float
    hbm_s: float
    rest: dict[str, float]

    @property
    def bound(self) -> str:
        """Which roof is nearer: `FLOP/s` or `HBM`."""
        return "FLOP/s" if self.flop_s >= self.hbm_s else "HBM"

    @property
    def achieved(self) -> float:
        """Floor over seconds."""
        return self.floor_s / self.seconds


def operators_of(setting: Setting, layout: Layout, stage: int) -> tuple[Operator, ...]:
    """Operators of one stage of a complete layout, in order; those that take no time are left out."""
    efficiency, ideal = setting.efficiency, setting.floor.efficiency
    # Elementwise bytes are counted once: not as `lower_s` does, for which a perfect compiler hides them in products.
    once = {name: min(1.0, getattr(efficiency, name)) for name in ("elementwise", "permute")}
    at_floor = ideal.model_copy(update=once)
    seconds = _seconds(setting, layout, stage)
    floor = _seconds(_at(setting, at_floor), layout, stage)
    flop = _seconds(
        with_hbm_rate(_at(setting, at_floor.model_copy(update=dict.fromkeys(once, 0.0))), _FREE),
        layout,
        stage,
    )
    hbm = _seconds(with_peak(_at(setting, at_floor), _FREE), layout, stage)
    rest: dict[tuple[str, str], dict[str, float]] = {key: {} for key in seconds}
    reached, before = at_floor, floor
    for group, fields in GROUPS.items():
        reached = reached.model_copy(update={name: getattr(efficiency, name) for name in fields})
        after = _seconds(_at(setting, reached), layout, stage)
        for key in seconds:
            rest[key][group] = after[key] - before[key]
        before = after
    return tuple(
        Operator(*key, seconds[key], floor[key], flop[key], hbm[key], rest[key])
        for key in seconds
        if seconds[key] > 0
    )


def _at(setting: Setting, efficiency: Efficiency) -> Setting:
    return replace(setting, efficiency=efficiency)


def _seconds(setting: Setting, layout: Layout, stage: int) -> dict[tuple[str, str], float]:
    """Compute seconds of a step on a stage, by (layer, operator)."""
    table = table_of(setting, [layout])
    counts, _ = stage_counts(setting, [layout])
    rounds = float(table.rows.micro_batches[0])
    found: dict[tuple[str, str], float] = {}
    for lane, k in enumerate(table.shapes.lanes):
        kind, times = setting.model.kinds[k], rounds * float(counts[0, stage, lane])
        forward = forward_s(setting, kind, table.shapes.shape)
        backward = backward_s(setting, kind, table.shapes.shape, forward)
        again = {name: times * float(forward[name][0] + backward[name][0]) for name in forward}
        again["recompute"] = times * float(table.layers[lane].parts["recompute"][0])
        for name, seconds in again.items():
            found[kind.name, name] = found.get((kind.name, name), 0.0) + seconds
    at_first = rounds * (stage == 0)
    tower, repeated = (
        0.0 if table.tower is None else float(table.tower.parts[part][0]) for part in ("compute", "recompute")
    )
    found["ends", "embedding"] = at_first * (float(table.first.parts["compute"][0]) - tower)
    found["ends", "tower"] = at_first * (tower + repeated)
    at_last = rounds * (stage == int(table.rows.last_stage[0]))
    modules = 0.0 if table.mtp is None else float(table.mtp.parts["compute"][0])
    found["ends", "head"] = at_last * (float(table.last.parts["compute"][0]) - modules)
    found["ends", "mtp"] = at_last * modules
    return found
