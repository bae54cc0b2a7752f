"""The answers: a proven plan, a proven no, or a search cut short."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import index
from typing import TYPE_CHECKING, Any, Self

from meshwright.costmodel.estimate import StepEstimate, digits
from meshwright.costmodel.goals import Goal
from meshwright.costmodel.layout import Layout
from meshwright.hardware.errors import InputError, MeshwrightError, shown
from meshwright.hardware.units import human_bytes
from meshwright.optimizer.plan_check import check_parts, check_proof
from meshwright.optimizer.plan_form import check_form

if TYPE_CHECKING:
    from meshwright.optimizer.reasons.limits import Clash

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Certificate:
    """What was proved, over which space, and how far to trust the model underneath.

    Attributes:
        status: OPTIMAL, FEASIBLE (a gap is left), or UNKNOWN.
        value_s, bound_s: step seconds for the nominal batch, and what no plan of the space beats; under the goal cost
            times the devices used, under chips among the plans on as many devices.
        slack_s: seconds that rounding in the solver can hide; part of the bound.
        space_hash: of the question: inputs, rules and versions.
        entered, removed: candidates by refinement, and removed by rule.
        solved: candidates whose stages the solver settled.
        error_band: measured error of the cost model for this class, as a share of step time.
        band_source: where that figure comes from.
        goal: step, cost or chips. value, bound, unit: value and bound in the goal's own unit.
        limit_s, deadline_s: of chips: seconds that a step may take, and those of the run that they were made from.
    """

    status: str
    value_s: float
    bound_s: float
    slack_s: float
    space_hash: str
    entered: dict[str, int]
    removed: dict[str, int]
    solved: int
    error_band: float
    band_source: str
    goal: str
    value: float
    bound: float
    unit: str
    limit_s: float | None = None
    deadline_s: float | None = None

    @property
    def gap(self) -> float:
        """Share by which the plan can at most be beaten within the model."""
        return max(0.0, 1.0 - self.bound_s / self.value_s, 1.0 - self.bound / self.value)

    def to_dict(self) -> dict[str, Any]:
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: digits(value) if isinstance(value, float) else value for name, value in out.items()}


@dataclass(frozen=True)
class RunnerUp:
    """Another plan that differs in what a user sees."""

    layout: Layout
    step_s: float
    value_s: float  # step seconds scaled to the nominal batch, under the goal cost times the devices used
    in_band: bool  # closer to the best than the model's error


@dataclass(frozen=True)
class Idle:
    """Devices left idle and why; `levels` are (name, used, size)."""

    devices: int
    levels: tuple[tuple[str, int, int], ...]
    reason: str


@dataclass(frozen=True)
class Priced:
    """A layout with its price: what `meshwright estimate` answers, and the part of a plan that needs no search.

    `run` is what a whole run costs (see `run_cost`); None where no length was asked.
    """

    inputs: dict[str, Any]
    layout: Layout
    estimate: StepEstimate
    idle: Idle
    warnings: tuple[str, ...]
    provenance: dict[str, Any]
    run: dict[str, Any] | None = field(default=None, kw_only=True)

    @property
    def memory(self) -> tuple[dict[str, float], ...]:
        """Bytes on one device by part, per stage."""
        return self.estimate.memory

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, the same bytes for the same question."""
        return {
            "schema_version": SCHEMA_VERSION,
            "inputs": self.inputs,
            "layout": self.layout.to_dict(),
            "estimate": self.estimate.to_dict(),
            "memory": self.estimate.memory_dict(),
            "fits": self.estimate.fits,
            "short_bytes": digits(self.estimate.short_bytes),
            "host_short_bytes": digits(self.estimate.host_short_bytes),
            "idle": {
                "devices": self.idle.devices,
                "levels": [list(level) for level in self.idle.levels],
                "reason": self.idle.reason,
            },
            "warnings": list(self.warnings),
            "provenance": self.provenance,
            "run": self.run,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`.

        Raises:
            InputError: another schema version, keys missing or of another kind, or parts that contradict each other.
        """
        if not isinstance(data, Mapping):
            raise InputError(f"a plan is a mapping, not {type(data).__name__}; read one with load_plan")
        version = data.get("schema_version")
        if version != SCHEMA_VERSION or isinstance(version, bool):
            raise InputError(
                f"schema_version is {shown(version)}, this program reads {SCHEMA_VERSION}; write it again"
            )
        check_form(data, plan=issubclass(cls, Plan))
        try:
            made = cls(**cls._fields_of(data))
            check_parts(made, data)
            if isinstance(made, Plan):
                check_proof(made)
            made.to_dict()  # whatever it refuses too
            return made
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"the plan contradicts itself: {error}; write it again") from None

    @classmethod
    def _fields_of(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        idle = data["idle"]
        return {
            "inputs": dict(data["inputs"]),
            "layout": Layout.from_dict(data["layout"]),
            "estimate": StepEstimate.from_dict(data["estimate"], data["memory"]),
            "idle": Idle(
                index(idle["devices"]),
                tuple((str(name), index(used), index(size)) for name, used, size in idle["levels"]),
                str(idle["reason"]),
            ),
            "warnings": tuple(data["warnings"]),
            "provenance": dict(data["provenance"]),
            "run": data.get("run"),
        }


@dataclass(frozen=True)
class Plan(Priced):
    """A layout with its price and its proof. `estimate` and `memory` are the cost model's own.

    `launcher` is what the launcher's limits cost (see `launchers.cost`); None where it has none.
    """

    certificate: Certificate
    runner_ups: tuple[RunnerUp, ...]
    launcher: dict[str, Any] | None = field(default=None, kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, the same bytes for the same question."""
        runner_ups = [
            {
                "layout": r.layout.to_dict(),
                "step_s": digits(r.step_s),
                "value_s": digits(r.value_s),
                "in_band": r.in_band,
            }
            for r in self.runner_ups
        ]
        return super().to_dict() | {
            "certificate": self.certificate.to_dict(),
            "runner_ups": runner_ups,
            "launcher": self.launcher,
        }

    @classmethod
    def _fields_of(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        return super()._fields_of(data) | {
            "certificate": Certificate(**data["certificate"]),
            "runner_ups": tuple(
                RunnerUp(Layout.from_dict(r["layout"]), r["step_s"], r["value_s"], r["in_band"])
                for r in data["runner_ups"]
            ),
            "launcher": data.get("launcher"),
        }


class Infeasible(MeshwrightError):
    """Proven: no layout of the space obeys all rules and fits.

    Attributes:
        short_bytes: least bytes by which any layout passes the device's memory; None when rules alone leave
            nothing.
        layout: the closest miss, where memory is what fails.
        removed: candidates removed by rule.
        clash: the limits that leave nothing, where they are known yet (`reasons.limits`).
    """

    exit_code = 3

    def __init__(
        self,
        reason: str,
        short_bytes: float | None,
        layout: Layout | None,
        removed: dict[str, int],
        clash: "Clash | None" = None,
    ) -> None:
        self.reason, self.short_bytes, self.layout, self.removed = reason, short_bytes, layout, removed
        self.clash = clash
        short = f" Closest miss: {human_bytes(short_bytes)} short per device." if short_bytes else ""
        super().__init__(f"no layout fits: {reason}{short}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, as the files and `--json` hold them."""
        return {
            "schema_version": SCHEMA_VERSION,
            "status": "INFEASIBLE",
            "reason": self.reason,
            "short_bytes": None if self.short_bytes is None else digits(self.short_bytes),
            "layout": None if self.layout is None else self.layout.to_dict(),
            "removed": self.removed,
        }


class LimitMissed(Infeasible):
    """Proven: no plan keeps the limit on the step; `fastest` is the best there is.

    `goal` has the limit.
    """

    def __init__(self, reason: str, goal: Goal, fastest: Plan, removed: dict[str, int]) -> None:
        super().__init__(reason, None, None, removed)
        self.goal, self.fastest = goal, fastest
        self.args = (reason,)

    def to_dict(self) -> dict[str, Any]:
        """The same with the fastest plan."""
        limit_s = self.goal.limit_s or 0.0
        return super().to_dict() | {"limit_s": digits(limit_s), "fastest": self.fastest.to_dict()}


class Undecided(MeshwrightError):
    """A limit ended the search before a proof, the message says which; `best` holds the plan so far, if there is one."""

    exit_code = 4

    def __init__(self, reason: str, best: Plan | None) -> None:
        self.best = best
        super().__init__(reason)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: the plan so far where there is one."""
        if self.best is not None:
            return self.best.to_dict()
        return {"schema_version": SCHEMA_VERSION, "status": "UNKNOWN", "reason": str(self)}


class Interrupted(Undecided):
    """The same where the user ended the search."""

    exit_code = 130


class ModelDriftError(MeshwrightError):
    """The solver's value and the cost model's disagree by more than rounding: a fault of this program."""

    exit_code = 1
