"""The answer of a search on one screen: what was searched, the best under each budget, what binds it, the front."""

import numpy as np

from meshwright.costmodel.inference import seconds
from meshwright.costmodel.working import Step, Value, Working, told
from meshwright.hardware.errors import InputError
from meshwright.search import closed_forms
from meshwright.search.architecture import stack_of
from meshwright.search.asked import Budget, NoShapeError, Searched
from meshwright.search.board import Board
from meshwright.search.breakdown import breakdown
from meshwright.search.engine.answers import Certificate
from meshwright.search.output.config import shape_name

_ROWS = 10  # of the front on the page
_PHASES = {"total": "total latency", "ttft": "prefill", "tpot": "a token", "memory": "memory"}

_PLAS_LEAVES_OUT = (
    "latency by PLAS' aggregated forms, which leave out embedding and head, the square term of attention, the "
    "router, all experts' weights in prefill, launches and the cache in memory: they compare shapes, they are no estimate"
)


def answer(done: Searched, board: Board) -> Working:
    """The Working of a search.

    Errors: NoShapeError where no shape keeps any of the budgets.
    """
    request, law = done.request, done.priced.law
    given = board.given() | {
        "batch": Step(request.batch, "sequences"),
        "prompt": Step(request.prompt, "tokens"),
        "output": Step(request.output, "tokens"),
        "weight_bytes": Step(request.weight_bytes, "B", "", f"of {board.weights}"),
        "kv_bytes": Step(request.kv_bytes, "B"),
        "law": Step(law.name, "", "", law.source),
    }
    kept = [i for i in done.best if i is not None]
    if done.budgets and not kept:
        raise NoShapeError(_closest(done))
    steps, binds = _counts(done), "no budget is given; the table is the front"
    notes = [_edges(done, kept), *_closed_form(done, kept), *_outside(done), *board.notes]
    bound = [(label(b), _binding(done, b, i)) for b, i in zip(done.budgets, done.best, strict=True)]
    if len(bound) == 1:
        steps |= _best(done, kept[0])
        binds = bound[0][1]
    elif bound:
        binds = "each budget has a best shape of its own; the table starts with them"
        notes = [f"best {n}, {name}: {text}" for n, (name, text) in enumerate(bound, 1)] + notes
    if done.latency == "plas":
        notes.append(_PLAS_LEAVES_OUT)
    axis = {"total": "prefill + decode", "ttft": "prefill", "tpot": "a token", "memory": "memory"}[
        done.against
    ]
    return Working(
        f"best shapes by {law.name} on {board.name}: loss against {axis}, {request.prompt:,} tokens in and "
        f"{request.output:,} out",
        given, steps, binds, tuple(filter(None, notes)), _table(done),
    )  # fmt: skip


def label(budget: Budget) -> str:
    """A budget in words: 'total 100 ms'."""
    parts = [
        f"memory {told(limit / 2**30)} GiB" if name == "memory" else f"{name} {told(1e3 * limit)} ms"
        for name, limit in budget.finite().items()
    ]
    return ", ".join(parts) or "no limit"


def _counts(done: Searched) -> dict[str, Step]:
    on = done.on_front
    funnel = "; ".join(f"{rule} removes {n:,}" for rule, n in done.removed.items() if n)
    outside = int((~done.priced.inside).sum())
    steps = {"shapes_listed": Step(done.listed, "", "", funnel)}
    if done.certificates:
        steps |= _proofs(done.certificates)
    else:
        steps["shapes_priced"] = Step(
            len(done.shapes), "", "", "all that are legal and fit: the front is exact"
        )
    return steps | {
        "front_points": Step(len(on), "", "", f"loss against {done.against}"),
        "front_moe_share": Step(
            float((done.shapes.experts[on] > 1).mean()), "ratio", "", "of them have experts"
        ),
        "outside_law": Step(outside, "shapes", "", "priced, and flagged" if outside else ""),
    }


def _proofs(certificates: tuple[Certificate, ...]) -> dict[str, Step]:
    """What the engine priced and proved, of the front and every budget together."""
    whole = sum(c.shapes_priced for c in certificates)
    sums, parts = sum(c.combined for c in certificates), sum(c.parts_priced for c in certificates)
    statuses = [c.status for c in certificates]
    proven = all(status == "OPTIMAL" for status in statuses)
    gap = max(c.gap for c in certificates)
    ends = (
        "proven: no shape of the space is better"
        if proven
        else f"effort ended; the loss may be {gap:.2%} lower"
    )
    hashes = certificates[-1].space_hash
    return {
        "shapes_priced": Step(
            whole, "", "", f"whole; {sums:,} more as sums of {parts:,} parts; the rest is bounded away"
        ),
        "certificate": Step("OPTIMAL" if proven else "FEASIBLE", "", "", f"{ends}; space {hashes}"),
    }


