"""The book's profile: every figure as printed, the rest of the catalogue untouched, nothing made up."""

import pytest

from meshwright.hardware.catalog import chips
from meshwright.hardware.chip import Switch, Torus, load_chip
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import ClusterError, MissingFigureError, UnknownNameError
from meshwright.hardware.network import SwitchTier, TorusAxis
from meshwright.hardware.profile import (
    book_chip,
    load_profile,
    profile_chip,
    profile_chips,
    profile_names,
    with_figures,
)


# jax-ml/scaling-book: chapter 2 for TPUs, chapter 12 for GPUs (exact figures where a table rounds).
@pytest.mark.parametrize(
    ("name", "bf16", "int8", "hbm", "hbm_rate", "link"),
    [
        ("tpu_v3", 1.4e14, 1.4e14, 32e9, 9.0e11, 1.0e11),
        ("tpu_v4p", 2.75e14, 2.75e14, 32e9, 1.2e12, 4.5e10),
        ("tpu_v5p", 4.59e14, 9.18e14, 96e9, 2.8e12, 9.0e10),
        ("tpu_v5e", 1.97e14, 3.94e14, 16e9, 8.2e11, 4.5e10),
        ("tpu_v6e", 9.2e14, 1.84e15, 32e9, 1.6e12, 9.0e10),
        ("tpu7x", 2.3e15, 4.61e15, 192e9, 7.4e12, 9.0e10),
        ("a100", 3.1e14, 6.2e14, 80e9, 2.0e12, 300e9),
        ("h100", 9.89e14, 1.978e15, 80e9, 3.35e12, 450e9),
        ("H200", 9.89e14, 1.978e15, 141e9, 4.8e12, 450e9),
        ("b200", 2.25e15, 4.5e15, 192e9, 8.0e12, 900e9),
        ("gb200", 2.25e15, 4.5e15, 192e9, 8.0e12, 900e9),
    ],
)
def test_figures_as_the_book_prints_them(
    name: str, bf16: float, int8: float, hbm: float, hbm_rate: float, link: float
) -> None:
    chip = book_chip(name)
    up = chip.scale_up
    rate = up.per_link_one_way if isinstance(up, Torus) else up.per_chip_one_way
    assert (chip.peak["bf16"].si, chip.peak["int8"].si) == (bf16, int8)
    assert (chip.memory.capacity.si, chip.memory.bandwidth.si, rate.si) == (hbm, hbm_rate, link)
    assert chip.memory_bytes * chip.devices_per_chip == hbm  # the book plans with all of it
    assert rate.source == chip.memory.bandwidth.source == "jax-ml/scaling-book"


def test_the_book_differs_from_the_vendors_and_leaves_the_rest_alone() -> None:
    for name in chips():
        ours, books = load_chip(name), book_chip(name)
        assert (books.name, books.devices_per_chip, books.prices) == (
            ours.name,
            ours.devices_per_chip,
            ours.prices,
        )
        assert set(books.peak) >= set(ours.peak)
    assert load_chip("v5p").memory.bandwidth.si == 2765e9
    assert book_chip("mi300x") == load_chip("mi300x")  # not in the book


def test_every_entry_is_a_chip_or_says_what_it_lacks() -> None:
    for name in load_profile("book").chips:
        if name in profile_chips():
            assert book_chip(name).peak_flop_per_s("bf16") > 0
        else:
            with pytest.raises(
                MissingFigureError, match=f"the book profile gives no .* for .*{name[1:]}.*it has v3"
            ):
                book_chip(name)
    assert set(load_profile("book").chips) - set(profile_chips()) == {"v2", "v100"}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown chip 'tpu_v9'"):
        book_chip("tpu_v9")
    with pytest.raises(UnknownNameError, match=r"unknown profile 'bok'; did you mean book\?"):
        profile_chip("v5p", "bok")
    assert profile_names() == ("catalogue", "book")
    assert profile_chip("v5p") is load_chip("v5p")
    with pytest.raises(UnknownNameError, match="unknown chip 'v3'"):
        profile_chip("v3")  # only the book has it


def test_a_cluster_of_the_book_has_its_links_and_no_switch_latency() -> None:
    cube = parse_cluster("v5p:4x4x4", profile="book")
    assert cube.levels == tuple(TorusAxis(axis, 4, 90e9, True, 1e-6) for axis in "xyz")
    pods = parse_cluster("v5p-128*2", profile="book").levels[-1]
    assert (pods, pods.size) == (SwitchTier("dcn", 2, 6.25e9, 0.0), 2)
    nodes = parse_cluster("h100:8x4", profile="book")
    assert [(level.bytes_per_s, level.latency_s) for level in nodes.levels if isinstance(level, SwitchTier)] == [
        (450e9, 0.0), (50e9, 0.0),
    ]  # fmt: skip
    assert nodes.warnings[-1].startswith("figures of the book profile")
    assert parse_cluster("h100:8x4").levels[0].latency_s > 0  # type: ignore[union-attr]


def test_no_slice_is_made_up_for_a_chip_whose_wiring_nobody_states() -> None:
    with pytest.raises(
        ClusterError, match="no source lists the slices of TPU v3, nor which of their axes wrap"
    ):
        parse_cluster("v3:32x32", profile="book")


def test_given_figures_stand_in_and_other_peaks_keep_their_ratio() -> None:
    chip = with_figures(
        book_chip("h100"), peaks={"bf16": 990e12}, hbm_bytes_per_s=3.4e12, link_bytes_per_s=370e9
    )
    assert chip.peak["fp8"].si == pytest.approx(1980e12)
    assert (chip.memory.bandwidth.si, chip.memory.capacity.si) == (3.4e12, 80e9)
    assert isinstance(chip.scale_up, Switch) and chip.scale_up.per_chip_one_way.si == 370e9
    both = with_figures(book_chip("h100"), peaks={"bf16": 990e12, "fp8": 2000e12})
    assert (both.peak["bf16"].si, both.peak["fp8"].si) == (990e12, 2000e12)
