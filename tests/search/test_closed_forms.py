"""The paper's theorems against brute force and the check values of plas.md 1.5 and 1.7."""

from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.hardware.errors import InputError
from meshwright.search.closed_forms import (
    Box,
    Coefficients,
    cache_share,
    decode_memory_activation,
    depth,
    ffn_ratio_star,
    gqa_star,
    latency_activation,
    memory_activation,
    prefill_memory_activation,
    shape_star,
)
from meshwright.search.plas import Column, LayerCost, decode_bytes, prefill_flop, stored_bytes
from meshwright.search.shape import Floats

PLAS = Coefficients(
    kl=9.96, al=1.63, kr=0.031, arho=1.09, b1=-0.33, kd=500, b2=0.97, ar=0.17, km=0.20, am=0.05
)  # plas.md 1.2
FLOOR = 2.53
PREFILL_100MS = 0.1 * 42.5e12 / 1024  # FLOP per prompt token


def loss(
    law: Coefficients, layers: Column, width: Column, ratio: Column, groups: Column, rho: Column
) -> Floats:
    l, d, r, gqa = (np.asarray(x, dtype=float) for x in (layers, width, ratio, groups))
    widths = law.kr * rho**law.arho / (r**law.ar * d**law.b1) + law.kd / (r**law.ar * d**law.b2)
    return np.asarray(law.kl / l**law.al + widths + law.km * (gqa / d) ** law.am + FLOOR)


def test_latency_alone_takes_the_least_activation() -> None:
    assert latency_activation(PLAS, 1 / 16) == 1 / 16
    with pytest.raises(InputError, match=r"share in \(0, 1\]"):
        latency_activation(PLAS, 0)


def test_memory_alone_gives_the_printed_power() -> None:
    """plas.md 1.5: 1539.6 d^-1.193; doubling d divides by 2.286; 1.7: 0.173 and 0.395."""
    assert memory_activation(PLAS, 1.0) == pytest.approx(1539.6, abs=0.05)
    at = memory_activation(PLAS, np.array([1024, 2048]))
    assert at == pytest.approx([0.395, 0.173], abs=5e-4)
    assert at[0] / at[1] == pytest.approx(2.286, abs=5e-4)
    assert -np.log2(at[0] / at[1]) == pytest.approx(-1.193, abs=5e-4)


def test_memory_alone_is_the_minimum_at_fixed_stored_experts() -> None:
    """Depth and r / rho fixed, so memory is: brute force over rho."""
    rho = np.geomspace(0.01, 1, 400_001)
    for width in (768, 2048, 3072):
        tried = loss(PLAS, 20, width, 8 * rho, 4, rho)
        assert rho[np.argmin(tried)] == pytest.approx(float(memory_activation(PLAS, width)), rel=1e-4)


def test_memory_alone_needs_a_law_that_turns() -> None:
    with pytest.raises(InputError, match="arho > ar"):
        memory_activation(replace(PLAS, arho=0.17), 1024)


positive = st.floats(0.05, 20)


@given(r=positive, gqa=positive, rho=st.floats(0.01, 0.99), width=st.integers(64, 8192))
def test_prefill_and_memory_bind_together(r: float, gqa: float, rho: float, width: int) -> None:
    """5.3(a): at the rho returned both budgets are used by one depth."""
    for weight_bytes in (1.0, 2.0):
        flop = prefill_flop(width, 1).total(r, gqa)
        stored = stored_bytes(width, rho, weight_bytes).total(r, gqa)
        assert prefill_memory_activation(r, gqa, flop / stored, weight_bytes) == pytest.approx(rho, rel=1e-9)


@given(
    r=positive,
    gqa=positive,
    rho=st.floats(0.01, 1),
    width=st.integers(64, 8192),
    context=st.integers(1, 10**6),
)
def test_decode_and_memory_bind_together(r: float, gqa: float, rho: float, width: int, context: int) -> None:
    """5.3(b) exact: the bytes of a step over the bytes stored are eta."""
    read = decode_bytes(width, context, 2, 2).total(r, gqa)
    stored = stored_bytes(width, rho, 2).total(r, gqa)
    delta = cache_share(context, gqa, width, 2, 2)
    assert decode_memory_activation(r, gqa, read / stored, delta) == pytest.approx(rho, rel=1e-9)


