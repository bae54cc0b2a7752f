"""What lies outside the scale-up domain: InfiniBand, RoCE, data-centre network.

A fabric is a list of tiers, innermost first. The first tier's rate is what one chip can send; each
tier's oversubscription divides the rate of the tier below. Tiers that nothing tells apart by rate are
merged when levels are built, so a planner sees few levels.
"""

from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from meshwright.hardware.chip import Chip, Switch
from meshwright.hardware.errors import ClusterError, UnknownNameError
from meshwright.hardware.figures import (
    DATA,
    CountFigure,
    RateFigure,
    RatioFigure,
    SecondsFigure,
    Strict,
    load_yaml,
)
from meshwright.hardware.network import SwitchTier
from meshwright.hardware.units import human_rate


class Tier(Strict):
    """One tier. `children` counts domains (or slices) for the first tier, blocks of the tier below after.

    The rate stands on the first tier only: per chip, per node (a whole scale-up domain), or left out
    where the chip's own NIC or DCN egress is meant. `assumes` is told to the user when the tier is used.
    """

    name: str
    children: CountFigure | Literal["unlimited"]
    rate_per_chip: RateFigure | None = None
    rate_per_node: RateFigure | None = None
    oversubscription: RatioFigure
    latency: SecondsFigure
    all_reduce_speedup: RatioFigure | None = None
    assumes: str = ""

    @property
    def capacity(self) -> int | None:
        """Children at most; None where unlimited."""
        return None if self.children == "unlimited" else self.children.count


class InSwitchGain(Strict):
    """What reduction inside the scale-up switches gains on an all-reduce of more than `above_chips`."""

    speedup: RatioFigure
    above_chips: CountFigure


class Fabric(Strict):
    """One fabric. `summary` is what plans print; `domain` limits it to chips with such domains."""

    name: str
    title: str
    summary: str
    families: tuple[Literal["tpu", "nvidia", "amd"], ...]
    domain: int | None = None
    tiers: tuple[Tier, ...]
    scale_up_all_reduce: dict[str, InSwitchGain] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _well_formed(self) -> "Fabric":
        if not self.tiers:
            raise ValueError("a fabric needs at least one tier")
        for tier in self.tiers[1:]:
            if tier.rate_per_chip or tier.rate_per_node:
                raise ValueError(f"tier {tier.name}: only the first tier has a rate; give oversubscription")
        for tier in self.tiers[:-1]:
            if tier.children == "unlimited":
                raise ValueError(f"tier {tier.name}: only the last tier can be unlimited")
        if self.tiers[0].rate_per_chip and self.tiers[0].rate_per_node:
            raise ValueError("give rate_per_chip or rate_per_node, not both")
        return self

    def sources(self) -> tuple[str, ...]:
        """Where the figures come from, without repeats."""
        figures = [f for tier in self.tiers for f in _figures(tier)]
        return tuple(dict.fromkeys(f.source for f in figures))


def _figures(tier: Tier) -> Iterator[CountFigure | RateFigure | RatioFigure | SecondsFigure]:
    for name in type(tier).model_fields:
        value = getattr(tier, name)
        if isinstance(value, CountFigure | RateFigure | RatioFigure | SecondsFigure):
            yield value


@cache
def fabric_names() -> tuple[str, ...]:
    """Names of the fabrics that ship with the package."""
    return tuple(sorted(path.stem for path in (DATA / "fabrics").glob("*.yaml")))


def is_path(name_or_path: str) -> bool:
    """Whether a fabric is named by file."""
    return "/" in name_or_path or name_or_path.lower().endswith((".yaml", ".yml"))


def load_fabric(name_or_path: str) -> Fabric:
    """A fabric by name, or from a user's YAML (anything with a '/' or ending in .yaml or .yml).

    Errors: UnknownNameError with near names; InputError when the file is not a fabric.
    """
    if is_path(name_or_path):
        return load_yaml(Path(name_or_path).expanduser(), Fabric)
    name = name_or_path.strip().lower()
    if name not in fabric_names():
        raise UnknownNameError("fabric", name_or_path, fabric_names(), "a path to a YAML file works too")
    return _shipped(name)


@cache
def _shipped(name: str) -> Fabric:
    return load_yaml(DATA / "fabrics" / f"{name}.yaml", Fabric)


def nic_rate(fabric: Fabric, chip: Chip) -> float:
    """Bytes/s that one device can send, before any oversubscription.

    Errors: ClusterError when neither the fabric nor the chip has a rate.
    """
    first = fabric.tiers[0]
    if first.rate_per_chip is not None:
        per_chip = first.rate_per_chip.si
    elif first.rate_per_node is not None and isinstance(chip.scale_up, Switch):
        # Rails are one NIC per chip: a chip does not get its neighbours' share.
        per_chip = first.rate_per_node.si / chip.scale_up.domain.count
    elif chip.scale_out.per_chip_one_way is not None:
        per_chip = chip.scale_out.per_chip_one_way.si
    else:
        raise ClusterError(
            f"fabric {fabric.name} takes the NIC rate of the chip, and no source gives one for {chip.name}; "
            f"name a fabric with a rate, like @ib200"
        )
    return per_chip / chip.devices_per_chip


