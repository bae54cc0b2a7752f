"""Collectives and transfers on a torus (topic collective), and products sharded over one (topic matmul).

A case names its links by rate or by chip, its ring by `devices`, `shards`, `axis`, `mesh` or `slice`, and what takes
part by `gather`, `reduce` or words of its array.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

from book_answers import Given, UnansweredError, Value, answers
from book_answers.roofline import chip_of, number
from meshwright.costmodel.collectives import Network
from meshwright.costmodel.exchange.collective import collective
from meshwright.costmodel.exchange.span import group_of
from meshwright.costmodel.exchange.transfer import Device, point_to_point, pull
from meshwright.costmodel.placement import Group
from meshwright.costmodel.sharding.measured import measured_overlap
from meshwright.costmodel.sharding.parse import Sharded, parse_array
from meshwright.costmodel.working import Working
from meshwright.hardware.chip import Torus
from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.fattree import switches_bytes_per_s
from meshwright.hardware.inventory import wraps
from meshwright.hardware.network import TorusAxis

TOPIC = "collective"
ONE = 1.0
SPARE = {"chip", "W_bidir_Bps", "wrap"}  # that other inputs may say as well


@dataclass(frozen=True)
class Part:
    """A torus with what takes part, and an array on it."""

    network: Network
    group: Group
    held_bytes: float
    sharded_ways: int = 1

    def ask(self, operation: str, *, one_way: bool = False) -> Working:
        return collective(
            operation,
            self.held_bytes,
            self.network,
            self.group,
            sharded_ways=self.sharded_ways,
            one_way=one_way,
        )


def link_of(given: Given) -> float:
    """Bytes/s of a link, one way."""
    for key in ("link_one_way_Bps", "ici_one_way_Bps"):
        if given.has(key):
            return given.number(key)
    if given.has("W_bidir_Bps"):
        return given.number("W_bidir_Bps") / 2
    scale_up = chip_of(given).scale_up
    if not isinstance(scale_up, Torus):
        raise UnansweredError("the chip has no torus")
    return scale_up.per_link_one_way.si


def hop_of(given: Given) -> float:
    """Seconds of a hop: as given, else the chip's; none where a case names neither."""
    if given.has("hop_latency_s") or not given.has("chip"):
        return given.number("hop_latency_s", 0.0)
    try:
        scale_up = chip_of(given).scale_up
    except UnansweredError:  # the book gives too little of the chip, and the case gives the rest
        return 0.0
    return scale_up.hop_latency.si if isinstance(scale_up, Torus) else 0.0


def sizes_of(given: Given) -> dict[str, int]:
    """Axes by name, in order."""
    if given.has("mesh") and isinstance(given["mesh"], dict):
        return {str(axis): int(size) for axis, size in given["mesh"].items()}
    if given.has("mesh") or given.has("slice"):
        sizes = given["mesh" if given.has("mesh") else "slice"]
        return {"XYZ"[i]: int(size) for i, size in enumerate(sizes)}
    for key in ("devices", "shards", "ring", "axis", "D"):
        if given.has(key) and isinstance(given.inputs[key], int):
            return {"X": int(given[key])}
    raise UnansweredError("no ring or mesh is given")


def wraps_of(given: Given, sizes: dict[str, int]) -> tuple[bool, ...]:
    """As stated; all where a rate both ways is given, which only rings have; else by the chip's rule."""
    if given.has("wrap"):
        return (bool(given["wrap"]),) * len(sizes)
    if given.has("W_bidir_Bps") or not given.has("chip"):
        return (True,) * len(sizes)
    try:
        return wraps(chip_of(given), tuple(sizes.values()))
    except MeshwrightError as error:
        raise UnansweredError(str(error)) from None


def torus(given: Given, *, ring: bool | None = None) -> tuple[Network, list[str]]:
    """The network and its axes' names; `ring` overrides which wrap."""
    sizes = sizes_of(given)
    closed = wraps_of(given, sizes) if ring is None else (ring,) * len(sizes)
    link, hop = link_of(given), hop_of(given)
    axes = tuple(
        TorusAxis(name, size, link, wrap, hop)
        for (name, size), wrap in zip(sizes.items(), closed, strict=True)
    )
    return Network(axes, (1.0,) * len(axes)), list(sizes)


def array_of(given: Given, names: list[str]) -> Sharded:
    """The case's array, its shape alone; words after it are read by `taking_part`."""
    try:
        return parse_array(re.split(r"\s+(?:sharded|per)\s", str(given["array"]))[0], names)
    except MeshwrightError as error:
        raise UnansweredError(str(error)) from None


