"""Published measurements of overlap: how much of a collective was hidden under the product that it feeds."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from meshwright.costmodel.working import Step, Working
from meshwright.hardware.errors import MissingFigureError
from meshwright.hardware.figures import SecondsFigure, Strict, load_yaml


class Run(Strict):
    """One product on one mesh, timed in three ways."""

    chip: str
    mesh: dict[str, int]
    sizes: dict[str, int]
    blocking: SecondsFigure
    overlapped: SecondsFigure
    no_comms: SecondsFigure


class _Runs(Strict):
    runs: tuple[Run, ...]


@cache
def overlap_runs() -> tuple[Run, ...]:
    """All of them."""
    return load_yaml(Path(__file__).parents[1] / "data" / "overlap.yaml", _Runs).runs


def measured_overlap(chip: str, mesh: Mapping[str, int], sizes: Mapping[str, int]) -> Working:
    """What was exposed and hidden in the run of a product.

    Errors: MissingFigureError where nobody published that product on that mesh.
    """
    for run in overlap_runs():
        if (run.chip, run.mesh, run.sizes) == (chip, dict(mesh), dict(sizes)):
            return _working(run)
    known = "; ".join(f"{_shape(r.sizes)} on {r.chip} {_shape(r.mesh)}" for r in overlap_runs())
    raise MissingFigureError(
        f"no published timing of {_shape(sizes)} on {chip} {_shape(mesh)}; there are {known}"
    )


def _working(run: Run) -> Working:
    blocking, overlapped, alone = (f.si for f in (run.blocking, run.overlapped, run.no_comms))
    before, after = blocking - alone, overlapped - alone
    return Working(
        question=f"How much of its communication did {_shape(run.sizes)} hide on {run.chip} {_shape(run.mesh)}?",
        given={
            "blocking": Step(blocking, "s", note=f"{run.blocking.source}; {run.blocking.note}"),
            "overlapped": Step(overlapped, "s"),
            "no_comms": Step(alone, "s"),
        },
        steps={
            "exposed_blocking": Step(before, "s", "blocking - no_comms"),
            "exposed_overlapped": Step(after, "s", "overlapped - no_comms"),
            "hidden": Step(1.0 - after / before, "ratio", "1 - exposed_overlapped / exposed_blocking"),
        },
    )


def _shape(sizes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in sizes.items())
