"""Laws of single kernels against figures worked by hand, and what each must tend to."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.costmodel.exchanges import (
    dispatch_s,
    dispatch_wire_bytes,
    domain_exchange_s,
    exchange_s,
    wire_bytes,
)
from meshwright.costmodel.flops import attention_span
from meshwright.costmodel.kernels import (
    decode_attention_s,
    experts_hit,
    joined_s,
    matmul_s,
    prefill_attention_s,
    prefill_scores,
    routed_experts_s,
    scores_met,
    stream_s,
)
from meshwright.hardware.errors import UnknownNameError
from meshwright.hardware.kernel_rates import (
    DecodeRates,
    DispatchRates,
    DomainRates,
    ExchangeRates,
    ExpertRates,
    MatmulRates,
    PrefillRates,
    StreamRates,
)

PEAK, HBM = 1e15, 4e12  # FLOP/s and bytes/s of a round machine
MATMUL = MatmulRates(
    t0_s=5e-6, e_c=0.8, e_m=0.5, p=2.0, walk_s=1e-6, walk_power=1.0, e_q=0.5, row_columns=96.0
)
PREFILL = PrefillRates(
    t0_s=1e-5, e_c=0.5, e_m=0.5, p=1.0, tile=128.0, keys=72.0, score_per_s=1e13, walk_s=1e-6
)
DECODE = DecodeRates(1e-5, 0.5, 0.8, 1.0, keys=300.0, e_wide=0.05, walk_s=2e-6, walk_power=0.5)
EXPERTS = ExpertRates(2e-5, 0.5, 0.5, 1.0, load=2.0, rows=16.0, n0=1024.0, e_a=0.5, e_pairs=2.0)


def test_joined_limits_by_hand() -> None:
    """3 and 4 join to 5 at p = 2, add at p = 1, and the larger binds at large p; columns as numbers."""
    assert joined_s(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert joined_s(3.0, 4.0, 1.0) == pytest.approx(7.0)
    assert joined_s(3.0, 4.0, 200.0) == pytest.approx(4.0)
    assert joined_s(2.0, 3.0, 2.0, 6.0) == pytest.approx(7.0)
    assert joined_s(1e-200, 0.0, 3.0) == pytest.approx(1e-200)  # nothing under- or overflows
    np.testing.assert_allclose(joined_s(np.array([3.0, 5.0]), np.array([4.0, 12.0]), 2.0), [5.0, 13.0])


def test_matmul_by_hand() -> None:
    """m 1000, k 2000, n 4000: 1.6e10 FLOPs in 20 us, 2.8e7 bytes in 14 us, 2 us of walk; joined sqrt(600)."""
    t = matmul_s(MATMUL, 1000, 4000, 2000, PEAK, HBM)
    assert t == pytest.approx(5e-6 + np.sqrt(20**2 + 14**2 + 2**2) * 1e-6)
    # Inputs of a byte: 1.8e7 bytes in 9 us; the pass reads 2 bytes and writes 1 of 1000 rows of 2096 columns.
    t = matmul_s(MATMUL, 1000, 4000, 2000, PEAK, HBM, 1, 1, True)
    assert t == pytest.approx(5e-6 + np.sqrt(20**2 + 9**2 + 2**2) * 1e-6 + 3 * 1000 * 2096 / 2e12)
    # Narrow shapes: (1 + 100/1000)(1 + 500/2000) times the FLOPs.
    narrow = MatmulRates(0.0, 0.8, 1e9, 1.0, 0.0, 1.0, m0=100.0, n0=500.0)
    assert matmul_s(narrow, 1000, 4000, 2000, PEAK, HBM) == pytest.approx(20e-6 * 1.1 * 1.25)


def test_matmul_tends_to_its_shares_and_never_falls() -> None:
    size = 2.0**20
    assert 2 * size**3 / matmul_s(MATMUL, size, size, size, PEAK, HBM) == pytest.approx(0.8 * PEAK, rel=1e-3)
    assert 2 * size**2 / matmul_s(MATMUL, 1, size, size, PEAK, HBM) == pytest.approx(0.5 * HBM, rel=1e-2)
    sizes = np.unique(np.geomspace(1, 1e5, 400).round())
    for axis in range(3):
        shape = [np.full_like(sizes, 4096.0) for _ in range(3)]
        shape[axis] = sizes
        assert (np.diff(matmul_s(MATMUL, *shape, PEAK, HBM, 1, 1, True)) >= 0).all()


def test_scores_of_a_triangle_a_chunk_and_a_window() -> None:
    """4 of 4: 10; 4 of 8: 5 + 6 + 7 + 8; full: all; a window of 3 over 6: 1 + 2 + 3 + 3 + 3 + 3."""
    assert scores_met(4, 4) == 10
    assert scores_met(4, 8) == 26
    assert scores_met(4, 8, False) == 32
    assert scores_met(6, 6, True, 3) == 15
    assert scores_met(2, 8, True, 3) == 6
    seq = np.array([1.0, 5.0, 64.0, 1000.0])
    for window in (1, 4, 64):
        spans = [attention_span(one, window) for one in seq]
        np.testing.assert_allclose(scores_met(seq, seq, True, window), seq * spans)
    np.testing.assert_allclose(scores_met(seq, seq), [s * attention_span(s, None) for s in seq])


def test_prefill_by_hand() -> None:
    """One sequence of 24 tokens, 8 heads on 2: 96 rows, which a tile of 128 makes 160; 300 scores and 24 * 72 a head.

    1 processor: 8 * 2028 * 160/96 = 27,040 scores, more than 128 * (24 + 72) of the longest tile; 10: 122,880, ten times it.
    """
    shape = (1, 24, 24, 8, 2)
    assert prefill_scores(PREFILL, *shape, processors=1) == pytest.approx(27_040)
    assert prefill_scores(PREFILL, *shape, processors=10) == 122_880
    seconds = prefill_attention_s(PREFILL, *shape, 64, 64, PEAK, HBM, 10)
    compute = 122_880 * (2 * 128 / 0.5e15 + 1e-13)
    moved = 2 * (24 * 8 * 128 + 24 * 2 * 128) / 2e12
    assert seconds == pytest.approx(1e-5 + compute + moved + 0.024e-6)


def test_small_heads_are_bound_by_the_exponential() -> None:
    """A score of 128 wide heads takes 1.024 ps of products and 0.1 ps of exponential, of 64 wide 0.512 and 0.1."""
    rates, shape = replace(PREFILL, p=8.0), (8, 8192, 8192, 64, 8)
    wide, small = (prefill_attention_s(rates, *shape, d, d, PEAK, HBM, 132) for d in (128, 64))
    assert small / wide == pytest.approx(0.612 / 1.124, rel=1e-3)
    assert wide == pytest.approx(8 * 64 * (8192 * 8193 / 2 + 8192 * 72) * 1.124e-12, rel=1e-3)


def test_decode_by_hand() -> None:
    """400 keys and a tile of 300 join to 500; 8 query heads on 2 of 128: 2 * 16 * 8 * 500 * 256 FLOPs."""
    seconds = decode_attention_s(DECODE, 16, 1, 400, 8, 2, 128, 128, PEAK, HBM)
    compute = 2 * 16 * 8 * 500 * 256 / 0.5e15
    moved = 2 * (16 * 8 * 256 + 16 * 500 * 2 * 256) / 3.2e12
    assert seconds == pytest.approx(1e-5 + compute + moved + 2e-6 * np.sqrt(0.4))
    # More than 32 query heads on one: off the matrix units. Latent keys are read once, 576 wide.
    wide = decode_attention_s(DECODE, 16, 1, 400, 64, 1, 576, 512, PEAK, HBM, 1, True)
    compute = 2 * 16 * 64 * 500 * 1088 / 0.05e15
    moved = (2 * 16 * 64 * 1088 + 16 * 500 * 576) / 3.2e12
    assert wide == pytest.approx(1e-5 + compute + moved + 2e-6 * np.sqrt(0.4))


def test_decode_reads_the_cache_at_its_share_of_bandwidth() -> None:
    keys = 2.0**22
    seconds = decode_attention_s(DECODE, 64, 1, keys, 8, 8, 128, 128, 1e30, HBM)
    assert 64 * keys * 8 * 256 * 2 / seconds == pytest.approx(0.8 * HBM, rel=1e-2)


def test_routed_experts_by_hand() -> None:
    """64 tokens, 2 of 8 experts, ep 2, tp 2: 64 pairs on 4 experts, 64 + 4 * 16 rows, width 1024 of 2048."""
    seconds = routed_experts_s(EXPERTS, 64, 512, 2048, 8, 2, 2, 2, PEAK, HBM)
    compute = 3 * 2 * 128 * 512 * 1024 * 2 / 0.5e15  # n0 = width: twice
    weights = 2 * 3 * 4 * 512 * 1024 / 2e12
    activations = (2 * 64 * (1024 + 3 * 1024) + 4 * 64 * 512) / 2e12
    everyone = 2 * 64 * 2 * 512 / 8e12
    assert seconds == pytest.approx(2e-5 + compute + weights + activations + everyone)
    # Skewed: the fullest rank has twice the mean, all that can reach it; on one rank routing moves nothing away.
    even, skewed = (
        routed_experts_s(EXPERTS, 4096, 512, 2048, 8, 2, 2, 2, PEAK, HBM, skewed=s) for s in (False, True)
    )
    assert 1.5 < skewed / even < 2.0
    alone = [
        routed_experts_s(EXPERTS, 4096, 512, 2048, 8, 2, 1, 2, PEAK, HBM, skewed=s) for s in (False, True)
    ]
    assert alone[0] == pytest.approx(alone[1])


def test_experts_that_tokens_meet() -> None:
    assert experts_hit(8, 3) == 3
    assert experts_hit(8, 100) == 8
    assert experts_hit(8, 8, True) == pytest.approx(8 * (1 - np.exp(-1)))


def test_exchanges_by_hand() -> None:
    """An all-reduce of 1 MB on 4: 1.5 MB on the wire; q = 1 adds, q = 1/2 is the square of summed roots."""
    assert wire_bytes("all_reduce", 1e6, 4) == 1.5e6
    assert wire_bytes("all_gather", 1e6, 4) == wire_bytes("all_to_all", 1e6, 4) == 0.75e6
    assert wire_bytes("send_recv", 1e6, 2) == 1e6
    with pytest.raises(UnknownNameError, match="unknown collective 'all_reduse'; did you mean all_reduce"):
        wire_bytes("all_reduse", 1e6, 4)
    assert exchange_s(ExchangeRates(1e-5, 1e11, 1.0), 1.5e6) == pytest.approx(25e-6)
    assert exchange_s(ExchangeRates(4e-6, 1e11, 0.5), 0.9e6) == pytest.approx((2 + 3) ** 2 * 1e-6)


def test_one_law_of_a_domain_by_hand() -> None:
    """8 ranks: 7 steps of 1 us, all-reduce 14; all but 0.8/8 of 1e11; the switch adds from 5 ranks up."""
    rates = DomainRates(3e-6, 1e-6, 1e11, 1.0, reduce_gain=1.5, pair_loss=0.8)
    assert domain_exchange_s(rates, 9e5, 8) == pytest.approx(10e-6 + 10e-6)
    assert domain_exchange_s(rates, 9e5, 8, True) == pytest.approx(17e-6 + 10e-6)
    assert domain_exchange_s(rates, 9e5, 8, True, True) == pytest.approx(17e-6 + 10e-6 / 1.5)
    assert domain_exchange_s(rates, 8e5, 4, True, True) == pytest.approx(9e-6 + 10e-6)


def test_dispatch_by_hand() -> None:
    """2 of 2 ranks drawn for a token: it meets 1.5 of them; once each is 3/4 of the copies, half of it to the other."""
    assert dispatch_wire_bytes(8e6, 2, 2, True) == pytest.approx(8e6 * 0.75 / 2)
    assert dispatch_wire_bytes(8e6, 2, 2) == pytest.approx(4e6)
    rates = DispatchRates(1e-5, 1e11, 1.0, sm_bytes_per_s=1e10)
    assert dispatch_s(rates, 1e6) == pytest.approx(20e-6)
    assert dispatch_s(rates, 1e6, 20) == pytest.approx(25e-6)


def test_a_stream_by_hand() -> None:
    assert stream_s(StreamRates(3e-6, 0.5, 2.0), 8e6, HBM) == pytest.approx(5e-6)
