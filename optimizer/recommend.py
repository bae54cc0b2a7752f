"""recommend(): model, cluster and batch in; proven best layout out."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib import metadata
from math import prod
from os import PathLike
from typing import Any

from meshwright.costmodel.estimate import complete, digits, estimate
from meshwright.costmodel.layout import OFFLOADS, Layout
from meshwright.costmodel.legal import offload_refusal
from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.readers import load_model
from meshwright.costmodel.setting import Overlap, Setting, Streams, setting
from meshwright.costmodel.workload import Training
from meshwright.hardware.cluster import Cluster, parse_cluster
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.decode import decode, layout_of
from meshwright.optimizer.plan import Certificate, Idle, Infeasible, Plan, Priced, RunnerUp, Undecided
from meshwright.optimizer.run_cost import run_of
from meshwright.optimizer.shortfall import closest_miss
from meshwright.optimizer.solve import Found, Search, SolveOptions
from meshwright.optimizer.space import Space
from meshwright.optimizer.validate import violations

ModelSource = ModelSpec | str | PathLike[str] | Mapping[str, Any]

# 90th percentile of error of the prototype whose fitted rates `default` carries, with models left out
# (1,077 published runs); other efficiency files and unfitted chips have no measurement of their own.
_BANDS = {"dense": 0.16, "moe": 0.50, "uncalibrated": 0.33}
_BAND_SOURCE = "90th percentile over 1,077 published runs, models left out (prototype of the cost model)"
_NEARLY_FULL = 0.90


def resolve(
    model: ModelSource,
    cluster: Cluster | str,
    training: Training,
    *,
    efficiency: str = "default",
    overlap: Overlap = "calibrated",
    comm_streams: Streams = "shared",
    framework: str = "jax",
) -> Setting:
    """Names to a Setting; see `recommend` for the arguments."""
    spec = model if isinstance(model, ModelSpec) else load_model(model)
    machine = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    return setting(
        spec, machine, training, efficiency=efficiency, overlap=overlap, streams=comm_streams, framework=framework
    )


def recommend(
    model: ModelSource,
    cluster: Cluster | str,
    training: Training,
    *,
    constraints: str | None = None,
    efficiency: str = "default",
    overlap: Overlap = "calibrated",
    comm_streams: Streams = "shared",
    framework: str = "jax",
    options: SolveOptions | None = None,
) -> Plan:
    """The proven best training layout.

    Args:
        model: a built-in name, a config.json, its folder, a dict or a ModelSpec.
        cluster: a cluster string such as 'h100:8x64', or a Cluster.
        constraints: for example 'tp<=8, pp in {1,2,4}, offload == none'.
        efficiency: 'default', 'ideal', 'mfu=0.4' or a calibration file.
        overlap: 'calibrated', 'full' or 'none'. comm_streams: 'shared' or 'independent'.
        framework: whose memory habits apply.

    Raises:
        InputError: the question is wrong. MissingFigureError: a figure it needs has no source.
        Infeasible: proven that nothing fits. Undecided: the work limit came first.
    """
    given = resolve(
        model, cluster, training, efficiency=efficiency, overlap=overlap, comm_streams=comm_streams, framework=framework
    )
    return recommend_in(given, constraints, options)


def recommend_in(given: Setting, constraints: str | None = None, options: SolveOptions | None = None) -> Plan:
    """The same for a resolved Setting."""
    options = options or SolveOptions()
    space = Space(given, parse_constraints(constraints))
    search = Search(space, options)
    search.run()
    if not search.best:
        if search.undecided:
            raise Undecided("the work limit ended the search before any plan was found; raise it", None)
        raise infeasible(space, search)
    plan = _plan(space, search, inputs_of(given, constraints))
    if plan.certificate.status != "OPTIMAL":
        raise Undecided(f"the work limit left a gap of {plan.certificate.gap:.2%}; raise it", plan)
    return plan


def infeasible(space: Space, search: Search) -> Infeasible:
    """Say what fails: rules that leave nothing, or memory, with the closest miss."""
    if "no cut fits the device memory" not in search.funnel.removed:
        asked = {c.text for c in space.constraints}
        removed = search.funnel.removed
        worst = max(removed, key=lambda r: (r in asked, removed[r]), default="the constraints")
        return Infeasible(
            f"the rules leave no layout; most fall to {worst!r}. Drop or widen it.", None, None, search.funnel.removed
        )
    found, short = closest_miss(space)
    layout = None if found is None else layout_of(space.setting, found)
    return Infeasible("the device memory is too small for every layout.", short, layout, search.funnel.removed)


def _plan(space: Space, search: Search, inputs: dict[str, Any]) -> Plan:
    given, ranked = space.setting, search.ranked
    best = ranked[0]
    layout, priced = decode(given, best)
    if broken := list(violations(given, layout, priced)):
        raise AssertionError(f"the chosen plan breaks its own rules: {broken}")
    band, source = error_band(given)
    bound = min([best.value_s - best.slack_s, *search.undecided])
    proven = bound >= best.value_s - best.slack_s
    certificate = Certificate(
        status="OPTIMAL" if proven else "FEASIBLE",
        value_s=best.value_s,
        bound_s=bound,
        slack_s=best.slack_s,
        space_hash=_hash({"inputs": inputs, "versions": versions()}),
        entered=search.funnel.entered,
        removed=search.funnel.removed,
        solved=search.solved,
        error_band=band,
        band_source=source,
    )
    others = []
    for found in ranked[1 : search.options.runner_ups + 1]:
        scale = int(found.row.sequences[0]) / given.training.sequences
        in_band = found.value_s <= best.value_s * (1 + band)
        others.append(RunnerUp(layout_of(given, found), found.value_s * scale, found.value_s, in_band))
    return Plan(
        inputs=inputs,
        layout=layout,
        estimate=priced,
        certificate=certificate,
        runner_ups=tuple(others),
        idle=idle_of(given, layout, search, best),
        warnings=warnings_of(given, layout, priced.stage_bytes, space),
        provenance=provenance_of(given),
        run=run_of(given, priced),
    )


def price(given: Setting, layout: Layout) -> Priced:
    """A user's own layout, completed and priced; whether it fits is in the answer.

    Raises:
        LayoutError: it breaks a rule of the model, the batch or the network.
    """
    layout = complete(given, layout)
    priced = estimate(given, layout)
    idle = given.cluster.devices - layout.devices
    return Priced(
        inputs=inputs_of(given, None),
        layout=layout,
        estimate=priced,
        idle=Idle(
            idle,
            levels_used(given, layout),
            "the given layout uses no more" if idle else "every device is used",
        ),
        warnings=warnings_of(given, layout, priced.stage_bytes, None),
        provenance=provenance_of(given),
        run=run_of(given, priced),
    )


def error_band(given: Setting) -> tuple[float, str]:
    """Share of step time by which the model is known to miss, for this class of run."""
    if given.efficiency.name != "default":
        return _BANDS["uncalibrated"], f"no measurement for efficiency {given.efficiency.name}; {_BAND_SOURCE}"
    moe = any(k.ffn.experts for k in given.model.kinds)
    return _BANDS["moe" if moe else "dense"], _BAND_SOURCE


def idle_of(given: Setting, layout: Layout, search: Search, best: Found) -> Idle:
    """Which devices the plan leaves idle, and why no more are used."""
    total, levels = given.cluster.devices, levels_used(given, layout)
    if layout.devices == total:
        return Idle(0, levels, "every device is used")
    more = search.bound_with_more_devices(layout.devices)
    if more is None:
        reason = (
            f"no legal layout uses more than {layout.devices} of {total} devices: degrees must divide the batch of "
            f"{given.training.sequences} sequences, the heads and the sequence, and pp is at most the layers"
        )
    else:
        devices, bound = more
        reason = (
            f"layouts on more devices (up to {devices}) exist, but none that fits and can be placed is faster: "
            f"the best compute-only bound among them is {bound:.4g} s against {best.value_s:.4g} s"
        )
    return Idle(total - layout.devices, levels, reason)


def levels_used(given: Setting, layout: Layout) -> tuple[tuple[str, int, int], ...]:
    """(name, used, size) of each network level, innermost first."""
    return tuple(
        (level.name, prod(factor for _, factor in members), level.size)
        for level, members in zip(given.cluster.levels, layout.placement, strict=True)
    )


def warnings_of(given: Setting, layout: Layout, stage_bytes: tuple[float, ...], space: Space | None) -> tuple[str, ...]:
    """Everything a user should know before trusting the numbers."""
    out = [*given.cluster.warnings, *given.model.notes, *given.efficiency.notes]
    if given.cluster.chip.memory_warning:
        out.append(given.cluster.chip.memory_warning)
    full = max(stage_bytes) / given.cluster.chip.memory_bytes
    if _NEARLY_FULL < full <= 1:
        out.append(f"the heaviest stage fills {full:.0%} of the device; above 90% allocators retry and slow down")
    if space is not None:
        for offload in OFFLOADS[1:3]:
            wanted = all(c.allowed(offload) for c in space.constraints if c.name == "offload")
            if wanted and (refusal := offload_refusal(given, offload)):
                out.append(f"not considered: {refusal}")
    return tuple(dict.fromkeys(out))


def inputs_of(given: Setting, constraints: str | None) -> dict[str, Any]:
    """The resolved question, with a hash of the model."""
    training = {k: v for k, v in asdict(given.training).items()}
    return {
        "model": {
            "name": given.model.name,
            "model_type": given.model.model_type,
            "params": given.model.params,
            "kinds": [kind.name for kind in given.model.kinds],
            "hash": _hash(_spec(given.model)),
        },
        "cluster": {
            "name": given.cluster.name,
            "devices": given.cluster.devices,
            "chips": given.cluster.chips,
            "fabric": given.cluster.fabric_note,
            "host_memory_bytes": given.cluster.host_memory_bytes,
            "cpu_update_params_per_s": given.cluster.cpu_update_params_per_s,
        },
        "training": training,
        "constraints": constraints or "",
        "efficiency": given.efficiency.name,
        "overlap": given.overlap,
        "comm_streams": given.streams,
        "framework": given.framework.name,
    }


def provenance_of(given: Setting) -> dict[str, Any]:
    return {
        "versions": versions(),
        "efficiency": given.efficiency.provenance,
        "sources": list(given.cluster.sources),
    }


def versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("meshwright", "numpy", "ortools")}


def _spec(model: ModelSpec) -> dict[str, Any]:
    return asdict(replace(model, name="", notes=()))


def _hash(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, default=lambda x: digits(x) if isinstance(x, float) else str(x))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
