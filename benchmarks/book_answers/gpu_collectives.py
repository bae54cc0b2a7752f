"""Collectives on switched GPUs: topic gpu-collective, and ragged exchanges of topic moe."""

from math import prod

from book_answers import Given, UnansweredError, Value, answers
from book_answers.counts import whole
from book_answers.roofline import chip_of, number
from meshwright.costmodel.collectives import Network
from meshwright.costmodel.exchange.collective import collective
from meshwright.costmodel.exchange.operations import Routing, switch_traffic, tree_bandwidth, tree_seconds
from meshwright.costmodel.exchange.span import group_of
from meshwright.costmodel.sharding.asked import Asked, Machine
from meshwright.costmodel.sharding.mesh import Mesh
from meshwright.costmodel.sharding.parse import parse_array
from meshwright.costmodel.working import Working
from meshwright.hardware.chip import ELEMENT_BYTES, Switch
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.network import SwitchTier, TorusAxis

TOPIC = "gpu-collective"
NODE = 8  # GPUs of a node, and the chip: the chapter's reference system, where a case names no other
H100 = "h100"
ONE = 1.0
BULK = 1e10  # bytes beside which latency is nothing


def egress(given: Given, key: str = "gpu_egress_Bps") -> float:
    """Bytes/s of one GPU inside its node: as given, else the chip's, else the chapter's H100."""
    for name in (key, "link_Bps"):
        if given.has(name) and not isinstance(given.inputs[name], list):
            return given.number(name)
    chip = chip_of(given) if given.has("chip") else chip_of(Given({"chip": H100}))
    if not isinstance(chip.scale_up, Switch):
        raise UnansweredError("the chip has no switches")
    return chip.scale_up.per_chip_one_way.si


def node_egress(given: Given) -> float:
    """Bytes/s out of one node."""
    if given.has("node_egress_Bps"):
        return given.number("node_egress_Bps")
    chip = chip_of(given) if given.has("chip") else chip_of(Given({"chip": H100}))
    if chip.scale_out_bytes_per_s is None:
        raise UnansweredError("no rate out of a node")
    return chip.scale_out_bytes_per_s * node_size(given)


def node_size(given: Given) -> int:
    for key in ("gpus_per_node", "node_size"):
        if given.has(key):
            return whole(given, key)
    return NODE


def tree(*tiers: tuple[int, float]) -> Network:
    """Tiers with their sizes and bytes/s of one GPU, the node's own first."""
    names = ("nvlink", "leaf", "spine", "core")
    levels = tuple(SwitchTier(n, size, rate, 0.0) for n, (size, rate) in zip(names, tiers, strict=False))
    return Network(levels, (1.0,) * len(levels))


def nodes_tree(given: Given, nodes: int) -> Network:
    size = node_size(given)
    return tree((size, egress(given)), (nodes, node_egress(given) / size))


def ask(operation: str, network: Network, size: float, *factors: int, **options: object) -> Working:
    return collective(operation, size, network, group_of(factors), **options)  # type: ignore[arg-type]


def bytes_of(given: Given) -> float:
    if given.has("bytes"):
        return given.number("bytes")
    if given.has("array"):
        return parse_array(str(given["array"])).bytes
    raise UnansweredError("no bytes are given")


# In one node.


def in_node(given: Given, operation: str, **options: object) -> Working:
    gpus = whole(given, "gpus")
    return ask(operation, tree((gpus, egress(given))), bytes_of(given), gpus, **options)


def sharp(given: Given) -> str:
    return "theory" if given.get("sharp") else "off"


answers(TOPIC, "t_approx")(lambda given: number(in_node(given, "all-gather"), "t_approx"))
answers(TOPIC, "t_exact")(lambda given: number(in_node(given, "all-gather"), "t_exact"))


def curve(given: Given, step: str) -> Value:
    """Measured bandwidths: all-reduces say whether their switches reduce, gathers do not."""
    if given.has("sharp"):
        return number(in_node(given, "all-reduce", sharp=sharp(given)), step)
    return number(in_node(given, "all-gather"), step)


answers(TOPIC, "algo_bw")(lambda given: curve(given, "algo_bw"))
answers(TOPIC, "algo_bw_roofline")(lambda given: curve(given, "algo_bw_peak"))
answers(TOPIC, "bus_bw", "bus_bw_roofline", "stated_ceiling")(lambda given: curve(given, "bus_bw"))


def hops(given: Given, step: str) -> Value:
    gpus = whole(given, "gpus")
    return number(ask("all-gather", tree((gpus, ONE)), ONE, gpus), step)


answers(TOPIC, "ring_hops")(lambda given: hops(given, "hops_ring"))
answers(TOPIC, "tree_hops")(lambda given: hops(given, "hops_tree"))


