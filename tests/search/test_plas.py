"""The paper's aggregated forms against their printed spelling, and what must hold of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.hardware.errors import InputError, WorkloadError
from meshwright.search.grid import list_shapes, load_grid
from meshwright.search.plas import (
    decode_bytes,
    decode_s,
    decode_step_s,
    memory_bytes,
    prefill_s,
)

ORIN = Device.ideal(42.5e12, 204.8e9, 64e9)  # plas.md 1.6
FP16 = Request(batch=1, prompt=1024, output=16, weight_bytes=2, kv_bytes=2)
INT8 = replace(FP16, weight_bytes=1, kv_bytes=1)
SHAPES = list_shapes(load_grid("plas")).shapes


def test_the_forms_are_the_printed_ones() -> None:
    """plas.md 1.4, written out by hand for every shape of the paper's grid."""
    l, d, r, g, rho = SHAPES.layers, SHAPES.width, SHAPES.ffn_ratio, SHAPES.gqa, SHAPES.activation
    a = 2 + 2 / g
    np.testing.assert_allclose(
        prefill_s(SHAPES, ORIN, replace(FP16, batch=3)),
        l * 3 * 1024 * d**2 * (2 * a + 6 * r) / 42.5e12,
        1e-12,
    )
    step = l / 204.8e9 * ((a + 3 * r) * d**2 * 2 + 2 * (1024 + 5) * d * 2 / g)
    np.testing.assert_allclose(decode_step_s(SHAPES, ORIN, FP16, 5), step, 1e-12)
    np.testing.assert_allclose(memory_bytes(SHAPES, FP16), l * (a + 3 * r / rho) * d**2 * 2, 1e-12)


def test_decode_is_the_sum_of_its_steps() -> None:
    steps = sum(decode_step_s(SHAPES, ORIN, FP16, t) for t in range(1, 17))
    np.testing.assert_allclose(decode_s(SHAPES, ORIN, FP16), steps, 1e-12)


def test_terms_have_names_and_add_up() -> None:
    cost = decode_bytes(SHAPES.width, 1032.5, 2, 2)
    terms = cost.terms(SHAPES.ffn_ratio, SHAPES.gqa)
    assert list(terms) == ["queries_output", "keys_values", "cache", "feed_forward"]
    np.testing.assert_allclose(sum(terms.values()), cost.total(SHAPES.ffn_ratio, SHAPES.gqa))


def test_sparsity_moves_storage_and_no_latency() -> None:
    sparse = replace(SHAPES, experts=SHAPES.top_k * 16)
    dense = replace(SHAPES, experts=SHAPES.top_k)
    np.testing.assert_array_equal(decode_s(sparse, ORIN, FP16), decode_s(dense, ORIN, FP16))
    np.testing.assert_array_equal(prefill_s(sparse, ORIN, FP16), prefill_s(dense, ORIN, FP16))
    assert (memory_bytes(sparse, FP16) > memory_bytes(dense, FP16)).all()


@given(prompt=st.integers(1, 10**6), output=st.integers(1, 10**4), faster=st.floats(1, 4))
def test_int8_is_never_slower_and_in_the_total_less_than_twice_as_fast(
    prompt: int, output: int, faster: float
) -> None:
    fp16, int8 = (replace(i, prompt=prompt, output=output) for i in (FP16, INT8))
    quick = Device.ideal(42.5e12 * faster, 204.8e9, 64e9)
    before = prefill_s(SHAPES, ORIN, fp16) + decode_s(SHAPES, ORIN, fp16)
    after = prefill_s(SHAPES, quick, int8) + decode_s(SHAPES, quick, int8)
    assert (after <= before).all()
    same_peak = prefill_s(SHAPES, ORIN, int8) + decode_s(SHAPES, ORIN, int8)
    assert (before / same_peak < 2).all()
    assert (memory_bytes(SHAPES, int8) * 2 == memory_bytes(SHAPES, fp16)).all()


def test_what_the_forms_do_not_hold_for_is_refused() -> None:
    with pytest.raises(WorkloadError, match="batch 1, not 2"):
        decode_s(SHAPES, ORIN, replace(FP16, batch=2))
    with pytest.raises(WorkloadError, match="step 17"):
        decode_step_s(SHAPES, ORIN, FP16, 17)
    with pytest.raises(InputError, match="heads_fill_width"):
        prefill_s(replace(SHAPES, heads=SHAPES.heads + 1), ORIN, FP16)
    with pytest.raises(InputError, match="above 0"):
        Device.ideal(0, 1, 1)
    with pytest.raises(WorkloadError, match="whole number from 1"):
        replace(FP16, prompt=0)
