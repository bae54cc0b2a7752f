"""The front of a search as a curve, and the best under each budget as points."""

from pathlib import Path

import numpy as np

from meshwright.optimizer.files import replacing
from meshwright.optimizer.report.plot import Curve, draw
from meshwright.search.answer import label
from meshwright.search.asked import Searched

_AXES = {
    "total": ("prefill + decode, ms", 1e3),
    "ttft": ("prefill, ms", 1e3),
    "tpot": ("a decoded token, ms", 1e3),
    "memory": ("memory, GiB", 2.0**-30),
}


def draw_front(path: Path, done: Searched, where: str) -> None:
    """Errors: MissingExtraError (exit code 5) without matplotlib; InputError where the file cannot be written."""
    name, scale = _AXES[done.against]
    cost, loss = scale * done.against_cost, np.asarray(done.loss)
    curves = [
        Curve(
            f"front, {len(done.on_front)} shapes",
            cost[done.on_front].tolist(),
            loss[done.on_front].tolist(),
            step=True,
        )
    ]
    curves += [
        Curve(f"best at {label(budget)}", [float(cost[row])], [float(loss[row])])
        for budget, row in zip(done.budgets, done.best, strict=True)
        if row is not None
    ]
    law = done.priced.law
    with replacing(path) as part:
        draw(part, f"{law.name} on {where}, {done.request.prompt} tokens in, {done.request.output} out",
             (name, f"loss, {law.unit}"), curves, plain_y=True)  # fmt: skip