def test_the_printed_5_3b_misses_its_own_budget() -> None:
    """plas.md 1.7: gqa 1, d 2048, r 3.69, eta 0.403: printed 0.3305 gives a ratio of 0.456, exact 0.2886.

    The page leaves out the context and the bytes: 1,032.5 tokens, 1 byte per weight, 2 per KV element and an eta of
    0.4034 (0.403 there) give all three of its numbers.
    """
    r, gqa, d, eta = 3.69, 1.0, 2048, 0.4034
    delta = float(cache_share(1024 + 17 / 2, gqa, d, 1, 2))
    a = 2 + 2 / gqa
    xi = (a + 3 * r + np.sqrt((a + 3 * r) ** 2 + 4 * eta * delta)) / (2 * eta)
    printed, exact = 3 * r / (xi - a), float(decode_memory_activation(r, gqa, eta, delta))
    read = decode_bytes(d, 1032.5, 1, 2).total(r, gqa)
    ratios = [float(read / stored_bytes(d, rho, 1).total(r, gqa)) for rho in (printed, exact)]
    assert printed == pytest.approx(0.3305, abs=5e-5)
    assert ratios[0] == pytest.approx(0.456, abs=5e-4)  # 13% above the budget
    assert exact == pytest.approx(0.2886, abs=5e-5)
    assert ratios[1] == pytest.approx(eta, rel=1e-12)


def test_activations_outside_their_range_are_refused() -> None:
    for eta in (0.0, 1.0, 1.5, np.nan):
        with pytest.raises(InputError, match="0 < eta b_w < 2"):
            prefill_memory_activation(1, 4, eta, 2)
    for eta in (0.0, 1.3, np.nan):
        with pytest.raises(InputError, match=r"1 \+ delta"):
            decode_memory_activation(1, 4, eta, 0.5)
    assert decode_memory_activation(1, 4, 1 + 0.5 / 5.5, 0.5) == pytest.approx(1)  # dense, at the very end
    with pytest.raises(InputError, match="gqa > 0"):
        decode_memory_activation(1, 0, 0.5, 0.5)


@pytest.mark.parametrize(
    ("width", "layers", "ratio", "gqa", "best"),
    [
        (1024, "27.96", "20.7", "0.30", "3.075"),
        (1536, "30.55", "7.88", "0.63", "3.001"),
        (2048, "31.7", "3.93", "1.085", "2.961"),
        (3072, "30.9", "1.43", "2.43", "2.922"),
    ],
)
def test_prefill_optima_of_the_brute_force(width: int, layers: str, ratio: str, gqa: str, best: str) -> None:
    """plas.md 1.5: 100 ms prefill, 42.5 TFLOP/s, rho 1/16; each number to all digits printed there.

    At 1,536 the page prints 30.6 layers; a brute force here gives 30.549, as the formulas do.
    """
    star = shape_star(PLAS, width, 1 / 16, PREFILL_100MS, prefill_flop(width, 1))
    at_star = loss(PLAS, star.layers, width, star.ffn_ratio, star.gqa, 1 / 16)
    for printed, value in zip((layers, ratio, gqa, best), (*star, at_star), strict=True):
        assert f"{float(value):.{len(printed.split('.')[1])}f}" == printed


def test_prefill_forms_are_the_printed_ones() -> None:
    """Equations 12 and 13 as plas.md 1.5 prints them, at any r and gqa."""
    d, rho, r, g = 1536.0, 1 / 8, 2.5, 3.0
    xi = 2 * (2 + 2 / g) + 6 * r
    dt = 0.031 * rho**1.09 * d ** (0.97 + 0.33) + 500
    ratio = 0.17 * dt / (6 * 1.63 * 9.96) * PREFILL_100MS**1.63 / (xi**0.63 * d ** (2 * 1.63 + 0.97))
    head = 4 * 1.63 * 9.96 / (0.05 * 0.20) * xi**0.63 * d ** (2 * 1.63 + 0.05) / PREFILL_100MS**1.63
    cost = prefill_flop(d, 1)
    total = cost.total(r, g)
    assert ffn_ratio_star(PLAS, d, rho, PREFILL_100MS, cost, total) == pytest.approx(ratio ** (1 / 1.17))
    assert gqa_star(PLAS, d, PREFILL_100MS, cost, total) == pytest.approx(head ** (1 / 1.05))