def _best(done: Searched, i: int) -> dict[str, Step]:
    s, costs, counts = done.shapes, done.costs, done.counts
    ffn = f"{s.experts[i]} experts of {s.expert_width[i]}, {s.top_k[i]} a token" if s.experts[i] > 1 else (
        f"feed-forward of {s.expert_width[i]}"
    )  # fmt: skip
    shared = f" and {s.shared[i]} shared" if s.shared[i] else ""
    told_shape = f"{s.heads[i]} heads of {s.head_dim[i]} over {s.kv_heads[i]} KV; {ffn}{shared}"
    inside = bool(done.priced.inside[i])
    out = {
        "best_shape": Step(shape_name(s, i), "", "", told_shape),
        "best_loss": Step(
            float(done.loss[i]),
            done.priced.law.unit,
            "",
            "" if inside else "outside the law's box: an extrapolation",
        ),
        "best_params": Step(
            int(counts.params[i]), "", "", f"{int(counts.active_params[i]):,} met by a token"
        ),
        "best_prefill": Step(float(costs.prefill_s[i]), "s"),
        "best_token": Step(float(costs.token_s[i]), "s"),
        "best_total": Step(float(costs.total_s[i]), "s", "", "prefill + output * token"),
        "best_memory": Step(float(costs.memory_bytes[i]), "B"),
    }
    for group, (prefill, decode) in _parts(done, i).items():
        whole = prefill + decode
        share = f"{whole / float(costs.total_s[i]):.1%}: prefill {told(1e3 * prefill)} ms, decode {told(1e3 * decode)} ms"
        out[f"part_{group}"] = Step(whole, "s", "", share)
    return out


def _parts(done: Searched, i: int) -> dict[str, tuple[float, float]]:
    return breakdown(done.shapes, i, done.grid.ends, done.device, done.request, done.latency)


def _binding(done: Searched, budget: Budget, i: int | None) -> str:
    """Which limit the best shape comes closest to, and what takes most there."""
    if i is None:
        return "no shape keeps it"
    shares = {name: float(column[i]) / limit for name, (column, limit) in budget.limits(done.costs).items()}
    shares["memory"] = max(
        shares["memory"], float(done.costs.memory_bytes[i]) / float(done.device.memory_bytes)
    )
    name = max(shares, key=lambda k: shares[k])
    parts = _memory_parts(done, i) if name == "memory" else _phase(_parts(done, i), name)
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


def _outside(done: Searched) -> tuple[str, ...]:
    """Where the law was not fitted: its own words, or one line for several variables."""
    priced = done.priced
    if len(priced.outside) < 2:
        return priced.warnings
    far = ", ".join(f"{name} in {int(rows.sum()):,}" for name, rows in priced.outside.items())
    return (
        f"{priced.law.name} was not fitted there, of {len(done.shapes):,} rows: {far}; losses there are extrapolations",
    )


def _edges(done: Searched, kept: list[int]) -> str:
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


def _closed_form(done: Searched, kept: list[int]) -> tuple[str, ...]:
    """What PLAS' theorems choose of the activation rate rho at that width, where the law has their form."""
    try:
        of = closed_forms.Coefficients.of(done.priced.law.coefficients)
        i = kept[-1] if kept else int(done.on_front[-1])
        width = int(done.shapes.width[i])
        rho = float(closed_forms.memory_activation(of, width))
    except InputError:
        return ()
    offered = _activations(done)
    lowest, highest = min(offered), max(offered)
    clipped = min(max(rho, lowest), highest)
    at = "" if clipped == rho else f", clipped at {clipped:.4g} by the grid"
    own = float(done.shapes.activation[i])
    line = (
        f"memory-bound at width {width:,}: rho* = {rho:.4g}{at}; latency-bound: rho* = {lowest:.4g}, the least; "
        f"the {'best' if kept else 'slowest of the front'} has {own:.4g}"
    )
    return (line,)


def _activations(done: Searched) -> list[float]:
    """Every rho that the grid offers."""
    pairs = [
        (e, k, n) for e, k in done.grid.experts for n in done.grid.shared if k <= e and (n == 0 or e > 1)
    ]
    return [(k + n) / (e + n) for e, k, n in pairs]


def _table(done: Searched) -> tuple[dict[str, Value], ...]:
    """The best under each budget, by its number, then the front, thinned evenly."""
    on = done.on_front
    picked = on[np.unique(np.linspace(0, len(on) - 1, min(_ROWS, len(on))).astype(np.int64))]
    best = [(str(n), i) for n, i in enumerate(done.best, 1) if i is not None]
    return tuple(_row(done, int(i), name) for name, i in (*best, *(("", i) for i in picked)))


def _row(done: Searched, i: int, best: str) -> dict[str, Value]:
    s, c, grid = done.shapes, done.costs, done.grid
    row: dict[str, Value] = {"best": best, "layers": int(s.layers[i]), "width": int(s.width[i])}
    if len(grid.head_dim) > 1:
        row["head_dim"] = int(s.head_dim[i])
    row |= {"kv_heads": int(s.kv_heads[i]), "experts": int(s.experts[i]), "top_k": int(s.top_k[i])}
    if len(grid.shared) > 1:
        row["shared"] = int(s.shared[i])
    return row | {
        "ffn_ratio": float(s.ffn_ratio[i]),
        "loss": round(float(done.loss[i]), 4),
        "ttft_ms": round(1e3 * float(c.prefill_s[i]), 3),
        "tpot_ms": round(1e3 * float(c.token_s[i]), 3),
        "total_ms": round(1e3 * float(c.total_s[i]), 3),
        "GiB": round(float(c.memory_bytes[i]) / 2**30, 3),
    }


def _closest(done: Searched) -> str:
    c = done.costs
    return (
        f"no shape of the grid keeps the budget: the fastest takes {told(1e3 * float(c.total_s.min()))} ms in all, "
        f"{told(1e3 * float(c.prefill_s.min()))} ms of prefill and {told(1e3 * float(c.token_s.min()))} ms a token, and the "
        f"smallest {told(float(c.memory_bytes.min()) / 2**30)} GiB; allow more, or add smaller shapes to the grid"
    )
