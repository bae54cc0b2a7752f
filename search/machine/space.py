"""Device spaces: peak FLOP/s, memory bandwidth and memory as levels, a price for every combination, rules between them.

A YAML file. Each axis is a list of quantities, some with a price of their own, or {from, to, step}:

    compute: {from: 10 TFLOP/s, to: 40 TFLOP/s, step: 10 TFLOP/s}
    bandwidth: [68 GB/s, 102 GB/s]
    memory: [{of: 8 GB, price: 30}, {of: 16 GB, price: 60}]
    price: {unit: USD, source: ..., fixed: 50, terms: [{of: compute, each: 1 TFLOP/s, price: 4}]}
    rules: [{of: bandwidth, per: memory, each: 1 GB, most: 16 GB/s}]
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from meshwright.costmodel.inference.seconds import Device, Machine
from meshwright.hardware.errors import UnitError, UnknownNameError, check_type
from meshwright.hardware.figures import Strict, load_yaml
from meshwright.hardware.units import (
    Bytes,
    BytesPerSecond,
    FlopPerSecond,
    Seconds,
    parse_bytes,
    parse_bytes_per_s,
    parse_flop_per_s,
)
from meshwright.search.shape import Array, Floats

_DATA = Path(__file__).parents[1] / "data" / "devices"
_MOST_LEVELS = 10_000  # of one axis
_MOST_POINTS = 5_000_000  # about 200 MB of tables

Axis = Literal["compute", "bandwidth", "memory"]
AXES: tuple[Axis, ...] = ("compute", "bandwidth", "memory")
_PARSERS: Mapping[Axis, Callable[[object], float]] = {
    "compute": parse_flop_per_s,
    "bandwidth": parse_bytes_per_s,
    "memory": parse_bytes,
}
_UNITS: Mapping[Axis, str] = {"compute": "FLOP/s", "bandwidth": "B/s", "memory": "B"}
Money = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]


class Peak(Strict):
    """A level of compute; `price` is its own."""

    of: FlopPerSecond
    price: Money = 0.0


class Rate(Strict):
    """A level of bandwidth."""

    of: BytesPerSecond
    price: Money = 0.0


class Size(Strict):
    """A level of memory."""

    of: Bytes
    price: Money = 0.0


def _spelled(axis: Axis) -> BeforeValidator:
    """Spans and bare quantities as levels."""

    def spell(given: Any) -> Any:
        try:
            return _span(axis, given) if isinstance(given, Mapping) else _levels(given)
        except UnitError as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(spell)


def _levels(given: Any) -> Any:
    if not isinstance(given, list | tuple):
        return given
    return [one if isinstance(one, Mapping | Strict) else {"of": one} for one in given]


def _span(axis: Axis, given: Mapping[str, Any]) -> list[dict[str, str]]:
    """Even steps from the first; the last is a level only where steps meet it."""
    if set(given) != {"from", "to", "step"}:
        raise ValueError(f"a span has from, to and step, not {', '.join(map(str, given))}")
    first, last, step = (Decimal(_PARSERS[axis](given[key])) for key in ("from", "to", "step"))
    if last < first:
        raise ValueError(f"a span from {given['from']} down to {given['to']}; give the smaller one first")
    count = int((last - first) / step) + 1
    if count > _MOST_LEVELS:
        raise ValueError(f"a span of {count:,} levels, more than {_MOST_LEVELS:,}; take a larger step")
    return [{"of": f"{first + i * step:f} {_UNITS[axis]}"} for i in range(count)]


class Term(Strict):
    """`price` for every `each` of an axis."""

    of: Axis
    each: str
    price: Money


class Price(Strict):
    """fixed + terms + what options cost, in `unit`. `example`: the figures only show the form."""

    unit: str = Field(min_length=1, max_length=12)
    source: str
    example: bool = False
    fixed: Money = 0.0
    terms: tuple[Term, ...] = ()


class Rule(Strict):
    """Between two axes: at least and at most so much of one for every `each` of the other."""

    of: Axis
    per: Axis
    each: str
    least: str | None = None
    most: str | None = None

    @property
    def name(self) -> str:
        return f"{self.of}_per_{self.per}"


class Reached(Strict):
    """Shares of the levels that one phase reaches; meanings as in `inference.seconds.Machine`.

    `experts` is a share of what `bandwidth` leaves: routed experts are read at bandwidth * experts of the level.
    """

    compute: Share = 1.0
    attention: Share = 1.0
    bandwidth: Share = 1.0
    experts: Share = 1.0
    elementwise: Annotated[float, Field(ge=0, le=100)] = 0.0
    layer: Seconds = 0.0

    def machine(self, flop_per_s: Array | float, bytes_per_s: Array | float) -> Machine:
        return Machine(
            flop_per_s * self.compute,
            flop_per_s * self.attention,
            bytes_per_s * self.bandwidth,
            self.experts,
            self.elementwise,
            self.layer,
        )


class DeviceSpace(Strict):
    """What may be built, what it costs, and what share of its peaks programs reach (all, where nothing is said)."""

    name: str
    source: str
    compute: Annotated[tuple[Peak, ...], _spelled("compute"), Field(min_length=1)]
    bandwidth: Annotated[tuple[Rate, ...], _spelled("bandwidth"), Field(min_length=1)]
    memory: Annotated[tuple[Size, ...], _spelled("memory"), Field(min_length=1)]
    price: Price
    rules: tuple[Rule, ...] = ()
    prefill: Reached = Reached()
    decode: Reached = Reached()

    @model_validator(mode="after")
    def _sound(self) -> Self:
        size = 1
        for axis in AXES:
            values, _ = self.levels(axis)
            size *= len(values)
            if (np.diff(values) == 0).any():
                raise ValueError(f"{axis} names a level twice")
        if size > _MOST_POINTS:
            raise ValueError(
                f"the space has {size:,} devices, more than the {_MOST_POINTS:,} that are listed; take larger steps"
            )
        try:
            for term in self.price.terms:
                quantity(term.of, term.each)
            for rule in self.rules:
                _check_rule(rule)
        except UnitError as error:
            raise ValueError(str(error)) from error
        names = [rule.name for rule in self.rules]
        if len(set(names)) != len(names):
            raise ValueError("two rules of the same pair of axes; give both ends in one")
        return self

    def levels(self, axis: Axis) -> tuple[Floats, Floats]:
        """Values of an axis in SI, rising, and the price of each by itself."""
        given: tuple[Peak | Rate | Size, ...] = getattr(self, axis)
        pairs = sorted((float(one.of), one.price) for one in given)
        return np.array([value for value, _ in pairs]), np.array([price for _, price in pairs])

    def device(self, flop_per_s: Array | float, bytes_per_s: Array | float, memory: Array | float) -> Device:
        """The device of a level of each axis, or columns of them."""
        return Device(
            self.prefill.machine(flop_per_s, bytes_per_s),
            self.decode.machine(flop_per_s, bytes_per_s),
            memory,
        )


def space_names() -> tuple[str, ...]:
    """Names of the device spaces that ship with the package."""
    return tuple(sorted(path.stem for path in _DATA.glob("*.yaml")))


def load_space(name: str | Path) -> DeviceSpace:
    """A shipped device space by name, or a file that ends in .yaml or .yml."""
    check_type("device space", name, (str, Path), "a name such as 'example', or the path of a YAML file")
    if str(name) in space_names():
        return load_yaml(_DATA / f"{name}.yaml", DeviceSpace)
    if Path(name).suffix in (".yaml", ".yml"):
        return load_yaml(Path(name), DeviceSpace)
    raise UnknownNameError("device space", str(name), space_names(), "or a file that ends in .yaml")


def quantity(axis: Axis, text: str) -> float:
    """The SI value of a quantity of that axis."""
    return float(_PARSERS[axis](text))


def _check_rule(rule: Rule) -> None:
    if rule.of == rule.per:
        raise ValueError(f"a rule of {rule.of} per {rule.per}; name two axes")
    quantity(rule.per, rule.each)
    ends = [quantity(rule.of, text) for text in (rule.least, rule.most) if text is not None]
    if not ends:
        raise ValueError(f"the rule {rule.name} has neither least nor most; give one")
    if len(ends) == 2 and ends[0] > ends[1]:
        raise ValueError(f"the rule {rule.name} has least {rule.least} above most {rule.most}")
