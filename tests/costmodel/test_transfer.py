"""Transfers that are no collective: the book's two exercises, distances by walking, and what is refused."""

from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.costmodel.collectives import Network
from meshwright.costmodel.exchange.bubble import hops, schedule
from meshwright.costmodel.exchange.collective import collective
from meshwright.costmodel.exchange.span import parse_span
from meshwright.costmodel.exchange.transfer import Device, point_to_point, pull
from meshwright.costmodel.setting import network_of
from meshwright.costmodel.sharding.measured import measured_overlap
from meshwright.costmodel.sharding.mesh import parse_mesh
from meshwright.hardware.calibration import load_efficiency
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import InputError, LayoutError, MissingFigureError
from meshwright.hardware.network import SwitchTier, TorusAxis
from meshwright.hardware.units import human_seconds

V5E = Device(1.97e14, 8.2e11, 1.6e10)


def network(cluster: str) -> Network:
    found = parse_cluster(cluster, profile="book")
    return network_of(found.levels, load_efficiency("ideal", found.chip))


def test_corner_to_corner() -> None:
    """Chapter 2, question 5: 16 MiB over 4x4 v5e."""
    sent = point_to_point(2.0 * 8 * 128 * 8192, network("v5e:4x4"), (0, 0), (3, 3))
    assert (sent["hops"], sent["links"], sent["t_first_byte"]) == (6, 2, 6e-6)
    assert sent["t_bandwidth"] == pytest.approx(0.00018641, rel=1e-4)
    assert sent["t_last_byte"] == pytest.approx(0.00019241, rel=1e-4)


def test_an_offloaded_matrix_to_a_corner() -> None:
    """Chapter 2, question 6, with 2^34 bytes where the book rounds to 16e9."""
    elements = 131072.0**2
    pulled = pull(elements, network("v5e:4x4"), V5E, rows=8, elements=elements)
    expected = {
        "t_host": 0.067109,
        "t_gather": 0.17896,
        "t_hbm": 0.020951,
        "t_math": 0.0013953,
        "t_lower": 0.17896,
    }
    for step, value in expected.items():
        assert pulled[step] == pytest.approx(value, rel=1e-4)
    assert pulled.binds.startswith("gather: 179 ms against 67.11 ms of host")
    inner = pull(elements, network("v5e:4x4"), V5E, (1, 2))
    assert inner["links_in"] == 4 and inner["t_gather"] == pytest.approx(0.17896 / 2, rel=1e-4)


def test_what_comes_into_a_gpu_of_several_nodes() -> None:
    """Seven eighths of a node's part over NVLink, all else over its own NIC."""
    pulled = pull(32e9, network("h100:8x4"), Device(989e12, 3.35e12, 6.3e10))
    assert pulled["t_gather"] == pytest.approx(24e9 / 50e9)
    assert len(pulled.table) == 2
    tiers = (
        SwitchTier("nvlink", 8, 450e9, 0.0),
        SwitchTier("leaf", 4, 50e9, 0.0),
        SwitchTier("spine", 2, 40e9, 0.0),
    )
    farther = pull(64e9, Network(tiers, (1.0,) * 3), Device(989e12, 3.35e12, 6.3e10))
    assert farther["t_gather"] == pytest.approx(56e9 / 50e9)  # a NIC brings in what lies beyond the spine too


@st.composite
def tori(draw: st.DrawFn) -> Network:
    axes = tuple(
        TorusAxis(name, draw(st.integers(2, 5)), 1e9, draw(st.booleans()), 1e-6)
        for name in "xyz"[: draw(st.integers(1, 3))]
    )
    return Network(axes, (1.0,) * len(axes))


def walked(torus: Network, src: tuple[int, ...]) -> dict[tuple[int, ...], int]:
    """Hops from one chip to all others, link by link."""
    far, edge = {src: 0}, [src]
    while edge:
        reached = []
        for at in edge:
            for index, axis in enumerate(torus.levels):
                assert isinstance(axis, TorusAxis)
                for step in (-1, 1):
                    to = at[index] + step
                    if axis.wraps:
                        to %= axis.size
                    place = (*at[:index], to, *at[index + 1 :])
                    if 0 <= to < axis.size and place not in far:
                        far[place] = far[at] + 1
                        reached.append(place)
        edge = reached
    return far


