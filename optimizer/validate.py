"""Everything wrong with a plan, found without the solver and without its encodings."""

from collections.abc import Iterator
from typing import NamedTuple

from meshwright.costmodel.estimate import StepEstimate
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.memory import ROUNDING_BYTES
from meshwright.costmodel.setting import Setting
from meshwright.hardware.units import human_bytes


class Violation(NamedTuple):
    rule: str
    detail: str


def violations(setting: Setting, layout: Layout, priced: StepEstimate) -> Iterator[Violation]:
    """Rules that a finished plan breaks. Divisibility is the estimate's own check; this adds what it cannot know:
    that the parts agree, that everything fits, and that stages cover the model."""
    if layout.devices > setting.cluster.devices:
        yield Violation("uses the devices there are", f"{layout.devices} of {setting.cluster.devices}")
    if sum(layout.layers_per_stage) != setting.model.layers or min(layout.layers_per_stage) < 1:
        yield Violation(
            "stages cover the model", f"{layout.layers_per_stage} for {setting.model.layers} layers"
        )
    used = [1] * len(setting.cluster.levels)
    for level, members in enumerate(layout.placement):
        for _, factor in members:
            used[level] *= factor
        if used[level] > setting.cluster.levels[level].size:
            yield Violation(
                "placement fits each level", f"{used[level]} on {setting.cluster.levels[level].name}"
            )
    for stage, need in enumerate(priced.stage_bytes):
        if need > priced.capacity_bytes + ROUNDING_BYTES:
            short = human_bytes(need - priced.capacity_bytes)
            yield Violation("every stage fits the device memory", f"stage {stage} is {short} short")
    yield from _host_violations(setting, layout, priced)
    if abs(sum(priced.parts.values()) - priced.step_s) > 1e-9 * priced.step_s:
        yield Violation("parts sum to the step", f"{sum(priced.parts.values())} and {priced.step_s}")
    if not priced.lower_s <= priced.step_s <= priced.upper_s:
        yield Violation("lower <= step <= upper", f"{priced.lower_s}, {priced.step_s}, {priced.upper_s}")


def _host_violations(setting: Setting, layout: Layout, priced: StepEstimate) -> Iterator[Violation]:
    """Host memory, host by host: walk the devices of the first hosts in network order and add what each keeps."""
    cluster = setting.cluster
    if layout.offload == "none" or cluster.host_memory_bytes is None:
        return
    per_host = cluster.devices_per_host or 1
    kept: dict[int, float] = {}
    for device, stage in device_stages(setting, layout):
        kept[device // per_host] = kept.get(device // per_host, 0.0) + priced.host_bytes[stage]
    for host, need in kept.items():
        if need > cluster.host_memory_bytes:
            short = human_bytes(need - cluster.host_memory_bytes)
            yield Violation("every host fits its memory", f"host {host} is {short} short")
            return


def device_stages(setting: Setting, layout: Layout) -> Iterator[tuple[int, int]]:
    """(device number, pipeline stage) of every used device; devices are numbered innermost level first."""
    levels = setting.cluster.levels
    at: list[tuple[int, int, int]] = [(0, 0, 1)]  # device, stage, stages so far
    width = 1
    for level, members in zip(levels, layout.placement, strict=True):
        grown = []
        for device, stage, stages in at:
            positions = [(0, 0)]  # position on the level, pp coordinate there
            inside, pp_here = 1, 1
            for name, factor in members:
                positions = [
                    (p + inside * k, c * 1 + (k if name == "pp" else 0))
                    for k in range(factor)
                    for p, c in positions
                ]
                inside *= factor
                pp_here = factor if name == "pp" else pp_here
            grown += [(device + width * p, stage + stages * c, stages * pp_here) for p, c in positions]
        at, width = grown, width * level.size
    for device, stage, _ in at:
        yield device, stage
