"""How long one collective takes: its working, for a user who asks about that collective alone."""

from dataclasses import replace
from math import ceil, isclose, log2

from meshwright.costmodel.collectives import Network, duration
from meshwright.costmodel.exchange.operations import (
    Routing,
    hops,
    one_direction,
    switch_traffic,
    tree_seconds,
)
from meshwright.costmodel.exchange.place import group_at, name_of, network_at
from meshwright.costmodel.exchange.question import GATHERING, Asked, check, check_changes
from meshwright.costmodel.exchange.told import binds, latency_rule, notes, rows
from meshwright.costmodel.placement import Group
from meshwright.costmodel.working import Step, Working
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.network import TorusAxis
from meshwright.hardware.units import human_bytes, human_seconds


def collective(
    operation: str,
    array_bytes: float,
    network: Network | Cluster | str,
    group: Group | str | None = None,
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
        network: a cluster like "v5p:4x4x4" or of parse_cluster, at ideal rates as `meshwright collective` has it;
            or a Network at other rates.
        group: devices that take part: axes like "x,y", a group of parse_span, or None for all.
        sharded_ways: devices outside the group over which the array is sharded too.
        routing: of a ragged exchange.
        sharp: all-reduce in the switches: at the fabric's measured gain, off, or in theory.
        one_way: rings are used in one direction only.
        where: the machine, for the question.

    Errors: UnknownNameError, InputError, LayoutError.
    """
    links = network_at(network)
    where, group, network = where or name_of(network), group_at(group, network), links
    check(operation, array_bytes, group, sharded_ways, routing, sharp)
    check_changes(operation, network, group, sharp, one_way)
    if one_way:
        network = one_direction(network)
    whole = "V / Y" if sharded_ways > 1 else "V"
    asked = Asked(operation, network, group, array_bytes / sharded_ways, routing, sharp, whole)
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
        binds=binds(asked),
        notes=tuple(notes(asked, one_way)),
        table=tuple(rows(asked)),
    )


def _given(asked: Asked, array_bytes: float, sharded_ways: int) -> dict[str, Step]:
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


def _size_steps(asked: Asked) -> dict[str, Step]:
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


def _time_steps(asked: Asked) -> dict[str, Step]:
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
    steps["t_latency"] = Step(latency, "s", note=latency_rule(asked))
    approx = float(duration(asked.timed(exact=False)))
    steps["t_approx"] = Step(approx, "s", _joined(asked, short, latency), "the book's short form")
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


def _joined(asked: Asked, bandwidth: float, latency: float) -> str:
    """The short form's seconds from what is shown, or else from the two parts of the level that binds."""
    index = int(asked.timed(exact=False).argmax())
    one, wait = float(asked.moving(exact=False)[index]), float(asked.latency[index])
    level = asked.network.levels[index]
    under = isinstance(level, TorusAxis) and asked.operation != "permute"
    total = max(bandwidth, latency) if under else bandwidth + latency
    if isclose(total, float(asked.timed(exact=False)[index])):
        return "max(t_bandwidth, t_latency)" if under else "t_bandwidth + t_latency"
    parts = human_seconds(one), human_seconds(wait)
    return f"max({', '.join(parts)})" if under else f"{' + '.join(parts)} of {level.name}"


def _traffic_steps(asked: Asked) -> dict[str, Step]:
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


def _gather_rate(asked: Asked) -> Step:
    """Bytes/s of the whole array in a gather."""
    gather = replace(asked, operation="all-gather").moving(exact=False)
    names = [_links(asked, i) for i in asked.levels]
    formula = " + ".join(names) if set(asked.levels) <= set(asked.network.torus) or len(names) == 1 else ""
    return Step(asked.held_bytes / float(duration(gather)), "B/s", formula, "of the whole array")


def _links(asked: Asked, index: int) -> str:
    """Rate of a group along a level, in symbols."""
    name, level = f"W_{asked.network.levels[index].name}", asked.network.levels[index]
    if not isinstance(level, TorusAxis):
        return name
    twice = "2 " if asked.is_ring(index) and not level.one_way else ""
    stride = int(asked.group.strides[index])
    return f"{twice}{name}" + (f" / {stride}" if stride > 1 else "")


def _short_form(asked: Asked) -> str:
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
