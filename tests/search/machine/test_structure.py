"""What transfers between devices: the searches find the closed forms where their assumptions hold."""

import numpy as np
import pytest

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.hardware.errors import InputError
from meshwright.search.grid import load_grid
from meshwright.search.law import load_law
from meshwright.search.machine.structure import EXPERTS, ByWidth, structure

PLAS, ENDS = load_law("plas-10b"), load_grid("plas").ends
ASKED = Request(1, 1024, 16, 2, 2)
BOARDS = {
    "nano": Device.ideal(16.75e12, 102e9, 8e9),
    "orin": Device.ideal(42.75e12, 204.8e9, 64e9),
    "4090": Device.ideal(165.2e12, 1008e9, 24e9),
}


def test_the_aggregated_forms_give_the_closed_forms() -> None:
    """Depth is the closed form's, rounded down; rho within a step of 1/256 of theorem 5.2, on every device."""
    found = structure(BOARDS, PLAS, ASKED, ENDS, ttft_s=0.1, tpot_s=0.02, latency="plas")
    rho = {one.activation.values for one in found.values()}
    assert len(rho) == 1  # the same on all
    k = PLAS.coefficients
    for one in found.values():
        assert one.prefill_form.exponent == pytest.approx(-2, abs=1e-9)
        assert one.activation_form.exponent == pytest.approx((k["b1"] - k["b2"]) / k["arho"], abs=1e-9)
        for depth, form in ((one.prefill_depth, one.prefill_form), (one.decode_depth, one.decode_form)):
            assert depth.values == tuple(np.floor(form.values))
        np.testing.assert_allclose(one.activation.values, one.activation_form.values, atol=1 / EXPERTS)
    depths = {one.prefill_depth.values for one in found.values()}
    assert len(depths) == len(BOARDS)  # the numbers differ


def test_free_r_and_gqa_take_up_the_budget() -> None:
    """plas.md 1.5, brute force at 100 ms, 42.5 TFLOP/s and rho 1/16: 27.96, 30.6, 31.7 and 30.9 layers."""
    one = structure(
        {"orin": Device.ideal(42.5e12, 204.8e9, 64e9)}, PLAS, ASKED, ENDS, ttft_s=0.1, tpot_s=0.02
    )
    layers = dict(zip(one["orin"].free_depth.widths, one["orin"].free_depth.values, strict=True))
    assert [layers[d] for d in (1024, 1536, 2048, 3072)] == pytest.approx([27.96, 30.6, 31.7, 30.9], abs=0.06)


def test_an_exponent_is_a_slope() -> None:
    assert ByWidth((1, 2, 4), (16.0, 4.0, 1.0)).exponent == pytest.approx(-2)


def test_refusals() -> None:
    with pytest.raises(InputError, match="two or more multiples of 256"):
        structure(BOARDS, PLAS, ASKED, ENDS, ttft_s=0.1, tpot_s=0.02, widths=(768, 800))
    with pytest.raises(InputError, match=r"no shape of width 768 keeps prefill_s .*; allow more"):
        structure(BOARDS, PLAS, ASKED, ENDS, ttft_s=1e-5, tpot_s=0.02)
    with pytest.raises(InputError, match="closed forms are of a law of PLAS' form"):
        structure(BOARDS, load_law("besiroglu"), ASKED, ENDS, ttft_s=0.1, tpot_s=0.02)
    with pytest.raises(InputError, match="ttft_s is 0"):
        structure(BOARDS, PLAS, ASKED, ENDS, ttft_s=0, tpot_s=0.02)
