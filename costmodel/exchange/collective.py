"""How long one collective takes: its working, for a user who asks about that collective alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.collectives import Network, duration
from meshwright.costmodel.exchange.operations import (
    OPERATIONS,
    Routing,
    hops,
    in_switches,
    latency_loads,
    loads_of,
    one_direction,
    switch_traffic,
    timed_loads,
    tree_bandwidth,
    tree_seconds,
    without_latency,
)
from meshwright.costmodel.placement import Group
from meshwright.costmodel.working import Step, Value, Working
from meshwright.hardware.errors import InputError, LayoutError, UnknownNameError
from meshwright.hardware.network import SwitchTier, TorusAxis
from meshwright.hardware.units import human_bytes, human_rate, human_seconds

Array = NDArray[Any]
SHARP = ("fabric", "off", "theory")
GATHERING = ("all-gather", "reduce-scatter", "all-reduce")


@dataclass(frozen=True)
class _Asked:
    """One question."""

    operation: str
    network: Network
    group: Group
    held_bytes: float
    routing: Routing | None
    sharp: str
    whole: str  # how formulas write the bytes that the group holds

    @property
    def n(self) -> int:
        return int(self.group.size)

    def over(self, exact: bool = True) -> Network:
        """The network with its reductions as asked."""
        if self.sharp == "fabric":
            return self.network
        return in_switches(self.network, self.group, theory=self.sharp == "theory", exact=exact)

    def moving(self, exact: bool = True) -> Array:
        """Seconds per level without latency."""
        still = without_latency(self.over(exact))
        return loads_of(self.operation, still, self.held_bytes, self.group, self.routing, exact=exact)

    def timed(self, exact: bool = True) -> Array:
        """Seconds per level with latency."""
        return timed_loads(
            self.operation, self.over(exact), self.held_bytes, self.group, self.routing, exact=exact
        )

    @property
    def latency(self) -> Array:
        return latency_loads(self.operation, self.over(), self.group)

    @property
    def levels(self) -> list[int]:
        """Indices of the levels that the group spans."""
        return [int(i) for i in np.flatnonzero(self.group.factors > 1)]

    def is_ring(self, index: int) -> bool:
        """Whether the group closes a ring on a level."""
        level = self.network.levels[index]
        span = int(self.group.factors[index] * self.group.strides[index])
        return isinstance(level, TorusAxis) and level.wraps and span == level.size

    @property
    def gains(self) -> dict[str, float]:
        """What reduction in switches is measured to gain, by level."""
        if self.operation != "all-reduce" or self.sharp != "fabric":
            return {}
        levels = (self.network.levels[i] for i in self.levels)
        return {
            f"g_{level.name}": level.all_reduce_speedup
            for level in levels
            if isinstance(level, SwitchTier) and level.all_reduce_speedup != 1.0
        }

    @property
    def on_torus(self) -> bool:
        return bool(set(self.levels) & set(self.network.torus))


def collective(
    operation: str,
    array_bytes: float,
    network: Network,
    group: Group,
    *,
    sharded_ways: int = 1,
    routing: Routing | None = None,
    sharp: str = "fabric",
    one_way: bool = False,
    where: str = "",
) -> Working:
    """How long one collective takes.

    Args:
        operation: one of OPERATIONS.
        array_bytes: of the whole array, before any sharding; of a ragged exchange, of all tokens of the group.
        group: devices that take part, [levels].
        sharded_ways: devices outside the group over which the array is sharded too.
        routing: of a ragged exchange.
        sharp: all-reduce in the switches: at the fabric's measured gain, off, or in theory.
        one_way: rings are used in one direction only.
        where: the machine, for the question.

    Errors: UnknownNameError, InputError, LayoutError.
    """
    _check(operation, array_bytes, group, sharded_ways, routing, sharp)
    if one_way:
        network = one_direction(network)
    whole = "V / Y" if sharded_ways > 1 else "V"
    asked = _Asked(operation, network, group, array_bytes / sharded_ways, routing, sharp, whole)
    steps = _size_steps(asked) | _time_steps(asked) | _traffic_steps(asked)
    if sharded_ways > 1 and not network.torus and routing is None:
        seconds = tree_seconds(operation, network, array_bytes, group, sharded_ways)
        note = "as the book's tree form: levels keep their whole degree"
        steps["t_tree"] = Step(seconds, "s", "max V (D - 1) / (D max(Y, S) W)", note)
    article = "an" if operation[0] == "a" else "a"
    over = " x ".join(f"{network.levels[i].name} {group.factors[i]}" for i in asked.levels) or "one device"
    return Working(
        question=f"How long does {article} {operation} of {human_bytes(array_bytes)} take over {over}"
        + (f" of {where}?" if where else "?"),
        given=_given(asked, array_bytes, sharded_ways),
        steps=steps,
        binds=_binds(asked),
        notes=tuple(_notes(asked, one_way)),
        table=tuple(_rows(asked)),
    )


def _check(
    operation: str, array_bytes: float, group: Group, sharded_ways: int, routing: Routing | None, sharp: str
) -> None:
    if operation not in OPERATIONS:
        raise UnknownNameError("collective", operation, OPERATIONS)
    if sharp not in SHARP:
        raise UnknownNameError("sharp", sharp, SHARP)
    if not array_bytes > 0:
        raise InputError(f"an array of {array_bytes:g} bytes has nothing to move; give its whole size")
    if (operation == "ragged-all-to-all") != (routing is not None):
        raise InputError(
            f"{operation} and routing do not go together: top_k or a fraction is for ragged-all-to-all, which needs it"
        )
    if sharded_ways < 1:
        raise LayoutError(f"an array sharded {sharded_ways} ways is none; use 1 or more")
    if int(group.size) < 2:
        raise LayoutError("one device has nothing to exchange; name axes with at least two devices")


def _given(asked: _Asked, array_bytes: float, sharded_ways: int) -> dict[str, Step]:
    what = "tokens of the group, before they are sent" if asked.routing else "the whole array"
    given = {"V": Step(array_bytes, "B", note=what), "N": Step(asked.n, "devices", note="that take part")}
    if sharded_ways > 1:
        given["Y"] = Step(sharded_ways, "ways", note="sharded too over devices that take no part")
    for index in asked.levels:
        level = asked.network.levels[index]
        name = f"W_{level.name}"
        if isinstance(level, TorusAxis):
            given[name] = Step(asked.network.rate(index), "B/s", note="one link, one way")
            given["t_hop"] = Step(level.hop_s, "s")
        else:
            given[name] = Step(asked.network.rate(index), "B/s", note="one device, one way")
    for name, gain in asked.gains.items():
        given[name] = Step(gain, "ratio", note="measured gain of reducing in the switches")
    if asked.routing is not None and asked.routing.top_k is not None:
        given["k"] = Step(asked.routing.top_k, "experts", note="of a token")
    return given


def _size_steps(asked: _Asked) -> dict[str, Step]:
    """What each device holds, and which part of a full exchange is sent."""
    steps = {"shard_bytes": Step(asked.held_bytes / asked.n, "B", f"{asked.whole} / N", "of one device")}
    torus = [
        level for level in (asked.network.levels[i] for i in asked.levels) if isinstance(level, TorusAxis)
    ]
    per_hop = max((level.hop_s for level in torus), default=0.0)
    if per_hop > 0:
        per_hop *= min(asked.network.rate(i) for i in asked.levels if i in asked.network.torus)
        steps["per_hop_bytes"] = Step(per_hop, "B", "W t_hop", "a link moves these in one hop's latency")
        steps["buffer_threshold"] = Step(per_hop * asked.n, "B", "N W t_hop", "latency binds below")
        steps["ways_threshold"] = Step(
            asked.held_bytes / per_hop, "ways", f"{asked.whole} / (W t_hop)", "latency binds from so many"
        )
        steps["small_shards"] = Step(
            asked.held_bytes / asked.n < per_hop, note="shard_bytes below per_hop_bytes"
        )
    if asked.routing is not None:
        for name, exact in (("fraction_approx", False), ("fraction", True)):
            share = asked.routing.copies(asked.n, exact) / asked.n
            steps[name] = Step(share, "ratio", _fraction_formula(asked.routing, exact), "of a full exchange")
            steps[f"crossing{name[8:]}"] = Step(
                share * (asked.n - 1) / asked.n, "ratio", f"{name} (N - 1) / N", "leaves the device"
            )
    return steps


def _fraction_formula(routing: Routing, exact: bool) -> str:
    if routing.top_k is None:
        return ""
    if not exact:
        return "min(k / N, 1)"
    return "1 - (1 - 1/N)^k" if routing.experts is None else "1 - C(E - E/N, k) / C(E, k)"


def _time_steps(asked: _Asked) -> dict[str, Step]:
    operation, n, held = asked.operation, asked.n, asked.held_bytes
    exact, short = float(duration(asked.moving())), float(duration(asked.moving(exact=False)))
    latency, t = float(duration(asked.latency)), float(duration(asked.timed()))
    steps: dict[str, Step] = {}
    if operation in GATHERING:
        steps["W"] = _gather_rate(asked)
    steps["t_bandwidth"] = Step(short, "s", _short_form(asked))
    if asked.on_torus:
        steps["hops"] = Step(
            hops(asked.network, asked.group, operation), "hops", "", "to the farthest member"
        )
    else:
        steps["hops_ring"] = Step(n - 1, "hops", "N - 1", "in a ring")
        steps["hops_tree"] = Step(ceil(log2(n)), "hops", "log2 N", "in a tree; latency is counted for these")
    steps["t_latency"] = Step(latency, "s")
    added = operation == "permute" or not asked.on_torus
    joined = "t_bandwidth + t_latency" if added else "max(t_bandwidth, t_latency)"
    steps["t_approx"] = Step(float(duration(asked.timed(exact=False))), "s", joined, "the book's short form")
    steps["t_exact"] = Step(t, "s", "of what must move", f"{human_seconds(exact)} of it for bandwidth")
    steps["latency_bound"] = Step(latency > exact)
    steps["algo_bw"] = Step(held / t, "B/s", f"{asked.whole} / t_exact")
    steps["algo_bw_peak"] = Step(held / exact, "B/s", note="of a large array, where latency is nothing")
    if operation != "permute":
        passes = 2 if operation == "all-reduce" else 1
        bus = passes * (n - 1) / n * held / t
        steps["bus_bw"] = Step(
            bus,
            "B/s",
            "2 (N - 1) / N algo_bw" if passes > 1 else "(N - 1) / N algo_bw",
            "as nccl-tests has it",
        )
    if operation == "all-to-all":
        gathers = (replace(asked, operation="all-gather").moving(exact) for exact in (False, True))
        approx, whole = (float(duration(g)) for g in gathers)
        steps["over_all_gather"] = Step(short / approx, "ratio", note="short forms")
        steps["over_all_gather_exact"] = Step(exact / whole, "ratio")
    return steps


def _traffic_steps(asked: _Asked) -> dict[str, Step]:
    """Bytes through switches: of a gather over nodes, and of a reduction inside one."""
    if asked.on_torus or len(asked.levels) > 2:
        return {}
    inside, nodes = (int(n) for n in (*asked.group.factors[asked.levels], 1)[:2])
    if asked.operation == "all-gather" and nodes > 1:
        found = switch_traffic(asked.held_bytes, inside, nodes)
    elif asked.operation == "all-reduce" and nodes == 1 and asked.sharp == "theory":
        found = switch_traffic(asked.held_bytes, inside, 1, "all-reduce")
    else:
        return {}
    inner = asked.network.levels[asked.levels[0]].name
    where = {"node": f"of one {inner} domain", "spine": f"that join {nodes} of them"}
    return {
        name: Step(size, "B", note=f"through the switches {where[name.partition('_')[0]]}")
        for name, size in found.items()
    }


def _gather_rate(asked: _Asked) -> Step:
    """Bytes/s of the whole array in a gather."""
    gather = replace(asked, operation="all-gather").moving(exact=False)
    names = [_links(asked, i) for i in asked.levels]
    formula = " + ".join(names) if set(asked.levels) <= set(asked.network.torus) or len(names) == 1 else ""
    return Step(asked.held_bytes / float(duration(gather)), "B/s", formula, "of the whole array")


def _links(asked: _Asked, index: int) -> str:
    """Rate of a group along a level, in symbols."""
    name, level = f"W_{asked.network.levels[index].name}", asked.network.levels[index]
    if not isinstance(level, TorusAxis):
        return name
    twice = "2 " if asked.is_ring(index) and not level.one_way else ""
    stride = int(asked.group.strides[index])
    return f"{twice}{name}" + (f" / {stride}" if stride > 1 else "")


def _short_form(asked: _Asked) -> str:
    whole = asked.whole
    if asked.operation in GATHERING:
        passes = "2 " if asked.operation == "all-reduce" and asked.sharp != "theory" else ""
        if asked.gains and len(asked.levels) > 1:
            return "of the slowest level, below"
        return f"{passes}{whole} / " + (f"(W {next(iter(asked.gains))})" if asked.gains else "W")
    if len(asked.levels) > 1 or asked.routing is not None:
        return "of the slowest level, below"
    rate = _links(asked, asked.levels[0])
    if asked.operation == "permute" or not asked.on_torus:
        return f"{whole} / (N {rate})"
    level = asked.network.levels[asked.levels[0]]
    one_way = isinstance(level, TorusAxis) and level.one_way
    return f"{whole} / ({2 if one_way else 4} ({rate}))"


def _seen(asked: _Asked, index: int) -> str:
    """What a group sees of a level."""
    level = asked.network.levels[index]
    if not isinstance(level, TorusAxis):
        return "switch"
    if not asked.is_ring(index):
        return "line" if level.size == asked.group.factors[index] else "part of an axis, a line"
    stride = int(asked.group.strides[index])
    shared = f", links shared {stride} ways" if stride > 1 else ""
    return ("ring, one direction" if level.one_way else "ring") + shared


def _rows(asked: _Asked) -> Iterator[Mapping[str, Value]]:
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


def _binds(asked: _Asked) -> str:
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


def _notes(asked: _Asked, one_way: bool) -> Iterator[str]:
    if asked.operation in ("all-gather", "reduce-scatter"):
        other = "reduce-scatter" if asked.operation == "all-gather" else "all-gather"
        yield f"The same time as a {other}, its transpose; an all-reduce is both, one after the other."
    if asked.operation == "all-to-all" and set(asked.levels) & set(asked.network.torus):
        yield "The planner counts no latency for it on a torus; here it is at least the hops to the farthest member."
    if asked.routing is not None and asked.routing.top_k is not None:
        yield "The planner sends all k copies of a token, also where two of its experts share a device."
    if one_way:
        yield "One direction of a ring: half the rate of a gather, a quarter of that of an all-to-all."
