"""The answer about several devices on one screen: the best of each, what one shape for all costs, fronts in a few rows."""

from collections.abc import Mapping
from os import PathLike

import numpy as np

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.costmodel.working import Step, Value, Working
from meshwright.hardware.units import human_bytes, human_rate
from meshwright.search.asked import Against, Budget, NoShapeError
from meshwright.search.grid import Grid
from meshwright.search.law import Law
from meshwright.search.machine.answers import asked_steps, shape_cells
from meshwright.search.machine.several import NO_LIMIT, OneForAll, Several, fronts
from meshwright.search.output.config import shape_name
from meshwright.search.price import Costs, Latency
from meshwright.search.shape import Floats, Shapes

_ROWS = 18  # of all fronts together


def fronts_working(
    devices: Mapping[str, Device],
    law: Law | str,
    grid: Grid | str | PathLike[str],
    request: Request,
    budget: Budget = NO_LIMIT,
    *,
    latency: Latency = "full",
    against: Against = "total",
    loss: float | None = None,
    tokens: float | None = None,
) -> Working:
    """`fronts` as an answer.

    Errors: as `fronts`; NoShapeError where a budget is given and no device has a shape that keeps it.
    """
    done = fronts(
        devices, law, grid, request, budget, latency=latency, against=against, loss=loss, tokens=tokens
    )
    first = next(iter(done.searched.values()))
    if budget != NO_LIMIT and all(one.best[0] is None for one in done.searched.values()):
        raise NoShapeError(
            f"no shape of the grid keeps the budget on any of {', '.join(devices)}; allow more"
        )
    given = {
        f"device_{n}": Step(name, "", "", f"{human_rate(device.prefill.flop_per_s, 'FLOP/s')}, "
                            f"{human_rate(device.decode.bytes_per_s)}, {human_bytes(device.memory_bytes)}")
        for n, (name, device) in enumerate(devices.items(), 1)
    } | asked_steps(first.priced.law, request, latency, tokens, budget, loss)  # fmt: skip
    steps = {f"front_{name}": Step(len(one.on_front), "shapes", "", f"of {len(one.shapes):,} that fit")
             for name, one in done.searched.items()}  # fmt: skip
    binds = done.why
    if (one := done.one_for_all) is not None:
        steps["for_all"] = Step(shape_name(one.shape, 0), "", "", "the one shape for all devices")
        steps |= {f"regret_{name}": Step(value, one.unit) for name, value in one.regret.items()}
        binds = _told(one)
    notes = tuple(dict.fromkeys(note for s in done.searched.values() for note in s.priced.warnings))
    question = f"best shapes by {first.priced.law.name} on {len(devices)} devices: loss against {against}"
    return Working(question, given, steps, binds, notes, _table(done))


def _told(one: OneForAll) -> str:
    worst = max(one.regret, key=lambda name: one.regret[name])
    much = f"{one.regret[worst]:.4f} nats" if one.unit != "ratio" else f"{one.regret[worst]:.1%}"
    more = "above the best that" if one.unit != "ratio" else "more than the least that"
    return (
        f"one shape for all of loss {one.loss:.4f} is at worst {much} {more} {worst} reaches alone; no other shape of the "
        "grid has a smaller worst"
    )


def _table(done: Several) -> tuple[dict[str, Value], ...]:
    """Best of each device, the one for all on each, then the fronts, thinned evenly. Devices by their number."""
    best, shared, front = [], [], []
    each = max(3, _ROWS // len(done.searched))
    one = done.one_for_all
    for n, (name, s) in enumerate(done.searched.items(), 1):
        if s.budgets[0] != NO_LIMIT and (i := s.best[0]) is not None:
            best.append(_row(n, "best", s.grid, s.shapes, s.costs, s.loss, i))
        if one is not None:
            shared.append(_row(n, "for all", s.grid, one.shape, one.costs[name], np.array([one.loss]), 0))
        picked = np.unique(np.linspace(0, len(s.on_front) - 1, min(each, len(s.on_front))).astype(np.int64))
        front += [_row(n, "front", s.grid, s.shapes, s.costs, s.loss, i) for i in s.on_front[picked]]
    return (*best, *shared, *front)


def _row(
    device: int, what: str, grid: Grid, shapes: Shapes, costs: Costs, loss: Floats, i: int
) -> dict[str, Value]:
    return {
        "device": device,
        "row": what,
        "loss": float(loss[i]),
        "ttft_ms": 1e3 * float(costs.prefill_s[i]),
        "tpot_ms": 1e3 * float(costs.token_s[i]),
        "total_ms": 1e3 * float(costs.total_s[i]),
        "GiB": float(costs.memory_bytes[i]) / 2**30,
        **shape_cells(shapes, i, grid),
    }
