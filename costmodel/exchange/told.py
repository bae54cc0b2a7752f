"""One collective in words: its levels, what binds, and what a reader should know of the numbers."""

from collections.abc import Iterator, Mapping
from math import isclose

from meshwright.costmodel.collectives import duration
from meshwright.costmodel.exchange.operations import tree_bandwidth
from meshwright.costmodel.exchange.place import leaf_domains
from meshwright.costmodel.exchange.question import GATHERING, Asked
from meshwright.costmodel.placement import Group
from meshwright.costmodel.working import Value
from meshwright.hardware.network import TorusAxis
from meshwright.hardware.units import human_rate, human_seconds


def _seen(asked: Asked, index: int) -> str:
    """What a group sees of a level."""
    level = asked.network.levels[index]
    if not isinstance(level, TorusAxis):
        return "switch"
    if not asked.is_ring(index):
        return "line" if level.size == asked.group.factors[index] else "part of an axis, a line"
    stride = int(asked.group.strides[index])
    shared = f", links shared {stride} ways" if stride > 1 else ""
    return ("ring, one direction" if level.one_way else "ring") + shared


def rows(asked: Asked) -> Iterator[Mapping[str, Value]]:
    """Each level; where switches nest, also what a gather would reach if it ended there."""
    exact = asked.timed()
    nested = asked.operation in ("all-gather", "reduce-scatter") and not asked.on_torus
    alone = tree_bandwidth(asked.network, asked.group) if nested else {}
    for index in asked.levels:
        level = asked.network.levels[index]
        row: dict[str, Value] = {
            "level": level.name,
            "ways": f"{asked.group.factors[index]} of {level.size}",
            "seen as": _seen(asked, index),
            "busy": human_seconds(float(exact[index])),
        }
        if alone:
            row["V/t if it ended here"] = human_rate(alone[level.name])
        yield row


def binds(asked: Asked) -> str:
    """Latency or which level, and by how much over the next."""
    exact = asked.moving()
    bandwidth, wait = float(exact.max()), float(duration(asked.latency))
    names = " and ".join(
        asked.network.levels[i].name for i in asked.levels if exact[i] >= bandwidth * (1 - 1e-9)
    )
    if wait > bandwidth:
        return (
            f"latency: {human_seconds(wait)} of hops against {human_seconds(bandwidth)} of bandwidth on {names}; "
            f"an array {wait / bandwidth:.3g} times as large would take no longer"
        )
    others = [float(exact[i]) for i in asked.levels if exact[i] < bandwidth * (1 - 1e-9)]
    rivals = [f"{human_seconds(max(others))} on the next level"] if others else []
    rivals += [f"{human_seconds(wait)} of latency"] if wait > 0 else []
    against = f" against {' and '.join(rivals)}" if rivals else ""
    most = max([*others, wait])
    return f"bandwidth of {names}: {human_seconds(bandwidth)}{against}" + (
        f", {bandwidth / most:.3g} times as long" if most > 0 else ""
    )


def notes(asked: Asked, one_way: bool) -> Iterator[str]:
    if asked.operation in ("all-gather", "reduce-scatter"):
        other = "reduce-scatter" if asked.operation == "all-gather" else "all-gather"
        yield f"The same time as a {other}, its transpose; an all-reduce is both, one after the other."
    if asked.operation == "all-to-all" and set(asked.levels) & set(asked.network.torus):
        yield "The planner counts no latency for it on a torus; here it is at least the hops to the farthest member."
    if asked.routing is not None and asked.routing.top_k is not None:
        yield "The planner sends all k copies of a token, also where two of its experts share a device."
    yield from _tree_note(asked)
    if one_way:
        yield "One direction of a ring: half the rate of a gather, a quarter of that of an all-to-all."


def _tree_note(asked: Asked) -> Iterator[str]:
    """Where the book's tree form, which gives each level of switches its own degree, has another rate."""
    if asked.operation not in GATHERING[:2] or asked.on_torus or not asked.network.beyond(asked.levels[-1]):
        return
    last = asked.levels[-1]
    level, domains = asked.network.levels[last], int(asked.group.factors[last])
    block = leaf_domains(level.name)
    if block is None or not 1 < block < domains or domains % block:
        return
    ended = asked.group.factors.copy()
    ended[last] = block
    tree = min(tree_bandwidth(asked.network, Group(ended, asked.group.strides)).values())
    here = asked.held_bytes / float(duration(asked.moving()))
    if isclose(tree, here, rel_tol=1e-6):
        return
    yield (
        f"A NIC brings in what the other {domains - 1} domains hold, so V / t is {human_rate(here)}; the book's tree form "
        f"counts at a leaf of {block} the other {block - 1} only, {human_rate(tree)}, as `meshwright fabric` has it."
    )


def latency_rule(asked: Asked) -> str:
    """How latency and bytes of one level join."""
    if asked.operation == "permute":
        return "before the bytes: they add"
    torus = "hops run under the bytes of a torus: the larger counts"
    if not asked.on_torus:
        return "added to the bytes of its tier"
    return torus if set(asked.levels) <= set(asked.network.torus) else f"{torus}; a tier adds its own"
