"""What a device does at every moment of its steps.

Of events that are nested on one stream the innermost counts. Every moment of a step is one of

    compute   some stream computes; shared evenly by the kinds that do
    exposed   none computes, and communication or a copy is under way; shared evenly by those that are
    idle      neither

and communication under way while some stream computes is hidden. So compute, exposed and idle sum to the step, and hidden
and exposed to the time in which a class is under way, moments with several classes shared.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from meshwright.hardware.errors import shown
from meshwright.optimizer.traces.events import Event, Label, Mark, Trace
from meshwright.optimizer.traces.stream import TraceError

Window = tuple[float, float]


@dataclass(frozen=True)
class Segment:
    """A stretch in which an event is the innermost of its stream; `event` is its place in the list."""

    start_s: float
    end_s: float
    event: int


@dataclass
class Spent:
    """Seconds of some windows; see the module docstring."""

    compute: dict[str, float] = field(default_factory=dict)
    exposed: dict[str, float] = field(default_factory=dict)
    hidden: dict[str, float] = field(default_factory=dict)
    idle_s: float = 0.0


def segments(events: Sequence[Event]) -> list[Segment]:
    """The innermost events of every stream, in no order; an event that begins later is inside."""
    streams: dict[tuple[str, str], list[int]] = {}
    for at, event in enumerate(events):
        streams.setdefault((event.device, event.stream), []).append(at)
    return [segment for places in streams.values() for segment in _of_stream(events, places)]


def _of_stream(events: Sequence[Event], places: list[int]) -> Iterator[Segment]:
    places = sorted(places, key=lambda i: (events[i].start_s, -events[i].seconds))
    stack: list[int] = []
    now = 0.0

    def until(limit_s: float) -> Iterator[Segment]:
        """What is open, up to a moment."""
        nonlocal now
        while stack and now < limit_s:
            end = min(events[stack[-1]].end_s, limit_s)
            if end > now:
                yield Segment(now, end, stack[-1])
                now = end
            if events[stack[-1]].end_s <= limit_s:
                stack.pop()
            else:
                break
        now = max(now, limit_s)

    for at in places:
        yield from until(events[at].start_s)
        stack.append(at)
    yield from until(max((events[at].end_s for at in places), default=0.0))


def spent(
    events: Sequence[Event], found: Iterable[Segment], windows: Sequence[Window], label: Label
) -> Spent:
    """Seconds of windows that do not overlap, in order."""
    changes: list[tuple[float, int, int]] = []
    for segment in found:
        changes.append((segment.start_s, 1, segment.event))
        changes.append((segment.end_s, -1, segment.event))
    changes.sort(key=lambda change: change[:2])
    made = Spent()
    computes: dict[str, int] = {}
    carries: dict[str, int] = {}
    edges = iter(windows)
    window = next(edges, None)
    before = changes[0][0] if changes else 0.0

    def passed(start_s: float, end_s: float) -> None:
        """Book a stretch in which nothing changes."""
        nonlocal window
        while window is not None and start_s < end_s:
            if start_s >= window[1]:
                window = next(edges, None)
                continue
            low, high = max(start_s, window[0]), min(end_s, window[1])
            if high > low:
                _book(made, computes, carries, high - low)
            if end_s < window[1]:
                return
            start_s, window = window[1], next(edges, None)

    if windows:
        before = min(before, windows[0][0])
    for moment, step, at in changes:
        passed(before, moment)
        before = max(before, moment)
        event = events[at]
        counts, name = (computes, event.kind) if event.computes else (carries, label(event))
        counts[name] = counts.get(name, 0) + step
        if not counts[name]:
            del counts[name]
    passed(before, windows[-1][1] if windows else before)
    return made


def _book(made: Spent, computes: dict[str, int], carries: dict[str, int], seconds: float) -> None:
    for kind in computes:
        made.compute[kind] = made.compute.get(kind, 0.0) + seconds / len(computes)
    part = made.hidden if computes else made.exposed
    for name in carries:
        part[name] = part.get(name, 0.0) + seconds / len(carries)
    if not computes and not carries:
        made.idle_s += seconds


def busiest(trace: Trace, found: Sequence[Segment]) -> str:
    """The device that is occupied longest, streams added; the first by name of equals."""
    seconds = dict.fromkeys(trace.devices, 0.0)
    for segment in found:
        seconds[trace.events[segment.event].device] += segment.end_s - segment.start_s
    return max(seconds, key=lambda device: seconds[device])


def windows_of(trace: Trace, device: str, steps: int | None) -> tuple[list[Window], int, str]:
    """(windows, how many steps they hold, how they were found) of one device.

    Steps are, in this order: annotations on the device, runs of the program that takes longest if it runs at least twice,
    annotations on the host (of a CPU before the runs), or with `steps` so many equal parts of the whole. A step ends where
    the next begins.

    Errors: TraceError where none are found and `steps` is not given, or another number is.
    """
    own = [mark for mark in trace.marks if not mark.program and mark.device == device]
    host = [mark for mark in trace.marks if not mark.program and mark.device is None]
    runs = _longest([mark for mark in trace.marks if mark.program and mark.device == device])
    ways = [(runs, f"runs of {runs[0].name}" if runs else ""), (host, "annotations on the host")]
    if device.lower().startswith("cpu"):  # no other device runs behind the host
        ways.reverse()
    for marks, how in ((own, "annotations on the device"), *ways):
        if marks and (windows := _windows(marks, trace, device)):
            if steps is not None and steps != len(windows):
                raise TraceError(
                    f"{trace.path} has {len(windows)} steps by {how}, --steps says {steps}; leave --steps out"
                )
            return windows, len(windows), how
    mine = [event for event in trace.events if event.device == device]
    whole = (mine[0].start_s, max(event.end_s for event in mine))
    if steps is None:
        raise TraceError(
            f"{trace.path} marks no steps (ProfilerStep#N of torch.profiler with a schedule, StepTraceAnnotation of JAX, or "
            "runs of a program); say how many it holds with --steps N"
        )
    if whole[1] <= whole[0]:
        raise TraceError(f"{trace.path}: the events of {shown(device)} take no time; profile again")
    return [whole], steps, f"--steps {steps}"


def _windows(marks: Sequence[Mark], trace: Trace, device: str) -> list[Window]:
    """From each mark to the next, the last to its own end; those in which the device does nothing are left out."""
    ends = [mark.start_s for mark in marks[1:]] + [marks[-1].end_s]
    starts = sorted(event.start_s for event in trace.events if event.device == device)
    pairs = zip(marks, ends, strict=True)
    return [(m.start_s, end) for m, end in pairs if bisect_left(starts, m.start_s) < bisect_left(starts, end)]


def _longest(runs: Sequence[Mark]) -> list[Mark]:
    """The runs of the program that takes most time in all, if there are two."""
    names: dict[str, list[Mark]] = {}
    for mark in runs:
        names.setdefault(mark.name, []).append(mark)
    several = [marks for marks in names.values() if len(marks) > 1]
    return max(several, key=lambda marks: sum(m.end_s - m.start_s for m in marks), default=[])
