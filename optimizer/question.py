"""The question as it was understood: names resolved to a Setting, its record for the answer, and a layout priced."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import metadata
from math import prod
from os import PathLike
from typing import Any

from meshwright.costmodel.backward import trains_tower
from meshwright.costmodel.bands import band_of, run_kind
from meshwright.costmodel.doors import ModelSource, cluster_of, model_of
from meshwright.costmodel.estimate import StepEstimate, digits
from meshwright.costmodel.estimate import estimate as priced_as
from meshwright.costmodel.goals import Goal
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.readers.mtp import left_out
from meshwright.costmodel.readers.tower import TEXT_ONLY
from meshwright.costmodel.setting import Overlap, Setting, Streams, setting
from meshwright.costmodel.trainable import ALL, trained_params, untouched
from meshwright.costmodel.workload import Training
from meshwright.hardware.calibration import load_bands
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.errors import InputError, check_type
from meshwright.optimizer.launchers.catalogue import agreed, check_machine, check_trained, launcher_of
from meshwright.optimizer.launchers.check import runnable
from meshwright.optimizer.plan import Idle, Priced
from meshwright.optimizer.run_cost import run_of

# What `resolve` takes, in the order of its arguments: types, and how they are told.
_TAKEN: dict[str, tuple[Any, str]] = {
    "model": (
        (ModelSpec, str, PathLike, Mapping),
        "a built-in name, the path of a config.json or its folder, its content as a dict, or a ModelSpec",
    ),
    "cluster": ((Cluster, str), "a string such as 'h100:8x64', or a Cluster"),
    "training": (Training, "a Training(global_batch_tokens=..., seq_len=...)"),
    "efficiency": (str, "'default', 'ideal', 'mfu=0.4' or the path of a YAML file"),
    "overlap": (str, "'calibrated', 'full' or 'none'"),
    "comm_streams": (str, "'shared' or 'independent'"),
    "framework": ((str, type(None)), "'jax' or 'megatron', or None"),
    "launcher": ((str, type(None)), "a name such as 'megatron', or None"),
}

_NEARLY_FULL = 0.90


def resolve(
    model: ModelSource,
    cluster: Cluster | str,
    training: Training,
    *,
    efficiency: str = "default",
    overlap: Overlap = "calibrated",
    comm_streams: Streams = "shared",
    framework: str | None = None,
    launcher: str | None = None,
) -> Setting:
    """Names to a Setting; see `recommend` for the arguments.

    Raises:
        InputError: an argument of a type that is not taken, a name that is not known, or a launcher that does not go
            with the framework, the chips, multi-token prediction or a vision tower.
    """
    given = (model, cluster, training, efficiency, overlap, comm_streams, framework, launcher)
    for value, (what, (kinds, taken)) in zip(given, _TAKEN.items(), strict=True):
        check_type(what, value, kinds, taken)
    bounds, habits = agreed(launcher, framework)
    spec, machine = model_of(model), cluster_of(cluster)
    check_machine(bounds, machine)
    check_hosts(machine)
    check_trained(bounds, training)
    _check_experts(spec, training)
    resolved = setting(
        spec,
        machine,
        training,
        efficiency=efficiency,
        overlap=overlap,
        streams=comm_streams,
        framework=habits,
    )
    return replace(resolved, launcher=bounds)


def check_hosts(cluster: Cluster) -> None:
    """Raises InputError for what is said of hosts and cannot change a plan: a rate of updates without the memory that they
    work in, memory without a link to it."""
    given = {
        "host_memory_bytes (--host-memory)": cluster.host_memory_bytes,
        "cpu_update_params_per_s (--cpu-update)": cluster.cpu_update_params_per_s,
    }
    memory, update = given.items()
    if update[1] is not None and memory[1] is None:
        raise InputError(
            f"{update[0]} {update[1]:g} changes nothing: {cluster.name} gives no host memory, without which nothing is "
            "offloaded; say it with --host-memory 2TB, or leave --cpu-update out"
        )
    if cluster.chip.host_link is None and (
        said := [name for name, value in given.items() if value is not None]
    ):
        raise InputError(
            f"{said[0]} changes nothing: {cluster.chip.name} gives no host link (field host_link), without which nothing is "
            "offloaded; leave it out"
        )


def _check_experts(model: ModelSpec, training: Training) -> None:
    """Raises InputError for a capacity of experts where the model has none."""
    if training.expert_capacity is not None and not any(kind.ffn.experts for kind in model.kinds):
        raise InputError(
            f"expert_capacity {training.expert_capacity:g} changes nothing: {model.name} has no experts; leave it out"
        )


def estimate(setting: Setting, layout: Layout) -> StepEstimate:
    """What a layout costs that the setting's launcher can run; where it gives no placement, at the fastest that it can.

    Raises:
        LayoutError: it breaks a rule of the model, the batch, the network or the launcher.
        InputError: no Setting, or no Layout.
    """
    return priced_as(setting, runnable(setting, layout))


def price(given: Setting, layout: Layout) -> Priced:
    """The same as an answer, with the layout completed; whether it fits is in the answer."""
    layout = runnable(given, layout)
    priced = priced_as(given, layout)
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
        warnings=(*warnings_of(given, priced.stage_bytes), *barrier_note(layout)),
        provenance=provenance_of(given),
        run=run_of(given, priced),
    )


def error_band(given: Setting) -> tuple[float, str]:
    """Share of step time by which the model misses in 80% of runs of this kind, and what says so."""
    stated, source = band_of(given), given.efficiency.band_source
    if stated is None:
        others = load_bands("default")
        stated = others.others[run_kind(given)]
        source = f"no measurement for efficiency {given.efficiency.name} and overlap {given.overlap}; {others.source}, sources left out"
    return max(1.0 - stated[0], stated[1] - 1.0), source


def levels_used(given: Setting, layout: Layout) -> tuple[tuple[str, int, int], ...]:
    """(name, used, size) of each network level, innermost first."""
    return tuple(
        (level.name, prod(factor for _, factor in members), level.size)
        for level, members in zip(given.cluster.levels, layout.placement, strict=True)
    )


def barrier_note(layout: Layout) -> tuple[str, ...]:
    """What zb_h2 asks of the optimizer, see `costmodel.schedules`."""
    if layout.schedule != "zb_h2":
        return ()
    return (
        (
            "schedule zb_h2 is priced with each stage updating its weights without waiting for the others; clipping by the "
            "norm of all gradients makes it wait longer, up to as long as zb_h1"
        ),
    )


def warnings_of(given: Setting, stage_bytes: tuple[float, ...]) -> tuple[str, ...]:
    """Everything a user should know before trusting the numbers."""
    out = [*given.cluster.warnings, *_model_notes(given), *given.efficiency.notes]
    if note := launcher_of(given).note:
        out.append(note)
    if given.cluster.chip.memory_warning:
        out.append(given.cluster.chip.memory_warning)
    longest = given.model.max_seq_len
    if longest is not None and given.training.seq_len > longest:
        out.append(f"seq_len {given.training.seq_len} is more than the {longest} the model was published for")
    if given.training.moe_imbalance != 1 and not any(k.ffn.experts for k in given.model.kinds):
        out.append(
            f"moe_imbalance {given.training.moe_imbalance:g} changes nothing: {given.model.name} has no experts"
        )
    if given.training.expert_capacity is not None and given.training.expert_capacity < 1:
        out.append(
            f"expert_capacity {given.training.expert_capacity:g} drops tokens even where experts are balanced"
        )
    step, total = given.training.global_batch_tokens, given.training.total_tokens
    if total is not None and total < step:
        out.append(
            f"the run of {total:,} tokens is less than one step of {step:,}; days and money are of that share of a step"
        )
    full = max(stage_bytes) / given.capacity_bytes  # as the page shows it
    if _NEARLY_FULL < full <= 1:
        out.append(
            f"the heaviest stage fills {full:.0%} of the usable memory; above 90% allocators retry and slow down"
        )
    return tuple(dict.fromkeys(out))


def _model_notes(given: Setting) -> tuple[str, ...]:
    """What the model's reader left out, less the multi-token-prediction modules and the vision tower that are trained."""
    model, training = given.model, given.training
    told, untrue = [], set()
    if model.mtp is not None and training.mtp:
        told.append(
            f"{training.mtp} of {model.mtp.modules} multi-token-prediction layers on the last stage, not among the parameters"
        )
        untrue.add(left_out(model.mtp.modules))
    if model.tower is not None and training.images:
        runs = "is trained on the first stage with full recompute"
        told.append(
            f"images {training.images} a sequence: the vision tower of {model.tower_params:,} parameters, not among the "
            f"model's, {runs if trains_tower(model) else 'runs on the first stage and is not trained'}"
        )
        untrue.add(TEXT_ONLY)
    if training.trainable != ALL:
        told.append(
            f"trainable {training.trainable}: {trained_params(model):,} parameters are trained on a model of {model.params:,}"
        )
    return (*told, *(note for note in model.notes if note not in untrue))


