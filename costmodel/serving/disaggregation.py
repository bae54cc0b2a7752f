"""Prefill and generation as two pools of servers: how many of each, queries per second, evictions.

A generate server holds `batch` sequences and makes one token of each per step; a query leaves it after
`decode_tokens` steps. A prefill server makes the cache of one prompt at a time. Source: jax-ml/scaling-book, chapters 7
and 8. Every function takes numbers or arrays.
"""

from typing import Any

from numpy.typing import NDArray

Number = float | NDArray[Any]


def decode_s(step_s: Number, decode_tokens: Number) -> Number:
    """Seconds that one query spends generating."""
    return step_s * decode_tokens


def queries_per_s(batch: Number, step_s: Number, decode_tokens: Number) -> Number:
    """Queries that one generate server finishes per second when it is always full."""
    return batch / decode_s(step_s, decode_tokens)


def prefill_per_generate(batch: Number, step_s: Number, decode_tokens: Number, prefill_s: Number) -> Number:
    """Prefill servers that keep one generate server full: one finishes a prompt every `prefill_s`."""
    return queries_per_s(batch, step_s, decode_tokens) * prefill_s


def finished_per_step(batch: Number, decode_tokens: Number) -> Number:
    """Sequences that end in one step, in the mean; as many prompts are inserted."""
    return batch / decode_tokens


def evicted_tokens_per_step(batch: Number, prompt_tokens: Number, decode_tokens: Number) -> Number:
    """Cached tokens that finished sequences leave behind per step, in the mean: B (P + G) / G."""
    return finished_per_step(batch, decode_tokens) * (prompt_tokens + decode_tokens)


def prefilled_share(prompt_tokens: Number, cached_prefix: Number) -> Number:
    """Share of a prompt that is prefilled when a prefix of it is in the cache (attention to the prefix aside)."""
    return (prompt_tokens - cached_prefix) / prompt_tokens
