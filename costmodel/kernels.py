"""Seconds of single kernels as they are measured: products, attention, routed experts, work that memory binds.

One plain function per law; every argument broadcasts, so one call prices a number or a column of shapes. Rates come from
`meshwright.hardware.kernel_rates` (fitted on published measurements by benchmarks/fit_operators.py), peaks are arguments.

All laws join a launch time with limits that bind together near the knee and alone far from it:

    t = t0 + (compute^p + memory^p + walk^p)^(1/p)

compute is FLOPs over a share of the peak, memory is bytes over a share of the bandwidth. `walk` is what one block does in
turn while the others wait: the k terms of a product with few output tiles, the keys that one tile of queries meets. It is
why narrow products and long contexts of few sequences are slower than either roof says. Form and terms are this project's;
the knee exponent and the padded tile of keys follow the analysis of the same measurements that its benchmarks describe.
"""

from typing import Any

import numpy as np

from meshwright.costmodel.flops import BF16, attention_bytes, product_bytes, product_flops
from meshwright.hardware.kernel_rates import DecodeRates, ExpertRates, MatmulRates, PrefillRates, StreamRates

WIDE_GROUP = 32  # query heads on one key head above which some decode kernels leave the matrix units
THOUSAND = 1000.0


def joined_s(a: Any, b: Any, p: Any, *others: Any) -> Any:
    """(a^p + b^p + ...)^(1/p): the larger for large p, the sum for p = 1. Any unit; scaled, so that nothing overflows."""
    parts = (a, b, *others)
    most = np.maximum(np.max(np.stack(np.broadcast_arrays(*parts)), axis=0), 1e-300)
    return most * sum((part / most) ** p for part in parts) ** (1 / p)


def matmul_s(
    rates: MatmulRates, m: Any, n: Any, k: Any, peak_flop_per_s: Any, hbm_bytes_per_s: Any,
    x_bytes: Any = BF16, w_bytes: Any = BF16, quantises: Any = False,
) -> Any:  # fmt: skip
    """Seconds of an [m, k] x [k, n] product with a 16-bit output.

    Args:
        x_bytes, w_bytes: per element of the two inputs. quantises: whether the first comes in 16 bits and is quantised on
            the way, a pass that reads it and writes it.
    """
    narrow = (1.0 + rates.m0 / m) * (1.0 + rates.n0 / np.minimum(k, n))
    compute = product_flops(m, k, n) * narrow / (peak_flop_per_s * rates.e_c)
    memory = product_bytes(m, k, n, x_bytes, w_bytes) / (hbm_bytes_per_s * rates.e_m)
    walk = rates.walk_s * (k / THOUSAND) ** rates.walk_power
    passed = (BF16 + x_bytes) * m * (k + rates.row_columns) / (hbm_bytes_per_s * rates.e_q)
    return rates.t0_s + joined_s(compute, memory, rates.p, walk) + np.where(quantises, passed, 0.0)


def scores_met(q: Any, kv: Any, causal: Any = True, window: Any = np.inf) -> Any:
    """Scores that q queries at the end of kv keys need: full, causal, or of a sliding window of keys.

    Over q, of queries that are all of the keys, this is `operators.attention_span`.
    """
    before = kv - q
    growing = np.clip(window - before, 0, q)  # queries whose causal keys the window still holds
    seen = growing * before + growing * (growing + 1) / 2
    past = np.where(growing < q, (q - growing) * np.where(np.isinf(window), 0.0, window), 0.0)
    return np.where(causal, seen + past, q * np.minimum(kv, window))


def prefill_scores(
    rates: PrefillRates, batch: Any, q: Any, kv: Any, heads: Any, kv_heads: Any, processors: Any,
    causal: Any = True, window: Any = np.inf,
) -> Any:  # fmt: skip
    """Scores that an attention kernel computes: those that are needed and `keys` more per row, few rows filled up to a tile;
    and where there are fewer tiles than processors those of the longest tile on each, as all wait for it."""
    rows = q * heads / kv_heads
    padded = joined_s(rows, rates.tile, 2.0) / rows
    scores = batch * heads * (scores_met(q, kv, causal, window) + q * rates.keys) * padded
    return np.maximum(scores, processors * rates.tile * (np.minimum(kv, window) + rates.keys))


