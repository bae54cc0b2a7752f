"""Traces of jax.profiler: XLA operations of TPUs, kernels of GPUs, or thunks of the CPU where there is no device.

A process `/device:...` is a device. On a TPU its line `XLA Ops` has the operations and `Async XLA Ops` the flights of
collectives; on a GPU the lines `Stream #...` have the kernels (the other lines tell the same again). Steps are the line
`Steps`, annotations with a step_num, or runs of a program (`XLA Modules`, on the CPU the operations of one run_id).
"""

import re
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from meshwright.optimizer.traces.events import COLLECTIVES, COPIES, Event, Group, Mark
from meshwright.optimizer.traces.kinds import bytes_of, dtype_of, kind_of, kind_of_hlo
from meshwright.optimizer.traces.work import sent_bytes

_KEPT = (
    "hlo_op", "hlo_module", "hlo_category", "model_flops", "flops", "raw_bytes_accessed", "bytes_accessed", "run_id",
    "device_ordinal", "long_name", "tf_op", "shape_with_layout", "step_num", "memcpy_details", "correlation_id",
)  # fmt: skip
_OPS, _ASYNC, _STEPS, _MODULES = "XLA Ops", "Async XLA Ops", "Steps", "XLA Modules"
_MOST = 1e30  # of FLOPs or bytes of one operation
_ARRAY = re.compile(r"\b([a-z][a-z0-9]{0,15})\[([0-9,]{0,99})\]")
_GROUPS = re.compile(r"replica_groups=(?:\{\{([0-9]{1,9}(?:,[0-9]{1,9})*)\}|\[[0-9]{1,9},([0-9]{1,9})\])")


class _Timed(NamedTuple):
    """One event with its times and place, not yet an Event."""

    name: str
    start_s: float
    seconds: float
    pid: object
    tid: object
    args: Mapping[str, Any]


class JaxEvents:
    """Takes raw events one by one; `events` and `marks` when all are in."""

    def __init__(self) -> None:
        self._kept: list[_Timed] = []
        self._processes: dict[object, str] = {}
        self._threads: dict[tuple[object, object], str] = {}
        self._has_devices = False

    @property
    def count(self) -> int:
        """Events kept."""
        return len(self._kept)

    @property
    def known(self) -> bool:
        """Whether the file has a process that only JAX writes."""
        return self._has_devices or "/host:CPU" in self._processes.values()

    def name(self, raw: Mapping[str, Any]) -> None:
        """One event that names a process or a thread (ph M)."""
        args = raw.get("args")
        text = str(args.get("name", "")) if isinstance(args, dict) else ""
        if raw.get("name") == "process_name":
            self._processes[raw.get("pid")] = text
            self._has_devices |= text.startswith("/device:")
        elif raw.get("name") == "thread_name":
            self._threads[raw.get("pid"), raw.get("tid")] = text

    def take(self, raw: Mapping[str, Any], start_s: float, seconds: float) -> None:
        """One complete event (ph X) that has no category; Python frames and bookkeeping are left out."""
        args = raw.get("args")
        kept = {key: args[key] for key in _KEPT if key in args} if isinstance(args, dict) else {}
        if kept or self._device(raw.get("pid")):
            name = str(raw.get("name", ""))
            self._kept.append(_Timed(name, start_s, seconds, raw.get("pid"), raw.get("tid"), kept))

    def events(self) -> list[Event]:
        """Of devices where there are any, else of the CPU."""
        if not self._has_devices:
            return [_of_cpu(timed) for timed in self._kept if "hlo_op" in timed.args]
        found = []
        for timed in self._kept:
            line = self._line(timed)
            if (device := self._device(timed.pid)) and (
                line in (_OPS, _ASYNC) or line.startswith("Stream #")
            ):
                found.append(_of_device(timed, device, line))
        return found

    def marks(self) -> list[Mark]:
        """Annotated steps, and runs of programs."""
        found = []
        for timed in self._kept:
            device, line, end = self._device(timed.pid), self._line(timed), timed.start_s + timed.seconds
            if "step_num" in timed.args or (device and line == _STEPS):
                found.append(Mark(timed.name, timed.start_s, end, device))
            elif device and line == _MODULES:
                found.append(Mark(timed.name, timed.start_s, end, device, program=True))
        return found if self._has_devices else [*found, *self._runs()]

    def _runs(self) -> list[Mark]:
        """Runs of programs on the CPU: from the first to the last operation of one run_id."""
        spans: dict[tuple[str, str, str], tuple[float, float]] = {}
        for timed in self._kept:
            if "hlo_op" in timed.args:
                key = str(timed.args.get("hlo_module")), str(timed.args.get("run_id")), _cpu(timed)
                start, end = spans.get(key, (timed.start_s, 0.0))
                spans[key] = min(start, timed.start_s), max(end, timed.start_s + timed.seconds)
        return [Mark(module, *span, device, program=True) for (module, _, device), span in spans.items()]

    def _device(self, pid: object) -> str | None:
        name = self._processes.get(pid, "")
        return name.removeprefix("/device:") if name.startswith("/device:") else None

    def _line(self, timed: _Timed) -> str:
        return self._threads.get((timed.pid, timed.tid), "")