@answers(TOPIC, "gpu_speedup")
def against_torus(given: Given) -> Value:
    """An exchange over a ring and over a switch of the same bytes/s, short forms."""
    if not given["same_W"]:
        raise UnansweredError("the two rates are not given")
    gpus = whole(given, "gpus")
    ring = Network((TorusAxis("x", gpus, ONE / 2, True, 0.0),), (1.0,))
    steps = (
        ask("all-to-all", network, ONE, gpus).number("t_bandwidth") for network in (ring, tree((gpus, ONE)))
    )
    return next(steps) / next(steps)


# Ragged exchanges: V is the tokens, each of which has a slot for every place.


def ragged(given: Given, places: int) -> Working:
    routing = Routing(top_k=whole(given, "k"))
    return ask("ragged-all-to-all", tree((places, ONE)), ONE, places, routing=routing)


answers(TOPIC, "fraction_of_dense")(
    lambda given: number(ragged(given, whole(given, "gpus")), "fraction_approx")
)
answers("moe", "approx")(lambda given: number(ragged(given, whole(given, "Z")), "crossing_approx"))
answers("moe", "exact")(lambda given: number(ragged(given, whole(given, "Z")), "crossing"))


# Two nodes.


def exchange(given: Given, nodes: int) -> float:
    size = node_size(given)
    network = nodes_tree(given, nodes) if nodes > 1 else tree((size, egress(given)))
    return ask("all-to-all", network, bytes_of(given), *((size, nodes) if nodes > 1 else (size,))).number(
        "t_exact"
    )


answers(TOPIC, "t_two_nodes")(lambda given: exchange(given, whole(given, "nodes")))
answers(TOPIC, "t_one_node_exact")(lambda given: exchange(given, 1))
answers(TOPIC, "slowdown")(lambda given: exchange(given, whole(given, "nodes")) / exchange(given, 1))


def levels(given: Given) -> dict[str, float]:
    """Bytes/s of a gather at each level, from degrees and rates of a child into it, or from nodes."""
    if given.has("degrees", "links_Bps"):
        degrees = [int(d) for d in given["degrees"]]
        inside = [prod(degrees[:i]) for i in range(len(degrees))]
        rates = [float(rate) / block for rate, block in zip(given["links_Bps"], inside, strict=True)]
        network = tree(*zip(degrees, rates, strict=True))
    else:
        network = nodes_tree(given, whole(given, "nodes"))
    return tree_bandwidth(network, group_of(network.sizes))


def level(given: Given, name: str) -> float:
    found = levels(given)
    if name not in found:
        raise UnansweredError(f"no level {name}")
    return found[name]


answers(TOPIC, "node", "node_level_bw")(lambda given: level(given, "nvlink"))
answers(TOPIC, "leaf", "cross_node_bw")(lambda given: level(given, "leaf"))
answers(TOPIC, "spine")(lambda given: level(given, "spine"))
answers(TOPIC, "overall", "bound")(lambda given: min(levels(given).values()))


# Arrays that inner axes shard too.


