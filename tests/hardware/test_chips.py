"""Chip files: they validate, figures are those published, properties are per device."""

import pytest

from meshwright.hardware.catalog import chips
from meshwright.hardware.chip import Switch, Torus, is_chip, load_chip
from meshwright.hardware.errors import MissingFigureError, UnknownNameError
from meshwright.hardware.figures import Figure, Strict

ALL = chips()


def test_the_catalogue_holds_these_chips():
    assert ALL == (
        "a100", "a100-40gb", "b200", "b300", "gb200", "gb300", "h100", "h100-96gb", "h200", "h800", "mi300x", "tpu7x", "v4", "v5e", "v5p", "v6e",
    )  # fmt: skip


# Per device. TPU rows: Google product pages; NVIDIA rows: tables in stas00/ml-engineering
# compute/accelerator; MI300X: AMD ROCm microarchitecture page. HBM: same pages, NVIDIA from
# ai-dynamo/aiconfigurator system files. Usable memory: libtpu compiler limits, driver totals.
@pytest.mark.parametrize(
    ("name", "bf16", "memory_bytes", "hbm"),
    [
        ("v4", 275e12, 33017561088, 1.2e12),
        ("v5e", 197e12, 16911433728, 819e9),
        ("v5p", 459e12, 102800042230, 2.765e12),
        ("v6e", 918e12, 33554432000, 1.638e12),
        ("tpu7x", 1153.5e12, 101737037824, 3.69e12),  # half a chip; the usable figure is per device already
        ("a100-40gb", 312e12, 42949672960, 1.555e12),
        ("a100", 312e12, 85899345920, 2.039e12),
        ("h100", 989e12, 85520809984, 3.35e12),
        ("h100-96gb", 989e12, 96_000_000_000, 2.4e12),  # pytorch/torchtitan benchmarks, pytorch/ao roofline
        ("h800", 989e12, 80_000_000_000, 3.35e12),  # taken as H100: same die and clock
        ("h200", 989e12, 151397597184, 4.8e12),
        ("b200", 2250e12, 192265846784, 7.7e12),
        ("gb200", 2500e12, 198674743296, 8.0e12),
        ("b300", 2250e12, 288400343040, 7.7e12),
        ("gb300", 2500e12, 298013687808, 8.0e12),
        ("mi300x", 1307.4e12, 192_000_000_000, 5.3e12),
    ],
)
def test_golden_per_device_figures(name, bf16, memory_bytes, hbm):
    chip = load_chip(name)
    assert chip.peak_flop_per_s("bf16") == bf16
    assert chip.memory_bytes == memory_bytes
    assert chip.hbm_bytes_per_s == hbm


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("v5e", "int8", 394e12),  # 2 x 197; the page prints 393
        ("v5p", "fp8", 459e12),  # no fp8 gain
        ("v5p", "int8", 918e12),
        ("v6e", "int8", 1836e12),
        ("tpu7x", "fp8", 2307e12),  # 4614 per chip
        ("h100", "fp8", 1979e12),
        ("h800", "fp8", 1979e12),  # not the 1513 of the PCIe card
        ("b200", "fp4", 9000e12),
        ("gb200", "fp8", 5000e12),
        ("b300", "fp4", 14000e12),  # 18 sparse, 14 dense PFLOP/s: not half
        ("gb300", "fp4", 15000e12),
        ("b300", "int8", 153.5e12),  # nearly absent, not the 4500 of the B200
    ],
)
def test_golden_low_precision_peaks(name, dtype, peak):
    assert load_chip(name).peak_flop_per_s(dtype) == peak


@pytest.mark.parametrize(
    ("name", "one_way"),
    # ICI: Google's per-chip totals / links / 2 (v4: the book). NVLink: ml-engineering network table.
    [("v4", 45e9), ("v5e", 50e9), ("v5p", 100e9), ("v6e", 100e9), ("tpu7x", 100e9)],
)
def test_golden_ici_links(name, one_way):
    torus = load_chip(name).scale_up
    assert isinstance(torus, Torus)
    assert torus.per_link_one_way.si == one_way
    assert torus.hop_latency.si == 1e-6  # the scaling book's t_hop


