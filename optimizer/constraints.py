"""The user's constraints: `tp<=8, pp in {1,2,4}, offload == none`.

Grammar: comma-separated `name (<=|>=|==|!=|<|>) value` or `name in {a,b,c}`; a value is a whole number or a word.
Each becomes a named rule of the search.
"""

import operator
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.layout import CP_KINDS
from meshwright.costmodel.offloads import OFFLOADS, in_order
from meshwright.costmodel.policies import named_column
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.schedules import SCHEDULES
from meshwright.costmodel.tensors import OTHER, POLICIES
from meshwright.hardware.errors import LayoutError, UnknownNameError, check_type, shown

Bools = NDArray[np.bool_]

NUMBERS = (
    "dp", "dp_replicate", "dp_shard", "zero", "cp", "tp", "pp", "vpp", "ep", "etp",
    "micro_batch", "sequences", "devices", "micro_batches",
)  # fmt: skip
WORDS: dict[str, tuple[str, ...]] = {
    "cp_kind": CP_KINDS,
    "offload": OFFLOADS,
    "recompute": (*POLICIES, OTHER),
    "reshard": ("false", "true"),
    "schedule": SCHEDULES,
    "sp": ("false", "true"),
}
_COMPARE = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_ITEM = re.compile(r"\s*([a-z_]+)\s*(?:(<=|>=|==|!=|<|>)\s*([\w+.-]+)|in\s*\{([\w+.\s,-]*)\})\s*")


@dataclass(frozen=True)
class Constraint:
    """One wish of the user. `text` is how it reads in the funnel."""

    text: str
    name: str
    compare: str  # one of _COMPARE, or 'in'
    values: tuple[str, ...]

    def holds(self, rows: Rows) -> Bools:
        """Per row; a recompute wish must hold for every layer kind."""
        if self.name in NUMBERS:
            return self.allows(np.asarray(getattr(rows, self.name)))
        codes = [WORDS[self.name].index(v) for v in self.values]
        column = word_column(self.name, rows)
        if column.ndim == 2:
            every: Bools = np.all([self._check(column[:, k], codes) for k in range(column.shape[1])], axis=0)
            return every
        return self._check(column, codes)

    def allows(self, numbers: Any) -> Bools:
        """Whether each number satisfies a constraint on a number."""
        return self._check(numbers, [int(v) for v in self.values])

    def _check(self, column: Any, values: list[int]) -> Bools:
        if self.compare == "in":
            return np.isin(column, values)
        return np.asarray(_COMPARE[self.compare](column, values[0]))

    def allowed(self, word: str) -> bool:
        """Whether a word value satisfies this constraint."""
        return (word in self.values) != (self.compare == "!=")


def word_column(name: str, rows: Rows) -> Any:
    if name == "recompute":
        return named_column(rows.policies)
    return getattr(rows, name)


def parse_constraints(text: str | None) -> tuple[Constraint, ...]:
    """Read a constraint string; empty or None gives none.

    Raises:
        LayoutError, UnknownNameError: what does not read, and how to write it.
    """
    check_type(
        "constraints",
        text,
        (str, type(None)),
        "a string such as 'tp<=8, pp in {1,2,4}', or None",
        LayoutError,
    )
    out = []
    for item in _items(text or ""):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise LayoutError(f"cannot read constraint {item.strip()[:60]!r}; write {_way_out(item.strip())}")
        name, compare, value, listed = match.groups()
        values = tuple(v.strip() for v in listed.split(",")) if compare is None else (value,)
        values = tuple(map(in_order, values)) if name == "offload" else values
        out.append(_checked(item.strip(), name, compare or "in", values))
    return tuple(out)


def _way_out(item: str) -> str:
    """What to write for an item that is not read: itself corrected, where the slip is plain."""
    corrected = re.sub(r"^(\s*)(\w+)", lambda m: m[1] + m[2].lower(), item)
    corrected = re.sub(r"^(\s*\w+\s*)=(?=\s*[\w+.-]+$)", r"\1==", corrected)
    corrected = re.sub(r"^(\s*\w+\s*)(=<|=>)", lambda m: m[1] + m[2][::-1], corrected)
    if corrected != item and len(item) <= 60 and _ITEM.fullmatch(corrected):
        return corrected
    return "name <= value, name == word or name in {1,2,4}"


def _items(text: str) -> list[str]:
    """Split at commas outside braces."""
    if len(text) > 4000:
        raise LayoutError(f"the constraint string has {len(text)} characters; at most 4000 are read")
    parts = re.split(r",(?![^{]*\})", text) if text.strip() else []
    if any(not part.strip() for part in parts):
        raise LayoutError(
            f"the constraint string {shown(text)} has nothing between two commas or beside one; write 'tp<=8, pp==1'"
        )
    return parts


def _checked(text: str, name: str, compare: str, values: tuple[str, ...]) -> Constraint:
    here = f"constraint {shown(text)}"
    if name not in NUMBERS and name not in WORDS:
        raise UnknownNameError("constraint name", name, (*NUMBERS, *WORDS))
    if compare == "in" and "" in values:
        listed = "1,2,4" if name in NUMBERS else ",".join(WORDS[name][:2])
        raise LayoutError(f"{here}: a value is missing between the braces; write {name} in {{{listed}}}")
    if name in NUMBERS:
        for value in values:
            if not re.fullmatch(r"\d{1,9}", value, re.ASCII):
                raise LayoutError(
                    f"{here}: {name} is a whole number of at most 9 digits, {shown(value)} is not"
                )
            if name == "zero" and int(value) > 3:
                raise LayoutError(f"{here}: zero is 0 to 3, not {value}")
    else:
        if compare not in ("==", "!=", "in"):
            raise LayoutError(f"{here}: {name} is a word; compare it with ==, != or in {{..}}")
        for value in values:
            if value not in WORDS[name]:
                raise UnknownNameError(f"value of {name}", value, WORDS[name])
    return Constraint(text, name, compare, values)