def inputs_of(given: Setting, constraints: str | None) -> dict[str, Any]:
    """The resolved question, with a hash of the model."""
    return {
        "model": {
            "name": given.model.name,
            "model_type": given.model.model_type,
            "params": given.model.params,
            "kinds": [kind.name for kind in given.model.kinds],
            "hash": model_hash(given.model),
        },
        "cluster": {
            "name": given.cluster.name,
            "devices": given.cluster.devices,
            "chips": given.cluster.chips,
            "fabric": given.cluster.fabric_note,
            "host_memory_bytes": given.cluster.host_memory_bytes,
            "cpu_update_params_per_s": given.cluster.cpu_update_params_per_s,
        },
        "training": asdict(given.training),
        "constraints": constraints or "",
        "efficiency": given.efficiency.name,
        "overlap": given.overlap,
        "comm_streams": given.streams,
        "framework": given.framework.name,
        "launcher": given.launcher,
    }


def provenance_of(given: Setting) -> dict[str, Any]:
    return {
        "versions": versions(),
        "efficiency": given.efficiency.provenance,
        "sources": list(given.cluster.sources),
    }


def versions() -> dict[str, str]:
    """Of what decides the numbers; the solver's only where it is installed, an estimate needs none."""
    found = {name: metadata.version(name) for name in ("meshwright", "numpy")}
    with suppress(metadata.PackageNotFoundError):
        found["ortools"] = metadata.version("ortools")
    return found


