"""From a plan back to the question that it answers, with everything that its file names found again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from meshwright.costmodel.doors import ModelSource, model_of
from meshwright.costmodel.framework import FRAMEWORKS
from meshwright.costmodel.readers import model_names
from meshwright.costmodel.setting import Overlap, Setting, Streams
from meshwright.costmodel.workload import Training
from meshwright.hardware.calibration import efficiency_names, load_efficiency
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import (
    InputError,
    MeshwrightError,
    UnknownNameError,
    check_type,
    shown,
)
from meshwright.optimizer.launchers.catalogue import LAUNCHERS
from meshwright.optimizer.plan import Plan, Priced
from meshwright.optimizer.question import inputs_of, model_hash, resolve, versions
from meshwright.optimizer.reasons.written import check_figures


@dataclass(frozen=True)
class Question:
    """A question, and its answer where it is known."""

    setting: Setting
    constraints: str | None
    plan: Plan | None = None


def question_of(asked: Plan | Setting, constraints: str | None, setting: Setting | None = None) -> Question:
    """What a reason is asked about: a plan, whose file names its question, or a question.

    Errors: InputError where it is neither, where a plan comes with other constraints, and as `reopen`.
    """
    check_type(
        "question", asked, (Plan, Setting), "a plan, or what resolve(model, cluster, training) returns"
    )
    if isinstance(asked, Setting):
        return Question(asked, constraints)
    if constraints is not None:
        raise InputError("a plan brings its constraints along; give none, or ask about resolve(...) instead")
    if asked.certificate.goal != "step":
        raise InputError(
            f"the plan's goal is {asked.certificate.goal}, and this reason compares step times; ask about resolve(...) instead"
        )
    return Question(reopen(asked, setting), asked.inputs["constraints"] or None, asked)


def reopen(
    plan: Priced,
    setting: Setting | None = None,
    *,
    model: ModelSource | None = None,
    efficiency: str | None = None,
) -> Setting:
    """The question of a plan or an estimate.

    Args:
        setting: the question itself, where names do not say it all (a model or a cluster made in Python).
        model, efficiency: where the model's or the rates' file is, if the plan does not say.

    Errors: InputError where something is not found, or is not what the plan was made with, and where a figure of the plan
    is not what its question makes it.
    """
    check_type(
        "setting", setting, (Setting, type(None)), "what resolve(model, cluster, training) returns, or None"
    )
    type(plan).from_dict(plan.to_dict())  # one that was made in Python is held to what a file is
    given = setting if setting is not None else _found(plan, model, efficiency)
    # A file of before there were multi-token-prediction modules or images means none, and that all is trained.
    theirs = plan.inputs | {"training": {"mtp": 0, "images": 0, "trainable": "all"} | plan.inputs["training"]}
    ours = inputs_of(given, plan.inputs.get("constraints"))
    for part in ("model", "cluster", "training"):
        for key, value in ours[part].items():
            if theirs[part].get(key) != value and not (part == "model" and key == "name"):
                raise InputError(
                    f"the plan was made with another {part}: its {key} is {theirs[part].get(key)}, here it is {value}; "
                    f"{_model_way(model, theirs[part].get('name')) if part == 'model' else 'plan again'}"
                )
    for key in ("efficiency", "overlap", "comm_streams", "framework", "launcher"):
        if (wrote := theirs.get(key, "any")) != ours[key]:
            raise InputError(
                f"the plan was written with {key} {shown(wrote)}, here it is {shown(ours[key])}; "
                + (_rates_way(wrote) if key == "efficiency" else f"ask with {key} {wrote}, or plan again")
            )
    check_figures(given, plan)
    return given


def _model_way(given: ModelSource | None, name: object) -> str:
    if given is None:
        return "say which with --model"
    return "leave --model out" if name in model_names() else f"give --model the one that is called {name}"


def _rates_way(name: object) -> str:
    """How to ask with the rates that a plan was written with."""
    if name in efficiency_names() or str(name).startswith("mfu="):
        return "leave --efficiency out, or plan again with it"
    return f"give --efficiency the file that is called {name}, or plan again"


@dataclass(frozen=True)
class Files:
    """What is said where a plan's file does not say it: the model's config and the rates' file."""

    model: ModelSource | None = None
    efficiency: str | None = None


