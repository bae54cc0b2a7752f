"""One device's steps measured: seconds by kind and class, and every operation with its time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.costmodel.doors import check_whole
from meshwright.optimizer.traces.events import Event, Label, Trace
from meshwright.optimizer.traces.timeline import (
    Segment,
    Spent,
    Window,
    busiest,
    segments,
    spent,
    windows_of,
)


@dataclass(frozen=True)
class Measured:
    """What the busiest device did in its steps.

    Attributes:
        steps: how many the windows hold; found: how they were told apart.
        events: those that begin in a window. own_s: seconds in which each is the innermost of its stream.
        spent: seconds of all steps together.
    """

    device: str
    windows: tuple[Window, ...]
    steps: int
    found: str
    events: tuple[Event, ...]
    own_s: tuple[float, ...]
    spent: Spent

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return sum(end - start for start, end in self.windows) / self.steps

    @property
    def per_step(self) -> Spent:
        """Mean seconds of one step."""
        parts = {
            name: {kind: seconds / self.steps for kind, seconds in sorted(getattr(self.spent, name).items())}
            for name in ("compute", "exposed", "hidden")
        }
        return replace(self.spent, **parts, idle_s=self.spent.idle_s / self.steps)


def measured(trace: Trace, label: Label, steps: int | None = None) -> Measured:
    """Measure the busiest device; `label` says what an event that is no compute is called.

    Errors: TraceError where no steps are found, as `windows_of`.
    """
    if steps is not None:
        check_whole(steps=steps)
    found = segments(trace.events)
    device = busiest(trace, found)
    windows, count, how = windows_of(trace, device, steps)
    mine = [segment for segment in found if trace.events[segment.event].device == device]
    return _measured(trace.events, mine, device, windows, count, how, label)


def _measured(
    events: Sequence[Event],
    mine: Sequence[Segment],
    device: str,
    windows: list[Window],
    count: int,
    how: str,
    label: Label,
) -> Measured:
    own = dict.fromkeys((segment.event for segment in mine), 0.0)
    for segment in mine:
        own[segment.event] += segment.end_s - segment.start_s
    inside = [at for at in sorted(own) if windows[0][0] <= events[at].start_s < windows[-1][1]]
    return Measured(
        device=device,
        windows=tuple(windows),
        steps=count,
        found=how,
        events=tuple(events[at] for at in inside),
        own_s=tuple(own[at] for at in inside),
        spent=spent(events, mine, windows, label),
    )
