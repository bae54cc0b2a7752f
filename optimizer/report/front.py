"""The page, the table file and the picture of a front."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path

from meshwright.optimizer.files import replacing
from meshwright.optimizer.goals.front import Front, Point
from meshwright.optimizer.report import words
from meshwright.optimizer.report.answer import question
from meshwright.optimizer.report.page import Block, alarm, faint, line, table, title
from meshwright.optimizer.report.plot import Curve, draw
from meshwright.optimizer.report.table import Cell, write_rows

_GIB = 2.0**-30


def front(made: Front) -> Iterator[Block]:
    """What was asked, and a line for each plan; columns on which all layouts agree are left out."""
    yield from question(dict(made.inputs))
    yield title(f"Front of {made.axes[0]} and {made.axes[1]}", words.plural(len(made.points), "plan"))
    kinds = made.inputs["model"].get("kinds", ())
    shown = [words.visible(point.layout, kinds) for point in made.points]
    columns = words.apart([point.layout for point in made.points], shown)
    decimals = _decimals([point.step_s for point in made.points])
    rows = [
        (
            *_figures(point, decimals),
            *([] if made.proven else ["yes" if point.proven else "no"]),
            *(cells[c] for c in columns),
        )
        for point, cells in zip(made.points, shown, strict=True)
    ]
    header = ("step, s", "chips", "GiB", made.cost_unit.replace(" per million tokens", "/Mtoken"))
    yield table(
        rows,
        "rrrr" + "l" * (len(rows[0]) - 4),
        header=(*header, *([] if made.proven else ["proven"]), *columns),
    )
    if same := [f"{name} {shown[0][name]}" for name in shown[0] if name not in columns]:
        yield faint(f"all: {', '.join(same)}")
    if made.apart:
        yield line(
            f"every next plan has at least {100 * made.apart:.3g}% less {'memory' if 'memory' in made.axes else 'chips'}; more lie between"
        )
    if made.proven:
        yield line(
            f"Each plan is proven the best within what it takes, and no other is better in both ({words.plural(made.solved, 'proof')})."
        )
    else:
        yield alarm(f"plans may be missing: {made.open_end}")
    yield faint("chips and cost are those used: idle chips are not paid for. GiB: on the fullest device.")


def _decimals(steps_s: Sequence[float]) -> int:
    """Decimals that four digits of the fastest take, and up to three more where neighbours would look the same."""
    least = words.decimals_for(min(steps_s))
    for more in range(4):
        shown = [words.fixed(step_s, least + more) for step_s in steps_s]
        if all(a != b for a, b in pairwise(shown)):
            break
    return least + more


def _figures(point: Point, decimals: int) -> tuple[str, ...]:
    return (
        words.fixed(point.step_s, decimals),
        f"{point.chips:,g}",
        words.gib(point.device_bytes),
        f"{point.cost:.4g}",
    )


def write(path: str | PathLike[str], made: Front) -> None:
    """A row for each plan: what it takes on every axis, then its layout, policies as its text has them.

    Errors: InputError where the file cannot be written.
    """
    kinds = made.inputs["model"].get("kinds", ())
    names = (
        "step_s",
        "chips",
        "device_bytes",
        made.cost_unit.replace(" ", "_").replace("-", "_").lower(),
        "proven",
    )
    rows: list[Sequence[Cell]] = [
        (
            p.step_s,
            p.chips,
            p.device_bytes,
            p.cost,
            p.proven,
            *(words.visible(p.layout, kinds) | _in_full(p)).values(),
        )
        for p in made.points
    ]
    write_rows(path, (*names, *words.visible(made.points[0].layout, kinds)), rows)


def _in_full(point: Point) -> dict[str, str]:
    return {"recompute": ";".join("/".join(stage) for stage in point.layout.policy_words)}


def draw_front(path: Path, made: Front) -> None:
    """Errors: MissingExtraError (exit code 5) without matplotlib; InputError where the file cannot be written."""
    scales = {
        "time": ("s a step", 1.0),
        "memory": ("GiB on the fullest device", _GIB),
        "chips": ("chips used", 1.0),
        "cost": (made.cost_unit, 1.0),
    }
    (name, each), (other, per) = (scales[axis] for axis in made.axes)
    x, y = (
        [scale * p.on(axis) for p in made.points] for axis, scale in zip(made.axes, (each, per), strict=True)
    )
    with replacing(path) as part:
        draw(
            part,
            f"{made.inputs['model']['name']} on {made.inputs['cluster']['name']}",
            (name, other),
            [Curve(words.plural(len(x), "plan"), x, y, step=True)],
        )
