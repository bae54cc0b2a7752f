"""One collective: the book's figures, what must hold on any network, and what is refused."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_collectives import groups, networks

from meshwright.costmodel.collectives import Network, duration
from meshwright.costmodel.exchange.collective import collective
from meshwright.costmodel.exchange.operations import (
    OPERATIONS,
    Routing,
    hops,
    in_switches,
    loads_of,
    one_direction,
    without_latency,
)
from meshwright.costmodel.exchange.span import check_apart, first_devices, group_of, parse_span, whole
from meshwright.costmodel.placement import Group
from meshwright.costmodel.setting import network_of
from meshwright.costmodel.working import Working
from meshwright.hardware.calibration import load_efficiency
from meshwright.hardware.cluster import Cluster, parse_cluster
from meshwright.hardware.errors import InputError, LayoutError, UnknownNameError
from meshwright.hardware.network import SwitchTier, TorusAxis

DENSE = tuple(op for op in OPERATIONS if op != "ragged-all-to-all")


def asked(operation: str, size: float, cluster: str, axes: str, **options: Any) -> Working:
    machine = parse_cluster(cluster, profile="book")
    network = network_of(machine.levels, load_efficiency("ideal", machine.chip))
    return collective(operation, size, network, parse_span(axes, machine), **options)


def machine(text: str) -> Cluster:
    return parse_cluster(text, profile="book")


MIB = 2.0**20
BOOK = [
    # chapter 3: the book's short forms beside the exact ones
    ("all-gather", 33554432, "v5e:4x8", "x", {}, "t_exact", 0.00055924),  # no wrap on an axis of 4
    ("all-gather", 131072, "v5e:4x8", "x", {}, "t_exact", 3e-6),  # three hops of 1 us
    ("all-gather", 8 * MIB, "v4:4x4x4", "x", {"sharded_ways": 4}, "t_approx", 2.3302e-5),
    ("all-reduce", 8 * MIB, "v4:4x4x4", "z", {"sharded_ways": 16}, "t_approx", 1.1651e-5),
    ("all-gather", 256, "v4:4x4x4", "x", {}, "t_exact", 2e-6),  # question 3: two hops on a ring of 4
    ("all-to-all", 1e9, "v5p:4x4x4", "x,y,z", {}, "t_approx", 8.6806e-5),
    ("all-to-all", 1e9, "v5p:4x4x4", "x", {}, "over_all_gather", 0.25),
    ("all-to-all", 1e9, "v5p:4x4x4", "x", {"one_way": True}, "over_all_gather", 0.5),
    # chapter 7, appendix C: 8 shards of 45 kB on a v5e link
    ("all-gather", 131072, "v5e:8x16", "8", {}, "buffer_threshold", 360000),
    # chapter 12: in a node, over nodes, with reduction in the switches
    ("all-gather", 2 * 1024 * 16384, "h100:8x1", "nvlink", {}, "t_exact", 6.5245e-5),
    ("all-reduce", 1e9, "h100:8x1", "nvlink", {"sharp": "theory"}, "t_exact", 1e9 / 450e9),
    ("all-reduce", 1e9, "h100:8x1", "nvlink", {}, "bus_bw", 450e9),
    ("all-gather", 1e9, "h100:8x32", "nvlink,leaf", {}, "algo_bw", 412.9e9),
    ("all-gather", 1e9, "h100:8x32", "nvlink,leaf", {}, "node_switch_out", 8e9),  # quiz 4: N V of one node
    ("all-gather", 1e9, "h100:8x32", "nvlink,leaf", {}, "spine_switch_out", 31e9),
    ("all-reduce", 1e9, "h100:8x1", "nvlink", {"sharp": "theory"}, "node_switch_in", 8e9),
    ("all-gather", 1e9, "h100:8x2", "nvlink,ib400", {}, "algo_bw", 514.29e9),
    ("all-gather", 2**29, "h100:8x32", "leaf", {"sharded_ways": 8}, "t_exact", 0.0013002),
    ("all-gather", 2**29, "h100:8x32", "leaf:16", {"sharded_ways": 16}, "t_tree", 0.00065012),
    ("ragged-all-to-all", 1.0, "h100:8x1", "nvlink", {"routing": Routing(4)}, "crossing", 0.36209),
    ("ragged-all-to-all", 1.0, "h100:8x1", "nvlink", {"routing": Routing(4)}, "fraction_approx", 0.5),
]


@pytest.mark.parametrize(
    ("operation", "size", "cluster", "axes", "options", "step", "value"),
    BOOK,
    ids=[f"{b[0]} {b[2]} {b[5]}" for b in BOOK],
)
def test_book(
    operation: str, size: float, cluster: str, axes: str, options: dict[str, Any], step: str, value: float
) -> None:
    assert asked(operation, size, cluster, axes, **options)[step] == pytest.approx(value, rel=3e-4)


def test_binds_says_which_and_by_how_much() -> None:
    assert asked("all-gather", 131072, "v5e:4x4", "x").binds == (
        "latency: 3 us of hops against 2.185 us of bandwidth on x; "
        "an array 1.37 times as large would take no longer"
    )
    nodes = asked("all-gather", 1e9, "h100:8x32", "nvlink,leaf").binds
    assert nodes == "bandwidth of ib400: 2.422 ms against 1.944 ms on the next level, 1.25 times as long"


def test_a_measured_gain_is_told_with_its_figure() -> None:
    one = asked("all-reduce", 1e9, "h100:8x1@ib400-sharp", "nvlink")
    two = asked("all-reduce", 1e9, "h100:8x4@ib400-sharp", "nvlink,ib400-sharp")
    assert one["g_nvlink"] == 1.31 and one.steps["t_bandwidth"].formula == "2 V / (W g_nvlink)"
    assert one["t_bandwidth"] == pytest.approx(2e9 / (450e9 * 1.31))
    assert two.steps["t_bandwidth"].formula == "of the slowest level, below"
    assert "g_nvlink" not in asked("all-gather", 1e9, "h100:8x1@ib400-sharp", "nvlink").given


def steps(operation: str, network: Network, size: float, group: Group, **options: Any) -> Working:
    return collective(operation, size, network, group, **options)


@st.composite
def questions(draw: st.DrawFn, hops: bool = True) -> tuple[Network, Group, float]:
    """A network, a group of at least two of its devices, and bytes."""
    network = draw(networks(hops=hops))
    factors, strides = draw(groups(network))
    assume(np.prod(factors) > 1)
    return network, Group(factors, strides), draw(st.floats(1.0, 1e11))


def plain(network: Network) -> Network:
    """Without reduction in the switches."""
    return in_switches(network, whole(network.levels), theory=False)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(question=questions())
def test_transposes_agree_and_an_all_reduce_is_both(question: tuple[Network, Group, float]) -> None:
    network, group, size = question
    gather, scatter, both = (
        steps(op, plain(network), size, group) for op in ("all-gather", "reduce-scatter", "all-reduce")
    )
    for step in ("t_approx", "t_exact", "t_latency"):
        assert gather[step] == scatter[step]
        assert both[step] == pytest.approx(gather.number(step) + scatter.number(step))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(question=questions(), operation=st.sampled_from(DENSE), gain=st.floats(1.0, 10.0))
def test_more_bandwidth_is_never_slower_and_more_bytes_never_faster(
    question: tuple[Network, Group, float], operation: str, gain: float
) -> None:
    network, group, size = question
    levels = tuple(
        replace(x, link_bytes_per_s=x.link_bytes_per_s * gain)
        if isinstance(x, TorusAxis)
        else replace(x, bytes_per_s=x.bytes_per_s * gain)
        for x in network.levels
    )
    now = steps(operation, network, size, group)
    for step in ("t_approx", "t_exact"):
        t = now.number(step) * (1 + 1e-12)
        assert steps(operation, replace(network, levels=levels), size, group).number(step) <= t
        assert steps(operation, network, size / gain, group).number(step) <= t
        assert t >= now.number("t_latency")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(question=questions(), operation=st.sampled_from(DENSE))
def test_the_short_form_is_never_below_the_exact_one(
    question: tuple[Network, Group, float], operation: str
) -> None:
    network, group, size = question
    working = steps(operation, plain(network), size, group)
    assert working.number("t_exact") <= working.number("t_approx") * (1 + 1e-12)


def moving(network: Network, group: Group, *, exact: bool) -> float:
    return float(duration(loads_of("all-gather", without_latency(network), 1.0, group, exact=exact)))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(question=questions(hops=False), data=st.data())
def test_a_whole_axis_is_never_slower_than_a_part_nor_more_axes_than_one(
    question: tuple[Network, Group, float], data: st.DataObject
) -> None:
    """Of a gather's bandwidth: in the short form on any torus; of what must move where axes are rings."""
    network, group, _ = question
    axes = [i for i in network.torus if group.factors[i] > 1]
    assume(axes)
    torus = Network(
        tuple(network.levels[i] for i in network.torus), tuple(network.achieved[i] for i in network.torus)
    )
    part = Group(group.factors[list(network.torus)], group.strides[list(network.torus)])
    at = data.draw(st.sampled_from([i for i, f in enumerate(part.factors) if f > 1]))
    factors, strides = part.factors.copy(), part.strides.copy()
    factors[at], strides[at] = torus.levels[at].size, 1
    closed = all(isinstance(x, TorusAxis) and x.wraps for x in torus.levels)
    for exact in (False, True) if closed else (False,):
        assert moving(torus, Group(factors, strides), exact=exact) <= moving(torus, part, exact=exact) * (
            1 + 1e-12
        )
    alone = np.where(np.arange(len(factors)) == at, part.factors, 1)
    assert moving(torus, part, exact=False) <= moving(torus, Group(alone, part.strides), exact=False) * (
        1 + 1e-12
    )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(question=questions(hops=False))
