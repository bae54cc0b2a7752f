"""Questions of the scaling book answered by meshwright's public functions.

An adapter turns the inputs of a case into a call and reads one number off the answer. It is chosen by topic and
quantity, reads keys with their units, and never sees which case it answers. Adapters hold no formula.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from meshwright.hardware.errors import MeshwrightError

Value = float | int | bool | str
# Modules of adapters.
TOPICS = ("arrays", "bounds", "collectives", "costs", "counts", "gpu_bounds", "gpu_collectives", "gpu_layouts", "layouts", "machine", "memory", "mixtures", "pipelines", "products", "roofline", "serving", "serving_layouts", "shardings", "switches")  # fmt: skip


class UnansweredError(Exception):
    """The adapters do not know how to answer: a key or a quantity that they were not made for."""


@dataclass
class Given(Mapping[str, Any]):
    """Inputs of a case; remembers which were read, so that an input nobody reads is seen."""

    inputs: Mapping[str, Any]
    unit: str = ""  # that the answer is wanted in
    read: set[str] = field(default_factory=set)

    def __getitem__(self, key: str) -> Any:
        if key not in self.inputs:
            raise UnansweredError(f"input {key!r} is missing")
        self.read.add(key)
        return self.inputs[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.inputs)

    def __len__(self) -> int:
        return len(self.inputs)

    def __contains__(self, key: object) -> bool:
        return key in self.inputs

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self.inputs else default

    def has(self, *keys: str) -> bool:
        return all(key in self.inputs for key in keys)

    def number(self, key: str, default: float | None = None) -> float:
        """A numeric input, or the default where the case does not give it."""
        if key not in self.inputs and default is not None:
            return default
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UnansweredError(f"input {key!r} is {value!r}, not a number")
        return float(value)


Adapter = Callable[[Given], Value]
_ADAPTERS: dict[tuple[str, str], list[Adapter]] = {}


def answers(topic: str | tuple[str, ...], *quantities: str) -> Callable[[Adapter], Adapter]:
    """Register an adapter for quantities of one or more topics.

    Several may serve one quantity, for questions put with different keys: each raises UnansweredError where the keys
    are not its own, and the first that answers is taken.
    """

    def register(adapter: Adapter) -> Adapter:
        for one in (topic,) if isinstance(topic, str) else topic:
            for quantity in quantities:
                _ADAPTERS.setdefault((one, quantity), []).append(adapter)
        return adapter

    return register


@cache
def schema() -> dict[str, Any]:
    """Known input keys and quantities by topic."""
    topics: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "schema.yaml").read_text())["topics"]
    return topics


def answer(topic: str, quantity: str, unit: str, inputs: Mapping[str, Any]) -> Value:
    """The number that a case asks for.

    Errors: UnansweredError where the topic, a key, the quantity or its unit is none that the adapters know.
    """
    for module in TOPICS:
        import_module(f"{__name__}.{module}")
    known = schema().get(topic)
    if known is None:
        raise UnansweredError(f"topic {topic!r} is not known")
    if strange := sorted(set(inputs) - set(known["input_keys"])):
        raise UnansweredError(f"input {strange[0]!r} is not known in {topic}")
    if f"{quantity} [{unit}]" not in known["quantities"]:
        raise UnansweredError(f"quantity {quantity!r} in {unit!r} is not known in {topic}")
    reasons = [f"no adapter for {quantity} in {topic}"]
    for adapter in _ADAPTERS.get((topic, quantity), ()):
        try:
            return adapter(Given(inputs, unit))
        except (
            UnansweredError,
            MeshwrightError,
        ) as reason:  # what the functions refuse is not answered either
            reasons.append(str(reason))
    raise UnansweredError(reasons[-1])