COSTS: dict[str, tuple[float, Callable[[float, float], LayerCost]]] = {
    "prefill": (PREFILL_100MS, lambda d, rho: prefill_flop(d, 1)),
    "decode": (0.02 * 204.8e9 / 16, lambda d, rho: decode_bytes(d, 1032.5, 2, 2)),
    "memory": (8e9, lambda d, rho: stored_bytes(d, rho, 2)),
}


@pytest.mark.parametrize("bound", list(COSTS))
@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(256, 4096),
    rho=st.floats(1 / 64, 1),
    ratios=st.tuples(st.floats(0.1, 6), st.floats(1, 8)),
    groups=st.tuples(st.floats(0.5, 8), st.floats(1, 8)),
)
def test_in_a_box_the_clipped_point_beats_brute_force(
    bound: str, width: int, rho: float, ratios: tuple[float, float], groups: tuple[float, float]
) -> None:
    """Prefill, decode and memory: no (r, gqa) of a fine lattice over the box has a lower loss."""
    budget, cost_of = COSTS[bound]
    cost: LayerCost = cost_of(width, rho)
    r_box, g_box = (Box(low, low * span) for low, span in (ratios, groups))
    star = shape_star(PLAS, width, rho, budget, cost, ffn_ratio=r_box, gqa=g_box)
    assert r_box.low <= star.ffn_ratio <= r_box.high
    assert g_box.low <= star.gqa <= g_box.high
    found = loss(PLAS, star.layers, width, star.ffn_ratio, star.gqa, rho)
    r, g = np.meshgrid(np.geomspace(*r_box, 150), np.geomspace(*g_box, 150))
    assert found <= loss(PLAS, depth(budget, cost, r, g), width, r, g, rho).min() + 1e-12


def test_clipped_at_small_widths() -> None:
    """plas.md 1.5: at d = 1024 the free optimum has gqa below 1 and r above 20; in a box r is solved again."""
    free = shape_star(PLAS, 1024, 1 / 16, PREFILL_100MS, prefill_flop(1024, 1))
    boxed = shape_star(PLAS, 1024, 1 / 16, PREFILL_100MS, prefill_flop(1024, 1), gqa=Box(1, 8))
    assert free.gqa < 1
    assert boxed.gqa == 1
    assert boxed.ffn_ratio != pytest.approx(float(free.ffn_ratio), rel=1e-3)


def test_columns_and_numbers_agree_and_depth_falls_as_width_squared() -> None:
    widths = np.array([1024, 2048])
    both = shape_star(PLAS, widths, 1 / 16, PREFILL_100MS, prefill_flop(widths, 1))
    one = shape_star(PLAS, 2048, 1 / 16, PREFILL_100MS, prefill_flop(2048, 1))
    assert [part[1] for part in both] == pytest.approx([float(part) for part in one], rel=1e-11)
    layers = depth(PREFILL_100MS, prefill_flop(widths, 1), 1, 4)
    assert layers[0] / layers[1] == pytest.approx(4)


def test_laws_and_boxes_outside_the_derivation_are_refused() -> None:
    assert Coefficients.of({"floor": 2.53, **asdict(PLAS)}) == PLAS
    with pytest.raises(InputError, match=r"needs am$"):
        Coefficients.of({name: 1.0 for name in asdict(PLAS) if name != "am"})
    with pytest.raises(InputError, match="kl > 0"):
        replace(PLAS, kl=0)
    cost = prefill_flop(1024, 1)
    with pytest.raises(InputError, match="al is 3"):
        shape_star(replace(PLAS, al=3), 1024, 1, PREFILL_100MS, cost)
    with pytest.raises(InputError, match="box of gqa"):
        shape_star(PLAS, 1024, 1, PREFILL_100MS, cost, gqa=Box(2, 1))
    with pytest.raises(InputError, match="budget"):
        shape_star(PLAS, 1024, 1, 0.0, cost)
    with pytest.raises(InputError, match="width"):
        shape_star(PLAS, np.nan, 1, PREFILL_100MS, cost)
    with pytest.raises(InputError, match="rho"):
        shape_star(PLAS, 1024, 2, PREFILL_100MS, cost)