def test_theory_of_reduction_in_switches_is_the_array_once_each_way(
    question: tuple[Network, Group, float],
) -> None:
    network, group, size = question
    assume(set(np.flatnonzero(group.factors > 1)) - set(network.torus))
    theory, off = (steps("all-reduce", network, size, group, sharp=word) for word in ("theory", "off"))
    assert off["t_exact"] == steps("all-reduce", plain(network), size, group)["t_exact"]
    assert theory.number("t_exact") <= off.number("t_exact") * (1 + 1e-12)
    if len(np.flatnonzero(group.factors > 1)) == 1 and not (
        set(np.flatnonzero(group.factors > 1)) & set(network.torus)
    ):
        assert theory.number("t_exact") == pytest.approx(size / theory.number("W"))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(question=questions(), k=st.integers(1, 20))
def test_a_ragged_exchange_of_everything_is_a_full_one(
    question: tuple[Network, Group, float], k: int
) -> None:
    """All of a full exchange is one; and a token with more experts never costs less."""
    network, group, size = question
    outside = any(network.beyond(i) and group.factors[i] > 1 for i in range(len(network.levels)))
    everything = steps("ragged-all-to-all", network, size, group, routing=Routing(fraction=1.0))
    if not outside:
        full = steps("all-to-all", network, size * float(group.size), group)
        assert everything.number("t_exact") == pytest.approx(full.number("t_exact"))
    fewer, more = (steps("ragged-all-to-all", network, size, group, routing=Routing(n)) for n in (k, k + 1))
    for step in ("t_approx", "t_exact"):
        assert fewer.number(step) <= more.number(step) * (1 + 1e-12)
    assert more.number("fraction") <= more.number("fraction_approx")


