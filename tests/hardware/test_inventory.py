"""What pods and clusters consist of, and what is inside chips: the book's counts, and rules that hold for all."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.hardware.catalog import chips, known_clusters
from meshwright.hardware.chip import load_chip
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import ClusterError, MissingFigureError
from meshwright.hardware.inventory import max_hops, pod_chips, totals, wires, wraps
from meshwright.hardware.onchip import (
    GpuUnits,
    TpuUnits,
    counts_fused,
    gpu_units,
    mxu_flop_per_s,
    padded_elements,
    resident_warps,
    tensor_flop_per_s,
    tpu_units,
    units_of,
    vector_clock_hz,
)
from meshwright.hardware.profile import book_chip


def test_the_books_pods() -> None:
    # chapter 2, question 2
    v5p = totals(book_chip("v5p"), 16 * 20 * 28)
    assert (v5p.chips, v5p.hosts, v5p.cores, v5p.hbm_bytes) == (8960, 2240, 17920, 8960 * 96e9)
    assert v5p.flop_per_s["bf16"] == pytest.approx(4.1e18, rel=5e-3)
    v5e = totals(book_chip("v5e"), 16 * 16)
    assert (v5e.chips, v5e.hosts, v5e.cores, v5e.hbm_bytes) == (256, 32, 256, 4.096e12)
    assert [pod_chips(book_chip(name)) for name in ("v3", "v4", "v5p", "v6e", "tpu7x", "h100", "gb200")] == [
        1024, 4096, 8960, 256, 9216, 8, 72,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("chip", "shape", "expected"),
    [
        ("v5e", (4, 4), (False, False)),
        ("v5e", (8, 16), (False, True)),
        ("v6e", (16, 16), (True, True)),
        ("v5p", (2, 2, 1), (False,) * 3),
        ("v5p", (2, 2, 4), (False,) * 3),
        ("v5p", (4, 4, 8), (True,) * 3),
        ("v4", (4, 4, 4), (True,) * 3),
        ("h100", (8, 4), ()),
    ],
)  # chapter 2
def test_wraparound(chip: str, shape: tuple[int, ...], expected: tuple[bool, ...]) -> None:
    assert wraps(load_chip(chip), shape) == expected


def test_wraparound_that_nobody_states_is_refused() -> None:
    with pytest.raises(ClusterError, match="no source says which axes of a slice 4x4 wrap"):
        wraps(book_chip("v3"), (4, 4))


@pytest.mark.parametrize("text", [known.cluster for known in known_clusters()])
def test_totals_are_sums_over_chips(text: str) -> None:
    cluster = parse_cluster(text)
    found = totals(cluster.chip, cluster.chips)
    assert found.devices == cluster.devices
    assert found.hbm_bytes == cluster.chips * cluster.chip.memory.capacity.si
    assert found.hosts is None or found.hosts * cluster.chip.host.chips_per_host.count >= cluster.chips  # type: ignore[union-attr]
    assert prod(wire.size for wire in wires(cluster)) == cluster.devices
    assert all(wire.bisection_bytes_per_s > 0 for wire in wires(cluster))


def test_a_ring_cuts_twice_the_links_and_halves_the_distance() -> None:
    ring, line = wires(parse_cluster("v5e:8x16", profile="book"))[::-1]
    assert (ring.wraps, ring.max_hops, ring.bisection_bytes_per_s) == (True, 8, 2 * 8 * 45e9)
    assert (line.wraps, line.max_hops, line.bisection_bytes_per_s) == (False, 7, 16 * 45e9)
    node, rails = wires(parse_cluster("h100:8x128", profile="book"))
    assert node.bisection_bytes_per_s == 4 * 450e9
    assert rails.bisection_bytes_per_s == 512 * 50e9  # chapter 12: 25.6e12


def test_slices_share_no_host_and_devices_of_a_chip_its_links() -> None:
    assert totals(load_chip("v5e"), 8, blocks=2).hosts == 2
    package, x, *_ = wires(parse_cluster("tpu7x:4x4x4", profile="book"))
    assert (package.name, x.per_chip_bytes_per_s) == ("package", 90e9)


@given(st.integers(1, 10_000))
def test_a_ring_is_never_wider_than_a_line(size: int) -> None:
    assert max_hops(size, True) <= max_hops(size, False) <= 2 * max_hops(size, True)


def test_a_peak_from_units_and_clock_is_the_listed_one() -> None:
    checked = []
    for name in chips():
        units, listed = units_of(name), load_chip(name).peak["bf16"].si
        if isinstance(units, TpuUnits) and units.clock is not None:
            peak = mxu_flop_per_s(units.mxu_side.count, units.clock.si, units.mxus)
        elif (
            isinstance(units, GpuUnits)
            and units.flop_per_cycle is not None
            and units.tensor_clock is not None
        ):
            cores = units.sms.count, units.tensor_cores_per_sm.count
            peak = tensor_flop_per_s(*cores, units.flop_per_cycle.si, units.tensor_clock.si)
        else:
            continue
        assert peak == pytest.approx(listed, rel=3e-3), name
        checked.append(name)
    assert checked == ["a100", "a100-40gb", "h100", "h200", "h800", "v5e", "v5p"]


def test_chip_arithmetic_of_the_book() -> None:
    assert tpu_units("v5p").vector_alus == 8192  # chapter 12, quiz 1
    assert (gpu_units("h100").vector_alus, gpu_units("b200").vector_alus) == (16896, 18944)
    assert 4 * resident_warps(16384, 256) == 8
    assert padded_elements((8, 100), (8, 128)) == 1024
    assert padded_elements((3, 5, 130), (8, 128)) == 3 * 8 * 256
    # 67 TFLOP/s of the H100's sheet count a multiply-add as two; 33.5 do not
    assert (counts_fused(67e12, 16896), counts_fused(33.5e12, 16896)) == (True, False)
    assert vector_clock_hz(67e12, 16896, fused=True) == pytest.approx(1.98e9, rel=2e-3)


def test_what_no_source_gives_is_refused() -> None:
    with pytest.raises(
        MissingFigureError, match="no source gives MXUs, VMEM or vector units of h100; they are known of v2"
    ):
        tpu_units("h100")
    with pytest.raises(MissingFigureError, match="no source gives SMs or tensor cores of mi300x"):
        gpu_units("mi300x")
