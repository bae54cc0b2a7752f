"""What `profile` answers: a mean step by part, kind, class and operation."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from meshwright.costmodel.estimate import digits
from meshwright.optimizer.compare import Pair
from meshwright.optimizer.plan import SCHEMA_VERSION


@dataclass(frozen=True)
class Operation:
    """All operations of one name, sizes and dtype, in a mean step.

    Attributes:
        operator: the plan's with these sizes, `down/up` of two that have them; '' where there is none, or no plan.
        count, seconds, flops, moved_bytes: of a step; the last two None where the trace does not say.
        floor_s: at the chip's peak rates, the larger of FLOPs and bytes; None where neither is known.
    """

    kind: str
    name: str
    operator: str
    shape: tuple[int, ...]
    dtype: str | None
    count: float
    seconds: float
    flops: float | None
    moved_bytes: float | None
    floor_s: float | None

    @property
    def achieved(self) -> float | None:
        """Floor over seconds."""
        return None if self.floor_s is None or self.seconds <= 0 else self.floor_s / self.seconds

    @property
    def gap_s(self) -> float:
        """Seconds above the floor; all of them where it is not known."""
        return self.seconds - (self.floor_s or 0.0)


@dataclass(frozen=True)
class Kind:
    """Operations of one kind in a mean step, and the shares of peak that those with known FLOPs or bytes reach.

    Attributes:
        flop_share, hbm_share: None where no operation tells. known_s: seconds of those that tell either.
        planned_s: of the plan; None without one.
    """

    name: str
    count: float
    seconds: float
    known_s: float
    flop_share: float | None
    hbm_share: float | None
    planned_s: float | None


@dataclass(frozen=True)
class Carried:
    """A class of communication, or copies, in a mean step.

    Attributes:
        hidden_s, exposed_s: under and beside compute. sent_bytes, link, link_share: of those whose bytes and link are known,
            else None and ''.
        planned_s: exposed seconds of the plan; None where it has no such class.
    """

    name: str
    count: float
    hidden_s: float
    exposed_s: float
    sent_bytes: float | None
    link: str
    link_share: float | None
    planned_s: float | None


@dataclass(frozen=True)
class Profile:
    """A trace's mean step.

    Attributes:
        steps, found: how many, and how they were told apart. shortest_s, longest_s: None where they were not told apart.
        parts: seconds that sum to the step, beside those of the plan.
        operations: largest gap to the roofline first. operators: of the plan, longest first, beside operations of their sizes.
    """

    trace: str
    maker: str
    chip: str
    device: str
    devices: tuple[str, ...]
    steps: int
    found: str
    step_s: float
    shortest_s: float | None
    longest_s: float | None
    parts: tuple[Pair, ...]
    kinds: tuple[Kind, ...]
    carried: tuple[Carried, ...]
    operations: tuple[Operation, ...]
    operators: tuple[Pair, ...]
    plan_step_s: float | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        made = {key: value for key, value in vars(self).items() if not isinstance(value, tuple)}
        rounded: dict[str, Any] = _plain(made)
        return rounded | {
            "schema_version": SCHEMA_VERSION,
            "devices": list(self.devices),
            "parts": {p.name: {"trace": _plain(p.a), "plan": _plain(p.b)} for p in self.parts},
            "operators": {p.name: {"trace": _plain(p.a), "plan": _plain(p.b)} for p in self.operators},
            "kinds": [_plain(asdict(each)) for each in self.kinds],
            "carried": [_plain(asdict(each)) for each in self.carried],
            "operations": [
                _plain(asdict(o) | {"achieved": o.achieved, "gap_s": o.gap_s}) for o in self.operations
            ],
            "notes": list(self.notes),
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return digits(value) if isinstance(value, float) else value
