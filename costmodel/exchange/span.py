"""Groups of devices by the network's own words: `x,y`, `x:2`, `x:4@4`, `nvlink,leaf`, or a number of devices.

A group takes a part of some levels. On a torus axis a part has a stride: `x:4` are four neighbours on a line, `x:4@4`
every fourth chip of a ring of sixteen, whose links four such groups share. A number of devices fills the levels from
the innermost.
"""

import re
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from meshwright.costmodel.placement import Group, splits
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.errors import LayoutError, UnknownNameError, check_type
from meshwright.hardware.fabric import load_fabric
from meshwright.hardware.network import Level, TorusAxis

_PART = re.compile(r"(?P<name>[A-Za-z][\w.-]*)(?::(?P<ways>\d{1,7}))?(?:@(?P<stride>\d{1,7}))?", re.ASCII)
_GRAMMAR = "write axes like x,y or nvlink,leaf; a part of one like x:2; every fourth chip of it like x:4@4"


def group_of(factors: Sequence[int], strides: Sequence[int] | None = None) -> Group:
    """One group from a factor, and on torus axes a stride, per level."""
    ways = np.array(factors, np.int64)
    return Group(ways, np.ones_like(ways) if strides is None else np.array(strides, np.int64))


def whole(levels: Sequence[Level]) -> Group:
    """All devices."""
    return group_of([level.size for level in levels])


def parse_span(text: str, cluster: Cluster) -> Group:
    """The group that `text` names on a cluster.

    Errors: UnknownNameError for an axis that is not there; LayoutError for a part that does not fit, an axis named
    twice, or what does not parse.
    """
    check_type("axes", text, str, "a string such as 'x,y'", LayoutError)
    if text.strip().isdigit():
        return first_devices(int(text), cluster.levels)
    factors, strides = [1] * len(cluster.levels), [1] * len(cluster.levels)
    seen: set[str] = set()
    tiers = tiers_of(cluster)
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or len(text) > 200:
            raise LayoutError(f"cannot read axes {text[:60]!r}; {_GRAMMAR}")
        name = match["name"]
        if name in seen:
            raise LayoutError(f"axis {name} is named twice in {text!r}; name each once")
        seen.add(name)
        index, ways = _find(name, cluster, tiers, factors)
        ways = int(match["ways"]) if match["ways"] else ways
        stride = int(match["stride"] or 1)
        _check_part(cluster.levels[index], factors[index], ways, stride)
        factors[index] *= ways
        strides[index] = stride
    return group_of(factors, strides)


def first_devices(count: int, levels: Sequence[Level]) -> Group:
    """So many devices, innermost levels filled first.

    Errors: LayoutError where the count is no product of factors of the levels.
    """
    sizes = tuple(level.size for level in levels)
    for split in splits(count, sizes):
        if all(size % factor == 0 for size, factor in zip(sizes, split, strict=True)):
            return group_of(split)
    shape = " x ".join(f"{level.name} {level.size}" for level in levels)
    raise LayoutError(f"{count:,} devices are no block of {shape}; use a product of factors of these sizes")


def check_apart(group: Group, others: Group, levels: Sequence[Level]) -> None:
    """Raises LayoutError where two groups cannot both have their part of every level."""
    for level, a, b in zip(levels, group.factors, others.factors, strict=True):
        if level.size % int(a * b):
            raise LayoutError(
                f"axis {level.name} has {level.size} and is asked for {a} ways in the collective and {b} ways outside "
                f"it; their product must divide it"
            )


def tiers_of(cluster: Cluster) -> Mapping[str, tuple[int, int]]:
    """Tiers of the cluster's fabric by name: index of the level that holds them, and blocks they join in it."""
    levels = cluster.levels
    named = cluster.name.rpartition("@")[2] if "@" in cluster.name else cluster.chip.scale_out.default_fabric
    fabric = load_fabric(named)
    names = {level.name: index for index, level in enumerate(levels)}
    found: dict[str, tuple[int, int]] = {}
    left = prod(
        level.size for level in levels if level.name in (fabric.name, *(t.name for t in fabric.tiers))
    )
    for tier in fabric.tiers:
        index = names.get(tier.name, names.get(fabric.name))
        if index is None or left == 1:
            continue
        ways = min(tier.capacity or left, left)
        found[tier.name] = (index, ways)
        left //= ways
    return found


def _find(
    name: str, cluster: Cluster, tiers: Mapping[str, tuple[int, int]], used: Sequence[int]
) -> tuple[int, int]:
    """Index of the level, and the ways of all of what is named."""
    for index, level in enumerate(cluster.levels):
        if level.name == name:
            return index, level.size // used[index]
    if name in tiers:
        return tiers[name]
    raise UnknownNameError(
        "axis", name, {*(level.name for level in cluster.levels), *tiers}, f"of {cluster.name}"
    )


def _check_part(level: Level, used: int, ways: int, stride: int) -> None:
    if ways < 1 or stride < 1 or level.size % (used * ways * stride):
        fits = ", ".join(str(d) for d in range(1, level.size + 1) if level.size % d == 0)
        far = f" at stride {stride}" if stride > 1 else ""
        raise LayoutError(
            f"{level.name}:{ways}{far} is no even part of {level.name}, which has {level.size}; parts are {fits}"
        )
    if stride > 1 and not isinstance(level, TorusAxis):
        raise LayoutError(f"{level.name} is switched, where strides mean nothing; leave out @{stride}")
