"""profile(): a measured step beside the roofline of its chip, and beside what a plan says of it."""

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any

from meshwright.costmodel.doors import ChipSource, ModelSource
from meshwright.costmodel.setting import COMM_CLASSES
from meshwright.optimizer.compare import Pair
from meshwright.optimizer.plan import Priced
from meshwright.optimizer.traces.against import Against, against
from meshwright.optimizer.traces.answer import Carried, Kind, Operation, Profile
from meshwright.optimizer.traces.events import Event, Trace
from meshwright.optimizer.traces.measure import Measured, measured
from meshwright.optimizer.traces.planned import Planned
from meshwright.optimizer.traces.read import read_trace


def profile(
    trace: Trace | str | PathLike[str],
    *,
    plan: Priced | None = None,
    chip: ChipSource | None = None,
    steps: int | None = None,
    model: ModelSource | None = None,
    efficiency: str | None = None,
) -> Profile:
    """Measure a trace's step and set it beside the roofline, and a plan where one is given.

    Args:
        trace: a file, or what `read_trace` returned. steps: how many it holds, where it does not mark them.
        chip: instead of a plan. model, efficiency: where the plan's files are, as `explain`.

    Errors: TraceError as `read_trace`, and where no steps are found; InputError as `against`.
    """
    held = against(chip, plan, model=model, efficiency=efficiency)
    read = trace if isinstance(trace, Trace) else read_trace(trace)
    return profiled(read, held, measured(read, held.label, steps))


def profiled(trace: Trace, held: Against, found: Measured) -> Profile:
    """The same of what is read and measured already."""
    lengths = [end - start for start, end in found.windows] if len(found.windows) == found.steps else []
    parts = _parts(found, held.planned)
    operations = sorted(_operations(found, held), key=lambda o: (-o.gap_s, o.name))
    operators = () if held.planned is None else _operators(held.planned, operations)
    return Profile(
        trace=trace.path,
        maker=trace.maker,
        chip=held.chip.name,
        device=found.device,
        devices=trace.devices,
        steps=found.steps,
        found=found.found,
        step_s=found.step_s,
        shortest_s=min(lengths, default=None),
        longest_s=max(lengths, default=None),
        parts=parts,
        kinds=_kinds(found, held),
        carried=_carried(found, held),
        operations=tuple(operations),
        operators=operators,
        plan_step_s=None if held.planned is None else held.planned.made.plan.estimate.step_s,
        notes=tuple(_notes(trace, held, found, operations)),
    )


def _parts(found: Measured, planned: Planned | None) -> tuple[Pair, ...]:
    """Seconds that sum to the step, and the plan's: its compute and recompute, its waits for launches and the pipeline."""
    mine, theirs = found.per_step, {} if planned is None else dict(planned.made.plan.estimate.parts)

    def plan(*names: str) -> float | None:
        return None if planned is None else sum(theirs.get(name, 0.0) for name in names)

    optimizer = mine.compute.get("optimizer", 0.0)
    out = [Pair("compute", sum(mine.compute.values()) - optimizer, plan("compute", "recompute"))]
    if optimizer or theirs.get("optimizer"):
        out.append(Pair("optimizer", optimizer, plan("optimizer")))
    classes = [n for n in theirs if n in COMM_CLASSES and theirs[n] > 0]
    for name in dict.fromkeys((*classes, *mine.exposed, *mine.hidden)):
        out.append(Pair(name, mine.exposed.get(name, 0.0), theirs.get(name)))
    out.append(Pair("idle", mine.idle_s, plan("launch", "bubble")))
    return tuple(out)


def _operators(planned: Planned, operations: Sequence[Operation]) -> tuple[Pair, ...]:
    """Operators of the plan beside the operations with their sizes, and attention; None where the trace has none."""
    theirs = planned.seconds()
    mine = {"core": sum(o.seconds for o in operations if o.kind == "attention")}
    for o in operations:
        if o.operator:
            mine[o.operator] = mine.get(o.operator, 0.0) + o.seconds
    joined = {name: key for key in mine for name in key.split("/")}
    names = dict.fromkeys(joined.get(name, name) for name in theirs)
    pairs = [Pair(n, mine.get(n) or None, sum(theirs.get(each, 0.0) for each in n.split("/"))) for n in names]
    return tuple(sorted(pairs, key=lambda pair: -float(pair.b or 0.0)))