def sharded(given: Given, exact: bool) -> float:
    """In the book's tree form, where an axis outside the inner one spans what is left of all levels."""
    network = nodes_tree(given, whole(given, "gpus") // node_size(given))
    inner = whole(given, "inner_axis_Y")
    return tree_seconds("all-gather", network, bytes_of(given), group_of(network.sizes), inner, exact=exact)


answers(TOPIC, "t")(lambda given: sharded(given, exact=False))
answers(TOPIC, "t_with_31_over_32")(lambda given: sharded(given, exact=True))


@answers(TOPIC, "t")
def reduced_over_data(given: Given) -> Value:
    """Gradients of a bf16[D,F] that Y shards, added up over X."""
    size = ELEMENT_BYTES["bf16"] * given.number("D") * given.number("F")
    data, inner = whole(given, "X"), whole(given, "Y")
    network = tree((whole(given, "gpus"), egress(given)))
    return number(ask("all-reduce", network, size, data, sharded_ways=inner, sharp="theory"), "t_exact")


@answers(TOPIC, "effective_bw")
def through_the_spine(given: Given) -> Value:
    """Of an all-reduce between units, each of which shards the array over its GPUs."""
    unit, units = whole(given, "Y"), whole(given, "sus")
    network = tree((unit, ONE), (units, given.number("su_egress_Bps") / unit))
    working = ask("all-reduce", network, ONE, 1, units, sharded_ways=unit, sharp=sharp(given))
    return ONE / working.number("t_exact")


# Bytes through switches.


def traffic(given: Given, key: str) -> float:
    if given.has("nodes"):
        return switch_traffic(bytes_of(given), node_size(given), whole(given, "nodes"))[key]
    if given.has("gpus"):
        return switch_traffic(bytes_of(given), whole(given, "gpus"), 1, "all-reduce")[key]
    raise UnansweredError("neither nodes nor GPUs are counted")


for _quantity, _key in (
    ("node_switch_ingress", "node_switch_in"), ("node_switch_egress", "node_switch_out"),
    ("spine_ingress", "spine_switch_in"), ("spine_egress", "spine_switch_out"),
    ("switch_ingress", "node_switch_in"), ("switch_egress", "node_switch_out"),
):  # fmt: skip
    answers(TOPIC, _quantity)(lambda given, key=_key: traffic(given, key))


@answers(TOPIC, "t_node")
def node_busy(given: Given) -> Value:
    """Every GPU of a node receives the whole array."""
    size = node_size(given)
    return number(ask("all-gather", tree((size, egress(given))), bytes_of(given), size), "t_approx")


@answers(TOPIC, "t_spine")
def spine_busy(given: Given) -> Value:
    nodes = whole(given, "nodes")
    return number(
        ask("all-gather", nodes_tree(given, nodes), bytes_of(given), node_size(given), nodes), "t_exact"
    )


def of_one_node(given: Given) -> None:
    """Raises UnansweredError where an input says more than what GPUs of one node exchange."""
    known = {"bytes", "gpus", "gpus_per_node", "node_size", "chip", "gpu_egress_Bps", "link_Bps", "sharp"}
    if strange := sorted(set(given) - known):
        raise UnansweredError(f"input {strange[0]!r} asks for something else")


@answers(TOPIC, "t")
def in_switches(given: Given) -> Value:
    """Of the bytes of one node's GPUs and no more: reduced in the switches, unless `sharp` says that they do not."""
    of_one_node(given)
    reduced = sharp(given) if given.has("sharp") else "theory"
    return number(in_node(given, "all-reduce", sharp=reduced), "t_exact")


def reduced_in(given: Given, reduced: str) -> Working:
    """An all-reduce of a large array over the GPUs of one node."""
    of_one_node(given)
    size = given.number("bytes", ONE)
    if given.has("sharp") and not given["sharp"]:
        raise UnansweredError("no switch reduces")
    gpus = whole(given, "gpus") if given.has("gpus") else node_size(given)
    return ask("all-reduce", tree((gpus, egress(given))), size, gpus, sharp=reduced)


@answers(TOPIC, "predicted_gain")
def predicted_gain(given: Given) -> Value:
    """Of reducing in the switches, in theory: 2 (N - 1) / N, which is 2 for short: not said where nobody counts N."""
    if not any(given.has(key) for key in ("gpus", "gpus_per_node", "node_size")):
        raise UnansweredError("no GPUs are counted")
    without, within = (reduced_in(given, word).number("t_exact") for word in ("off", "theory"))
    return without / within


@answers(TOPIC, "measured_gain")
def measured_in_switches(given: Given) -> Value:
    """At the gain that is measured where switches reduce, of the whole rate of a GPU."""
    of_one_node(given)
    cluster = parse_cluster(f"{H100}:{NODE}x1@ib400-sharp", profile="book")
    chip = chip_of(given).name if given.has("chip") else H100
    size = whole(given, "gpus") if given.has("gpus") else node_size(given)
    if (chip, size) != (H100, NODE) or not given.get("sharp", True):
        raise UnansweredError("its gain was measured on 8 H100 alone")
    return number(collective("all-reduce", given.number("bytes", BULK), cluster), "g_nvlink")


@answers(TOPIC, "bytes")
def message(given: Given) -> Value:
    """A matrix that tensor parallelism cuts."""
    ways = whole(given, "tp")
    mesh = Mesh(tree((ways, ONE)), {"T": group_of([ways])})
    sizes = {d: whole(given, d) for d in "DF"}
    asked = Asked((), sizes, Machine(mesh, ONE, ONE), given.number("dtype_bytes", 2))
    return asked.held(parse_array("W[D,F_T]"))


# Two machines' rates side by side: short forms, or exact ones where the case counts the GPUs that these need.


def side_by_side(given: Given, key: str, operation: str) -> float:
    counted = given.has("gpus") or given.has("node_size")
    gpus = whole(given, "gpus") if given.has("gpus") else node_size(given)
    working = ask(operation, tree((gpus, given.number(key))), bytes_of(given), gpus)
    return working.number("t_exact" if counted else "t_approx")


for _chip in ("h100", "b200"):
    for _quantity, _operation in (
        (f"ag_{_chip}", "all-gather"),
        (f"ar_{_chip}", "all-reduce"),
        (f"a2a_{_chip}", "all-to-all"),
    ):
        answers(TOPIC, _quantity)(
            lambda given, chip=_chip, operation=_operation: side_by_side(
                given, f"{chip}_egress_Bps", operation
            )
        )


@answers(TOPIC, "ar_h100_sharp_theory")
def reduced_h100(given: Given) -> Value:
    """The whole array once each way, whatever the node's size."""
    network = tree((node_size(given), given.number("h100_egress_Bps")))
    return number(ask("all-reduce", network, bytes_of(given), node_size(given), sharp="theory"), "t_exact")