def model_hash(model: ModelSpec) -> str:
    """Of what a model is, whatever it is called."""
    return content_hash(_spec(model))


def _spec(model: ModelSpec) -> dict[str, Any]:
    spec = asdict(replace(untouched(model), name="", notes=()))
    for weight in _weights_in(spec):  # as of before they said so
        del weight["trained"], weight["adapts"]
    for kind in spec["kinds"]:
        if kind["attention"]["causal"]:  # as of before there were others
            del kind["attention"]["causal"]
    return {key: value for key, value in spec.items() if key not in ("mtp", "tower") or value is not None}


def _weights_in(data: Any) -> Iterator[dict[str, Any]]:
    """All weights of a model as a mapping."""
    if isinstance(data, dict):
        if "adapts" in data:
            yield data
        for value in data.values():
            yield from _weights_in(value)
    elif isinstance(data, tuple | list):
        for value in data:
            yield from _weights_in(value)


def space_hash(inputs: Mapping[str, Any], goal: Goal, made_by: Mapping[str, str]) -> str:
    """Of a question and of the versions that answered it; a goal as files keep it, with ten digits."""
    kept = {key: digits(value) if isinstance(value, float) else value for key, value in asdict(goal).items()}
    return content_hash({"inputs": inputs, "goal": kept, "versions": made_by})


def content_hash(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, default=lambda x: digits(x) if isinstance(x, float) else str(x))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
