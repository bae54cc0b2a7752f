"""The same question on another machine: one figure scaled, everything else as it is.

Figures stay figures: their text is written anew, so that whatever reads a chip or a level reads the changed one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from meshwright.costmodel.setting import Setting
from meshwright.hardware.chip import Chip
from meshwright.hardware.figures import Figure
from meshwright.hardware.network import Level, TorusAxis
from meshwright.optimizer.space import Space

AnyFigure = TypeVar("AnyFigure", bound=Figure)


@dataclass(frozen=True)
class Lever:
    """One thing to buy more of. `scale` gives the question on the machine with so many times as much of it."""

    name: str
    scale: Callable[[Setting, float], Setting]


def levers(space: Space) -> tuple[Lever, ...]:
    """What a machine can have more of, as far as the question knows it: the host link only where offload is open."""
    found = [
        Lever("HBM size", lambda s, by: with_memory(s, int(s.cluster.chip.memory_bytes * by))),
        Lever("HBM bandwidth", with_hbm_rate),
        Lever("FLOP/s", with_peak),
    ]
    for name, levels in links(space.setting):
        found.append(Lever(name, lambda s, by, levels=levels: with_levels(s, levels, by)))  # type: ignore[misc]
    if any(space.offloads):
        found.append(Lever("host link", with_host_link))
    return tuple(found)


def links(setting: Setting) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(name, levels) of each kind of link: all axes of a torus have the same one."""
    network = setting.network
    return tuple(
        (" ".join(network.levels[i].name for i in members) + " links", members)
        for members in network.stages
        if any(network.levels[i].size > 1 for i in members)
    )


def with_memory(setting: Setting, device_bytes: int) -> Setting:
    """Devices with so much usable memory."""
    memory = setting.cluster.chip.memory
    usable = memory.capacity.model_copy(update={"text": f"{device_bytes} B"})
    return _with_chip(setting, memory=memory.model_copy(update={"usable_per_device": usable}))


def with_hbm_rate(setting: Setting, by: float) -> Setting:
    memory = setting.cluster.chip.memory
    return _with_chip(
        setting, memory=memory.model_copy(update={"bandwidth": _times(memory.bandwidth, by, "B/s")})
    )


def with_peak(setting: Setting, by: float) -> Setting:
    """Every dtype's peak."""
    peak = {dtype: _times(figure, by, "FLOP/s") for dtype, figure in setting.cluster.chip.peak.items()}
    return _with_chip(setting, peak=peak)


def with_host_link(setting: Setting, by: float) -> Setting:
    """A chip without a sourced host link keeps none."""
    link = setting.cluster.chip.host_link
    return setting if link is None else _with_chip(setting, host_link=_times(link, by, "B/s"))


def with_levels(setting: Setting, levels: tuple[int, ...], by: float) -> Setting:
    """The links of some network levels; latencies stay."""
    changed = tuple(_faster(x, by) if i in levels else x for i, x in enumerate(setting.cluster.levels))
    return replace(setting, cluster=replace(setting.cluster, levels=changed))


def with_host_memory(setting: Setting, host_bytes: int) -> Setting:
    return replace(setting, cluster=replace(setting.cluster, host_memory_bytes=host_bytes))


def _faster(level: Level, by: float) -> Level:
    if isinstance(level, TorusAxis):
        return replace(level, link_bytes_per_s=level.link_bytes_per_s * by)
    return replace(level, bytes_per_s=level.bytes_per_s * by)


def _times(figure: AnyFigure, by: float, unit: str) -> AnyFigure:
    return figure.model_copy(update={"text": f"{figure.si * by!r} {unit}"})


def _with_chip(setting: Setting, **figures: object) -> Setting:
    chip: Chip = setting.cluster.chip.model_copy(update=figures)
    return replace(setting, cluster=replace(setting.cluster, chip=chip))