def prefill_attention_s(
    rates: PrefillRates, batch: Any, q: Any, kv: Any, heads: Any, kv_heads: Any, head_dim: Any, v_head_dim: Any,
    peak_flop_per_s: Any, hbm_bytes_per_s: Any, processors: Any, causal: Any = True, window: Any = np.inf,
    q_bytes: Any = BF16, kv_bytes: Any = BF16,
) -> Any:  # fmt: skip
    """Seconds of the attention kernel over `q` new tokens at the end of `kv`.

    A score costs its products with a query and a value, on the matrix units, and one exponential, on other units and
    whatever the head size: small heads are slow because of it. Latent attention has unequal `head_dim` and `v_head_dim`.
    """
    width = head_dim + v_head_dim
    scores = prefill_scores(rates, batch, q, kv, heads, kv_heads, processors, causal, window)
    compute = scores * (product_flops(1, 1, width) / (peak_flop_per_s * rates.e_c) + 1 / rates.score_per_s)
    moved = attention_bytes(batch * q, heads * width, batch * kv, kv_heads * width, q_bytes, kv_bytes)
    walk = rates.walk_s * np.minimum(kv, window) / THOUSAND
    return rates.t0_s + joined_s(compute, moved / (hbm_bytes_per_s * rates.e_m), rates.p, walk)


def decode_attention_s(
    rates: DecodeRates, batch: Any, q: Any, kv: Any, heads: Any, kv_heads: Any, head_dim: Any, v_head_dim: Any,
    peak_flop_per_s: Any, hbm_bytes_per_s: Any, kv_bytes: Any = BF16, latent: Any = False,
) -> Any:  # fmt: skip
    """Seconds of the attention kernel over `q` tokens, one as a rule, of each of `batch` sequences with `kv` keys.

    Args:
        latent: whether keys and values are one vector of `head_dim` that is read once.
    """
    width = head_dim + v_head_dim
    keys = joined_s(kv, rates.keys, 2.0)  # a short context pays a whole tile
    share = np.where(heads > WIDE_GROUP * kv_heads, rates.e_wide, rates.e_c)
    compute = product_flops(batch * heads * q, keys, width) / (peak_flop_per_s * share)
    cached = kv_heads * np.where(latent, head_dim, width)
    moved = attention_bytes(batch * q, heads * width, batch * keys, cached, kv=kv_bytes)
    walk = rates.walk_s * (kv / THOUSAND) ** rates.walk_power
    return rates.t0_s + joined_s(compute, moved / (hbm_bytes_per_s * rates.e_m), rates.p, walk)


def experts_hit(local: Any, pairs: Any, skewed: Any = False) -> Any:
    """Experts of a rank that at least one of `pairs` token copies meets: spread evenly, or as if drawn."""
    return np.where(skewed, local * -np.expm1(-pairs / local), np.minimum(local, np.maximum(pairs, 1.0)))


def routed_experts_s(
    rates: ExpertRates, tokens: Any, hidden: Any, ffn: Any, experts: Any, top_k: Any, ep: Any, tp: Any,
    peak_flop_per_s: Any, hbm_bytes_per_s: Any, w_bytes: Any = BF16, matrices: Any = 3, skewed: Any = False,
) -> Any:  # fmt: skip
    """Seconds of the routed experts of one rank: permute, products, activation and weighted sum; no router, no exchange.

    Args:
        tokens: of the whole expert-parallel group. ffn, experts: totals before tp and ep. matrices: 3 if gated, else 2.
        skewed: whether routing is uneven; the rank is then the fullest.
    """
    local, width = experts / ep, ffn / tp
    load = np.where(np.logical_and(skewed, ep > 1), rates.load, 1.0)
    pairs = np.minimum(tokens * top_k / ep * load, tokens * np.minimum(top_k, local))
    hit = experts_hit(local, pairs, skewed)
    rows = pairs + hit * rates.rows
    compute = (
        matrices
        * product_flops(rows, hidden, width)
        * (1.0 + rates.n0 / width)
        / (peak_flop_per_s * rates.e_c)
    )
    weights = w_bytes * matrices * hit * hidden * width
    activations = BF16 * pairs * (2 * hidden + matrices * width) + 2 * BF16 * tokens * hidden
    everyone = BF16 * tokens * top_k * hidden  # kernels put the pairs of all ranks in order and sum them
    return (
        rates.t0_s
        + joined_s(compute, weights / (hbm_bytes_per_s * rates.e_m), rates.p)
        + activations / (hbm_bytes_per_s * rates.e_a)
        + everyone / (hbm_bytes_per_s * rates.e_pairs)
    )


def stream_s(rates: StreamRates, moved_bytes: Any, hbm_bytes_per_s: Any) -> Any:
    """Seconds of work that memory binds."""
    return joined_s(rates.t0_s, moved_bytes / (hbm_bytes_per_s * rates.e_m), rates.p)
