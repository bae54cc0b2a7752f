"""Numbers of kernels: whose they are, what is refused, and that the files are the ones the fit writes."""

import math
from typing import Any

import pytest

from meshwright.hardware.chip import is_chip, load_chip
from meshwright.hardware.errors import InputError, MissingFigureError, UnknownNameError
from meshwright.hardware.kernel_rates import (
    LAWS,
    Entry,
    LawFile,
    MatmulRates,
    cases,
    checked,
    find,
    kernel_rates,
    load_law,
    load_machines,
    machine,
    peak_flop_per_s,
)

MATMUL = {"t0_s": 1e-6, "e_c": 0.5, "e_m": 0.5, "p": 2.0, "walk_s": 1e-6, "walk_power": 0.5}


def file_of(*places: tuple[str, str, str, str, float]) -> LawFile:
    entries: dict[str, Any] = {}
    for chip, engine, kernel, case, share in places:
        entry = Entry(rows=1, band=0.1, values=MATMUL | {"e_c": share})
        entries.setdefault(chip, {}).setdefault(engine, {}).setdefault(kernel, {})[case] = entry
    return LawFile(law="matmul", provenance="test", family_band=0.3, entries=entries)


def test_peaks_are_those_of_the_catalogue() -> None:
    """Where both know a chip, within 1%: the measurements' publishers round otherwise than the catalogue's sources."""
    met = 0
    for name, one in load_machines().machines.items():
        if one.catalogue is None or not is_chip(one.catalogue):
            continue
        chip = load_chip(one.catalogue)
        for dtype in one.peak_tflop_per_s:
            if dtype in chip.peak:
                met += 1
                ours, theirs = one.peak_tflop_per_s[dtype] * 1e12, chip.peak_flop_per_s(dtype)
                assert math.isclose(ours, theirs, rel_tol=0.01), (name, dtype)
        assert math.isclose(one.hbm_bytes_per_s, chip.hbm_bytes_per_s, rel_tol=0.04), name
    assert met >= 9


def test_families_are_measured_chips() -> None:
    known = load_machines().machines
    for name, one in known.items():
        assert set(one.family) <= set(known) - {name}


def test_nearest_numbers_first() -> None:
    """The chip's kernel, its family's kernel, the engine's all together, then all engines'; a sole kernel stands for its engine."""
    own = ("h100_sxm", "vllm", "fa3", "bf16", 0.1)
    sister = ("h200_sxm", "vllm", "fa3", "bf16", 0.2)
    engine = ("h100_sxm", "vllm", "any", "bf16", 0.3)
    whole = ("h100_sxm", "any", "any", "bf16", 0.4)

    def got(*places: tuple[str, str, str, str, float], **how: bool) -> float:
        return float(find(file_of(*places), "h100", "bf16", "vllm", "fa3", **how).rates.e_c)

    assert got(own, sister, engine, whole) == 0.1
    assert got(sister, engine, whole) == 0.2
    assert got(engine, whole) == 0.3
    assert got(whole) == 0.4
    assert got(own, sister, engine, whole, itself=False) == 0.2
    assert find(file_of(own), "h100", "bf16", "vllm").inherited == ""
    assert find(file_of(own, engine), "h100", "bf16", "vllm").rates.e_c == 0.3


def test_inherited_numbers_say_so_and_have_the_wider_band() -> None:
    found = find(file_of(("h200_sxm", "vllm", "fa3", "bf16", 0.2)), "h100", "bf16", "vllm", "fa3")
    assert found.inherited == "numbers of h200_sxm vllm fa3; h100_sxm vllm fa3 was not measured"
    assert found.band == 0.3
    shipped = kernel_rates("matmul", "gb300", "fp8", "trtllm")
    assert shipped.inherited.startswith("numbers of b300_sxm trtllm")
    assert shipped.band >= load_law("matmul").family_band


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        (("matmul", "h1OO", "bf16"), UnknownNameError, "unknown measured chip 'h1OO'"),
        (("matmull", "h100", "bf16"), UnknownNameError, "unknown law 'matmull'; did you mean matmul?"),
        (("matmul", "h100", "nvfp4"), MissingFigureError, "law matmul was measured for 'nvfp4' neither on h100_sxm nor"),
        (("experts", "arc_b60", "nvfp4"), MissingFigureError, r"nor on its family \(none\)"),
        (("matmul", 100, "bf16"), InputError, "chip is 100; give a name"),
        (("matmul", "h100", None), InputError, "case is None; give a name"),
    ],
)  # fmt: skip
def test_refusals(args: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kernel_rates(*args)


def test_a_peak_that_no_source_gives_is_never_guessed() -> None:
    assert peak_flop_per_s("h100_sxm", "fp8_block") == 1978.9e12
    with pytest.raises(
        MissingFigureError, match="a100_sxm has no fp8 peak, which fp8_block needs; it has bf16, int8"
    ):
        peak_flop_per_s("a100_sxm", "fp8_block")
    with pytest.raises(UnknownNameError, match="unknown number format 'fp7'"):
        peak_flop_per_s("a100_sxm", "fp7")
    with pytest.raises(InputError, match="chip is None"):
        machine(None)  # type: ignore[arg-type]


def test_numbers_of_another_law_are_refused() -> None:
    file = file_of(("h100_sxm", "vllm", "any", "bf16", 0.1))
    wrong = Entry(rows=1, values={"t0_s": 1e-6, "e_m": 0.5, "p": 1.0})
    broken = file.model_copy(update={"entries": {"h100_sxm": {"vllm": {"any": {"bf16": wrong}}}}})
    with pytest.raises(
        InputError, match="h100_sxm vllm any bf16 of law matmul has e_m, p, t0_s; give e_c, e_m, p"
    ):
        checked(broken)


@pytest.mark.parametrize("law", LAWS)
def test_shipped_numbers_are_physical(law: str) -> None:
    """Products stay below their peak; where the rows tell a number its error is given."""
    for case, entry in cases(load_law(law)):
        rates = LAWS[law](**entry.values)
        if hasattr(rates, "e_c"):
            assert rates.e_c <= 1, case
        assert set(entry.loose) <= set(entry.values), case
        told = set(entry.values) - set(entry.loose)
        assert not entry.error or all(entry.error[name] <= 0.5 for name in told), case


def test_measured_efficiencies_are_where_they_are_published() -> None:
    """e_c of bf16 products under one engine by the same measurements' own analysis: A100 0.81, H100 0.79, B200 0.70, RTX PRO 0.84, L40S 0.56."""
    for chip, share in {"a100": 0.81, "h100": 0.79, "b200": 0.70, "rtx_pro_6000": 0.84, "l40s": 0.56}.items():
        rates = kernel_rates("matmul", chip, "bf16", "sglang").rates
        assert isinstance(rates, MatmulRates)
        assert rates.e_c == pytest.approx(share, abs=0.06), chip
