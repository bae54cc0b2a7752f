"""Pipeline schedules as data: what each splits, hides and needs.

A backward pass is two: gradients of a layer's input (B), which the stage before waits for, and of its weights (W),
which nobody waits for. Schedules that split them fill the bubble with W. With equal stages of F + B + W seconds:

    1f1b        (p - 1) (F + B + W)             Narayanan et al. 2019; gpipe, Huang et al. 2019, waits as long
    interleaved (p - 1) (F + B + W) / v         Narayanan et al. 2021
    zb_h1       (p - 1) (F + B - W)             Qi et al. 2023, arXiv 2401.10241
    zb_h2       (p - 1) (F + B - 2 W)           the same; of each stage by itself, see below
    dualpipev   (p - 1) (F + 2 B - W) / 2       DeepSeek-V3, arXiv 2412.19437 and the repository deepseek-ai/DualPipe

`hides_weight` and `hides_forward` write each as F + B + W less so many W and F. DualPipe's own figure is
(p/2 - 1) (F&B + B' - 3 W) for chunks of one p-th of the model, where B' is a whole backward pass and F&B a forward
and a backward run as one; nothing that the two overlap is counted here. `dualpipev` is DualPipe cut in half, as
launchers run it (DualPipeV): p ranks with two chunks each, the first from the front of the model and the second from
its back. DualPipe on 2 p ranks is two of them, as two data-parallel copies.

zb_h2 counts a step from a stage's first forward to its last W: the next step starts on the early stages while the
late ones still work. It needs an optimizer that updates each stage without waiting for all (no clipping by the norm
of all gradients before the update); with such a barrier it waits (p - 1) max(F, F + B - 2 W).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Attributes:
    chunks: of a stage, 1 or 2; 0 for any number above 1.
    splits: weight gradients run apart from input gradients.
    hides_weight, hides_forward: seconds of W and F that the bubble of a stage is shorter by.
    turns: the second chunk runs the other way, so the first rank also holds the head.
    least_rounds: (a, b) where it needs a p - b micro-batches.
    """

    name: str
    chunks: int = 1
    splits: bool = False
    hides_weight: float = 0.0
    hides_forward: float = 0.0
    turns: bool = False
    least_rounds: tuple[int, int] = (0, 0)


ALL = (
    Schedule("gpipe"),
    Schedule("1f1b"),
    Schedule("interleaved", chunks=0),
    Schedule("zb_h1", splits=True, hides_weight=2.0, least_rounds=(1, 0)),
    Schedule("zb_h2", splits=True, hides_weight=3.0, least_rounds=(2, 1)),
    Schedule(
        "dualpipev",
        chunks=2,
        splits=True,
        hides_weight=1.5,
        hides_forward=0.5,
        turns=True,
        least_rounds=(2, 0),
    ),
)
SCHEDULES = tuple(s.name for s in ALL)
GPIPE, ONE_F_ONE_B, INTERLEAVED, ZB_H1, ZB_H2, DUALPIPEV = range(len(ALL))
