"""CP-SAT with products, remainders and tables of whole numbers, and constraints of a user as conditions on numbers."""

import operator
import re
from collections.abc import Sequence
from math import prod
from typing import Any

from monolithic_costs import Table
from ortools.sat.python import cp_model

from meshwright.costmodel.layout import CP_KINDS
from meshwright.costmodel.schedules import SCHEDULES

WORDS = {name: i for names in (CP_KINDS, SCHEDULES) for i, name in enumerate(names)} | {"true": 1, "false": 0}
COMPARE = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
TERM = re.compile(r"(\w+)\s*(<=|>=|==|!=|<|>|in)\s*(\{[^}]*\}|[^,]+)")


class Program(cp_model.CpModel):
    """A model whose integers know their least and largest values, so that products do."""

    def __init__(self) -> None:
        super().__init__()
        self._range: dict[int, tuple[int, int]] = {}

    def number(self, most: int, least: int = 0, name: str = "") -> Any:
        out = self.new_int_var(least, most, name)
        self._range[out.index] = least, most
        return out

    def among(self, values: Sequence[int], name: str) -> Any:
        out = self.new_int_var_from_domain(cp_model.Domain.from_values(list(values)), name)
        self._range[out.index] = min(values), max(values)
        return out

    def most(self, value: Any) -> int:
        return value if isinstance(value, int) else self._range[value.index][1]

    def least(self, value: Any) -> int:
        return value if isinstance(value, int) else self._range[value.index][0]

    def product(self, *factors: Any) -> Any:
        out = self.number(prod(map(self.most, factors)), prod(map(self.least, factors)))
        self.add_multiplication_equality(out, factors)
        return out

    def remainder(self, whole: Any, by: Any) -> Any:
        out = self.number(max(self.most(by) - 1, 0))
        self.add_modulo_equality(out, whole, by)
        return out

    def divides(self, by: Any, whole: Any) -> Any:
        """How often `by` goes into `whole`, which it must do without a rest."""
        out = self.number(self.most(whole))
        self.add_multiplication_equality(whole, [by, out])
        return out

    def is_true(self, condition: Any, otherwise: Any) -> Any:
        """A literal of a condition and its opposite."""
        out = self.new_bool_var("")
        self.add(condition).only_enforce_if(out)
        self.add(otherwise).only_enforce_if(~out)
        return out

    def where(self, literal: Any, then: Any, otherwise: int = 0) -> Any:
        out = self.number(max(self.most(then), otherwise), min(self.least(then), otherwise))
        self.add(out == then).only_enforce_if(literal)
        self.add(out == otherwise).only_enforce_if(~literal)
        return out

    def looked_up(self, table: Table, of: dict[str, Any]) -> list[Any]:
        """The numbers of a table that decisions tell."""
        width = len(table.tuples[0]) - len(table.keys)
        numbers = [self.number(max(t[len(table.keys) + i] for t in table.tuples)) for i in range(width)]
        self.add_allowed_assignments([of[k] for k in table.keys] + numbers, table.tuples)
        return numbers


def wished(text: str) -> list[tuple[str, Any]]:
    """(name, whether a value is allowed) of each constraint on a number."""
    out = []
    for name, sign, right in TERM.findall(text):
        if name not in ("recompute", "offload"):
            values = [WORDS[w] if w in WORDS else int(w) for w in re.findall(r"\w+", right)]
            compare = COMPARE.get(sign)
            out.append((name, lambda x, c=compare, v=values: x in v if c is None else c(x, v[0])))
    return out
