"""Loss laws as data: what a shape's loss will be, by one paper's fit, and where that fit has been.

A law is a YAML file: a form (search/law_forms.py), its coefficients, and a box: the range of each variable that was
trained on. Outside the box the number is flagged. Losses of two laws stand on different data, tokenizers and floors
and are never compared. Nothing is counted here: parameters and the like come from the caller.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import model_validator

from meshwright.hardware.errors import UnknownNameError, check_type
from meshwright.hardware.figures import Strict, load_yaml
from meshwright.search.law_columns import (
    Bools,
    Column,
    Columns,
    Confidence,
    Counted,
    Finite,
    Granularity,
    LawError,
    MissingVariableError,
    ParameterCounts,
    Positive,
    Precision,
    Range,
)
from meshwright.search.law_forms import FORMS, VARIABLES, Array, Form
from meshwright.search.law_precision import correction_names
from meshwright.search.shape import Shapes

_DATA = Path(__file__).parent / "data" / "laws"
_SIZES = ("parameters", "active_parameters")  # what low precision shrinks


class Law(Strict):
    """One law.

    Attributes:
        tokens: set where it was fitted at one number of tokens and has no term in them.
        counts: which parameters its sizes count; there where the form reads a size.
        granularity: what it calls so; there where the form reads it.
        box: where it was fitted: what the form reads, and what its authors kept fixed or left out.
    """

    name: str
    title: str
    form: str
    unit: Literal["nats per token"]
    source: str
    confidence: Confidence
    tokens: Positive | None = None
    counts: Counted | None = None
    granularity: Granularity | None = None
    coefficients: dict[str, Finite]
    box: dict[str, Range]
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> "Law":
        if self.form not in FORMS:
            raise ValueError(str(UnknownNameError("form", self.form, FORMS)))
        _same_names("coefficients", set(self.coefficients), set(self.formula.coefficients), set())
        read = set(self.formula.variables)
        _same_names("box", set(self.box), read, set(VARIABLES) - {"tokens"})
        if self.tokens is not None and "tokens" in read:
            raise ValueError(f"form {self.form} has a term in tokens; give them in box, not as one number")
        _there("counts", self.counts, read & set(_SIZES))
        _there("granularity", self.granularity, read & {"granularity"})
        known = [name for name in _SIZES if name in self.box and self.box[name].known]
        if self.counts is not None and self.counts.what == "unknown" and known:
            raise ValueError(
                f"box has a range of {known[0]}, and what they count is unknown; say 'basis: unknown'"
            )
        return self

    @property
    def formula(self) -> Form:
        return FORMS[self.form]

    @property
    def reads(self) -> tuple[str, ...]:
        """Variables that must be given; others of the box are checked where they are given and told where not."""
        return self.formula.variables

    def columns(
        self, shapes: Shapes, counts: ParameterCounts | None = None, tokens: Column = None
    ) -> Columns:
        """What this law reads of shapes, by its own definitions of a size and of granularity.

        counts: exact parameters of every row; needed where the form reads a size. tokens: of training.
        """
        check_type("shapes", shapes, Shapes, "Shapes", LawError)
        more: dict[str, Array] = {}
        if self.counts is not None and counts is not None:
            more["parameters"] = self.counts.of(counts.params, counts.end_params)
            more["active_parameters"] = self.counts.of(counts.active_params, counts.end_params)
        if self.granularity is not None:
            more["granularity"] = self.granularity.of(shapes)
        return Columns.of(shapes, tokens=tokens, **more)

    def terms(self, rows: Shapes | Columns, tokens: Column = None) -> dict[str, Array]:
        """The law's terms by name, each of the shape of what it reads (`formula.reads`); `formula.joined` makes the loss.

        Errors: MissingVariableError; LawError for values that are not positive numbers.
        """
        return self._terms(_columns(rows, tokens))

    def _terms(self, columns: Columns) -> dict[str, Array]:
        at = columns.given()
        missing = tuple(name for name in self.reads if name not in at)
        if missing:
            raise MissingVariableError(self.name, missing)
        if columns.precision is not None:
            sizes = [name for name in _SIZES if name in self.formula.variables]
            if not sizes:
                raise LawError(
                    f"law {self.name} reads no number of parameters, so {columns.precision.by} cannot "
                    f"correct it for precision; choose a law that does, such as besiroglu"
                )
            at |= {name: at[name] * columns.precision.kept for name in sizes}
        return self.formula.terms(self.coefficients, at)

    def loss(self, rows: Shapes | Columns, tokens: Column = None) -> "Priced":
        """Loss of every row and whether the law was fitted there.

        Errors: as `terms`.
        """
        columns = _columns(rows, tokens)
        loss = self.formula.joined(self._terms(columns))
        checks = self._checks(columns)
        shape = np.broadcast_shapes(
            loss.shape, *(column.shape for _, _, _, column in checks if column is not None)
        )
        outside: dict[str, Bools] = {}
        warnings = []
        for owner, name, allowed, column in checks:
            out = np.full(shape, True) if column is None else ~allowed.holds(column)
            if out.any():
                outside[name] = np.broadcast_to(outside.get(name, False) | out, shape)
                warnings.append(f"{owner}: {_warning(name, allowed, column, out)}")
        inside = ~np.any([np.zeros(shape, dtype=bool), *outside.values()], axis=0)
        return Priced(self, columns.precision, np.broadcast_to(loss, shape), inside, outside, tuple(warnings))

    def _checks(self, columns: Columns) -> list[tuple[str, str, Range, Array | None]]:
        """Whose range, of which variable, and the column to hold against it; None where it was not given."""
        at, box = columns.given(), dict(self.box)
        if self.tokens is not None and "tokens" in at:
            box["tokens"] = Range(values=(self.tokens,), basis=self.confidence)
        checks = [(self.name, name, allowed, at.get(name)) for name, allowed in box.items()]
        if (precision := columns.precision) is not None:
            held = {"parameters": at[next(name for name in _SIZES if name in at)]}
            if "tokens" in at or self.tokens is not None:
                held["tokens"] = at.get("tokens", np.asarray(self.tokens))
            checks += [(precision.by, name, precision.box[name], column) for name, column in held.items()]
            checks += [(precision.by, "bits", precision.box["bits"], bits) for bits in precision.bits]
        return checks


@dataclass(frozen=True)
class Priced:
    """Losses of R rows by one law.

    Attributes:
        precision: set where the rows' parameters were corrected for low precision.
        loss: [R] in the law's unit.
        inside: [R] whether every variable lies where the law was fitted; False too where no range is known.
        outside: which rows leave the range, by variable; only variables that some row leaves.
        warnings: one line for each of them.
    """

    law: Law
    precision: Precision | None
    loss: Array
    inside: Bools
    outside: Mapping[str, Bools]
    warnings: tuple[str, ...]


def check_same_law(*priced: Priced) -> None:
    """Raises LawError unless all losses come from one law, all corrected for precision alike or none."""
    for one in priced[1:]:
        first = priced[0]
        if one.law != first.law:
            other = one.law.name if one.law.name != first.law.name else f"another file named {one.law.name}"
            raise LawError(
                f"losses of {first.law.name} and {other} cannot be compared: their data, tokenizers and floors "
                f"differ; price every row by one law"
            )
        by = [p.precision.by if p.precision is not None else None for p in (first, one)]
        if by[0] != by[1]:
            raise LawError(
                f"losses of {one.law.name} with and without the precision correction "
                f"{by[0] or by[1]} cannot be compared; correct every row or none"
            )


@cache
def law_names() -> tuple[str, ...]:
    """Names of the laws that ship with the package."""
    return tuple(sorted(path.stem for path in _DATA.glob("*.yaml")))


def load_law(name_or_path: str) -> Law:
    """A law by name, or from a user's YAML (anything with a '/' or ending in .yaml or .yml).

    Errors: UnknownNameError with near names; InputError where the file is not a law or the name is a correction's.
    """
    check_type("a loss law", name_or_path, str, "its name or the path of a YAML file")
    if _is_path(name_or_path):
        return load_yaml(Path(name_or_path).expanduser(), Law)
    name = name_or_path.strip().lower()
    if name in correction_names():
        raise LawError(
            f"{name} corrects the parameters that another law reads and is no law of its own; "
            f"choose one of {', '.join(law_names())}"
        )
    if name not in law_names():
        raise UnknownNameError("loss law", name_or_path, law_names(), "a path to a YAML file works too")
    return _shipped_law(name)


@cache
def _shipped_law(name: str) -> Law:
    return load_yaml(_DATA / f"{name}.yaml", Law)


def _is_path(name_or_path: str) -> bool:
    return "/" in name_or_path or name_or_path.lower().endswith((".yaml", ".yml"))


def _columns(rows: Shapes | Columns, tokens: Column) -> Columns:
    check_type("rows", rows, (Shapes, Columns), "Shapes or Columns", LawError)
    columns = Columns.of(rows) if isinstance(rows, Shapes) else rows
    if tokens is None:
        return columns
    if columns.tokens is not None:
        raise LawError("tokens stand in the columns already; give them once")
    return replace(columns, tokens=tokens)


def _warning(name: str, allowed: Range, column: Array | None, out: Bools) -> str:
    if not allowed.known:
        return f"no range of {name} is known, so every loss is flagged"
    if column is None:
        return f"{name} is not given, and the law was fitted at {allowed}, so every loss is flagged"
    low, high = column.min(), column.max()
    span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return (
        f"{name} outside {allowed} in {int(out.sum()):,} of {out.size:,} rows (given {span}); "
        f"the loss there is an extrapolation"
    )


def _there(what: str, given: object, read: set[str]) -> None:
    if (given is None) == bool(read):
        raise ValueError(
            f"{what} is missing, and the form reads {' and '.join(sorted(read))}"
            if read
            else f"{what} is given, and the form reads nothing of it"
        )


def _same_names(what: str, given: set[str], needed: set[str], more: set[str]) -> None:
    if missing := sorted(needed - given):
        raise ValueError(f"{what} lacks {', '.join(missing)}")
    if unknown := sorted(given - needed - more):
        raise ValueError(
            f"{what} has {', '.join(unknown)}, which the form does not read; it reads {', '.join(sorted(needed))}"
        )
