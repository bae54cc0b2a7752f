"""What loss laws read, as columns, and the ranges that they were fitted on."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from meshwright.hardware.errors import InputError
from meshwright.hardware.figures import Strict
from meshwright.search.law_forms import VARIABLES, Array
from meshwright.search.shape import Shapes

Bools = NDArray[np.bool_]
Column = Array | float | None
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Where a number was read: the paper's own text or data, a text that quotes it, computed here, recalled, or a user's
# own fit (search/fit).
Confidence = Literal["paper", "secondary", "computed", "recalled", "fitted"]
_DENSE_RATIO = 4.0  # widths of the dense feed-forward that `ffn_over_expert` cuts
_SLACK = 1e-9  # relative; 1/16 may come as a quotient of two columns


class LawError(InputError):
    """A loss that a law cannot give, or two that cannot be compared."""


class MissingVariableError(LawError):
    """A law reads what was not given. `variables` names all of it."""

    def __init__(self, law: str, variables: tuple[str, ...]) -> None:
        self.variables = variables
        wanted = ", ".join(f"{name} ({VARIABLES[name]})" for name in variables)
        super().__init__(f"law {law} needs {wanted}; give {' and '.join(variables)}, or choose another law")


class Range(Strict):
    """Where a law was fitted along one variable: from low to high, or at `values` only; neither where unknown."""

    low: Finite | None = None
    high: Finite | None = None
    values: tuple[Finite, ...] = ()
    basis: Confidence | Literal["unknown"]
    note: str = ""

    @model_validator(mode="after")
    def _one_kind(self) -> "Range":
        if (self.low is None) != (self.high is None) or (self.values and self.low is not None):
            raise ValueError("a range has low and high, or values, or neither with 'basis: unknown'")
        if self.known == (self.basis == "unknown"):
            raise ValueError("'basis: unknown' stands where, and only where, a range has no numbers")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self

    @property
    def known(self) -> bool:
        """Whether any number bounds the variable."""
        return bool(self.values) or self.low is not None

    def holds(self, column: Array) -> Bools:
        """Which values lie inside; none where the range is unknown."""
        if self.values:
            return np.asarray(np.isclose(column[..., None], self.values, rtol=_SLACK, atol=0).any(axis=-1))
        if self.low is None or self.high is None:
            return np.zeros(column.shape, dtype=bool)
        return np.asarray(
            (column >= self.low - abs(self.low) * _SLACK) & (column <= self.high + abs(self.high) * _SLACK)
        )

    def __str__(self) -> str:
        if self.values:
            return " or ".join(f"{value:g}" for value in self.values)
        return f"{self.low:g} to {self.high:g}" if self.known else "unknown"


class Counted(Strict):
    """Which parameters a law's sizes count; unknown where no source says, and then no range of a size is known."""

    what: Literal["all", "without_embedding", "unknown"]
    basis: Confidence | Literal["unknown"]
    note: str

    @model_validator(mode="after")
    def _told(self) -> "Counted":
        if (self.what == "unknown") != (self.basis == "unknown"):
            raise ValueError("'what: unknown' stands where, and only where, the basis is unknown")
        return self

    def of(self, every: Array, ends: Array) -> Array:
        """The parameters that count, of all and those of embedding and head; all where unknown."""
        return np.asarray(every - ends if self.what == "without_embedding" else every)


class Granularity(Strict):
    """What a law calls granularity.

    ffn_over_expert: 4 widths over the width of one expert. active_experts: experts that a token meets, shared ones
    counted. Both are 1 where dense.
    """

    what: Literal["ffn_over_expert", "active_experts"]
    basis: Confidence
    note: str

    def of(self, shapes: Shapes) -> Array:
        """Of every row."""
        met = shapes.top_k + shapes.shared
        cut = met if self.what == "active_experts" else _DENSE_RATIO * met / shapes.ffn_ratio
        return np.where(shapes.experts == 1, 1.0, cut)


class ParameterCounts(Protocol):
    """Parameters of R shapes: all, those that a token meets, and those of embedding and head (one copy where tied)."""

    @property
    def params(self) -> Array: ...
    @property
    def active_params(self) -> Array: ...
    @property
    def end_params(self) -> Array: ...


@dataclass(frozen=True)
class Precision:
    """What low precision leaves of the parameters.

    Attributes:
        by: name of the correction.
        kept: share of the parameters that count.
        bits: as given, for weights, activations or keys and values.
        box: where the correction was fitted, by variable and for `bits`.
    """

    by: str
    kept: Array
    bits: tuple[Array, ...]
    box: Mapping[str, Range]


@dataclass(frozen=True)
class Columns:
    """What laws read, one array or number each, of shapes that broadcast; None where not given (VARIABLES says what)."""

    layers: Column = None
    width: Column = None
    ffn_ratio: Column = None
    activation: Column = None
    kv_width: Column = None
    gqa: Column = None
    experts: Column = None
    top_k: Column = None
    parameters: Column = None
    active_parameters: Column = None
    tokens: Column = None
    granularity: Column = None
    shared_share: Column = None
    precision: Precision | None = None

    @classmethod
    def of(cls, shapes: Shapes, **more: Any) -> "Columns":
        """What shapes hold, and further columns by name."""
        held = ("layers", "width", "ffn_ratio", "activation", "kv_width", "gqa", "experts", "top_k")
        share = shapes.shared / (shapes.top_k + shapes.shared)
        return cls(**{name: getattr(shapes, name) for name in held} | {"shared_share": share} | more)

    def given(self) -> dict[str, Array]:
        """The columns that are there, as floats.

        Errors: LawError where a value is not a positive number.
        """
        found = {
            f.name: np.asarray(value, dtype=np.float64)
            for f in fields(self)
            if f.name in VARIABLES and (value := getattr(self, f.name)) is not None
        }
        for name, column in found.items():
            good = np.isfinite(column) & ((column >= 0) if name == "shared_share" else (column > 0))
            if not good.all():
                least = "at least 0" if name == "shared_share" else "above 0"
                raise LawError(f"{name} is {column[~good][0]:g} in a row; give finite numbers {least}")
        return found