@pytest.mark.parametrize(("experts", "places", "k"), [(6, 3, 2), (8, 4, 3), (8, 8, 3), (4, 2, 4)])
def test_places_of_different_experts_by_listing_all_choices(experts: int, places: int, k: int) -> None:
    each = experts // places
    met = [len({e // each for e in chosen}) for chosen in combinations(range(experts), k)]
    assert Routing(k, experts).copies(places) == pytest.approx(sum(met) / len(met))


def test_a_ragged_exchange_over_nodes_sends_a_token_once_to_a_node() -> None:
    """Book, chapter 12: 4BD (Z - 8) / (W Z) min(8k/Z, 1) for dispatch and combine, Z GPUs in nodes of 8."""
    tokens, gpus, k, node = 1e9, 64, 2, 400e9
    network = Network(
        (SwitchTier("nvlink", 8, 450e9, 0.0), SwitchTier("nodes", 8, node / 8, 0.0)), (1.0, 1.0)
    )
    group = group_of([8, 8])
    short = loads_of("ragged-all-to-all", network, tokens, group, Routing(k))[1]  # of the distinct places
    once = tokens * (gpus - 8) / (node * gpus)
    assert short == pytest.approx(once * Routing(k).copies(8) / 8)
    approx = Routing(k).copies(8, exact=False) / 8
    assert approx == min(8 * k / gpus, 1)


def test_one_direction_halves_a_gather_and_quarters_an_exchange() -> None:
    ring = Network((TorusAxis("x", 16, 9e10, True, 0.0),), (1.0,))
    one = one_direction(ring)
    gathers, exchanges = (
        [float(duration(loads_of(op, n, 1e9, group_of([16]), exact=False))) for n in (one, ring)]
        for op in ("all-gather", "all-to-all")
    )
    assert [hops(n, group_of([16])) for n in (one, ring)] == [15, 8]
    assert gathers[0] / gathers[1] == pytest.approx(2)
    assert exchanges[0] / exchanges[1] == pytest.approx(4)


@pytest.mark.parametrize(
    ("cluster", "text", "factors", "strides"),
    [
        ("v5p:4x4x8", "x,z", [4, 1, 8], [1, 1, 1]),
        ("v5e:16x16", "x:4@4,y:2", [4, 2], [4, 1]),
        ("v5e:16x16", "32", [16, 2], [1, 1]),
        ("h100:8x128", "nvlink,leaf", [8, 32], [1, 1]),
        ("h100:8x128", "spine", [1, 4], [1, 1]),
        ("h100:8x128", "leaf,spine", [1, 128], [1, 1]),
        ("h100:8x4", "leaf", [1, 4], [1, 1]),
        ("h100:8x256", "core", [1, 2], [1, 1]),
        ("v5e:16x16*4", "dcn", [1, 1, 4], [1, 1, 1]),
    ],
)
def test_axes_by_name_part_stride_tier_and_count(
    cluster: str, text: str, factors: list[int], strides: list[int]
) -> None:
    group = parse_span(text, machine(cluster))
    assert (group.factors.tolist(), group.strides.tolist()) == (factors, strides)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: parse_span("q", machine("v5p:4x4x4")), UnknownNameError, "unknown axis 'q'; known: x, y, z"),
        (lambda: parse_span("core", machine("h100:8x128")), UnknownNameError, "unknown axis 'core'"),
        (lambda: parse_span("x:3", machine("v5p:4x4x4")), LayoutError, "x:3 is no even part of x, which has 4; parts are 1, 2, 4"),
        (lambda: parse_span("x,x", machine("v5p:4x4x4")), LayoutError, "axis x is named twice in 'x,x'; name each once"),
        (lambda: parse_span("x:4@8", machine("v5e:16x16")), LayoutError, "x:4 at stride 8 is no even part of x, which has 16"),
        (lambda: parse_span("nvlink:2@2", machine("h100:8x4")), LayoutError, "nvlink is switched, where strides mean nothing; leave out @2"),
        (lambda: parse_span("x y", machine("v5p:4x4x4")), LayoutError, "cannot read axes 'x y'; write axes like x,y"),
        (lambda: first_devices(48, machine("v5p:4x4x4").levels), LayoutError, "48 devices are no block of x 4 x y 4 x z 4"),
        (
            lambda: check_apart(group_of([4, 1]), group_of([2, 1]), machine("v5e:4x4").levels),
            LayoutError,
            "axis x has 4 and is asked for 4 ways in the collective and 2 ways outside it",
        ),
        (lambda: asked("gather", 1.0, "v5p:4x4x4", "x"), UnknownNameError, "unknown collective 'gather'; did you mean all-gather"),
        (lambda: asked("all-reduce", 1.0, "h100:8x4", "nvlink", sharp="on"), UnknownNameError, "unknown sharp 'on'"),
        (lambda: asked("all-gather", 0.0, "v5p:4x4x4", "x"), InputError, "0 bytes have nothing to move; give the whole size, above 0"),
        (lambda: asked("all-gather", 1.0, "v5p:4x4x4", "x:1"), LayoutError, "one device has nothing to exchange"),
        (lambda: asked("ragged-all-to-all", 1.0, "v5p:4x4x4", "x"), InputError, "needs to know what is sent: give top_k, or a fraction"),
        (lambda: asked("all-to-all", 1.0, "v5p:4x4x4", "x", routing=Routing(2)), InputError, "routing is for ragged-all-to-all, not for all-to-all; drop it"),
        (lambda: Routing(8, 4), InputError, "top_k=8 of 4 experts; use 1 to 4"),
        (lambda: Routing(2, None, 0.5), InputError, "top_k and fraction both say what is sent; keep one"),
        (lambda: Routing(None, 8, 0.5), InputError, "a fraction of a full exchange needs no experts"),
        (lambda: asked("all-gather", 1.0, "h100:8x4", "nvlink", sharp="theory"), InputError, "sharp=theory is for an all-reduce"),
        (lambda: asked("all-gather", 1.0, "v5e:4x8", "x", one_way=True), InputError, "one_way is for rings, and x closes none here"),
        (lambda: Routing(), InputError, "needs either top_k (of experts) or a fraction"),
        (lambda: Routing(2, 6).copies(4), LayoutError, "6 experts do not spread evenly over 4"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and "\n" not in str(caught.value)
