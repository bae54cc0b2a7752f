"""Which choices of tensors to save, repeat or keep on the host are worth considering, for one layer kind and shape.

One choice beats another if it saves no more bytes on the device and on the host, repeats no more seconds and no more
of each collective. What no other beats is found exactly by labels: tensors are taken in reverse topological order; a
label is what the choices so far cost, under a key of what they still ask of the tensors to come. Of labels with one
key those that another beats go.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.framework import Framework
from meshwright.costmodel.policies import UNFUSED_OPERATORS, Costs
from meshwright.costmodel.tensors import DROPPED, HOST, TENSORS, simplest

Array = NDArray[Any]
Crossed = tuple[bool, ...]
_SAME = 1.0 + 1e-12  # sums in another order are the same number
_BLOCK = 64

# What makes each tensor again; those that a layer kind lacks are passed over to their own parents.
PARENTS: dict[str, tuple[str, ...]] = {
    "input": (), "norm1": ("input",), "latent": ("norm1",), "qkv": ("latent",), "core": ("qkv",),
    "out": ("core", "input"), "norm2": ("out",), "router": ("norm2",), "up": ("norm2",), "act": ("up",),
    "expert_up": ("router",), "expert_act": ("expert_up",), "expert_down": ("expert_act",),
    "unfused": ("norm2", "act", "expert_act"),
}  # fmt: skip
# Collectives that making a tensor again repeats, over COLLECTIVES; see `costmodel.policies`.
COLLECTIVES = ("tp", "cp", "ep", "etp")
_CROSSES = {"out": (1, 0, 0, 0), "core": (0, 1, 0, 0), "router": (0, 0, 1, 0), "expert_down": (0, 0, 1, 1)}
_NONE = (0,) * len(COLLECTIVES)


def crossings(collective: str) -> Array:
    """How many of one of COLLECTIVES making each tensor again repeats, [tensors]."""
    return np.array([_CROSSES.get(name, _NONE)[COLLECTIVES.index(collective)] for name in TENSORS])


@dataclass(frozen=True)
class Node:
    """One tensor of a layer.

    Attributes:
        size, seconds: bytes to save it, seconds to make it again. crosses: of COLLECTIVES, those repeated for that.
        parents: tensors that must be there to make it again.
        needed: backward wants it. chosen: it need not be saved. offloads: the host may keep it.
        forces: operators (by their tensor) that run again where it is not saved, whether or not theirs is.
        pins: tensors that are saved on the device where it is saved.
    """

    name: str
    size: float
    seconds: float
    crosses: tuple[int, ...] = _NONE
    parents: tuple[str, ...] = ()
    needed: bool = True
    chosen: bool = True
    offloads: bool = False
    forces: frozenset[str] = frozenset()
    pins: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Key:
    """What the choices so far ask of tensors to come; `hosted`: some tensor is on the host."""

    demanded: frozenset[str] = frozenset()
    forced: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    hosted: bool = False


def nodes_of(framework: Framework, costs: Costs, at: int, crossed: Crossed) -> tuple[Node, ...]:
    """The tensors of a layer kind on one shape, parents first; `crossed` says which of COLLECTIVES there are."""
    here = [n for i, n in enumerate(TENSORS) if costs.present >> i & 1]
    return tuple(
        Node(
            name,
            float(costs.tensor_bytes[at, i]),
            float(costs.operator_s[at, i]),
            tuple(n * cut for n, cut in zip(_CROSSES.get(name, _NONE), crossed, strict=True)),
            tuple(dict.fromkeys(p for parent in PARENTS[name] for p in _present(parent, here))),
            chosen=name in framework.chooses,
            offloads=name in framework.offloads,
            forces=UNFUSED_OPERATORS & set(here) if name == "unfused" else frozenset(),
            pins=DROPPED["mlp"] & set(here) - {"unfused"} if name == "unfused" else frozenset(),
        )
        for i, name in enumerate(TENSORS)
        if name in here
    )


def _present(name: str, here: Sequence[str]) -> list[str]:
    if name in here:
        return [name]
    return [found for parent in PARENTS[name] for found in _present(parent, here)]


def front(nodes: Sequence[Node], host: bool) -> tuple[Array, Array]:
    """Codes of the choices that no other beats: without anything on the host, and with something (none if not `host`).

    Choices with and without the host are not compared with each other.
    """
    needed = {node.name: node.needed for node in nodes}
    groups: dict[_Key, list[tuple[Array, Array]]] = {
        _Key(): [(np.zeros(1, np.int64), np.zeros((1, 3 + len(COLLECTIVES))))]
    }
    for node in reversed(nodes):
        grown: dict[_Key, list[tuple[Array, Array]]] = defaultdict(list)
        for key, parts in groups.items():
            codes, points = _unbeaten(parts)
            for more, bit, cost in _options(node, key, needed, host):
                grown[more].append((codes | bit, points + np.array(cost)))
        groups = grown
    found = {key.hosted: _unbeaten(parts)[0] for key, parts in groups.items()}
    nothing = np.zeros(0, np.int64)
    return found.get(False, nothing), found.get(True, nothing)


def codes_of(
    framework: Framework, costs: Costs, at: int, crossed: Crossed, host: bool
) -> tuple[Array, Array]:
    """`front` of a layer kind on one shape, named policies by their code."""
    if not framework.chooses:
        return (np.zeros(0, np.int64),) * 2
    plain, hosted = front(nodes_of(framework, costs, at, crossed), host)
    return tuple(
        np.array([simplest(int(c), costs.present) for c in codes], np.int64) for codes in (plain, hosted)
    )  # type: ignore[return-value]


def _options(
    node: Node, key: _Key, needed: dict[str, bool], host: bool
) -> list[tuple[_Key, int, tuple[float, ...]]]:
    """(key after it, bits, cost) of everything that may become of one tensor."""
    name, at = node.name, TENSORS.index(node.name)
    wanted = node.needed or name in key.demanded
    rest = _Key(key.demanded - {name}, key.forced - {name}, key.pinned - {name}, key.hosted)
    asks = frozenset(p for p in node.parents if not needed[p])
    again = _Key(rest.demanded | asks, rest.forced | node.forces, rest.pinned, rest.hosted)
    pays = (0.0, 0.0, node.seconds, *node.crosses)
    saved = (
        _Key(rest.demanded, rest.forced, rest.pinned | node.pins, rest.hosted),
        0,
        (node.size, 0.0, 0.0, *_NONE),
    )
    if name in key.forced:  # its operator runs anyway
        if node.chosen:
            return [(again, 1 << at, pays)]
        away = _Key(again.demanded, again.forced, again.pinned, True)
        on_host = [(away, 1 << HOST + at, (0.0, node.size, *pays[2:]))] if node.offloads and host else []
        return [(again, 0, (node.size, *pays[1:])), *on_host]
    if name in key.pinned:
        return [saved]
    if not wanted:
        return [(rest, 1 << at, (0.0, 0.0, 0.0, *_NONE))]
    options = [saved]
    if node.offloads and host:
        hosted = _Key(rest.demanded, rest.forced, rest.pinned, True)
        options.append((hosted, 1 << HOST + at, (0.0, node.size, 0.0, *_NONE)))
    if node.chosen:
        options.append((again, 1 << at, pays))
    return options


def _unbeaten(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """(codes, points) of labels that no other is at most equal to in every coordinate."""
    codes, points = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    if len(codes) < 2:
        return codes, points
    order = np.lexsort((codes, *points.T[::-1]))
    kept = unbeaten(points[order][:, np.ptp(points, axis=0) > 0])
    return codes[order][kept], points[order][kept]


def unbeaten(points: Array) -> Array:
    """Indices of points, sorted by their columns in order, that no earlier one is at most equal to in every column."""
    kept = np.zeros(0, np.int64)
    for start in range(0, len(points), _BLOCK):
        block = points[start : start + _BLOCK]
        beaten = np.any(_at_most(points[kept], block), axis=1)
        inside = np.any(np.tril(_at_most(block, block), -1), axis=1)
        kept = np.concatenate([kept, start + np.flatnonzero(~beaten & ~inside)])
    return kept


def _at_most(one: Array, other: Array) -> Array:
    """Whether each of some points is at most equal to each of others in every column, [others, some]."""
    found = np.ones((len(other), len(one)), bool)
    for column in range(one.shape[1]):  # several times faster than all of a short last axis
        found &= one[:, column] <= other[:, column, None] * _SAME
    return found
