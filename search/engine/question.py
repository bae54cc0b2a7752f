"""What is asked of the engine: a grid, a law, a device and a request, and limits on what a shape may cost."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.hardware.errors import InputError, UnknownNameError, check_type, shown
from meshwright.hardware.numbers import is_number, make_plain
from meshwright.optimizer.question import content_hash, versions
from meshwright.search.grid import Grid
from meshwright.search.law import Law
from meshwright.search.price import Latency

RESOURCES = ("prefill_s", "token_s", "total_s", "memory_bytes", "params", "active_params", "kv_bytes")
DEVICE_MEMORY = "device memory"


@dataclass(frozen=True)
class Limit:
    """Least and most of one resource.

    Attributes:
        name: one of RESOURCES; kv_bytes is the cache of the whole request at its end.

    Raises:
        InputError: no such resource, or limits that are not numbers or cross.
    """

    name: str
    most: float = np.inf
    least: float = -np.inf

    def __post_init__(self) -> None:
        check_resource(self.name)
        make_plain(self)
        for what, value in (("most", self.most), ("least", self.least)):
            if not is_number(value, infinite=True):
                raise InputError(f"{what} of {self.name} is {shown(value)}; give a number, inf for no limit")
        if self.least > self.most:
            raise InputError(
                f"{self.name} is asked from {self.least:g} to {self.most:g}; the least is above the most"
            )


@dataclass(frozen=True)
class Rule:
    """One side of a limit: sign 1 is at most, -1 at least. `limit` is in the resource's own unit."""

    label: str
    resource: str
    sign: int
    limit: float

    def broken_by(self, value: Any) -> Any:
        return self.sign * np.asarray(value) > self.sign * self.limit


@dataclass(frozen=True)
class Question:
    """Asked of the engine; the memory of the device always is a limit.

    Attributes:
        tokens: of training, for a law that reads them.
        inside_only: only shapes inside the box that the law was fitted on.

    Raises:
        InputError: a value of another type, or two limits on one resource.
    """

    grid: Grid
    law: Law
    device: Device
    request: Request
    latency: Latency = "full"
    limits: tuple[Limit, ...] = ()
    tokens: float | None = None
    inside_only: bool = False

    def __post_init__(self) -> None:
        kinds: Mapping[str, type] = {"grid": Grid, "law": Law, "device": Device, "request": Request,
                                     "limits": tuple, "inside_only": bool}  # fmt: skip
        for name, kind in kinds.items():
            check_type(name, getattr(self, name), kind, f"a {kind.__name__}")
        for limit in self.limits:
            check_type("a limit", limit, Limit, "a Limit")
        names = [limit.name for limit in self.limits]
        if len(set(names)) < len(names):
            raise InputError(
                f"two limits on one resource among {', '.join(names)}; give its least and most as one"
            )
        figures = (
            *vars(self.device.prefill).values(),
            *vars(self.device.decode).values(),
            self.device.memory_bytes,
        )
        if any(np.size(figure) != 1 for figure in figures):
            raise InputError("the device is a column of devices; ask of one")
        make_plain(self)
        if self.tokens is not None and not (is_number(self.tokens) and self.tokens > 0):
            raise InputError(f"tokens is {shown(self.tokens)}; give training tokens, above 0")

    def rules(self) -> tuple[Rule, ...]:
        """The limits as rules: the memory of the device, then those asked."""
        out = [Rule(DEVICE_MEMORY, "memory_bytes", 1, float(self.device.memory_bytes))]
        for limit in self.limits:
            if limit.most < np.inf:
                out.append(Rule(limit.name, limit.name, 1, float(limit.most)))
            if limit.least > -np.inf:
                out.append(Rule(f"least {limit.name}", limit.name, -1, float(limit.least)))
        return tuple(out)

    def space_hash(self, against: str) -> str:
        """Of all that decides the answer."""
        asked = {
            "grid": self.grid.model_dump(), "law": self.law.model_dump(), "device": asdict(self.device),
            "request": asdict(self.request), "latency": self.latency, "limits": [asdict(x) for x in self.limits],
            "tokens": self.tokens, "inside_only": self.inside_only, "against": against,
        }  # fmt: skip
        return content_hash({"inputs": asked, "versions": versions()})


def check_resource(name: object) -> None:
    """Raises InputError where no resource has the name."""
    check_type("a resource", name, str, "its name")
    if name not in RESOURCES:
        raise UnknownNameError("resource", str(name), RESOURCES)