def _kinds(found: Measured, held: Against) -> tuple[Kind, ...]:
    planned = {} if held.planned is None else held.planned.kinds()
    mine, steps = found.per_step, found.steps
    out = []
    for name in dict.fromkeys((*mine.compute, *planned)):
        events = [(e, own) for e, own in zip(found.events, found.own_s, strict=True) if e.kind == name]
        flop = _share((held.flop_floor(e), own) for e, own in events)
        hbm = _share((held.hbm_floor(e), own) for e, own in events)
        known = sum(own for e, own in events if held.flop_floor(e) or held.hbm_floor(e)) / steps
        seconds = mine.compute.get(name, 0.0)
        out.append(Kind(name, len(events) / steps, seconds, known, flop, hbm, planned.get(name)))
    return tuple(sorted(out, key=lambda kind: -kind.seconds))


def _carried(found: Measured, held: Against) -> tuple[Carried, ...]:
    mine, steps = found.per_step, found.steps
    parts = {} if held.planned is None else held.planned.made.plan.estimate.parts
    out = []
    for name in dict.fromkeys((*mine.exposed, *mine.hidden)):
        events = [e for e in found.events if not e.computes and held.label(e) == name]
        told = [(e, floor) for e in events if (floor := held.link_floor(e)) is not None]
        names = {link for _, (link, _) in told}
        one = len(names) == 1
        out.append(
            Carried(
                name,
                len(events) / steps,
                mine.hidden.get(name, 0.0),
                mine.exposed.get(name, 0.0),
                _mean((e.moved_bytes for e, _ in told), steps),
                names.pop() if one else "",
                _share((floor, e.seconds) for e, (_, floor) in told) if one else None,
                parts.get(name),
            )
        )
    return tuple(sorted(out, key=lambda each: -(each.exposed_s + each.hidden_s)))


def _share(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    """Floor over seconds of what has a floor."""
    known = [(floor, seconds) for floor, seconds in pairs if floor]
    total = sum(seconds for _, seconds in known)
    return sum(floor for floor, _ in known) / total if total > 0 else None


def _operations(found: Measured, held: Against) -> list[Operation]:
    groups: dict[tuple[Any, ...], list[tuple[Event, float]]] = {}
    for event, own in zip(found.events, found.own_s, strict=True):
        if event.computes:
            name = event.source or event.name
            works = bool(event.flops), bool(event.moved_bytes)
            groups.setdefault((event.kind, name, event.shape, event.dtype, works), []).append((event, own))
    out = []
    operators = {} if held.planned is None else held.planned.operators(found.events)
    for (kind, name, shape, dtype, _), pairs in groups.items():
        events, steps = [event for event, _ in pairs], found.steps
        floors = [max(held.flop_floor(e) or 0.0, held.hbm_floor(e) or 0.0) for e in events]
        out.append(
            Operation(
                kind=kind,
                name=name,
                operator=operators.get(shape, ""),
                shape=shape,
                dtype=dtype,
                count=len(pairs) / steps,
                seconds=sum(own for _, own in pairs) / steps,
                flops=_mean((e.flops for e in events), steps),
                moved_bytes=_mean((e.moved_bytes for e in events), steps),
                floor_s=sum(floors) / steps if all(floors) else None,
            )
        )
    return out


def _mean(values: Iterable[float | None], steps: int) -> float | None:
    """Of a step; None where the trace does not say."""
    known = [value for value in values if value]
    return sum(known) / steps if known else None


def _notes(trace: Trace, held: Against, found: Measured, operations: list[Operation]) -> list[str]:
    out = [] if (strange := held.strange(trace, found.device)) is None else [strange]
    if len(trace.devices) > 1:
        out.append(f"the trace has {len(trace.devices)} devices; the one that is occupied longest is told")
    without = sum(o.seconds for o in operations if o.floor_s is None)
    if without > 0:
        more = " (record_shapes=True of torch.profiler says more)" if trace.maker == "torch" else ""
        out.append(
            f"{without:.4g} s of a step are operations whose FLOPs and bytes the trace does not say{more}; they have no floor"
        )
    if above := [o for o in operations if o.achieved is not None and o.achieved > 1]:
        first = max(above, key=lambda o: o.achieved or 0.0)
        out.append(
            f"{first.name} reaches {first.achieved:.3g} of its roofline: another chip than {held.chip.name}, another dtype, "
            "or operands that stay in a cache"
        )
    planned = held.planned
    if planned is None:
        return out
    layout = planned.layout
    if trace.ranks is not None and trace.ranks != layout.devices:
        out.append(f"the trace is of a job of {trace.ranks} ranks, the plan of {layout.devices} devices")
    if layout.pp > 1:
        out.append(
            f"operators of the plan are those of its slowest stage, {planned.made.slowest}; the trace may be of another"
        )
    return out
