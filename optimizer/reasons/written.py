"""Whether the figures of a plan are those of its question: all of them, so that a file that was edited is no plan.

What a search found out (its bounds and counts) cannot be made again without one; what they say of each other is held by
`plan_check`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from meshwright.costmodel.goals import Goal
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.limits.token_cost import cost_unit, per_million_tokens
from meshwright.costmodel.setting import Setting
from meshwright.hardware.errors import InputError, shown
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.launchers.check import runs_on
from meshwright.optimizer.plan import Plan, Priced
from meshwright.optimizer.question import (
    error_band,
    estimate,
    inputs_of,
    price,
    provenance_of,
    space_hash,
    versions,
)
from meshwright.optimizer.space import Space, frames

_SAME = 1e-8  # a file keeps ten digits
# Sections of an answer that its question and its layout decide.
_PRICED = ("estimate", "memory", "fits", "short_bytes", "host_short_bytes", "run")


def check_figures(given: Setting, plan: Priced) -> None:
    """Raises InputError at the first figure of a plan or an estimate that its question `given` does not give."""
    ours, theirs = price(given, plan.layout).to_dict(), plan.to_dict()
    for section in _PRICED:
        _same(section, ours[section], theirs[section], plan.estimate.step_s)
    for name in ("devices", "levels"):
        _same(f"idle.{name}", ours["idle"][name], theirs["idle"][name])
    if isinstance(plan, Plan):
        _check_certificate(given, plan)
        _check_others(given, plan)


def _same(section: str, ours: Any, theirs: Any, step_s: float = 0.0) -> None:
    here, written = dict(_flat(section, ours)), dict(_flat(section, theirs))
    for name in here | written:
        # Parts of a step are told apart by what they are of it: a bubble may be noise.
        scale = step_s if name.startswith("estimate.parts.") else 0.0
        _hold(name, written.get(name), here.get(name), scale)


def _check_certificate(given: Setting, plan: Plan) -> None:
    proof, training = plan.certificate, given.training
    band, source = error_band(given)
    _hold("certificate.error_band", proof.error_band, band)
    _hold("certificate.band_source", proof.band_source, source)
    if proof.goal == "cost":
        for name, seconds in (("value", proof.value_s), ("bound", proof.bound_s)):
            here = per_million_tokens(given.cluster, training, seconds)
            _hold(f"certificate.{name}", getattr(proof, name), here)
    elif proof.goal == "chips":
        here = plan.layout.devices / given.cluster.chip.devices_per_chip
        _hold("certificate.value", proof.value, here)
    else:
        _hold("certificate.bound", proof.bound, proof.bound_s)
    unit = {"cost": cost_unit(given.cluster), "chips": "chips"}.get(proof.goal, "s a step")
    _hold("certificate.unit", proof.unit, unit)
    goal = Goal(proof.goal, proof.limit_s, proof.deadline_s)
    made_by = plan.provenance["versions"]
    # What a file of before some key of the inputs was written says of it is what is said here.
    known = inputs_of(given, plan.inputs.get("constraints"))
    hashes = [space_hash(inputs, goal, made_by) for inputs in (plan.inputs, known)]
    if proof.space_hash not in hashes:
        _hold("certificate.space_hash", proof.space_hash, hashes[0])
    if made_by == versions():
        _check_same_version(given, plan)


def _check_same_version(given: Setting, plan: Plan) -> None:
    """What the version that wrote the plan, and no other, says alike: sources, and how many degrees there are."""
    ours = provenance_of(given)
    for name in ("efficiency", "sources"):
        _same(f"provenance.{name}", ours[name], plan.provenance.get(name))
    if given.training.batch_tolerance == 0 and plan.certificate.goal != "chips":
        funnel = Funnel()
        frames(
            Space(given, parse_constraints(plan.inputs["constraints"])), funnel, (given.training.sequences,)
        )
        for level in ("degrees", "frames"):
            _hold(f"certificate.entered.{level}", plan.certificate.entered.get(level), funnel.entered[level])


def _check_others(given: Setting, plan: Plan) -> None:
    """Runner-ups, and the best plan without the launcher's limits."""
    asked, proof = given.training.sequences, plan.certificate

    def value_s(layout: Layout, step_s: float) -> float:
        scale = asked / (layout.sequences or asked)
        return step_s * scale * (layout.devices if proof.goal == "cost" else 1)

    for number, other in enumerate(plan.runner_ups):
        _hold(f"runner_ups[{number}].step_s", other.step_s, estimate(given, other.layout).step_s)
        _hold(f"runner_ups[{number}].value_s", other.value_s, value_s(other.layout, other.step_s))
    if (told := plan.launcher) is None:
        return
    best_s, limits = proof.value_s, []
    if told["layout"] is not None:
        layout = Layout.from_dict(told["layout"])
        best_s = value_s(layout, estimate(replace(given, launcher="any"), layout).step_s)
        limits = list(runs_on(given, layout).limits)
    _hold("launcher.name", told["name"], given.launcher)
    _hold("launcher.value_s", told["value_s"], best_s)
    _hold("launcher.faster", told["faster"], 1.0 - best_s / proof.value_s, scale=1.0)
    _same("launcher.limits", limits, told["limits"])


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Leaves of a section with their paths: `memory[0].loss`, `estimate.step_s`."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _flat(f"{name}[{at}]", inner)
    else:
        yield name, value


def _hold(name: str, theirs: object, ours: object, scale: float = 0.0) -> None:
    """Raises InputError where a figure of the plan is not ours; `scale` is the least that a difference is a share of."""
    numbers = [x for x in (theirs, ours) if isinstance(x, int | float) and not isinstance(x, bool)]
    if len(numbers) == 2 and any(isinstance(x, float) for x in numbers):
        if abs(numbers[0] - numbers[1]) <= _SAME * max(abs(numbers[1]), scale):
            return
    elif theirs == ours:
        return
    raise InputError(
        f"the plan says that {name} is {_told(theirs)}, here its question makes it {_told(ours)}: the file was edited, or "
        "rates or figures have changed since; plan again"
    )


def _told(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else shown(value)