def _cpu(timed: _Timed) -> str:
    return f"CPU:{timed.args.get('device_ordinal', 0)}"


def _of_cpu(timed: _Timed) -> Event:
    name = str(timed.args["hlo_op"])
    return Event(timed.name, timed.start_s, timed.seconds, _cpu(timed), str(timed.tid), kind_of(name), name)


def _of_device(timed: _Timed, device: str, line: str) -> Event:
    args = timed.args
    operation, category = str(args.get("hlo_op", timed.name)), str(args.get("hlo_category", ""))
    if line.startswith("Stream #"):
        kind = kind_of(timed.name, operation)
    else:
        kind = kind_of_hlo(timed.name, category, str(args.get("tf_op", "")))
    common = (timed.name, timed.start_s, timed.seconds, device, line, kind, operation)
    result, _, operands = str(args.get("long_name", "")).partition("(")
    arrays = _arrays(str(args.get("shape_with_layout") or result))
    typed = (_arrays(operands) if kind == "matmul" else []) or arrays  # a product's sums may be wider
    dtype = dtype_of(typed[0][0]) if typed else None
    if kind in COLLECTIVES:
        group = _group(str(args.get("long_name", "")))
        sent = _sent(kind, timed.name, arrays, group)
        return Event(*common, dtype=dtype, moved_bytes=sent, group=group)
    if kind in COPIES:
        size = re.search(r"size:([0-9]{1,18})", str(args.get("memcpy_details", "")))
        return Event(*common, moved_bytes=float(size[1]) if size else None)
    moved = _number(args, "raw_bytes_accessed", "bytes_accessed")
    return Event(*common, dtype=dtype, flops=_number(args, "model_flops", "flops"), moved_bytes=moved)


def _number(args: Mapping[str, Any], *keys: str) -> float | None:
    """The first of some figures that is above zero; XLA writes them as text."""
    for key in keys:
        try:
            value = float(args.get(key, 0))
        except (OverflowError, TypeError, ValueError):
            continue
        if 0 < value < _MOST:
            return value
    return None


def _arrays(text: str) -> list[tuple[str, float]]:
    """(dtype, bytes) of the arrays of HLO text whose dtype is known."""
    sized = [(name, bytes_of(name), dims) for name, dims in _ARRAY.findall(text)]
    return [(name, size * prod(int(d) for d in dims.split(",") if d)) for name, size, dims in sized if size]


def _group(text: str) -> Group | None:
    """Of the first of the replica groups, `{{0,1},{2,3}}` or `[groups,members]<=[...]`."""
    found = _GROUPS.search(text)
    if found is None:
        return None
    if found[1]:
        ranks = tuple(int(rank) for rank in found[1].split(","))
        return Group(len(ranks), ranks)
    return Group(int(found[2]))


def _sent(kind: str, name: str, arrays: list[tuple[str, float]], group: Group | None) -> float | None:
    """Bytes that one device sends; the end of a flight sends nothing anew."""
    if group is None or not arrays or "-done" in name:
        return None
    largest = max(size for _, size in arrays)
    return sent_bytes(kind, largest * (group.size if kind == "reduce_scatter" else 1), group.size)