@pytest.mark.parametrize(
    ("name", "domain", "one_way"),
    [("a100", 8, 300e9), ("h100", 8, 450e9), ("h800", 8, 200e9), ("b200", 8, 900e9), ("gb200", 72, 900e9),
     ("b300", 8, 900e9), ("gb300", 72, 900e9), ("h100-96gb", 8, 450e9), ("mi300x", 8, 448e9)],
)  # fmt: skip
def test_golden_switched_domains(name, domain, one_way):
    switch = load_chip(name).scale_up
    assert isinstance(switch, Switch)
    assert switch.domain.count == domain
    assert switch.per_chip_one_way.si == one_way


@pytest.mark.parametrize(
    ("name", "host_link", "scale_out"),
    [("v5p", 16e9, 6.25e9), ("v5e", 16e9, 3.125e9), ("tpu7x", 8e9, 6.25e9), ("h100", 63e9, 50e9),
     ("gb200", 450e9, 50e9), ("b300", 63e9, 100e9), ("gb300", 450e9, 100e9), ("a100", 31e9, None)],
)  # fmt: skip
def test_golden_host_link_and_egress_per_device(name, host_link, scale_out):
    chip = load_chip(name)
    assert chip.host_link_bytes_per_s == host_link
    assert chip.scale_out_bytes_per_s == scale_out


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("H100", "h100"), ("h100-sxm", "h100"), ("h100_sxm5", "h100"), ("a100-80gb", "a100"), ("A100-40", "a100-40gb"),
        ("trillium", "v6e"), ("Ironwood", "tpu7x"), ("tpu-v5p", "v5p"), ("TPU v5p", "v5p"), ("v5litepod", "v5e"),
    ],
)  # fmt: skip
def test_aliases(alias, name):
    assert load_chip(alias) is load_chip(name)
    assert is_chip(alias)


@pytest.mark.parametrize("name", ALL)
def test_file_name_is_chip_name(name):
    assert load_chip(name).name == name


def test_no_alias_means_two_chips():
    seen: dict[str, str] = {}
    for name in ALL:
        chip = load_chip(name)
        for alias in (chip.name, *chip.aliases):
            assert seen.setdefault(alias.lower(), chip.name) == chip.name


@pytest.mark.parametrize("name", ["h101", "v5", "../chips/h100", "", "h100.yaml", "x" * 500])
def test_unknown_chip(name):
    with pytest.raises(UnknownNameError, match="unknown chip"):
        load_chip(name)


def test_unknown_chip_suggests():
    with pytest.raises(UnknownNameError, match=r"^unknown chip 'h10'; did you mean h100"):
        load_chip("h10")


def test_missing_peak_is_never_extrapolated():
    with pytest.raises(MissingFigureError) as caught:
        load_chip("a100").peak_flop_per_s("fp8")
    assert str(caught.value) == "no source lists a peak in fp8 for a100; it has fp32, tf32, bf16, fp16, int8"
    with pytest.raises(MissingFigureError):
        load_chip("tpu7x").peak_flop_per_s("int8")  # sources disagree, so the fact stays out


def test_nominal_memory_is_said():
    assert load_chip("h100").memory_warning is None
    assert load_chip("mi300x").memory_warning == (
        "mi300x: no source gives the usable memory, so the nominal 192 GB is planned with"
    )


def test_price_is_a_current_on_demand_list_price_with_its_origin():
    price = load_chip("h100").price
    # aws/karpenter-provider-aws price file: 55.04 USD per p5.48xlarge-hour / 8
    assert price is not None
    assert price.usd_per_chip_hour == 6.88
    assert (price.kind, price.provider) == ("on-demand list", "AWS us-east-1 p5.48xlarge")
    assert load_chip("v5p").price_usd_per_hour == 4.2  # the book, February 2025
    assert load_chip("h800").price_usd_per_hour is None
    assert load_chip("tpu7x").price_usd_per_hour is None


def _figures(part):
    if isinstance(part, Figure):
        yield part
    elif isinstance(part, Strict):
        for name in type(part).model_fields:
            yield from _figures(getattr(part, name))
    elif isinstance(part, dict):
        for value in part.values():
            yield from _figures(value)


@pytest.mark.parametrize("name", ALL)
def test_every_figure_has_a_source(name):
    figures = list(_figures(load_chip(name)))
    assert len(figures) >= 9
    assert all(figure.source.strip() and figure.si > 0 for figure in figures)
    assert load_chip(name).sources()


@pytest.mark.parametrize("name", ALL)
def test_chips_are_frozen_and_hashable(name):
    chip = load_chip(name)
    with pytest.raises(Exception, match="frozen"):
        chip.title = "other"
    assert hash(chip) == hash(chip.model_copy())
