"""A mesh of named axes laid over the levels of a cluster.

X=4,Y=16        ways; whole levels are taken where they multiply to these, inner ones first
X=x,Y=y*z       levels by name: Y lies over two torus axes, whose bandwidths add
X=x:2,Y=x:2@2   parts of a level
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import prod

import numpy as np

from meshwright.costmodel.collectives import Network, duration
from meshwright.costmodel.exchange.operations import timed_loads
from meshwright.costmodel.exchange.place import cluster_at, network_at
from meshwright.costmodel.exchange.span import group_of, parse_span
from meshwright.costmodel.placement import Group, joint_splits
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.errors import LayoutError, check_type
from meshwright.hardware.network import Level

_MOST_AXES = 4
_GRAMMAR = "write a mesh like X=4,Y=16, or by the cluster's own axes like X=x,Y=y*z"


@dataclass(frozen=True)
class Mesh:
    """Axes by name, and where each lies: a group of [levels] in which the other axes' places are fixed."""

    network: Network
    groups: Mapping[str, Group]
    _seconds: dict[tuple[str, frozenset[str], float, bool], float] = field(
        default_factory=dict, compare=False
    )

    @cached_property
    def ways(self) -> dict[str, int]:
        return {name: int(group.size) for name, group in self.groups.items()}

    @property
    def devices(self) -> int:
        return prod(self.ways.values())

    def joint(self, axes: Iterable[str]) -> Group:
        """Several axes as one group. Its stride counts only devices of other axes between its members."""
        members = [self.groups[a] for a in axes]
        factors = np.prod([m.factors for m in members], axis=0)
        strides = np.ones_like(factors)
        for level in range(len(factors)):
            on = [(int(m.strides[level]), int(m.factors[level])) for m in members if m.factors[level] > 1]
            inside = 1
            for stride, factor in sorted(on):
                strides[level] = max(strides[level], stride // inside)
                inside *= factor
        return Group(factors, strides)

    def seconds(self, operation: str, axes: Iterable[str], held_bytes: float, exact: bool = True) -> float:
        """Of a collective over some axes, of bytes that their devices hold together."""
        key = operation, frozenset(axes), held_bytes, exact
        if key not in self._seconds:
            group = self.joint(sorted(key[1]))
            alone = group.size == 1
            loads = timed_loads(operation, self.network, held_bytes, group, exact=exact)
            self._seconds[key] = 0.0 if alone else float(duration(loads))
        return self._seconds[key]

    def described(self, axis: str) -> str:
        """The levels of an axis, as the mesh would be written."""
        group, levels = self.groups[axis], self.network.levels
        parts = []
        for i, level in enumerate(levels):
            ways, stride = int(group.factors[i]), int(group.strides[i])
            if ways > 1:
                whole = ways == level.size
                parts.append(
                    level.name + ("" if whole else f":{ways}") + (f"@{stride}" if stride > 1 else "")
                )
        return "*".join(parts) or "one device"


def parse_mesh(text: str | None, cluster: Cluster | str, network: Network | None = None) -> Mesh:
    """Read a mesh; without one, X, Y, Z are the cluster's levels in order.

    Args:
        cluster: like "v5p:4x4x4", or of parse_cluster.
        network: of the cluster at other than ideal rates.

    Errors: LayoutError for what does not parse or fit, UnknownNameError for a level that is not there.
    """
    cluster = cluster_at(cluster)
    network = network_at(cluster) if network is None else network
    if text is None:
        return Mesh(network, _own_levels(network.levels))
    check_type("mesh", text, str, "a string such as 'X=4,Y=4'", LayoutError)
    ways: dict[str, int] = {}
    groups: dict[str, Group] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z]\w*)\s*=\s*(\S+)\s*", part, re.ASCII)
        if match is None or len(text) > 200:
            raise LayoutError(f"cannot read mesh {text[:60]!r}; {_GRAMMAR}")
        name, value = match.groups()
        if name in ways or name in groups:
            raise LayoutError(f"mesh axis {name} is given twice in {text!r}; keep one")
        if value.isdigit():
            ways[name] = int(value)
        else:
            groups[name] = parse_span(value.replace("*", ","), cluster)
    if len(ways) + len(groups) > _MOST_AXES:
        raise LayoutError(
            f"a mesh of {len(ways) + len(groups)} axes; at most {_MOST_AXES} are searched through"
        )
    if ways and groups:
        raise LayoutError(f"mesh {text!r} mixes ways and levels; give all as ways, or all as levels")
    if groups:
        _check_apart(groups, network.levels)
        return Mesh(network, groups)
    return Mesh(network, _placed(ways, network.levels))


def _own_levels(levels: tuple[Level, ...]) -> dict[str, Group]:
    names = "XYZW"[: len(levels)]
    if len(levels) > len(names):
        raise LayoutError(f"{len(levels)} levels are more than a mesh of {len(names)} axes; give --mesh")
    return {
        name: group_of([level.size if i == j else 1 for j, level in enumerate(levels)])
        for i, name in enumerate(names)
    }


def _check_apart(groups: Mapping[str, Group], levels: tuple[Level, ...]) -> None:
    """Raises LayoutError where two axes want the same devices of a level."""
    for index, level in enumerate(levels):
        on = {name: g for name, g in groups.items() if g.factors[index] > 1}
        inside = 1
        for name, group in sorted(on.items(), key=lambda item: int(item[1].strides[index])):
            if len(on) > 1 and int(group.strides[index]) < inside:
                raise LayoutError(
                    f"mesh axes {' and '.join(on)} share level {level.name} of {level.size} and overlap; "
                    f"give the outer one a stride, like {name}={level.name}:{group.factors[index]}@{inside}"
                )
            inside = int(group.strides[index] * group.factors[index])


def _placed(ways: Mapping[str, int], levels: tuple[Level, ...]) -> dict[str, Group]:
    """Whole levels where they fit; else the first split that fills inner levels first."""
    if 0 in ways.values():
        raise LayoutError("a mesh axis of 0 ways holds nothing; use 1 or more")
    taken = _whole_levels(list(ways.values()), list(range(len(levels))), levels)
    if taken is not None:
        return {
            name: group_of([level.size if i in own else 1 for i, level in enumerate(levels)])
            for name, own in zip(ways, taken, strict=True)
        }
    sizes = np.array([level.size for level in levels])
    for split in joint_splits(tuple(ways.values()), tuple(map(int, sizes))):
        if not (sizes % split.prod(axis=0)).any():
            strides = np.cumprod(split, axis=0) // split
            return {n: Group(split[i], np.where(split[i] > 1, strides[i], 1)) for i, n in enumerate(ways)}
    shape = " x ".join(f"{level.name} {level.size}" for level in levels)
    asked = ", ".join(f"{name}={count}" for name, count in ways.items())
    raise LayoutError(
        f"mesh {asked} cannot be laid over {shape}: each level must hold a whole factor of every axis; "
        f"use ways whose product fits"
    )


def _whole_levels(
    ways: list[int], free: list[int], levels: tuple[Level, ...]
) -> list[tuple[int, ...]] | None:
    """Levels for each axis that multiply to its ways, none cut; None where there are no such."""
    if not ways:
        return []
    for count in range(len(free) + 1):
        for own in combinations(free, count):
            if prod(levels[i].size for i in own) == ways[0]:
                rest = _whole_levels(ways[1:], [i for i in free if i not in own], levels)
                if rest is not None:
                    return [own, *rest]
    return None
