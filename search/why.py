"""Why a shape is the best: which limit binds, what takes most there, the grid's edges, the law's, PLAS' closed forms."""

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from meshwright.costmodel.inference import seconds
from meshwright.hardware.errors import InputError
from meshwright.search import closed_forms
from meshwright.search.architecture import stack_of
from meshwright.search.asked import Budget, Searched
from meshwright.search.breakdown import breakdown

_PHASES = {"total": "total latency", "ttft": "prefill", "tpot": "a token", "memory": "memory"}
_USED_UP = 0.9  # share of a limit from which it is said to bind beside another


def parts_s(done: Searched, i: int) -> dict[str, tuple[float, float]]:
    return breakdown(done.shapes, i, done.grid.ends, done.device, done.request, done.latency)


def binding(done: Searched, budget: Budget, i: int | None) -> str:
    """Which limit the best shape comes closest to, and what takes most there."""
    if i is None:
        return "no shape keeps it"
    shares = {name: float(column[i]) / limit for name, (column, limit) in budget.limits(done.costs).items()}
    shares["memory"] = max(
        shares["memory"], float(done.costs.memory_bytes[i]) / float(done.device.memory_bytes)
    )
    name = max(shares, key=lambda k: shares[k])
    parts = _memory_parts(done, i) if name == "memory" else _phase(parts_s(done, i), name)
    whole = sum(parts.values())
    told_parts = ", ".join(
        f"{part} {parts[part] / whole:.0%}"
        for part in sorted(parts, key=lambda k: -parts[k])
        if parts[part] / whole >= 0.005
    )
    return f"{_PHASES[name]}: the best shape takes {shares[name]:.1%} of its limit ({told_parts})"


def _phase(parts: dict[str, tuple[float, float]], name: str) -> dict[str, float]:
    """Seconds by group of the phase that a limit is on."""
    return {group: {"ttft": a, "tpot": b}.get(name, a + b) for group, (a, b) in parts.items()}


def _memory_parts(done: Searched, i: int) -> dict[str, float]:
    if done.latency == "plas":  # its form has the weights of the layers alone
        return {"weights": 1.0}
    held = seconds.memory_bytes(stack_of(done.shapes[np.array([i])], done.grid.ends), done.request)
    return {part: float(np.asarray(value).reshape(-1)[0]) for part, value in held.items()}


def outside(done: Searched) -> tuple[str, ...]:
    """Where the law was not fitted: its own words, or one line for several variables."""
    priced = done.priced
    if len(priced.outside) < 2:
        return priced.warnings
    far = ", ".join(f"{name} in {int(rows.sum()):,}" for name, rows in priced.outside.items())
    return (
        f"{priced.law.name} was not fitted there, of {len(done.shapes):,} rows: {far}; losses there are extrapolations",
    )


def edges(done: Searched, kept: list[int]) -> str:
    """Axes on which the best shape sits at the end of the grid, where a wider one may do better."""
    if not kept:
        return ""
    i, grid, s, ends = kept[-1], done.grid, done.shapes, []
    axes: dict[str, tuple[float, ...]] = {
        "layers": grid.layers, "width": grid.width, "head_dim": grid.head_dim, "shared": grid.shared,
        "kv_heads": tuple(int(s.heads[i]) if kv == "heads" else kv for kv in grid.kv_heads),
        "experts": tuple(experts for experts, _ in grid.experts), "ffn_ratio": grid.ffn_ratio,
    }  # fmt: skip
    for axis, values in axes.items():
        value = float(getattr(s, axis)[i])
        if min(values) < max(values) and value in (min(values), max(values)):
            ends.append(f"{axis} {value:g} is the {'least' if value == min(values) else 'most'}")
    return f"at the grid's edge: {', '.join(ends)}; a wider grid may do better" if ends else ""


def closed_form(done: Searched, kept: list[int]) -> tuple[str, ...]:
    """What PLAS' theorems 5.1 to 5.3 choose of the activation rate rho there, where the law has their form.

    They are of the aggregated forms: an explanation, no proof of the answer.
    """
    i = kept[-1] if kept else int(done.on_front[-1])
    try:
        of = closed_forms.Coefficients.of(done.priced.law.coefficients)
        rho = float(closed_forms.memory_activation(of, int(done.shapes.width[i])))
    except InputError:
        return ()
    offered = _activations(done)
    line = (
        f"memory-bound at width {int(done.shapes.width[i]):,}: rho* = {_clipped(rho, offered)}; latency-bound: rho* = "
        f"{min(offered):.4g}, the least; the {'best' if kept else 'slowest of the front'} has "
        f"{float(done.shapes.activation[i]):.4g}"
    )
    return (line, *_both(done, kept, offered))


def _both(done: Searched, kept: list[int], offered: list[float]) -> Iterator[str]:
    """5.3, where a limit on prefill or on a token and the memory are both all but used up."""
    if not kept:
        return
    i, request, device = kept[-1], done.request, done.device
    budget = done.budgets[max(n for n, row in enumerate(done.best) if row == i)]
    memory = min(float(device.memory_bytes), budget.memory_bytes)
    if float(done.costs.memory_bytes[i]) < _USED_UP * memory:
        return
    r, gqa, width = float(done.shapes.ffn_ratio[i]), float(done.shapes.gqa[i]), int(done.shapes.width[i])
    with suppress(InputError):  # outside the range in which they were derived
        if float(done.costs.prefill_s[i]) >= _USED_UP * budget.ttft_s:
            eta = budget.ttft_s * float(device.prefill.flop_per_s) / (request.batch * request.prompt) / memory
            both = float(closed_forms.prefill_memory_activation(r, gqa, eta, request.weight_bytes))
            yield f"prefill and memory both bind: rho* = {_clipped(both, offered)} at that r and gqa"
        if float(done.costs.token_s[i]) >= _USED_UP * budget.tpot_s:
            cache = closed_forms.cache_share(
                request.mean_context, gqa, width, request.weight_bytes, request.kv_bytes
            )
            eta = budget.tpot_s * float(device.decode.bytes_per_s) / memory
            both = float(closed_forms.decode_memory_activation(r, gqa, eta, cache))
            yield f"a token and memory both bind: rho* = {_clipped(both, offered)} at that r and gqa"


def _clipped(rho: float, offered: list[float]) -> str:
    """As a number, and where the grid does not reach so far what it offers."""
    clipped = min(max(rho, min(offered)), max(offered))
    return f"{rho:.4g}" + ("" if np.isclose(clipped, rho) else f", clipped at {clipped:.4g} by the grid")


def _activations(done: Searched) -> list[float]:
    """Every rho that the grid offers."""
    pairs = [
        (e, k, n) for e, k in done.grid.experts for n in done.grid.shared if k <= e and (n == 0 or e > 1)
    ]
    return [(k + n) / (e + n) for e, k, n in pairs]
