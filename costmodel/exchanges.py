"""Seconds of a collective as it is measured on one group of ranks: latency and bandwidth that pass into each other.

    t = (alpha^q + (wire / bandwidth)^q)^(1/q)

q = 1 is the textbook alpha + beta law, q = 1/2 an ideally pipelined one, (sqrt(alpha) + sqrt(wire/bandwidth))^2.
Measurements on NVLink want 0.5 to 0.65. `wire` is what the bus bandwidth of nccl-tests counts. The planner's own law
(`collectives.py`) prices groups over levels of a network; this one a group that was measured. Every argument broadcasts.
"""

from typing import Any

import numpy as np

from meshwright.costmodel.kernels import joined_s
from meshwright.hardware.errors import UnknownNameError
from meshwright.hardware.kernel_rates import DispatchRates, DomainRates, ExchangeRates

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
TREE_RANKS = 4  # up to so many, NCCL does not let the switch add


def wire_bytes(op: str, size_bytes: Any, ranks: Any) -> Any:
    """Bytes that one rank's link carries: of an array of `size_bytes` reduced or gathered, or sent by a rank.

    Errors: UnknownNameError for an op that is none of `OPS`.
    """
    if op not in OPS:
        raise UnknownNameError("collective", op, OPS)
    if op == "send_recv":
        return size_bytes * np.ones_like(ranks, dtype=float)
    return size_bytes * (2.0 if op == "all_reduce" else 1.0) * (ranks - 1) / ranks


def exchange_s(rates: ExchangeRates, wire: Any) -> Any:
    """Seconds of a collective whose kind and group were measured; `wire` from `wire_bytes`."""
    return joined_s(rates.alpha_s, wire / rates.bytes_per_s, rates.q)


def domain_exchange_s(
    rates: DomainRates, wire: Any, ranks: Any, reduces: Any = False, in_switch: Any = False
) -> Any:
    """Seconds of any collective in one domain by one law.

    Latency grows by a step per further rank, by two where an all-reduce goes round twice. Few ranks have fewer links at
    work than many: n of them reach all but `pair_loss` / n of the bandwidth.

    Args:
        reduces: whether it is an all-reduce. in_switch: whether the switch could add it up (floating point on NVLink).
    """
    alpha = rates.a0_s + rates.a1_s * (ranks - 1) * np.where(reduces, 2.0, 1.0)
    adds = np.logical_and(np.logical_and(reduces, in_switch), ranks > TREE_RANKS)
    reached = rates.bytes_per_s * (1.0 - rates.pair_loss / ranks) * np.where(adds, rates.reduce_gain, 1.0)
    return joined_s(alpha, wire / reached, rates.q)


def dispatch_wire_bytes(size_bytes: Any, ranks: Any, top_k: Any = 1, once: Any = False) -> Any:
    """Bytes a rank sends to others of `size_bytes` of token copies, `top_k` per token on ranks drawn evenly.

    `once`: a token goes to a rank once however many of its experts are there.
    """
    others = (ranks - 1) / ranks
    met = ranks * (1.0 - (1.0 - 1.0 / ranks) ** top_k)
    return size_bytes * others * np.where(once, met / top_k, 1.0)


def dispatch_s(rates: DispatchRates, wire: Any, processors: Any = np.inf) -> Any:
    """Seconds of tokens sent to experts or back, by a kernel that has `processors` for itself."""
    return joined_s(
        rates.alpha_s, wire / rates.bytes_per_s, rates.q, wire / (rates.sm_bytes_per_s * processors)
    )
