"""Curves as a file. The only module that knows the plotting library, which is the optional part `plot`."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from meshwright.hardware.errors import InputError, MissingExtraError

SUFFIXES = (".png", ".svg")


@dataclass(frozen=True)
class Curve:
    """One line of a plot, or with one value of each a point.

    Attributes:
        step: each value holds until the next; nothing lies between.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    step: bool = False


def plot_path(text: str) -> Path:
    """A file to draw into; asked before what is drawn is worked out.

    Errors: InputError for an ending that is not drawn, or a folder that is not there; MissingExtraError (exit code 5) without
    matplotlib.
    """
    path = Path(text)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"--plot {text[:80]!r} ends in neither {' nor '.join(SUFFIXES)}; name it like curve.svg"
        )
    if not path.parent.is_dir():
        raise InputError(f"--plot {text[:80]!r}: there is no folder {path.parent}; make it first")
    if find_spec("matplotlib") is None:
        raise MissingExtraError("--plot", "plot")
    return path


def draw(
    path: Path, title: str, axes: tuple[str, str], curves: Sequence[Curve], *, plain_y: bool = False
) -> None:
    """Curves over logarithmic axes, or with a plain one upwards where values hardly differ.

    Errors: MissingExtraError (exit code 5) without matplotlib; InputError where the file cannot be written.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("--plot", "plot") from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    _paint(figure.add_subplot(), title, axes, curves, plain_y)
    # Neither a date nor random names in the file: the same question draws the same bytes.
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    try:
        with rc_context({"svg.hashsalt": "meshwright"}):
            figure.savefig(path, metadata=metadata)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def _paint(plot: Any, title: str, axes: tuple[str, str], curves: Sequence[Curve], plain_y: bool) -> None:
    for curve in curves:
        alone = len(curve.x) == 1
        how = {"drawstyle": "steps-post"} if curve.step else {}
        plot.plot(curve.x, curve.y, "o" if alone else "-", label=curve.label, **how)
    plot.set_xscale("log")
    plot.set_yscale("linear" if plain_y else "log")
    plot.set_xlabel(axes[0])
    plot.set_ylabel(axes[1])
    plot.set_title(title, fontsize=10)
    plot.grid(True, which="both", alpha=0.3)
    plot.legend(fontsize=8)
