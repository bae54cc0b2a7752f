"""Answers about free devices as workings: the cheapest device, or the front of price against loss."""

import numpy as np

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.working import Step, Value, Working
from meshwright.hardware.units import human_bytes, human_rate
from meshwright.search.asked import Budget
from meshwright.search.grid import Grid
from meshwright.search.law import Law
from meshwright.search.machine.cheapest import Choice, Chosen, cheapest, price_front
from meshwright.search.machine.space import DeviceSpace
from meshwright.search.output.config import shape_name
from meshwright.search.price import Latency
from meshwright.search.shape import Shapes

_ROWS = 12  # of a front on the page
_TIMES = {"prefill": "prefill_s", "token": "token_s", "total": "total_s"}


def device_answer(
    space: DeviceSpace,
    law: Law,
    grid: Grid,
    request: Request,
    budget: Budget,
    loss: float | None = None,
    *,
    latency: Latency = "full",
    tokens: float | None = None,
) -> Working:
    """The cheapest device that reaches the loss in time, or the whole front where no loss is given.

    Errors: as `cheapest`.
    """
    if loss is None:
        done = price_front(space, law, grid, request, budget, latency=latency, tokens=tokens)
        question = f"What does each loss cost in device space {space.name}?"
        binds = f"{len(done.choices)} points: no device is cheaper at the same loss"
        steps = {}
    else:
        done = cheapest(space, law, grid, request, budget, loss, latency=latency, tokens=tokens)
        question = f"Which device of space {space.name} is the cheapest that reaches loss {loss:g}?"
        binds = _binding(done.choices[0], budget)
        name = shape_name(done.shapes, done.choices[0].row)
        steps = {"shape": Step(name)} | _device(done.choices[0], space, law.unit)
    given = {
        "currency": Step(space.price.unit, "", note=space.price.source),
        **asked_steps(law, request, latency, tokens, budget, loss),
    }
    picked = np.unique(np.linspace(0, len(done.choices) - 1, min(_ROWS, len(done.choices))).astype(np.int64))
    table = tuple(_row(done, done.choices[i], grid) for i in picked)
    return Working(question, given, steps | _counts(done), binds, _notes(space, done), table)


def asked_steps(
    law: Law, request: Request, latency: Latency, tokens: float | None, budget: Budget, loss: float | None
) -> dict[str, Step]:
    """What was asked, for any device."""
    steps = {
        "law": Step(law.name, law.unit, note=law.source),
        "latency": Step(latency),
        "batch": Step(request.batch, "sequences"),
        "prompt": Step(request.prompt, "tokens"),
        "output": Step(request.output, "tokens"),
        "weight_bytes": Step(request.weight_bytes, "B"),
        "kv_bytes": Step(request.kv_bytes, "B"),
    }
    if request.head_bytes is not None:
        steps["head_bytes"] = Step(request.head_bytes, "B", note="of table and head")
    if tokens is not None:
        steps["tokens"] = Step(tokens, "tokens", note="of training, for the law")
    steps |= {
        name: Step(limit, "B" if name == "memory_bytes" else "s")
        for name, limit in vars(budget).items()
        if np.isfinite(limit)
    }
    if loss is not None:
        steps["loss_asked"] = Step(float(loss), law.unit)
    return steps


def _device(one: Choice, space: DeviceSpace, unit: str) -> dict[str, Step]:
    return {
        "price": Step(one.price, space.price.unit),
        "compute": Step(one.flop_per_s, "FLOP/s"),
        "bandwidth": Step(one.bytes_per_s, "B/s"),
        "memory": Step(one.memory_bytes, "B"),
        "loss": Step(one.loss, unit),
        **{name: Step(float(getattr(one.costs, column)[0]), "s") for name, column in _TIMES.items()},
        "memory_needed": Step(float(one.costs.memory_bytes[0]), "B"),
    }


def _counts(done: Chosen) -> dict[str, Step]:
    c = done.certificate
    return {
        "status": Step(c.status),
        "shapes": Step(c.shapes),
        "devices": Step(c.devices, note=f"{sum(c.forbidden.values()):,} more are forbidden by rule"),
        **{f"removed_{name}": Step(n, "shapes") for name, n in c.removed.items()},
        "settled": Step(c.settled, "shapes", note="whose cheapest device was found"),
        "pairs": Step(c.pairs, "", "shapes * devices"),
        "pairs_priced": Step(c.priced),
        "share_priced": Step(c.priced / c.pairs, "ratio", "pairs_priced / pairs"),
    }


def _row(done: Chosen, one: Choice, grid: Grid) -> dict[str, Value]:
    return {
        "price": one.price,
        "compute": human_rate(one.flop_per_s, "FLOP/s"),
        "bandwidth": human_rate(one.bytes_per_s),
        "memory": human_bytes(one.memory_bytes),
        "loss": one.loss,
        **shape_cells(done.shapes, one.row, grid),
        "in_box": one.in_box,
    }


def shape_cells(shapes: Shapes, row: int, grid: Grid) -> dict[str, Value]:
    """A shape in the table of an answer; head size and shared experts where the grid has several."""
    varied = tuple(name for name in ("head_dim", "shared") if len(getattr(grid, name)) > 1)
    counts = ("layers", "width", "kv_heads", "experts", "top_k", *varied)
    cells: dict[str, Value] = {name: int(getattr(shapes, name)[row]) for name in counts}
    return cells | {"ffn_ratio": float(shapes.ffn_ratio[row])}


def _binding(one: Choice, budget: Budget) -> str:
    """Which limit the shape comes closest to on its device."""
    shares = {name: float(column[0]) / limit for name, (column, limit) in budget.limits(one.costs).items()}
    shares["memory of the device"] = float(one.costs.memory_bytes[0]) / one.memory_bytes
    name = max(shares, key=lambda k: shares[k])
    return f"{name}: the shape takes {shares[name]:.1%} of it; nothing cheaper of the space reaches the loss in time"


def _notes(space: DeviceSpace, done: Chosen) -> tuple[str, ...]:
    notes = []
    if space.price.example:
        notes.append(
            f"the prices of {space.name} only show the form ({space.price.source}); give your own file"
        )
    ideal = space.prefill == space.decode == type(space.prefill)()
    notes.append(
        "every peak is reached in full: give `prefill` and `decode` shares in the file for a real device"
        if ideal
        else f"shares of peaks as device space {space.name} states them; that of experts is of the bandwidth reached"
    )
    outside = sum(not one.in_box for one in done.choices)
    if outside:
        notes.append(f"{outside} of {len(done.choices)} shapes lie outside the law's box")
        notes += done.priced.warnings
    return tuple(notes)
