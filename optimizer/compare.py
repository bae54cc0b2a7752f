"""Two answers side by side, term by term."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.costmodel.estimate import PARTS, digits
from meshwright.optimizer.plan import Priced

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Pair:
    """One term of both answers."""

    name: str
    a: Value
    b: Value

    @property
    def differs(self) -> bool:
        return self.a != self.b

    @property
    def ratio(self) -> float | None:
        """b over a, where both are numbers."""
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (self.a, self.b))
        return float(self.b) / float(self.a) if numbers and self.a else None  # type: ignore[arg-type]


@dataclass(frozen=True)
class Comparison:
    """Terms of two answers.

    Attributes:
        question: inputs that differ; empty when both answer the same question.
        layout: every field of the layouts.
        totals, parts: seconds and what follows from them. memory: bytes on a device of each one's heaviest stage.
    """

    question: tuple[Pair, ...]
    layout: tuple[Pair, ...]
    totals: tuple[Pair, ...]
    parts: tuple[Pair, ...]
    memory: tuple[Pair, ...]

    def to_dict(self) -> dict[str, Any]:
        """`{section: {name: {a, b, ratio}}}`."""
        return {
            section: {
                p.name: {"a": p.a, "b": p.b, "ratio": _rounded(p.ratio)} for p in getattr(self, section)
            }
            for section in self.__dataclass_fields__
        }


def compare(a: Priced, b: Priced) -> Comparison:
    """Line the two up."""
    question = _pairs(dict(_flat(a.inputs)), dict(_flat(b.inputs)))
    return Comparison(
        # Constraints and the launcher's limits price nothing.
        question=tuple(p for p in question if p.differs and p.name not in ("constraints", "launcher")),
        layout=_pairs(_layout(a), _layout(b)),
        totals=_pairs(_totals(a), _totals(b)),
        parts=_pairs({p: a.estimate.parts[p] for p in PARTS}, {p: b.estimate.parts[p] for p in PARTS}),
        memory=_pairs(_heaviest(a), _heaviest(b)),
    )


def _pairs(a: Mapping[str, Value], b: Mapping[str, Value]) -> tuple[Pair, ...]:
    return tuple(Pair(name, a.get(name), b.get(name)) for name in dict.fromkeys((*a, *b)))


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Value]]:
    for key, value in sorted(data.items()):
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, " ".join(map(str, value)) if isinstance(value, list) else value


def _layout(plan: Priced) -> dict[str, Value]:
    """Fields as words; placement by level."""
    data = plan.layout.to_dict()
    levels = zip(plan.idle.levels, data.pop("placement"), strict=True)
    placed = {
        f"on {name} ({size})": " ".join(f"{d}*{f}" for d, f in on) or "-" for (name, _, size), on in levels
    }
    lists = ("layers_per_stage", "policies")
    data["stage_policies"] = ";".join("/".join(words) for words in data["stage_policies"]) or "-"
    return {k: "/".join(map(str, v)) if k in lists else v for k, v in data.items()} | placed


def _totals(plan: Priced) -> dict[str, Value]:
    e = plan.estimate
    run = plan.run or {}
    return {
        "lower_s": e.lower_s,
        "step_s": e.step_s,
        "upper_s": e.upper_s,
        "tokens_per_s": e.tokens_per_s,
        "mfu": e.mfu,
        "devices": plan.layout.devices,
        "fits": e.fits,
        "days": run.get("days"),
        "usd": run.get("usd"),
    }


def _heaviest(plan: Priced) -> dict[str, Value]:
    e = plan.estimate
    return {
        **e.memory[e.heaviest_stage],
        "sum": e.stage_bytes[e.heaviest_stage],
        "usable": e.capacity_bytes,
        "on the host": max(e.host_bytes),
        "on a whole host": e.fullest_host_bytes,
    }


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else digits(ratio)
