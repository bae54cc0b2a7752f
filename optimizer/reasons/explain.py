"""explain(): what binds in a plan, operator by operator, class by class, stage by stage; from its file alone."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from meshwright.costmodel.estimate import digits, stage_counts, table_of
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.setting import Setting
from meshwright.hardware.errors import check_type
from meshwright.optimizer.plan import SCHEMA_VERSION, Priced
from meshwright.optimizer.reasons.operators import Operator, operators_of
from meshwright.optimizer.reasons.question import reopen
from meshwright.optimizer.reasons.traffic import Link, Traffic, traffic_of


@dataclass(frozen=True)
class Stage:
    """One pipeline stage.

    Attributes:
        micro_batch_s: seconds of one micro-batch. once_s: exposed seconds once per step.
        memory_bytes: on one device.
    """

    layers: int
    micro_batch_s: float
    once_s: float
    memory_bytes: float


@dataclass(frozen=True)
class Explanation:
    """Where the seconds and the bytes of a plan go.

    Attributes:
        plan: what is explained.
        slowest: the stage that sets the pace; its operators and communication are told. latest: the stage that takes
            longest once per step. fullest: the stage that needs most memory.
        operators: of the slowest stage; their seconds sum to the parts compute and recompute.
        traffic: by class. links: by kind of link.
        binds: seconds of the step by what they wait for; they sum to the step.
    """

    plan: Priced
    slowest: int
    latest: int
    fullest: int
    stages: tuple[Stage, ...]
    operators: tuple[Operator, ...]
    traffic: tuple[Traffic, ...]
    links: tuple[Link, ...]
    binds: dict[str, float]

    @property
    def fullest_parts(self) -> dict[str, float]:
        """Bytes by part on a device of the fullest stage."""
        return self.plan.estimate.memory[self.fullest]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "schema_version": SCHEMA_VERSION,
            "step_s": digits(self.plan.estimate.step_s),
            "parts": {name: digits(s) for name, s in self.plan.estimate.parts.items()},
            "capacity_bytes": self.plan.estimate.capacity_bytes,
            "fits": self.plan.estimate.fits,
            "short_bytes": digits(self.plan.estimate.short_bytes),
            "host_short_bytes": digits(self.plan.estimate.host_short_bytes),
            "slowest": self.slowest,
            "latest": self.latest,
            "fullest": self.fullest,
            "stages": [_plain(stage) for stage in self.stages],
            "operators": [
                _plain(o) | {"bound": o.bound, "achieved": digits(o.achieved)} for o in self.operators
            ],
            "traffic": [_plain(t) for t in self.traffic],
            "links": [_plain(link) for link in self.links],
            "binds": {name: digits(s) for name, s in self.binds.items()},
        }


def _plain(record: Any) -> dict[str, Any]:
    """A record with its floats at ten digits, one level of mappings included."""
    out = asdict(record)
    for name, value in out.items():
        if isinstance(value, float):
            out[name] = digits(value)
        elif isinstance(value, dict):
            out[name] = {key: digits(v) for key, v in value.items()}
    return out


def explain(plan: Priced, setting: Setting | None = None) -> Explanation:
    """What binds in a plan or an estimate.

    Args:
        setting: the question, where the names in the plan do not say it all.

    Errors: InputError where the plan's model, cluster or rates are not found, or not as they were.
    """
    check_type("plan", plan, Priced, "a Plan, what `recommend` or `load_plan` returns")
    return explained(reopen(plan, setting), plan)


def explained(given: Setting, plan: Priced) -> Explanation:
    """The same for a plan of a known question."""
    layout = plan.layout
    stages, slowest, latest = _stages(given, layout, plan)
    operators = operators_of(given, layout, slowest)
    traffic, links = traffic_of(given, layout, slowest, latest)
    return Explanation(
        plan=plan,
        slowest=slowest,
        latest=latest,
        fullest=plan.estimate.heaviest_stage,
        stages=stages,
        operators=operators,
        traffic=traffic,
        links=links,
        binds=_binds(plan, operators, traffic),
    )


def _stages(given: Setting, layout: Layout, plan: Priced) -> tuple[tuple[Stage, ...], int, int]:
    counts, numbers = stage_counts(given, [layout])
    table = table_of(given, [layout])
    seconds, once = table.stage_s(numbers, counts)[0], table.once_s(numbers, counts)[0]
    held = plan.estimate.stage_bytes
    stages = tuple(
        Stage(n, float(seconds[s]), float(once[s]), held[s]) for s, n in enumerate(layout.layers_per_stage)
    )
    return stages, int(np.argmax(seconds)), int(np.argmax(once))


def _binds(plan: Priced, operators: tuple[Operator, ...], traffic: tuple[Traffic, ...]) -> dict[str, float]:
    """Seconds of the step by what they wait for, the largest first."""
    parts = plan.estimate.parts
    found: dict[str, float] = {}

    def add(name: str, seconds: float) -> None:
        if seconds > 0:
            found[name] = found.get(name, 0.0) + seconds

    for operator in operators:
        add(operator.bound, operator.seconds)
    for each in traffic:
        add(each.link, each.exposed_s)
    add("host update" if "optimizer" in plan.layout.offload else "HBM", parts["optimizer"])
    add("launch of work by the host", parts["launch"])
    add("pipeline bubble", parts["bubble"])
    return dict(sorted(found.items(), key=lambda item: -item[1]))
