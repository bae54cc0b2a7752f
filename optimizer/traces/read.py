"""read_trace(): a file of torch.profiler or jax.profiler as timed events."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from meshwright.hardware.errors import check_type, shown
from meshwright.optimizer.traces.events import Event, Mark, Trace
from meshwright.optimizer.traces.jax_events import JaxEvents
from meshwright.optimizer.traces.stream import WANTED, TraceError, TraceFile
from meshwright.optimizer.traces.torch_events import TorchEvents
from meshwright.optimizer.traces.xplane import xplane_events

MOST_EVENTS = 3_000_000  # kept in memory: about a kilobyte each
_LATEST_US = 1e18
_DOUBLED = 1.25  # seconds of a stream's kernels over the seconds it is busy: above, two programs are on it


def read_trace(path: str | PathLike[str]) -> Trace:
    """Read a trace: .json, .json.gz, .xplane.pb (with JAX), or the folder that jax.profiler.trace wrote.

    Errors: TraceError for a file that is none, is broken, cut off or too large, holds no events of a device, events of
    negative length, or the kernels of two ranks on one stream; MissingExtraError for .xplane.pb without JAX.
    """
    check_type("trace", path, (str, PathLike), "the path of a trace file")
    found = _file_of(Path(path))
    torch, jax = TorchEvents(), JaxEvents()
    header: dict[str, Any] = {}
    raw: Iterable[Mapping[str, Any]]
    if found.name.endswith(".pb"):
        raw = xplane_events(found)
    else:
        raw = file = TraceFile(found)
        header = file.header
    pairs = 0
    for event in raw:
        phase = event.get("ph")
        if phase in ("M", "X"):
            _check_place(found, event)
        if phase == "M":
            jax.name(event)
        elif phase == "X":
            start_s, seconds = _times(found, event)
            (torch if "cat" in event else jax).take(event, start_s, seconds)
            if torch.count + jax.count > MOST_EVENTS:
                raise TraceError(
                    f"{found} has more than {MOST_EVENTS:,} events of devices; profile fewer steps"
                )
        pairs += phase == "B"
    events, marks, maker = torch.events(), torch.marks, "torch"
    if not events and jax.known:
        events, marks, maker = jax.events(), jax.marks(), "jax"
    if not events:
        begun = f" (it has {pairs:,} begun with ph B: not of torch or JAX)" if pairs else ""
        raise TraceError(f"{found} has no operations of a device or of the CPU{begun}; give {WANTED}")
    return _checked(_made(str(path), maker, events, marks, header))


def _file_of(path: Path) -> Path:
    """The file itself, or the one trace in a folder of jax.profiler.trace."""
    try:
        if not path.is_dir():
            return path
        found = sorted(path.rglob("*.trace.json.gz")) or sorted(path.rglob("*.pt.trace.json*"))
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}; give {WANTED}") from None
    except ValueError:
        raise TraceError(f"cannot read {ascii(str(path))[1:-1][:200]}: not a path; give {WANTED}") from None
    if len(found) != 1:
        names = ", ".join(str(each.relative_to(path)) for each in found[:3])
        told = f"{len(found)} traces, such as {names}" if found else "no .trace.json.gz"
        raise TraceError(f"{path} is a folder with {told}; give the path of one file")
    return found[0]


def _check_place(path: Path, raw: Mapping[str, Any]) -> None:
    for what in ("pid", "tid"):
        if not isinstance(raw.get(what), int | float | str | None):
            raise TraceError(
                f"{path}: {what} of event {shown(raw.get('name'))} is {shown(raw[what])}, no number or name"
            )


def _times(path: Path, raw: Mapping[str, Any]) -> tuple[float, float]:
    """Start and length of an event in seconds; files have microseconds."""
    start, length = raw.get("ts"), raw.get("dur", 0)
    for what, value in (("ts", start), ("dur", length)):
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not -_LATEST_US < value < _LATEST_US
        ):
            raise TraceError(
                f"{path}: {what} of event {shown(raw.get('name'))} is {shown(value)}, not a number"
            )
    assert isinstance(start, int | float) and isinstance(length, int | float)
    if length < 0:
        raise TraceError(
            f"{path}: event {shown(raw.get('name'))} lasts {length:g} us, below zero; the clocks of host and device were "
            "not lined up: profile again"
        )
    return start * 1e-6, length * 1e-6


def _made(path: str, maker: str, events: list[Event], marks: list[Mark], header: Mapping[str, Any]) -> Trace:
    zero = min(event.start_s for event in events)
    info = header.get("distributedInfo")
    ranks = info.get("world_size") if isinstance(info, dict) else None
    return Trace(
        path=path,
        maker=maker,
        events=tuple(sorted((replace(e, start_s=e.start_s - zero) for e in events), key=lambda e: e.start_s)),
        marks=tuple(
            sorted(
                (replace(m, start_s=m.start_s - zero, end_s=m.end_s - zero) for m in marks),
                key=lambda m: m.start_s,
            )
        ),
        hardware=_hardware(header.get("deviceProperties")),
        ranks=ranks if isinstance(ranks, int) and not isinstance(ranks, bool) else None,
    )


def _hardware(properties: object) -> str:
    """What torch calls the first GPU."""
    first = properties[0] if isinstance(properties, list) and properties else None
    return " ".join(str(first.get("name", "")).split())[:60] if isinstance(first, dict) else ""


def _checked(trace: Trace) -> Trace:
    """Refuse a file in which kernels of a GPU's stream, which run one after the other, overlap at length."""
    for (device, stream), (busy, total) in _streams(trace).items():
        if device.startswith("GPU") and total > _DOUBLED * busy:
            raise TraceError(
                f"{trace.path}: kernels on stream {stream} of {device} last {total:.4g} s in {busy:.4g} s: several ranks were "
                "joined in one file; give one rank's"
            )
    return trace


def _streams(trace: Trace) -> dict[tuple[str, str], tuple[float, float]]:
    """(seconds busy, seconds of all events) of each stream."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    ends: dict[tuple[str, str], float] = {}
    for event in trace.events:
        key = event.device, event.stream
        busy, total = found.get(key, (0.0, 0.0))
        fresh = max(0.0, event.end_s - max(event.start_s, ends.get(key, event.start_s)))
        found[key] = busy + fresh, total + event.seconds
        ends[key] = max(event.end_s, ends.get(key, event.end_s))
    return found