def taking_part(given: Given, names: list[str], network: Network) -> list[str]:
    """Axes of the collective."""
    for key in ("gather", "reduce"):
        if given.has(key):
            asked = given[key] if isinstance(given[key], list) else re.findall(r"\w", str(given[key]))
            return [str(axis) for axis in asked]
    words = str(given.get("array", ""))
    if on := re.search(r"sharded on (\w+)", words):
        return list(on[1])
    if " per " in words:  # one axis: the others tell the shards apart
        return names[:1]
    if given.has("axis"):
        size, count = given.number("axis"), int(given.number("axes", 1))
        found = [n for n, level in zip(names, network.levels, strict=True) if level.size == size]
        if len(found) < count:
            raise UnansweredError(f"no {count} axes of {size:g}")
        return found[-count:]
    return names


def part(given: Given, *, ring: bool | None = None) -> Part:
    """Network, group and bytes of the case, all of whose inputs must say something about them."""
    network, names = torus(given, ring=ring)
    axes = taking_part(given, names, network)
    if unknown := [axis for axis in axes if axis not in names]:
        raise UnansweredError(f"no axis {unknown[0]}")
    group = group_of(
        [level.size if name in axes else 1 for name, level in zip(names, network.levels, strict=True)]
    )
    size, ways = size_of(given, names, axes)
    if unread := sorted(set(given) - given.read - SPARE):
        raise UnansweredError(f"input {unread[0]!r} says nothing about one collective")
    return Part(network, group, size, ways)


def size_of(given: Given, names: list[str], axes: list[str]) -> tuple[float, int]:
    """Bytes of the whole array, and over how many devices outside the collective it is sharded."""
    for key in ("V_bytes", "array_bytes", "bytes"):
        if given.has(key):
            return given.number(key), 1
    if given.has("array"):
        array, sizes = array_of(given, names), sizes_of(given)
        return array.bytes, prod(sizes[a] for a in array.split if a not in axes)
    if given.has("batch", "D", "dtype_bytes"):
        return prod(given.number(key) for key in ("batch", "D", "dtype_bytes")), 1
    raise UnansweredError("no bytes are given")


def register(
    operation: str, *steps: tuple[str, str], ring: bool | None = None, one_way: bool = False
) -> None:
    """Quantities that are steps of one collective."""
    for quantity, step in steps:
        answers(TOPIC, quantity)(
            lambda given, step=step: number(part(given, ring=ring).ask(operation, one_way=one_way), step)
        )


# One gather.

register(
    "all-gather",
    ("latency_bound", "small_shards"),
    ("Y_bound", "ways_threshold"),
    ("activation_bytes", "V"),
    ("array_bytes", "V"),
    ("shard_bytes", "shard_bytes"),
    ("bytes_per_device", "shard_bytes"),
    ("bytes", "V"),
    ("roofline_bw", "W"),
    ("t_bandwidth", "t_bandwidth"),
    ("t_latency", "t_latency"),
    ("t_latency_bound", "t_latency"),
    ("hops", "hops"),
    ("t_observed", "t_exact"),
    ("t_measured", "t_exact"),
)
register("all-gather", ("t_bidirectional", "t_approx"), ("t_exact_ring", "t_exact"), ring=True)
register("all-gather", ("t_if_ring", "t_approx"), ("hops_both_ways", "hops"), ring=True)
register("all-gather", ("hops_one_way", "hops"), ring=True, one_way=True)
register("all-gather", ("t_no_wrap", "t_exact"), ring=False)
register("permute", ("t_hop_bandwidth", "t_bandwidth"))

register("all-gather", ("t_total", "t_exact"))


@answers(TOPIC, "per_hop_latency_bound_bytes")
def per_hop(given: Given) -> Value:
    """Of one link, whatever ring it is in."""
    pair = TorusAxis("x", 2, link_of(given), True, hop_of(given))
    working = Part(Network((pair,), (1.0,)), group_of([2]), ONE).ask("all-gather")
    return number(working, "per_hop_bytes")


@answers(TOPIC, "buffer_threshold", "total_bytes_threshold")
def threshold(given: Given) -> Value:
    """Of a ring, whatever is on it."""
    network, _ = torus(given)
    return number(Part(network, group_of(network.sizes), ONE).ask("all-gather"), "buffer_threshold")


# The time that a case asks for without saying more: of what its keys name, in the book's short form.


@answers(TOPIC, "t")
def t(given: Given) -> Value:
    """`gather` and `reduce` say it; a reduction whose shards are told apart by an axis leaves them split."""
    if given.has("gather"):
        return number(part(given).ask("all-gather"), "t_approx")
    if given.has("reduce"):
        return number(part(given).ask("all-reduce"), "t_approx")
    if given.has("array"):
        return number(part(given).ask("reduce-scatter"), "t_approx")
    if given.has("hop_latency_s", "mesh"):
        return number(part(given).ask("all-gather"), "t_approx")
    if given.has("mesh"):  # bytes of all devices together, on a mesh whose shape matters
        return number(part(given).ask("all-to-all"), "t_approx")
    raise UnansweredError("which collective is not said")


# Bandwidths that were measured: gathers name an array, reductions bytes.


