"""Roofline of an attention kernel that keeps its scores on the chip (flash attention).

T queries meet S keys with N query heads, K key-value heads (G = N / K) of width H:

    FLOPs 4 T S N H, bytes 2 (T N H + S K H) per element's bytes; of two-byte elements T S G / (T G + S) FLOPs per byte

FLOPs and bytes are the planner's (`core_flops`, `attention_bytes`). Source: jax-ml/scaling-book, chapters 4 and 7.
"""

from meshwright.costmodel.doors import ChipSource, check_positive, check_whole, chip_of
from meshwright.costmodel.flops import attention_bytes, attention_span, core_flops
from meshwright.costmodel.model import Attention
from meshwright.costmodel.roofline.ceilings import Ceiling, given_rate, peak, source_rate
from meshwright.costmodel.roofline.intensity import binds, bounds, critical_intensity, devices_note, lower_s
from meshwright.costmodel.roofline.operands import parse_dtype
from meshwright.costmodel.working import Step, Working
from meshwright.hardware.chip import ELEMENT_BYTES
from meshwright.hardware.errors import InputError


def attention_intensity(queries: float, keys: float, group: float, element_bytes: float = 2) -> float:
    """FLOPs per byte of full attention; `group` is query heads per key-value head."""
    one = Attention(1, 1, 1, 1)  # per query head and element of width
    moved = attention_bytes(queries, 2.0, keys, 2.0 / group, element_bytes, element_bytes)
    return float(queries * core_flops(one, keys) / moved)


def critical_length(alpha: float, group: float, element_bytes: float = 2) -> float:
    """Tokens from which self-attention (as many queries as keys) passes an intensity of `alpha`.

    alpha (G + 1) / G of two-byte elements; `group` may be infinite.
    """
    return alpha / attention_intensity(1.0, 1.0, group, element_bytes)


def intensity_limit(group: float, element_bytes: float = 2) -> float:
    """What the intensity of one query tends to with many keys: the group, of two-byte elements."""
    return attention_intensity(1.0, 1.0, group, element_bytes) * (group + 1.0)


def attention(
    chip: ChipSource,
    *,
    queries: int,
    keys: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    sequences: int = 1,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
    causal: bool = False,
    source: str = "hbm",
    flop_per_s: float | None = None,
    bytes_per_s: float | None = None,
) -> Working:
    """Roofline of one attention kernel on one chip.

    Args:
        queries, keys: tokens per sequence; decode is queries=1, prefill has as many queries as keys.
        dtype: of queries, output and compute; `kv_dtype` of the cache if it differs.
        causal: a kernel that skips what the mask hides; the last query meets all keys.
        flop_per_s, bytes_per_s: instead of the chip's.

    Errors: InputError for counts that do not fit, MissingFigureError for rates that no source gives.
    """
    counts = {
        "queries": queries, "keys": keys, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
        "sequences": sequences,
    }  # fmt: skip
    chip = chip_of(chip)
    check_positive(flop_per_s=flop_per_s, bytes_per_s=bytes_per_s)
    _check(counts)
    if causal and queries > keys:
        raise InputError(f"{queries} queries cannot see back over {keys} keys; causal needs queries <= keys")
    dtype, kv_dtype = parse_dtype(dtype), parse_dtype(dtype if kv_dtype is None else kv_dtype)
    math = peak(chip, dtype) if flop_per_s is None else Ceiling(f"{dtype} peak", flop_per_s, "given")
    move = source_rate(chip, source) if bytes_per_s is None else given_rate(source, bytes_per_s)
    query_bytes, kv_bytes = ELEMENT_BYTES[dtype], ELEMENT_BYTES[kv_dtype]
    span = keys - queries + attention_span(queries, None) if causal else float(keys)
    geometry = Attention(heads, kv_heads, head_dim, head_dim)
    flops = sequences * queries * core_flops(geometry, span)
    widths = 2.0 * heads * head_dim, 2.0 * kv_heads * head_dim
    moved = sequences * attention_bytes(queries, widths[0], keys, widths[1], query_bytes, kv_bytes)
    seconds = {"t_math": flops / math.per_s, "t_memory": moved / move.per_s}
    group = heads / kv_heads
    alpha = critical_intensity(math.per_s, move.per_s)
    symbols = ("T", "S", "N", "K", "H", "B")
    given = {
        "C": Step(math.per_s, "FLOP/s", note=math.note),
        "W": Step(move.per_s, "B/s", note=f"{move.name}: {move.note}"),
        **{
            symbol: Step(count, note=name)
            for symbol, (name, count) in zip(symbols, counts.items(), strict=True)
        },
        "G": Step(group, note="query heads per key-value head"),
        "q": Step(query_bytes, "B", note=f"per element of queries and output, {dtype}"),
        "kv": Step(kv_bytes, "B", note=f"per element of keys and values, {kv_dtype}"),
    }
    steps = {
        "span": Step(
            span, "tokens", "S - (T - 1) / 2" if causal else "S", "keys that a query meets on average"
        ),
        "flops": Step(flops, "FLOP", "4 B T span N H"),
        "bytes": Step(moved, "B", "2 B (q T N H + kv S K H)"),
        "intensity": Step(flops / moved, "FLOP/B", "flops / bytes"),
        "intensity_limit": Step(
            intensity_limit(group, kv_bytes), "FLOP/B", "2 G / kv", "of one query with many keys"
        ),
        "critical_intensity": Step(alpha, "FLOP/B", "C / W"),
        "t_math": Step(seconds["t_math"], "s", "flops / C"),
        "t_memory": Step(seconds["t_memory"], "s", "bytes / W"),
        **bounds(seconds),
        "share_of_peak": Step(seconds["t_math"] / lower_s(*seconds.values()), "ratio", "t_math / t_lower"),
    }
    if query_bytes == kv_bytes:
        steps["critical_length"] = Step(
            critical_length(alpha, group, query_bytes),
            "tokens",
            "q / 2 * C / W * (G + 1) / G",
            "of full self-attention, T = S",
        )
    what = f"T={queries:,}, S={keys:,}, N={heads}, K={kv_heads}, H={head_dim}, B={sequences:,}"
    question = (
        f"{'decode' if queries == 1 else 'attention'} {what} in {dtype} on {chip.title}, from {move.name}"
    )
    notes = (devices_note(chip),) if chip.devices_per_chip > 1 else ()
    return Working(question, given, steps, binds(seconds), notes)


def _check(counts: dict[str, int]) -> None:
    check_whole(**counts)
    if counts["heads"] % counts["kv_heads"]:
        raise InputError(
            f"heads={counts['heads']} is not a multiple of kv_heads={counts['kv_heads']}; "
            f"every key-value head serves the same number of query heads"
        )