@settings(max_examples=60, deadline=None, derandomize=True)
@given(torus=tori(), data=st.data())
def test_hops_and_links_are_those_of_a_walk(torus: Network, data: st.DataObject) -> None:
    sizes = [axis.size for axis in torus.levels]
    src, dst = (tuple(data.draw(st.integers(0, n - 1)) for n in sizes) for _ in range(2))
    assume(src != dst)
    there, back = point_to_point(1e6, torus, src, dst), point_to_point(1e6, torus, dst, src)
    assert there.steps == back.steps
    assert there["hops"] == walked(torus, src)[dst]
    to = walked(torus, dst)
    firsts = {p for p, d in walked(torus, src).items() if d == 1 and to[p] == to[src] - 1}
    rings_of_two = sum(
        1
        for n, axis, a, b in zip(sizes, torus.levels, src, dst, strict=True)
        if n == 2 and a != b and axis.wraps
    )
    assert there["links"] == len(firsts) + rings_of_two  # both links of a ring of two lead to the same chip


@settings(max_examples=40, deadline=None, derandomize=True)
@given(torus=tori(), gain=st.floats(1.0, 10.0))
def test_faster_parts_are_never_slower(torus: Network, gain: float) -> None:
    corner = tuple(0 for _ in torus.levels)
    now = pull(1e9, torus, V5E)
    for device in (
        Device(V5E.flop_per_s, V5E.hbm_bytes_per_s * gain, 1.6e10),
        Device(V5E.flop_per_s, V5E.hbm_bytes_per_s, 1.6e10 * gain),
    ):
        assert pull(1e9, torus, device).number("t_lower") <= now.number("t_lower")
    quick = Network(torus.levels, (gain,) * len(torus.levels))
    assert pull(1e9, quick, V5E).number("t_lower") <= now.number("t_lower")
    inner = [pull(1e9, torus, V5E, place) for place in product(*(range(a.size) for a in torus.levels))]
    assert min(p.number("t_gather") for p in inner) <= pull(1e9, torus, V5E, corner).number("t_gather")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: point_to_point(1, network("v5e:4x4"), (0, 0), (4, 0)), LayoutError, "(4,0) is no chip of 4x4; coordinates run from 0,0 to 3,3"),
        (lambda: point_to_point(1, network("v5e:4x4"), (0, 0), (1, 1, 1)), LayoutError, "(1,1,1) is no chip of 4x4"),
        (lambda: point_to_point(1, network("v5e:4x4"), (1, 1), (1, 1)), InputError, "(1,1) and (1,1) are the same chip; nothing is sent"),
        (lambda: point_to_point(1, network("v5e:4x4"), (0, 0), (1, 1), links=5), LayoutError, "5 links are none or more than the 4 of a chip"),
        (lambda: point_to_point(1, network("h100:8x4"), (0,), (1,)), LayoutError, "coordinates are for chips of a torus"),
        (lambda: pull(1, network("v5e:4x4"), Device(1, 1, None)), MissingFigureError, "give its rate, like --host-rate '16 GB/s'"),
        (lambda: point_to_point(-5, "v5e:4x4", (0, 0), (1, 1)), InputError, "-5 bytes have nothing to move"),
        (lambda: point_to_point("1MB", "v5e:4x4", (0, 0), (1, 1)), InputError, "size is '1MB'; give bytes, a number above 0"),
        (lambda: point_to_point(1, "v5e:4x4", ("a", 0), (1, 1)), LayoutError, "coordinate is 'a'; give whole numbers like (0, 3)"),
        (lambda: point_to_point(1, "v5e:4x4", 3, (1, 1)), LayoutError, "place is 3; give coordinates like (0, 3)"),
        (lambda: collective("all-gather", float("inf"), "v5e:4x4"), InputError, "inf bytes have nothing to move"),
        (lambda: collective("all-gather", 1e6, "v5e:4x4", parse_span("x", parse_cluster("v5p:4x4x4"))), LayoutError, "a group of 3 levels is none of 2"),
        (lambda: pull(0, "v5e:4x4", V5E), InputError, "0 bytes have nothing to move"),
        (lambda: collective("all-gather", 1e9, 7), InputError, "network is 7; give a cluster like 'v5p:4x4x4', or the Network of one"),
        (lambda: collective("all-gather", 1e9, network("v5e:4x4"), "x"), LayoutError, "axes 'x' need a cluster"),
        (lambda: parse_mesh("X=4", 7), InputError, "cluster is 7; give a cluster like 'v5p:4x4x4'"),
        (lambda: hops(1e6, 8192, 4, 8, 3, 9e10), LayoutError, "3 layers leave some of 4 stages without one; use at most 3 stages"),
        (lambda: hops(1e6, 8192, 1, 8, 3, 9e10), LayoutError, "use at least 2 stages"),
        (lambda: hops(0, 8192, 4, 8, 32, 9e10), InputError, "tokens=0 sends nothing"),
        (lambda: schedule(4, 3, chunks=2), LayoutError, "run whole rounds of 4 micro-batches"),
        (lambda: schedule(0, 1), LayoutError, "0 stages, 1 micro-batches"),
        (lambda: measured_overlap("v5p", {"X": 4}, {"B": 1}), MissingFigureError, "no published timing of B=1 on v5p X=4; there are B=1024,D=2048,F=8192 on v5e X=2,Y=4"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_pipeline_alone() -> None:
    """Chapter 12's figure of two stages and two micro-batches; hops as chapter 5 counts them."""
    drawn = schedule(2, 2)
    assert (drawn["step"], drawn["idle"]) == (9, pytest.approx(1 / 3))
    for stages, many, chunks in ((4, 8, 1), (8, 32, 2), (3, 9, 4), (3, 7, 1)):
        idle = schedule(stages, many, chunks=chunks).number("idle")
        assert idle == pytest.approx((stages - 1) / (many * chunks + stages - 1))
    hop = hops(1e6, 8192, 4, 8, 32, 9e10)
    assert hop["t_hop"] == pytest.approx(2 * 1e6 * 8192 / (9e10 * 8))
    assert hop["t_total"] == pytest.approx(hop.number("t_hop") * (8 + 4 - 2))
    more = hops(1e6, 8192, 4, 16, 32, 9e10)
    assert hop.binds.endswith(f"16 micro-batches would make it {human_seconds(more.number('t_total'))}")


def test_a_cluster_stands_for_its_network() -> None:
    """By its string or parsed, at the ideal rates that commands use, and its name is in the question."""
    cluster = parse_cluster("v5e:4x4")
    links = network_of(cluster.levels, load_efficiency("ideal", cluster.chip))
    for place in ("v5e:4x4", cluster):
        assert (
            point_to_point(1e6, place, (0, 0), (3, 3)).steps
            == point_to_point(1e6, links, (0, 0), (3, 3)).steps
        )
        assert pull(1e9, place, V5E).steps == pull(1e9, links, V5E).steps
        asked = collective("all-gather", 1e9, place, "x")
        assert asked.steps == collective("all-gather", 1e9, links, parse_span("x", cluster)).steps
        assert asked.question.endswith("over x 4 of v5e:4x4?")
        assert parse_mesh("X=4", place).described("X") == parse_mesh("X=4", cluster, links).described("X")
    assert (
        collective("all-gather", 1e9, "v5e:4x4")["t_exact"] == collective("all-gather", 1e9, links)["t_exact"]
    )


def test_a_collective_matmul_hid_three_quarters_of_its_gather() -> None:
    """Chapter 10: 311 us one after the other, 244 overlapped, 224 without communication."""
    run = measured_overlap("v5e", {"X": 2, "Y": 4}, {"B": 1024, "D": 2048, "F": 8192})
    assert run["hidden"] == pytest.approx(0.77011, rel=1e-4)
    assert run["exposed_blocking"] == pytest.approx(87e-6) and run["exposed_overlapped"] == pytest.approx(
        20e-6
    )