def curve(given: Given, step: str) -> Value:
    return number(part(given).ask("all-gather" if given.has("array_bytes") else "all-reduce"), step)


answers(TOPIC, "algo_bw")(lambda given: curve(given, "algo_bw"))
answers(TOPIC, "algo_bw_roofline")(lambda given: curve(given, "algo_bw_peak"))


@answers(TOPIC, "link_bw_fraction_of_4p5e10")
def fraction_of_link(given: Given) -> Value:
    working = part(given).ask("all-gather")
    return working.number("bus_bw") / working.number("W")


# One direction of a ring against two, and an exchange against a gather.


def ring_of(given: Given, *, one_way: bool, operation: str = "all-to-all") -> Working:
    """On links that carry one element a second, where seconds are elements on the busiest link."""
    size = next((int(given[k]) for k in ("D", "ring", "devices") if isinstance(given.get(k), int)), None)
    if size is None:
        raise UnansweredError("no ring is given")
    axis = TorusAxis("x", size, 1.0, True, 0.0)
    elements = given.number("N") ** 2 if str(given.get("matrix")) == "N x N" else ONE
    return Part(Network((axis,), (1.0,)), group_of([size]), elements).ask(operation, one_way=one_way)


@answers(TOPIC, "ratio_to_allgather")
def over_gather(given: Given) -> Value:
    one_way = "one" in str(given["ring"])
    if not one_way and not any(word in str(given["ring"]) for word in ("both", "two", "bi")):
        raise UnansweredError(f"directions of ring {given['ring']!r} are not known")
    return number(ring_of(given, one_way=one_way), "over_all_gather")


def second_direction(given: Given, operation: str) -> Value:
    one, both = (ring_of(given, one_way=w, operation=operation).number("t_bandwidth") for w in (True, False))
    return one / both


answers(TOPIC, "gain_from_second_direction_a2a")(partial(second_direction, operation="all-to-all"))
answers(TOPIC, "gain_from_second_direction_ag")(partial(second_direction, operation="all-gather"))
answers(TOPIC, "allgather_scalars_per_link_one_way")(
    lambda given: number(ring_of(given, one_way=True, operation="all-gather"), "t_exact")
)
answers(TOPIC, "alltoall_scalars_per_link_one_way")(
    lambda given: number(ring_of(given, one_way=True), "t_exact")
)


@answers(TOPIC, "egress")
def egress(given: Given) -> Value:
    return switches_bytes_per_s(1, given.number("links"), link_of(given))


# Transfers.


def sent(given: Given) -> Working:
    network, names = torus(given)
    src, dst = ([int(at) for at in given[key]] for key in ("src", "dst"))
    links = int(given["links_used"]) if given.has("links_used") else None
    return point_to_point(array_of(given, names).bytes, network, src, dst, links=links)


for _quantity, _step in (
    ("bytes", "bytes"), ("hops", "hops"), ("t_first_byte", "t_first_byte"), ("t_bandwidth", "t_bandwidth"),
    ("t_total", "t_last_byte"),
):  # fmt: skip
    answers(TOPIC, _quantity)(lambda given, step=_step: number(sent(given), step))


def pulled(given: Given) -> Working:
    """A matrix in the hosts' memory, gathered into a corner and multiplied there."""
    network, _ = torus(given)
    array = parse_array(str(given["A"]).split(" ")[0])
    x = parse_array(str(given["x"]))
    chip = chip_of(given)
    host = given.number("pcie_Bps_per_chip") if given.has("pcie_Bps_per_chip") else chip.host_link_bytes_per_s
    device = Device(chip.peak_flop_per_s("bf16"), chip.hbm_bytes_per_s, host)
    rows = x.elements({}) / float(x.dims[-1])
    return pull(array.bytes, network, device, rows=rows, elements=array.elements({}))


for _quantity, _step in (
    ("array_bytes", "V"), ("t_pcie", "t_host"), ("t_ici_gather", "t_gather"), ("t_hbm", "t_hbm"),
    ("flops", "flops"), ("t_math", "t_math"), ("t_total_lower", "t_lower"),
):  # fmt: skip
    answers(TOPIC, _quantity)(lambda given, step=_step: number(pulled(given), step))


# Overlap that was measured.


def overlapped(step: str) -> Callable[[Given], Value]:
    def read(given: Given) -> Value:
        sizes = {key: int(given[key]) for key in ("B", "D", "F")}
        try:
            return number(measured_overlap(chip_of(given).name, dict(given["mesh"]), sizes), step)
        except MeshwrightError as error:
            raise UnansweredError(str(error)) from None

    return read


answers(TOPIC, "exposed_comms_blocking")(overlapped("exposed_blocking"))
answers(TOPIC, "exposed_comms_overlapped")(overlapped("exposed_overlapped"))
answers(TOPIC, "hidden_fraction")(overlapped("hidden"))
