"""Traces of torch.profiler (Kineto): kernels and copies of GPUs, or operators of the CPU where there are none.

A kernel's shapes are those of the operator that launched it (`External id`). Where one operator launches several
kernels, its FLOPs and bytes go to the longest of its kind. Steps are the annotations ProfilerStep#N; what runs inside
Optimizer.step#... and is no product or collective is the optimizer's.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from meshwright.optimizer.traces.events import COLLECTIVES, COPIES, Event, Mark
from meshwright.optimizer.traces.kinds import dtype_of, kind_of
from meshwright.optimizer.traces.work import Work, count_of, torch_collective, torch_work

_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
_STEP, _UPDATE = "ProfilerStep#", "Optimizer.step#"
CPU = "cpu"


class _Timed(NamedTuple):
    """One event with its times, not yet an Event."""

    name: str
    start_s: float
    seconds: float
    pid: object
    stream: str
    id: int | None
    device: object = None
    args: Mapping[str, Any] = {}


class TorchEvents:
    """Takes raw events one by one; `events` and `marks` when all are in."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, object], Mark] = {}
        self._updates: list[tuple[Mark, object]] = []
        self._places: dict[object, str] = {}
        self._gpu: list[_Timed] = []
        self._cpu: list[_Timed] = []
        self._work: dict[int | None, tuple[str, Work]] = {}

    @property
    def count(self) -> int:
        """Events kept."""
        return len(self._gpu) + len(self._cpu)

    def take(self, raw: Mapping[str, Any], start_s: float, seconds: float) -> None:
        """One complete event (ph X) that has a category."""
        category, name = str(raw["cat"]).lower(), str(raw.get("name", ""))
        args = raw.get("args")
        args = args if isinstance(args, dict) else {}
        pid, tid = raw.get("pid"), str(raw.get("tid", ""))
        if category in _GPU:
            stream = str(args.get("stream", tid))
            kept = args if category == "kernel" and "Group size" in args else {"bytes": args.get("bytes")}
            ids = _id(args), args.get("device", pid)
            self._places.setdefault(pid, _pair(str(ids[1]), pid))
            self._gpu.append(_Timed(name, start_s, seconds, pid, stream, *ids, kept))
        elif category == "cpu_op":
            work = torch_work(name, args)
            number = _id(args)
            self._cpu.append(_Timed(name, start_s, seconds, pid, tid, number))
            if number is not None and (
                work.flops or work.moved_bytes or work.dtype or work.kind == "optimizer"
            ):
                self._work[number] = name, work
        elif name.startswith((_STEP, _UPDATE)) and category in ("user_annotation", "gpu_user_annotation"):
            mark = Mark(name, start_s, start_s + seconds)
            where = pid if category.startswith("gpu") else None
            if name.startswith(_STEP):
                self._mark(mark, where)
            else:
                self._updates.append((mark, where))

    def _mark(self, mark: Mark, where: object) -> None:
        """A GPU has the annotation on each of its streams: one step from the first begin to the last end."""
        key = mark.name, where
        old = self._marks.get(key, mark)
        self._marks[key] = replace(
            old, start_s=min(old.start_s, mark.start_s), end_s=max(old.end_s, mark.end_s)
        )

    def _device(self, where: object) -> str | None:
        """The device whose kernels have that process number, as annotations on a GPU have it too."""
        return None if where is None else self._places.get(where, f"GPU {where}")

    @property
    def marks(self) -> list[Mark]:
        """Annotated steps."""
        return [replace(mark, device=self._device(where)) for (_, where), mark in self._marks.items()]

    def events(self) -> list[Event]:
        """Of GPUs where there are any, else of the CPU."""
        if not self._gpu:
            return self._updating(_innermost([self._of_cpu(timed) for timed in self._cpu]))
        longest: dict[int | None, int] = {}
        for at, timed in enumerate(self._gpu):
            before = longest.get(timed.id)
            if before is None or self._rank(timed) > self._rank(self._gpu[before]):
                longest[timed.id] = at
        return self._updating(
            [self._of_gpu(timed, longest.get(timed.id) == at) for at, timed in enumerate(self._gpu)]
        )

    def _updating(self, events: list[Event]) -> list[Event]:
        """What runs in a weight update belongs to the optimizer, whatever it does to its tensors."""
        spans = sorted((self._device(where) or CPU, m.start_s, m.end_s) for m, where in self._updates)
        out = []
        for event in events:
            at = bisect_right(spans, (event.device, event.start_s, math.inf)) - 1
            inside = at >= 0 and spans[at][0] == event.device and event.start_s < spans[at][2]
            out.append(
                replace(event, kind="optimizer")
                if inside and event.kind in ("elementwise", "other")
                else event
            )
        return out

    def _rank(self, timed: _Timed) -> tuple[bool, float]:
        _, work = self._work.get(timed.id, ("", Work("other")))
        return kind_of(timed.name) == work.kind, timed.seconds

    def _of_gpu(self, timed: _Timed, whole: bool) -> Event:
        source, work = self._work.get(timed.id, ("", Work("other")))
        kind = kind_of(timed.name, source)
        told = kind_of(str(timed.args.get("Collective name", "")))
        if kind in COLLECTIVES and told in COLLECTIVES:  # NCCL's all-to-all runs a kernel of sends
            kind = told
        common = (
            timed.name,
            timed.start_s,
            timed.seconds,
            _pair(str(timed.device), timed.pid),
            timed.stream,
            kind,
        )
        if kind in COLLECTIVES:
            group, sent = torch_collective(kind, timed.args)
            dtype = dtype_of(timed.args.get("dtype"))
            return Event(*common, source=source, dtype=dtype, moved_bytes=sent, group=group)
        if kind in COPIES:
            return Event(*common, moved_bytes=count_of(timed.args.get("bytes")))
        if not whole or kind != work.kind:
            return Event(*common, source=source, dtype=work.dtype)
        return Event(*common, source, work.dtype, work.flops, work.moved_bytes, work.shape)

    def _of_cpu(self, timed: _Timed) -> Event:
        _, work = self._work.get(timed.id, (timed.name, Work(kind_of(timed.name))))
        return Event(
            timed.name, timed.start_s, timed.seconds, CPU, timed.stream, work.kind, timed.name, work.dtype, work.flops,
            work.moved_bytes, work.shape,
        )  # fmt: skip


def _id(args: Mapping[str, Any]) -> int | None:
    """What ties a kernel to its operator; None where nothing does."""
    number = args.get("External id")
    return number if isinstance(number, int) and number > 0 else None


def _innermost(events: list[Event]) -> list[Event]:
    """FLOPs and bytes to the innermost of nested operators of one kind: aten::linear calls aten::addmm."""
    made = {}
    open_: dict[str, list[int]] = {}
    for at in sorted(range(len(events)), key=lambda i: (events[i].start_s, -events[i].seconds)):
        event, outer = events[at], open_.setdefault(events[at].stream, [])
        while outer and events[outer[-1]].end_s <= event.start_s:
            outer.pop()
        for each in outer if event.flops or event.moved_bytes else ():
            if events[each].kind == event.kind:
                made[each] = replace(events[each], flops=None, moved_bytes=None, shape=())
        outer.append(at)
    return [made.get(at, event) for at, event in enumerate(events)]


def _pair(device: str, pid: object) -> str:
    """`GPU 0`; of files that join several processes, the process too."""
    return f"GPU {device}" if str(pid) == device else f"GPU {device} of process {pid}"
