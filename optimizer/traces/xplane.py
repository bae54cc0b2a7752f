"""xplane.pb of jax.profiler, read by JAX itself, as the events that its trace.json.gz would hold."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from meshwright.hardware.errors import MissingExtraError
from meshwright.optimizer.traces.stream import WANTED, TraceError

MOST_BYTES = 2 * 2**30  # JAX reads such a file whole


def xplane_events(path: Path) -> Iterator[dict[str, Any]]:
    """Errors: MissingExtraError without JAX, TraceError for a file that is none."""
    try:
        reader = import_module("jax.profiler").ProfileData
    except (ImportError, AttributeError):  # none, or one of before it could read
        raise MissingExtraError(
            f"reading {path.name} (the .trace.json.gz beside it needs none)", "xplane"
        ) from None
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise TraceError(
                f"{path} has {size:,} bytes, at most {MOST_BYTES:,} are read; give its .trace.json.gz"
            )
        yield from _events(reader.from_file(str(path)))
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}; give {WANTED}") from None
    except (RuntimeError, ValueError) as error:
        raise TraceError(f"{path} is no xplane.pb: {' '.join(str(error).split())[:80]}") from None


def _events(data: Any) -> Iterator[dict[str, Any]]:
    for pid, plane in enumerate(data.planes):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": plane.name}}
        for tid, line in enumerate(plane.lines):
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": line.name}}
            for event in line.events:
                start, length = event.start_ns * 1e-3, event.duration_ns * 1e-3
                args = {str(key): value for key, value in event.stats}
                yield {
                    "ph": "X",
                    "name": event.name,
                    "pid": pid,
                    "tid": tid,
                    "ts": start,
                    "dur": length,
                    "args": args,
                }
