"""Rooflines: the planner's own operators at ideal rates, the book's figures, and rules that hold whatever the sizes."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodel.operators import Shape, forward_s, product_s
from meshwright.costmodel.roofline.attention import (
    attention,
    attention_intensity,
    critical_length,
    intensity_limit,
)
from meshwright.costmodel.roofline.ceilings import SOURCES, source_rate
from meshwright.costmodel.roofline.intensity import (
    attainable,
    critical_batch,
    critical_batch_exact,
    dot_product,
    elementwise,
    lower_s,
    operator,
    overlap,
    product_intensity,
    tiled_intensity,
    upper_s,
)
from meshwright.costmodel.roofline.inventory import inventory
from meshwright.costmodel.roofline.matmul import matmul
from meshwright.costmodel.roofline.operands import parse_product, parse_sizes
from meshwright.costmodel.roofline.split_matmul import split_matmul
from meshwright.costmodel.setting import Rates, setting
from meshwright.costmodel.textbook import textbook_model
from meshwright.costmodel.workload import Training
from meshwright.hardware.catalog import chips
from meshwright.hardware.chip import load_chip
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import InputError, MissingFigureError, UnknownNameError
from meshwright.hardware.profile import book_chip, with_figures

V5E, V5P, H100 = book_chip("v5e"), book_chip("v5p"), book_chip("h100")
SIZES = st.integers(1, 1 << 20)


def ideal(heads: int = 64, kv_heads: int = 8):  # type: ignore[no-untyped-def]
    """The planner with nothing but rooflines: one layer on one v5p of the book."""
    model = textbook_model(8192, 28672, 1, heads, kv_heads, 128, 1024)
    cluster = parse_cluster("v5p:4x4x4", profile="book")
    return setting(model, cluster, Training(4096 * 64, 4096), efficiency="ideal", overlap="full")


@given(SIZES, SIZES, SIZES)
def test_a_product_takes_what_the_planner_takes_at_ideal_rates(m: int, k: int, n: int) -> None:
    rates: Rates = ideal().rates
    planner = product_s(rates, np.array(float(m)), k, n, rates.matmul_flop_per_s)
    assert matmul(f"bf16[{m},{k}] x bf16[{k},{n}]", V5P).number("t_lower") == pytest.approx(float(planner))


@pytest.mark.parametrize(("heads", "kv_heads"), [(64, 8), (32, 32), (16, 1)])
def test_attention_takes_what_the_planner_takes_at_ideal_rates(heads: int, kv_heads: int) -> None:
    asked = ideal(heads, kv_heads)
    one, seq = np.ones(1), 4096
    shape = Shape(np.array([float(seq)]), seq, one, one, one, one, 1.0)
    planner = forward_s(asked, asked.model.kinds[0], shape)["core"][0]
    answer = attention(V5P, queries=seq, keys=seq, heads=heads, kv_heads=kv_heads, head_dim=128, causal=True)
    assert answer.number("t_lower") == pytest.approx(planner)


# jax-ml/scaling-book, chapters 1, 2, 7 and 8; recomputed where print rounds.
@pytest.mark.parametrize(
    ("weights", "activations", "rows"),
    [("bf16", "bf16", 240.24), ("int8", "bf16", 120.12), ("int8", "int8", 240.24), ("int4", "bf16", 60.06)],
)
def test_critical_batch_by_dtype(weights: str, activations: str, rows: float) -> None:
    answer = matmul(f"{activations}[B,D] x {weights}[D,F]", V5E)
    assert answer["critical_batch"] == pytest.approx(rows, rel=1e-4)
    assert "t_lower" not in answer.steps and answer.table == ()
    # bits of a parameter over bits of an activation, times C/W: right only while C is the bf16 rate
    rule = answer.steps.get("critical_batch_beta_rule", answer.steps["critical_batch"])
    assert rule.value == pytest.approx(480.49 if activations == "int8" else rows, rel=1e-4)


@pytest.mark.parametrize(
    ("text", "source", "step", "value"),
    [
        ("bf16[240,8192] x bf16[8192,8192]", "hbm", "intensity", 226.716),
        ("int8[B,4096] x int8[4096,16384]", "hbm", "critical_batch_exact", 259.25),
        ("int8[B,4096] x int8[4096,16384]", "vmem", "critical_batch_exact", 10.957),
        ("bf16[B,4096] x int8[4096,4096]", "hbm", "critical_batch_exact", 136.09),
        ("bf16[B,1024] x int8[1024,1024]", "hbm", "critical_batch_exact", 226.31),
        ("bf16[B,1024] x int8[1024,1024]", "hbm", "exact_over_asymptote", 1.8841),
        ("int8[64,4096] x int8[64,4096,4096]", "hbm", "intensity", 1.99902),
        ("bf16[B,D] x bf16[D,F]", "host", "critical_batch", 197e12 / 16e9),
        ("bf16[B,D] x bf16[D,F]", "network", "critical_batch", 2188.9),
        ("bf16[B,D] x bf16[D,F]", "dcn", "critical_batch", 63040),
    ],
)
def test_products_of_the_book_on_v5e(text: str, source: str, step: str, value: float) -> None:
    assert matmul(text, V5E, source=source)[step] == pytest.approx(value, rel=5e-5)


def test_a_network_of_two_chips_needs_a_long_contraction() -> None:
    # chapter 1: D > 8755 on v5e, whatever B and F
    for sizes in ({}, {"B": 64, "F": 128}, {"B": 1, "D": 8192, "F": 1 << 16}):
        answer = split_matmul("bf16[B,D] x bf16[D,F]", V5E, 2, sizes=sizes)
        assert answer["critical_k"] == pytest.approx(2 * 197e12 / 45e9)
    assert answer["intensity"] == 4096
    assert answer["t_comms"] > answer["t_math"]  # type: ignore[operator]
    with pytest.raises(InputError, match=r"the contracted size 5 does not split 2 ways; use a divisor of it"):
        split_matmul("bf16[4,5] x bf16[5,6]", V5E, 2)


def test_attention_of_the_book() -> None:
    # chapter 4, question 4: T G / (G + 1) and G; chapter 7: 480 tokens with as many key as query heads
    assert attention_intensity(4096, 4096, 8) == pytest.approx(4096 * 8 / 9)
    assert attention_intensity(1, 8192, 8) == pytest.approx(7.9922, rel=1e-5)
    assert (intensity_limit(8), intensity_limit(8, 1)) == (8, 16)
    assert (critical_length(240, 1), critical_length(240, inf)) == (480, 240)
    decode = attention(V5E, queries=1, keys=8192, heads=64, kv_heads=8, head_dim=128, sequences=32)
    assert decode.binds.startswith("memory binds")
    assert decode.number("intensity") < decode.number("intensity_limit")


def test_vectors_of_the_book() -> None:
    assert dot_product(1e6).intensity == pytest.approx(0.5, rel=2e-6)
    add = operator(elementwise(2**30, "fp32"), H100, vector=True)  # chapter 12, quiz 1
    assert add["intensity"] == pytest.approx(1 / 12)
    assert add["critical_intensity"] == pytest.approx(10, rel=2e-3)
    assert add["t_lower"] == pytest.approx(3.846e-3, rel=1e-3)


@given(
    SIZES, SIZES, SIZES, st.sampled_from(["bf16", "int8"]), st.sampled_from(["hbm", "vmem", "host", "dcn"])
)
def test_bounds_hold_for_every_product(m: int, k: int, n: int, weights: str, source: str) -> None:
    answer = matmul(f"bf16[{m},{k}] x {weights}[{k},{n}]", V5E, source=source)
    parts = [
        answer.number(name) for name in ("t_math", "t_memory", "t_link", "t_hbm") if name in answer.steps
    ]
    assert answer["t_lower"] == lower_s(*parts) and answer["t_upper"] == upper_s(*parts)
    assert 1 <= answer.number("upper_over_lower") <= len(parts) * (1 + 1e-12)
    assert 0 < answer.number("share_of_peak") <= 1
    if "t_math_padded" in answer.steps:
        assert answer.number("t_math_padded") > answer.number("t_math")
    if "t_memory" in answer.steps:
        reached = answer.number("share_of_peak") * answer.number("C")
        roof = attainable(answer.number("intensity"), answer.number("C"), answer.number("W"))
        assert reached == pytest.approx(roof)


@given(SIZES, SIZES, SIZES, st.floats(1.01, 100))
def test_time_falls_as_rates_rise(m: int, k: int, n: int, faster: float) -> None:
    text = f"bf16[{m},{k}] x bf16[{k},{n}]"
    before = matmul(text, V5E)
    memory = matmul(text, with_figures(V5E, hbm_bytes_per_s=820e9 * faster))
    math = matmul(text, with_figures(V5E, peaks={"bf16": 197e12 * faster}))
    assert memory.number("t_lower") <= before.number("t_lower") >= math.number("t_lower")
    assert memory.number("t_upper") < before.number("t_upper") > math.number("t_upper")
    assert memory.number("critical_batch") < before.number("critical_batch") < math.number("critical_batch")


@given(st.integers(64, 1 << 16), st.integers(64, 1 << 16), st.sampled_from([0.5, 1.0, 2.0]))
def test_at_the_exact_critical_batch_both_take_equally_long(k: int, n: int, w: float) -> None:
    rows = critical_batch_exact(k, n, 197e12, 8.2e11, 2, w, 2)
    if rows == inf:
        assert product_intensity(1e15, k, n, 2, w, 2) <= 197e12 / 8.2e11
        return
    assert product_intensity(rows, k, n, 2, w, 2) == pytest.approx(197e12 / 8.2e11)
    assert product_intensity(rows * 1.01, k, n, 2, w, 2) > 197e12 / 8.2e11
    assert rows > critical_batch(w, 197e12, 8.2e11)


def test_a_product_too_narrow_is_never_compute_bound_and_says_so() -> None:
    narrow = matmul("bf16[100000,128] x bf16[128,128]", V5E)
    assert narrow["critical_batch_exact"] == "never"
    assert narrow.binds.endswith("no number of rows makes it compute bound")
    with pytest.raises(TypeError, match="critical_batch_exact is the word 'never'"):
        narrow.number("critical_batch_exact")
    own = matmul("int8[64,4096] x int8[64,4096,4096]", V5E)
    assert own.binds == (
        "memory binds, 240 times as long as compute; "
        "every example has weights of its own, so no batch makes it compute bound"
    )


def test_tiles_share_operands() -> None:
    assert tiled_intensity(256, 256) == 128
    assert matmul("bf16[B,D] x bf16[D,F]", V5E, tile=(256, 256))["tile_intensity"] == 128
    assert tiled_intensity(512, 512) > tiled_intensity(256, 1024)


def test_open_rows_give_a_table_that_agrees_with_single_answers() -> None:
    table = matmul("bf16[B,4096] x bf16[4096,16384]", V5E).table
    for row in table:
        one = matmul(f"bf16[{row['m']},4096] x bf16[4096,16384]", V5E)
        assert row["t_lower us"] == pytest.approx(one.number("t_lower") * 1e6)
        assert row["of peak"] == pytest.approx(one.number("share_of_peak"))


def test_a_chip_of_two_devices_is_priced_whole_and_says_so() -> None:
    answer = matmul("bf16[4096,8192] x bf16[8192,8192]", book_chip("tpu7x"))
    assert answer["C"] == 2.3e15
    assert answer.notes[0].startswith("rates are of the whole chip; a program sees 2 devices")


@pytest.mark.parametrize("name", chips())
def test_each_place_has_a_rate_or_a_reason(name: str) -> None:
    chip = load_chip(name)
    known = {}
    for source in SOURCES:
        try:
            known[source] = source_rate(chip, source).per_s
        except MissingFigureError as error:
            assert chip.name in str(error)
            assert "--" in str(error) or "units" in str(error) or "known of" in str(error)
    assert known["hbm"] == chip.memory.bandwidth.si
    assert all(known["hbm"] < known[inner] for inner in known.keys() & {"vmem", "l2"})
    assert all(known[outer] < known["hbm"] for outer in known.keys() & {"host", "network", "dcn"})


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("bf16[4,5]", {}, "cannot read product 'bf16[4,5]': it needs two arrays; write it like"),
        ("[4,5] x bf16[5,6]", {}, "array '[4,5]' has no dtype; write it like bf16[4,5]"),
        ("bf17[4,5] x bf16[5,6]", {}, "unknown dtype 'bf17'; did you mean bf16 or fp16?"),
        ("bf16[4,5] x bf16[6,5]", {}, ("the last dimension of bf16[4,5] is 5 and the first of bf16[6,5] is 6: "
         "they must be the same; the second array looks transposed, write bf16[5,6]")),
        ("bf16[4,5] x bf16[4,6]", {}, ("the last dimension of bf16[4,5] is 5 and the first of bf16[4,6] is 4: "
         "they must be the same; the first array looks transposed, write bf16[5,4]")),
        ("bf16[4,5] x bf16[7,6]", {}, ("the last dimension of bf16[4,5] is 5 and the first of bf16[7,6] is 7: "
         "they must be the same; write the product as [rows, k] x [k, columns]")),
        ("bf16[4,5] x bf16[5,6] -> bf16[4,7]", {}, ("bf16[4,5] x bf16[5,6] makes bf16[4,6], not bf16[4,7]; "
         "write the output so, or leave it out")),
        ("bf16[B,D] x bf16[D,F] -> bf16[B]", {}, ("dimension F of bf16[D,F] is neither in the other array nor in the "
         "output bf16[B]; add it to one of them")),
        ("bf16[64,64] x bf16[64,64,64]", {}, ("bf16[64,64] x bf16[64,64,64] can be read in 2 ways; name the dimensions "
         "and the output, like 'bf16[B,D] x bf16[B,D,F] -> bf16[B,F]'")),
        ("bf16[B,B] x bf16[B,F]", {}, "bf16[B,B] has a dimension twice; give each its own name"),
        ("bf16[4GB,5] x bf16[5,6]", {}, "cannot read dimension '4GB' of 'bf16[4GB,5]'; give a number or a name"),
        ("bf16[0,5] x bf16[5,6]", {}, "dimension 0 of 'bf16[0,5]' is not from 1 to 1,000,000,000,000"),
        ("fp8[4,5] x int8[5,6]", {}, ("fp8 and int8 are equally wide: say in which the product is computed, "
         "like --compute fp8")),
        ("bf16[B,D] x bf16[D,F]", {"sizes": {"E": 4}}, "size E=4 names no dimension; the product has B, D, F"),
        ("fp8[4,5] x fp8[5,6]", {}, "no source lists a peak in fp8 for v5e; it has bf16, int8, int4"),
        ("bf16[4,5] x bf16[5,6]", {"source": "hdm"}, "unknown source 'hdm'; did you mean hbm?"),
        ("bf16[4,5] x bf16[5,6]", {"source": "l2"}, "v5e has no L2 cache; ask for its VMEM with --from vmem"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_the_way_out(
    text: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises((InputError, MissingFigureError)) as caught:
        matmul(text, V5E, **options)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_other_questions_refuse_too() -> None:
    heads = {"queries": 1, "keys": 8, "heads": 6, "kv_heads": 4, "head_dim": 8}
    with pytest.raises(InputError, match=r"heads=6 is not a multiple of kv_heads=4"):
        attention(V5E, **heads)
    with pytest.raises(
        InputError, match=r"9 queries cannot see back over 8 keys; causal needs queries <= keys"
    ):
        attention(V5E, **{**heads, "heads": 8, "queries": 9}, causal=True)
    with pytest.raises(MissingFigureError, match=r"no source gives vector ALUs and their clock of mi300x"):
        operator(dot_product(8), load_chip("mi300x"), vector=True)
    with pytest.raises(InputError, match="give at least one time, none below zero"):
        overlap({"t_math": -1.0})
    with pytest.raises(UnknownNameError):
        operator(dot_product(8), V5E, source="disk")


def test_sizes_are_read_strictly() -> None:
    assert parse_sizes("B=4Ki, D=8192") == {"B": 4096, "D": 8192}
    for text, message in (
        ("B", "cannot read size 'B'"),
        ("B=1,B=2", "size B is given twice"),
        ("1=2", "cannot read"),
    ):
        with pytest.raises(InputError, match=message):
            parse_sizes(text)


def test_numbers_that_all_differ_are_as_good_as_names() -> None:
    product = parse_product("bf16[8192] x bf16[4096,8192] -> bf16[4096]")  # as a profile prints it
    assert (product.rows, product.contracted, product.cols) == ((), ("8192",), ("4096",))
    named = parse_product("bf16[G,H,I,K] x bf16[G,H,M,K] -> bf16[G,H,I,M]", dict.fromkeys("GHIKM", 2))
    assert (named.batch, named.contracted, named.work.flops) == (("G", "H"), ("K",), 64)
    assert replace(named, sizes={"G": 3}).size(("G", "H")) is None


def test_open_rows_say_from_where_on_compute_binds() -> None:
    found = matmul("bf16[B,8192] x int8[8192,28672]", V5E)
    turn = found.number("critical_batch_exact")
    assert found.binds == f"memory binds below {turn:.4g} rows, compute from there on"
    at = {row["m"]: row for row in matmul("bf16[B,8192] x int8[8192,28672]", V5E, rows=(124, 125)).table}
    assert 124 < turn < 125
    assert at[124]["t_memory us"] > at[124]["t_math us"] and at[125]["t_memory us"] < at[125]["t_math us"]
    assert matmul("bf16[B,64] x bf16[64,64]", V5E).binds == "memory binds at any number of rows"
    assert "weights alone" in matmul("bf16[B,D] x int8[D,28672]", V5E).binds
    assert matmul("bf16[B,8192] x bf16[8192,8192]", V5E, source="host").binds.startswith(
        "the link binds below"
    )
    assert "binds below k = " in split_matmul("bf16[B,K] x bf16[K,128]", V5E, 4).binds


def test_an_inventory_of_switches_names_the_narrow_level() -> None:
    assert inventory("h100:8x128").binds == (
        "ib400 binds collectives of more than 8 chips: 50 GB/s one way per chip, 9 times less than the 450 GB/s of nvlink"
    )
    assert (
        inventory("h100:8x1").binds
        == "nvlink binds collectives: 450 GB/s one way per chip, and nothing narrower"
    )
    assert "no network binds" in inventory("rtx-4090").binds
