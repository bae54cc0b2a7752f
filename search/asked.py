"""Best shapes of a grid for a device: the front of loss against latency, and the best under a budget.

A first slice: latency and memory in PLAS' aggregated forms (`search.plas`), loss by one law, the grid listed whole,
so the front is exact by exhaustion.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.costmodel.working import Step, Value, Working
from meshwright.hardware.errors import InputError
from meshwright.search import closed_forms
from meshwright.search.front import best, front
from meshwright.search.grid import Grid, list_shapes
from meshwright.search.law import Law, Priced
from meshwright.search.plas import Evaluated, evaluate, memory_bytes
from meshwright.search.shape import Ints, Shapes

_ROWS = 12  # of the front on the page
FITS = "memory of the device"


@dataclass(frozen=True)
class Budget:
    """Limits on a shape; inf where there is none.

    Attributes:
        ttft_s: seconds of prefill. tpot_s: seconds of a decoded token, averaged. total_s: both phases together.
    """

    ttft_s: float = np.inf
    tpot_s: float = np.inf
    total_s: float = np.inf


@dataclass(frozen=True)
class Searched:
    """What a search found, as columns.

    Attributes:
        on_front: rows of the front, by rising total latency. chosen: the best row under the budget, or None.
        removed: shapes that each rule removed; listed: before any.
    """

    shapes: Shapes
    found: Evaluated
    priced: Priced
    on_front: Ints
    chosen: int | None
    listed: int
    removed: dict[str, int]


def search_shapes(law: Law, grid: Grid, device: Device, asked: Request, budget: Budget) -> Searched:
    """Price every legal shape that fits the memory, and choose.

    Errors: InputError where no legal shape fits the memory.
    """
    listing = list_shapes(grid, {FITS: lambda s: memory_bytes(s, asked) <= device.memory_bytes})
    shapes = listing.shapes
    if not len(shapes):
        least = float(memory_bytes(list_shapes(grid).shapes, asked).min())
        raise InputError(
            f"no shape of the grid fits {device.memory_bytes:.4g} bytes, the smallest takes {least:.4g}; give more "
            "memory, fewer bytes per weight, or a grid of smaller shapes"
        )
    priced = law.loss(shapes)
    found = evaluate(shapes, lambda _: priced.loss, device, asked)
    limits = ((found.prefill_s, budget.ttft_s), (found.decode_s / asked.output, budget.tpot_s))
    chosen = best(found.loss, found.total_s, budget.total_s, *limits)
    on_front = front(found.loss, found.total_s)
    return Searched(shapes, found, priced, on_front, chosen, listing.listed, dict(listing.removed))


def search(
    law: Law, grid: Grid, device: Device, asked: Request, budget: Budget, *, where: str = ""
) -> Working:
    """The same as an answer: counts, the front in some rows, the best shape and what binds it.

    Errors: as `search_shapes`; InputError where no shape keeps the budget, with the closest.
    """
    done = search_shapes(law, grid, device, asked, budget)
    shapes = done.shapes
    given = {
        "C": Step(device.prefill.flop_per_s, "FLOP/s"),
        "W": Step(device.decode.bytes_per_s, "B/s"),
        "memory": Step(device.memory_bytes, "B"),
        "prompt": Step(asked.prompt, "tokens"),
        "output": Step(asked.output, "tokens"),
        "weight_bytes": Step(asked.weight_bytes, "B"),
        "kv_bytes": Step(asked.kv_bytes, "B"),
        "law": Step(law.name, "", note=law.source),
    }
    on = done.on_front
    steps = {
        "shapes_listed": Step(done.listed),
        **{f"removed_{rule.replace(' ', '_')}": Step(n) for rule, n in done.removed.items()},
        "shapes_priced": Step(len(shapes), note="all of them: the front is exact"),
        "front_points": Step(len(on), note="loss against prefill + decode"),
        "front_moe_share": Step(float((shapes.experts[on] > 1).mean()), "ratio"),
        "front_depth_to_20": Step(float((shapes.layers[on] <= 20).mean()), "ratio"),
        "outside_law": Step(int((~done.priced.inside).sum()), "shapes", note="priced, and flagged"),
    }
    binds = "no budget is given; the table is the front"
    if budget != Budget():
        steps |= _best(done, asked, budget)
        binds = _binding(done, device, asked, budget)
    picked = on[np.unique(np.linspace(0, len(on) - 1, min(_ROWS, len(on))).astype(np.int64))]
    notes = (*_closed_form(law, done, asked), *done.priced.warnings, _LEFT_OUT)
    table = tuple(_row(done, int(i)) for i in picked)
    return Working(f"best shapes by {law.name} on {where}, {asked.prompt} tokens in and {asked.output} out",
                   given, steps, binds, notes, table)  # fmt: skip


_LEFT_OUT = (
    "latency by PLAS' aggregated forms, which leave out embedding and head, the square term of attention, the "
    "router, all experts' weights in prefill, launches and the cache in memory: they compare shapes, they are no estimate"
)


def _row(done: Searched, i: int) -> dict[str, Value]:
    s, f = done.shapes, done.found
    return {
        "layers": int(s.layers[i]), "width": int(s.width[i]), "experts": int(s.experts[i]),
        "top_k": int(s.top_k[i]), "ffn_ratio": float(s.ffn_ratio[i]), "kv_heads": int(s.kv_heads[i]),
        "loss": round(float(f.loss[i]), 4), "prefill_ms": round(1e3 * float(f.prefill_s[i]), 3),
        "decode_ms": round(1e3 * float(f.decode_s[i]), 3),
        "memory_GiB": round(float(f.memory_bytes[i]) / 2**30, 3), "in_box": bool(done.priced.inside[i]),
    }  # fmt: skip


def _best(done: Searched, asked: Request, budget: Budget) -> dict[str, Step]:
    if done.chosen is None:
        f = done.found
        raise InputError(
            f"no shape of the grid keeps the budget: the fastest takes {1e3 * float(f.total_s.min()):.4g} ms in all, "
            f"{1e3 * float(f.prefill_s.min()):.4g} ms of prefill and {1e3 * float(f.decode_s.min()) / asked.output:.4g} ms "
            "a token; allow more, or add smaller shapes to the grid"
        )
    row = _row(done, done.chosen)
    i, f = done.chosen, done.found
    return {
        **{f"best_{name}": Step(value) for name, value in row.items() if not name.endswith(("_ms", "_GiB"))},
        "best_loss": Step(float(f.loss[i]), done.priced.law.unit),
        "best_prefill": Step(float(f.prefill_s[i]), "s"),
        "best_token": Step(float(f.decode_s[i]) / asked.output, "s", "decode / output"),
        "best_total": Step(float(f.total_s[i]), "s"),
        "best_memory": Step(float(f.memory_bytes[i]), "B"),
    }


def _binding(done: Searched, device: Device, asked: Request, budget: Budget) -> str:
    """Which limit the best shape comes closest to."""
    assert done.chosen is not None
    i, f = done.chosen, done.found
    shares = {
        "prefill": float(f.prefill_s[i]) / budget.ttft_s,
        "decode": float(f.decode_s[i]) / asked.output / budget.tpot_s,
        "total latency": float(f.total_s[i]) / budget.total_s,
        "memory": float(f.memory_bytes[i]) / device.memory_bytes,
    }
    name = max(shares, key=lambda k: shares[k])
    return f"{name}: the best shape takes {shares[name]:.1%} of its limit"


def _closed_form(law: Law, done: Searched, asked: Request) -> tuple[str, ...]:
    """What memory alone would choose, where the law has PLAS' form."""
    try:
        of = closed_forms.Coefficients.of(law.coefficients)
    except InputError:
        return ()
    width = int(done.shapes.width[done.chosen if done.chosen is not None else done.on_front[-1]])
    rho = float(closed_forms.memory_activation(of, width))
    lowest, highest = float(done.shapes.activation.min()), float(done.shapes.activation.max())
    clipped = min(max(rho, lowest), highest)
    at = "" if clipped == rho else f", clipped at {clipped:.4g} by the grid"
    return (
        f"memory-bound at width {width:,}: rho* = {rho:.4g}{at}; latency-bound: rho* = {lowest:.4g}, the least",
    )
