"""Switches of GPU systems: counts and bandwidth of each level. Part of the topic gpu-collective."""

from collections.abc import Mapping
from math import prod
from typing import Any

from book_answers import Given, UnansweredError, Value, answers
from book_answers.counts import whole
from book_answers.gpu_collectives import H100, TOPIC, egress, node_egress, node_size
from meshwright.costmodel.roofline.intensity import critical_intensity
from meshwright.hardware.fattree import collective_bytes_per_s, fat_tree, switches_bytes_per_s
from meshwright.hardware.inventory import host_rate, tier_bisection

GIGA, BITS = 1e9, 8
UNIT = {"Gbps": GIGA / BITS, "GBps": GIGA, "GBps_each_way": GIGA, "Bps": 1.0}


def rate(given: Given, *names: str) -> float:
    """Bytes/s one way of a link or port, in whichever unit it is given."""
    for name in names:
        for unit, scale in UNIT.items():
            if given.has(f"{name}_{unit}"):
                return given.number(f"{name}_{unit}") * scale
    raise UnansweredError(f"no rate of a {names[0]}")


# One node.


@answers(TOPIC, "switch_total")
def switch_total(given: Given) -> Value:
    return switches_bytes_per_s(given.number("nvswitches"), given.number("ports"), rate(given, "link"))


@answers(TOPIC, "gpu_total", "node_total_egress")
def gpu_total(given: Given) -> Value:
    """What all GPUs of a node send."""
    each = own_egress(given) if given.has("ports_per_gpu") else egress(given)
    return switches_bytes_per_s(whole(given, "gpus") if given.has("gpus") else node_size(given), 1, each)


@answers(TOPIC, "node_limit")
def node_limit(given: Given) -> Value:
    return min(float(switch_total(given)), float(gpu_total(given)))


@answers(TOPIC, "gpu_egress")
def own_egress(given: Given) -> float:
    return switches_bytes_per_s(1, given.number("ports_per_gpu"), rate(given, "link", "port"))


@answers(TOPIC, "gpu_scaleout")
def gpu_scaleout(given: Given) -> Value:
    """A GPU's share of what leaves its node."""
    size = whole(given, "gpus") if given.has("gpus") else node_size(given)
    return host_rate(given.number("node_egress_Bps"), size)


@answers(TOPIC, "node_egress")
def rails(given: Given) -> float:
    return switches_bytes_per_s(
        given.number("rails"), given.number("links_per_rail"), rate(given, "link", "port")
    )


answers(TOPIC, "over_h100")(lambda given: rails(given) / node_egress(Given({"chip": H100})))


@answers(TOPIC, "roofline_gain")
def roofline_gain(given: Given) -> Value:
    """Intensity needed before over intensity needed after."""
    before = critical_intensity(given.number("flops_h100"), 1.0)
    return before / critical_intensity(given.number("flops_b200"), given.number("bw_gain"))


# Bisection.


@answers(TOPIC, "bisection")
def bisection(given: Given) -> Value:
    """Both directions, as the chapter counts it."""
    return 2 * tier_bisection(whole(given, "gpus"), egress(given))


answers(TOPIC, "collective_bw_by_formula")(
    lambda given: collective_bytes_per_s(given.number("bisection_both_directions"), whole(given, "gpus"))
)
answers(TOPIC, "collective_bw_one_direction")(
    lambda given: collective_bytes_per_s(given.number("bisection_both_directions") / 2, whole(given, "gpus"))
)


# Leaves and spines.


@answers(TOPIC, "spine_switch_total")
def spine_switch_total(given: Given) -> float:
    return switches_bytes_per_s(given.number("spines"), given.number("ports"), rate(given, "port", "link"))


@answers(TOPIC, "per_gpu")
def per_gpu(given: Given) -> Value:
    """Every port of a spine is the uplink of one GPU."""
    return spine_switch_total(given) / switches_bytes_per_s(given.number("spines"), given.number("ports"), 1)


answers(TOPIC, "leaf_ingress_as_printed")(
    lambda given: switches_bytes_per_s(1, given.number("ports_used"), rate(given, "port"))
)
answers(TOPIC, "leaf_ingress_all_switches")(
    lambda given: switches_bytes_per_s(
        given.number("leaf_switches"), given.number("ports_used"), rate(given, "port")
    )
)
answers(TOPIC, "su_egress")(
    lambda given: switches_bytes_per_s(given.number("nodes_per_su"), 1, node_egress(given))
)


def level_total(given: Given, name: str) -> Value:
    """Switches x ports x rate, where a level is described by these three."""
    spec: Any = given[name]
    if not isinstance(spec, Mapping) or len(spec) != 3:
        raise UnansweredError(f"level {name} is described otherwise")
    inner = Given(spec)
    count = [key for key in spec if "switch" in key or key == "count"]
    if len(count) != 1 or "ports" not in spec:
        raise UnansweredError(f"level {name} is described otherwise")
    return switches_bytes_per_s(inner.number(count[0]), inner.number("ports"), rate(inner, "link", "port"))


for _level in ("node", "leaf", "spine"):
    answers(TOPIC, f"{_level}_total")(lambda given, name=_level: level_total(given, name))


# Counts.


def counted(*keys: str, unit: str) -> Any:
    """The product of counts of one inside another."""

    def count(given: Given) -> Value:
        if given.unit != unit:
            raise UnansweredError(f"asked in {given.unit}, not in {unit}")
        return prod(whole(given, key) for key in keys)

    return count


answers(TOPIC, "gpus")(counted("gpus_per_node", "nodes_per_su", "sus", unit="GPU"))
answers(TOPIC, "gpus_per_su")(counted("gpus_per_node", "nodes_per_su", unit="GPU"))
answers(TOPIC, "nvswitches")(counted("nvswitches_per_node", "nodes_per_su", "sus", unit="switch"))
answers(TOPIC, "leaf")(counted("leaf_per_su", "sus", unit="switch"))


@answers(TOPIC, "total_switches")
def total_switches(given: Given) -> Value:
    inner = counted("nvswitches_per_node", "nodes_per_su", "sus", unit="switch")(given)
    return inner + counted("leaf_per_su", "sus", unit="switch")(given) + whole(given, "spines")


def scaled(given: Given, gpus: int, field: str) -> Value:
    """Nodes of eight under the chapter's leaf switches."""
    if gpus not in given["gpus"]:
        raise UnansweredError(f"{gpus} GPUs are not asked for")
    return int(getattr(fat_tree(gpus // node_size(given)), field))


for _gpus in (1024, 2048, 4096, 8192):
    for _name, _field in (("sus", "blocks"), ("leaves", "leaves"), ("spines", "spines"), ("cores", "cores")):
        answers(TOPIC, f"{_name}_{_gpus}")(lambda given, gpus=_gpus, field=_field: scaled(given, gpus, field))
