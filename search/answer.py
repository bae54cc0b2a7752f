"""The answer of a search on one screen: what was searched, the best under each budget, what binds it, the front."""

from typing import TYPE_CHECKING

import numpy as np

from meshwright.costmodel.working import Step, Value, Working, told
from meshwright.search.asked import Budget, NoShapeError, Searched
from meshwright.search.board import Board
from meshwright.search.output.config import shape_name
from meshwright.search.why import binding, closed_form, edges, outside, parts_s

if TYPE_CHECKING:
    from meshwright.search.engine.answers import Certificate

_ROWS = 10  # of the front on the page

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
        "compute": Step(board.compute),
        "latency": Step(done.latency),
        "weight_bytes": Step(request.weight_bytes, "B", "", f"of {board.weights}"),
        "kv_bytes": Step(request.kv_bytes, "B"),
        **(
            {}
            if request.head_bytes is None
            else {"head_bytes": Step(request.head_bytes, "B", "", "of table and head")}
        ),
        "law": Step(law.name, "", "", law.source),
        **(
            {}
            if done.tokens is None
            else {"tokens": Step(done.tokens, "tokens", "", "of training, for the law")}
        ),
        **{f"budget_{n}": Step(label(budget)) for n, budget in enumerate(done.budgets, 1)},
    }
    kept = [i for i in done.best if i is not None]
    if done.budgets and not kept:
        raise NoShapeError(_closest(done))
    steps, binds = _counts(done), "no budget is given; the table is the front"
    notes = [edges(done, kept), *closed_form(done, kept), *outside(done), *board.notes]
    bound = [(label(b), binding(done, b, i)) for b, i in zip(done.budgets, done.best, strict=True)]
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


def _proofs(certificates: "tuple[Certificate, ...]") -> dict[str, Step]:
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
    for group, (prefill, decode) in parts_s(done, i).items():
        whole = prefill + decode
        share = f"{whole / float(costs.total_s[i]):.1%}: prefill {told(1e3 * prefill)} ms, decode {told(1e3 * decode)} ms"
        out[f"part_{group}"] = Step(whole, "s", "", share)
    return out


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
        "loss": float(done.loss[i]),
        "ttft_ms": 1e3 * float(c.prefill_s[i]),
        "tpot_ms": 1e3 * float(c.token_s[i]),
        "total_ms": 1e3 * float(c.total_s[i]),
        "GiB": float(c.memory_bytes[i]) / 2**30,
    }


def _closest(done: Searched) -> str:
    c = done.costs
    return (
        f"no shape of the grid keeps the budget: the fastest takes {told(1e3 * float(c.total_s.min()))} ms in all, "
        f"{told(1e3 * float(c.prefill_s.min()))} ms of prefill and {told(1e3 * float(c.token_s.min()))} ms a token, and the "
        f"smallest {told(float(c.memory_bytes.min()) / 2**30)} GiB; allow more, or add smaller shapes to the grid"
    )