def files_for(plans: Sequence[Priced], given: Files) -> list[Files]:
    """What of it belongs to each of several plans: a model by what it is, rates by their name.

    Errors: InputError, ModelError, UnknownNameError where it cannot be read, or belongs to none of the plans.
    """
    spec = None if given.model is None else model_of(given.model)
    found = []
    for plan in plans:
        rates = None if given.efficiency is None else _rates_of(plan, given.efficiency)
        found.append(
            Files(
                given.model
                if spec is not None and plan.inputs["model"].get("hash") == model_hash(spec)
                else None,
                given.efficiency if rates is not None and plan.inputs.get("efficiency") == rates else None,
            )
        )
    for option, value, key in (
        ("--model", given.model, "model"),
        ("--efficiency", given.efficiency, "efficiency"),
    ):
        if value is not None and all(getattr(one, key) is None for one in found):
            wrote = " and ".join(dict.fromkeys(_written_with(plan, key) for plan in plans))
            raise InputError(
                f"{option} {value}: no plan was made with it, but with {key} {wrote}; leave it out, or give that one"
            )
    return found


def _rates_of(plan: Priced, efficiency: str) -> str | None:
    """The name of rates for the chip of a plan; None where its cluster is not known here."""
    try:
        chip = parse_cluster(plan.inputs["cluster"]["name"]).chip
    except (KeyError, MeshwrightError):
        return None
    return load_efficiency(efficiency, chip).name


def _written_with(plan: Priced, key: str) -> str:
    value = plan.inputs.get(key)
    return str(value.get("name") if isinstance(value, Mapping) else value)


def check_written(
    plan: Priced, *, model: ModelSource | None = None, efficiency: str | None = None
) -> str | None:
    """Why the figures of a plan cannot be made again here: its question is not found, or another version wrote it.

    Errors: InputError where they can be, and are others, as `reopen`.
    """
    try:
        given = _found(plan, model, efficiency)
    except MeshwrightError as error:
        return str(error)
    wrote, here = plan.provenance.get("versions"), versions()
    if wrote != here:
        return f"it was made by {_by(wrote)}, this is {_by(here)}"
    reopen(plan, given)
    return None


def _by(made_by: object) -> str:
    """`meshwright 0.1.0, numpy 2.4`."""
    if not isinstance(made_by, Mapping):
        return shown(made_by)
    return ", ".join(f"{name} {version}" for name, version in sorted(made_by.items()))


def _found(plan: Priced, model: ModelSource | None, efficiency: str | None) -> Setting:
    """Names of the file to a Setting."""
    inputs = plan.inputs
    try:
        cluster, memory = inputs["cluster"], inputs["cluster"]["host_memory_bytes"]
        update = cluster["cpu_update_params_per_s"]
        machine = parse_cluster(
            cluster["name"],
            host_memory=None if memory is None else f"{memory} B",
            cpu_update=None if update is None else f"{update!r} param/s",
        )
        training = Training(**inputs["training"])
        rest = {key: inputs[key] for key in ("overlap", "comm_streams", "framework")}
        rest["launcher"] = inputs.get("launcher", "any")  # files of before there were any
        name = inputs["model"]["name"]
        rates = inputs["efficiency"]
    except MeshwrightError as error:
        raise InputError(f"the plan's inputs do not say the question: {error}; plan again") from None
    except (KeyError, TypeError) as error:
        raise InputError(f"the plan's inputs do not say the question ({error}); plan again") from None
    _check_names(rest)
    try:
        return resolve(model or name, machine, training, efficiency=efficiency or rates, **rest)
    except UnknownNameError as error:
        rates_unknown = str(error).startswith("unknown efficiency")
        if (efficiency if rates_unknown else model) is not None:
            raise  # what was said now is unknown, not what the file says
        option = "--efficiency FILE" if rates_unknown else "--model PATH"
        raise InputError(
            f"the plan's file does not say where this is: {error}; say it with {option}"
        ) from None
    except MeshwrightError as error:
        if model is None and str(error).startswith("no file"):
            raise InputError(
                f"the model of the plan is {name!r}, {error}; say where it is with --model PATH"
            ) from None
        raise


def _check_names(words: Mapping[str, Any]) -> None:
    """Raises InputError where a plan names what nobody knows, whatever file it could be said with."""
    known = {
        "overlap": get_args(Overlap), "comm_streams": get_args(Streams), "framework": FRAMEWORKS, "launcher": LAUNCHERS,
    }  # fmt: skip
    for name, names in known.items():
        if words[name] not in list(names):  # a word from a file may be of any type
            raise InputError(
                f"the plan's inputs.{name} is {shown(words[name])}, not one of {', '.join(sorted(names))}; plan again"
            )
