"""Columns of cases through the laws of the cost model: seconds by given numbers, and the bare roofline beside them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.costmodel.exchanges import dispatch_s, domain_exchange_s, exchange_s
from meshwright.costmodel.flops import BF16, attention_bytes, product_bytes, product_flops
from meshwright.costmodel.kernels import (
    decode_attention_s,
    matmul_s,
    prefill_attention_s,
    routed_experts_s,
    scores_met,
    stream_s,
)  # fmt: skip
from meshwright.hardware.kernel_rates import Machine, load_machines, machine, number_format, peak_flop_per_s
from operator_accuracy.tables import Array

Columns = dict[str, Array]


def seconds(law: str, rates: Any, chip: str, case: str, columns: Columns) -> Array:
    """Predicted seconds of rows of one case."""
    return np.asarray(_LAWS[law](rates, chip, case, columns))


def roofline_s(law: str, chip: str, case: str, columns: Columns) -> Array:
    """The larger of FLOPs over the peak and bytes over the bandwidth; of a collective its bytes, over 1 byte/s."""
    return np.asarray(_ROOFS[law](chip, case, columns))


def _matmul(rates: Any, chip: str, case: str, c: Columns) -> Any:
    form, of = number_format(case), machine(chip)
    return matmul_s(
        rates, c["m"], c["n"], c["k"], peak_flop_per_s(chip, case), of.hbm_bytes_per_s,
        form.x_bytes, form.w_bytes, form.quantises,
    )  # fmt: skip


def _formats(case: str) -> tuple[str, float, float]:
    """The number format of queries, and bytes of a query's and a key's element, of 'bf16/fp8 causal'."""
    q, kv = case.split()[0].split("/")
    return q, number_format(q).x_bytes, number_format(kv).x_bytes


def _value_width(c: Columns, latent: float) -> Array:
    return np.where(c["latent"], latent, c["head_dim"])


def _prefill(rates: Any, chip: str, case: str, c: Columns) -> Any:
    dtype, q_bytes, kv_bytes = _formats(case)
    of = machine(chip)
    return prefill_attention_s(
        rates, c["batch"], c["q_len"], c["kv_len"], c["heads"], c["kv_heads"], c["head_dim"], _value_width(c, 128.0),
        peak_flop_per_s(chip, dtype), of.hbm_bytes_per_s, of.processors, c["causal"] > 0,
        q_bytes=q_bytes, kv_bytes=kv_bytes,
    )  # fmt: skip


def _decode(rates: Any, chip: str, case: str, c: Columns) -> Any:
    dtype, _, kv_bytes = _formats(case)
    return decode_attention_s(
        rates, c["batch"], c["q_len"], c["kv_len"], c["heads"], c["kv_heads"], c["head_dim"], _value_width(c, 512.0),
        peak_flop_per_s(chip, dtype), machine(chip).hbm_bytes_per_s, kv_bytes, c["latent"],
    )  # fmt: skip


def _experts(rates: Any, chip: str, case: str, c: Columns) -> Any:
    return routed_experts_s(
        rates, c["tokens"], c["hidden"], c["ffn"], c["experts"], c["topk"], c["ep"], c["tp"],
        peak_flop_per_s(chip, case), machine(chip).hbm_bytes_per_s, number_format(case).w_bytes,
        np.where(c["plain"], 2.0, 3.0), c["skewed"],
    )  # fmt: skip


def _domain(rates: Any, chip: str, case: str, c: Columns) -> Any:
    return domain_exchange_s(rates, c["wire"], c["ranks"], c["reduces"], c["nvlink"] & ~c["whole"])


_LAWS: dict[str, Callable[[Any, str, str, Columns], Any]] = {
    "matmul": _matmul, "prefill": _prefill, "decode": _decode, "experts": _experts, "domain": _domain,
    "collective": lambda rates, chip, case, c: exchange_s(rates, c["wire"]),
    "custom": lambda rates, chip, case, c: exchange_s(rates, c["wire"]),
    "dispatch": lambda rates, chip, case, c: dispatch_s(rates, c["wire"], c["processors"]),
    "memory": lambda rates, chip, case, c: stream_s(rates, c["bytes"], machine(chip).hbm_bytes_per_s),
}  # fmt: skip


def _roof(chip: str, dtype: str, flops: Any, moved: Any) -> Any:
    return np.maximum(flops / peak_flop_per_s(chip, dtype), moved / machine(chip).hbm_bytes_per_s)


def _matmul_roof(chip: str, case: str, c: Columns) -> Any:
    form, shape = number_format(case), (c["m"], c["k"], c["n"])
    return _roof(chip, case, product_flops(*shape), product_bytes(*shape, form.x_bytes, form.w_bytes))


def _attention_roof(chip: str, case: str, c: Columns) -> Any:
    dtype, q_bytes, kv_bytes = _formats(case)
    decode = not case.endswith((" causal", " full"))
    width = c["head_dim"] + _value_width(c, 512.0 if decode else 128.0)
    scores = c["q_len"] * c["kv_len"] if decode else scores_met(c["q_len"], c["kv_len"], c["causal"] > 0)
    cached = c["kv_heads"] * (np.where(c["latent"], c["head_dim"], width) if decode else width)
    moved = attention_bytes(
        c["batch"] * c["q_len"], c["heads"] * width, c["batch"] * c["kv_len"], cached, q_bytes, kv_bytes
    )
    return _roof(chip, dtype, product_flops(c["batch"] * c["heads"], scores, width), moved)


def _experts_roof(chip: str, case: str, c: Columns) -> Any:
    pairs, matrices = c["tokens"] * c["topk"] / c["ep"], np.where(c["plain"], 2.0, 3.0)
    one = matrices * c["hidden"] * c["ffn"] / c["tp"]
    hit = np.minimum(c["experts"] / c["ep"], np.maximum(pairs, 1.0))
    moved = hit * one * number_format(case).w_bytes + 2 * BF16 * pairs * c["hidden"]
    return _roof(chip, case, product_flops(pairs, one, 1.0), moved)


def _memory_roof(chip: str, case: str, c: Columns) -> Any:
    return c["bytes"] / machine(chip).hbm_bytes_per_s


_ROOFS: dict[str, Callable[[str, str, Columns], Any]] = {
    "matmul": _matmul_roof, "prefill": _attention_roof, "decode": _attention_roof, "experts": _experts_roof,
    "memory": _memory_roof,
} | dict.fromkeys(("collective", "custom", "domain", "dispatch"), lambda chip, case, c: c["wire"])  # fmt: skip


def is_data_centre(chip: str) -> bool:
    """Whether a chip is among those that the planner lays models over."""
    known: dict[str, Machine] = load_machines().machines
    return chip in known and known[chip].data_centre