def outer_levels(fabric: Fabric, chip: Chip, count: int) -> tuple[tuple[SwitchTier, ...], tuple[str, ...]]:
    """Levels that join `count` domains or slices, and sentences for the user.

    Tiers of equal rate and speed-up are merged. A merged tier is as slow to answer as its outermost part
    in use. Where blocks of a tier do not divide the count, the largest equal blocks are taken.

    Errors: ClusterError when the fabric is too small or the count does not split evenly.
    """
    check_fits(fabric, chip)
    levels: list[SwitchTier] = []
    notes: list[str] = []
    rate, left, reached = nic_rate(fabric, chip), count, 1
    for group in _groups(fabric):
        rate /= group[0].oversubscription.si
        if left == 1:
            break
        room = _room(group)
        size = left if room is None else _largest_divisor(left, room)
        if size > 1:
            latency, assumed = _within(group, size)
            speedup = group[0].all_reduce_speedup
            name = group[0].name if len(group) == 1 else fabric.name
            levels.append(SwitchTier(name, size, rate, latency, speedup.si if speedup else 1.0))
            notes += [f"fabric {fabric.name}: {text}" for text in assumed]
        if room is not None and size not in (left, room):
            notes.append(_uneven(fabric, group, count, size * reached))
        left, reached = left // size, reached * size
    if left > 1:
        raise ClusterError(_too_many(fabric, count))
    return tuple(levels), tuple(notes)


def check_fits(fabric: Fabric, chip: Chip) -> None:
    """Errors: ClusterError when the fabric is not for this chip."""
    if chip.family not in fabric.families:
        raise ClusterError(
            f"fabric {fabric.name} is for {' and '.join(fabric.families)} chips, not for {chip.name}; "
            f"its default is @{chip.scale_out.default_fabric}"
        )
    if fabric.domain is not None:
        domain = chip.scale_up.domain.count if isinstance(chip.scale_up, Switch) else 1
        if domain != fabric.domain:
            raise ClusterError(
                f"fabric {fabric.name} joins domains of {fabric.domain} chips, and {chip.name} has domains "
                f"of {domain}; its default is @{chip.scale_out.default_fabric}"
            )


def describe(fabric: Fabric, chip: Chip, *, default: bool) -> str:
    """One printable sentence."""
    default_text = " (the default)" if default else ""
    rate = human_rate(nic_rate(fabric, chip) / fabric.tiers[0].oversubscription.si)
    return f"fabric {fabric.name}{default_text}: {fabric.summary}; {rate} per device one way"


def _groups(fabric: Fabric) -> list[list[Tier]]:
    """Neighbouring tiers that a planner cannot tell apart by rate."""
    groups: list[list[Tier]] = []
    for tier in fabric.tiers:
        below = groups[-1][-1] if groups else None
        same = below is not None and tier.oversubscription.si == 1 and _speedup(tier) == _speedup(below)
        if same:
            groups[-1].append(tier)
        else:
            groups.append([tier])
    return groups


def _speedup(tier: Tier) -> float:
    return tier.all_reduce_speedup.si if tier.all_reduce_speedup else 1.0


def _room(group: list[Tier]) -> int | None:
    sizes = [tier.capacity for tier in group]
    return None if None in sizes else prod(size for size in sizes if size is not None)


def _within(group: list[Tier], size: int) -> tuple[float, list[str]]:
    """Latency and assumptions of the tiers that a block of `size` children reaches."""
    used: list[Tier] = []
    reach = 1
    for tier in group:
        used.append(tier)
        reach *= tier.capacity or size
        if reach >= size:
            break
    return max(tier.latency.si for tier in used), [tier.assumes for tier in used if tier.assumes]


def _largest_divisor(count: int, limit: int) -> int:
    return next(d for d in range(min(count, limit), 0, -1) if count % d == 0)


def _uneven(fabric: Fabric, group: list[Tier], count: int, block: int) -> str:
    return (
        f"fabric {fabric.name}: {count:,} domains do not fill whole blocks of tier {group[-1].name}; "
        f"taken as {count // block:,} blocks of {block:,}"
    )


def _too_many(fabric: Fabric, count: int) -> str:
    whole = prod(tier.capacity or 1 for tier in fabric.tiers)
    if count > whole:
        return (
            f"fabric {fabric.name} joins at most {whole:,} domains, not {count:,}; "
            f"use fewer, or give a larger fabric as @FILE.yaml"
        )
    sizes = " x ".join(str(tier.capacity) for tier in fabric.tiers)
    return (
        f"{count:,} domains cannot be split evenly over the tiers of fabric {fabric.name} ({sizes}); "
        f"use a count with factors that fit"
    )
