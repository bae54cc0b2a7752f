"""The problem: one variant per layer and part, additive scores and costs, limits on the totals of costs.

A layer has one part ("layer", scores given for whole layers) or two ("attention" and "ffn", whose scores and costs
add). Totals of a cost are sums over layers and parts plus a constant (token table, head).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.hardware.errors import InputError, UnknownNameError, check_type, shown

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Sums of costs that a limit may name beside the costs themselves.
TOTALS: Mapping[str, tuple[str, ...]] = {"memory_bytes": ("weight_bytes", "kv_bytes", "activation_bytes")}


@dataclass(frozen=True)
class Part:
    """What one part of every layer may be.

    Attributes:
        name: "attention", "ffn", or "layer" where scores are given for whole layers.
        variants: V names.
        score: [L, V], lower is better.
        cost: [L, V, K], in the order of the problem's costs.
    """

    name: str
    variants: tuple[str, ...]
    score: Floats
    cost: Floats


@dataclass(frozen=True)
class Problem:
    """Parts of L layers.

    Attributes:
        costs: K names of what is summed; any names will do.
        constant: [K], beside the layers.
        stand_in: how the scores were made where nobody measured them; empty where they were given.
        higher_is_better: scores were given so, and stand here with the other sign.
    """

    parts: tuple[Part, ...]
    costs: tuple[str, ...]
    constant: Floats
    stand_in: str = ""
    higher_is_better: bool = False

    def __post_init__(self) -> None:
        check_type("parts", self.parts, tuple, "a tuple of Part")
        check_type("costs", self.costs, tuple, "a tuple of names")
        for name in self.costs:
            check_type("a cost", name, str, "its name")
        for part in self.parts:
            check_type("a part", part, Part, "a Part")
            for what, table in (("score", part.score), ("cost", part.cost)):
                check_type(f"{what} of {part.name}", table, np.ndarray, "an array of numbers")
        check_type("constant", self.constant, np.ndarray, "an array of numbers")
        if not self.parts:
            raise InputError("a problem has no parts; give one, or attention and ffn")
        layers = self.parts[0].score.shape[0]
        for part in self.parts:
            shape = (layers, len(part.variants))
            for what, table, wanted in (
                ("score", part.score, shape),
                ("cost", part.cost, (*shape, len(self.costs))),
            ):
                if table.shape != wanted:
                    raise InputError(f"{part.name}: {what} has shape {table.shape}; give {wanted}")
                if not np.isfinite(table).all():
                    at = tuple(int(i) for i in np.argwhere(~np.isfinite(table))[0])
                    raise InputError(
                        f"{part.name}: {what} of layer {at[0]}, variant {part.variants[at[1]]} is {table[at]}; "
                        "give a finite number"
                    )
            if not all(shape):
                raise InputError(
                    f"{part.name} has {shape[0]} layers and {shape[1]} variants; give one of each"
                )
        if self.constant.shape != (len(self.costs),) or not np.isfinite(self.constant).all():
            raise InputError(
                f"constant has shape {self.constant.shape}; give {len(self.costs)} finite numbers"
            )

    @property
    def layers(self) -> int:
        return int(self.parts[0].score.shape[0])

    @property
    def choices(self) -> int:
        """Choices of one layer: the product over parts."""
        return int(np.prod([len(part.variants) for part in self.parts]))

    def column(self, total: str) -> tuple[list[Floats], float]:
        """What a limit sums: [L, V] of each part, and the constant.

        Errors: UnknownNameError.
        """
        names = TOTALS.get(total, (total,))
        if any(name not in self.costs for name in names):
            raise UnknownNameError("cost to limit", total, self.totals)
        at = [self.costs.index(name) for name in names]
        return [part.cost[..., at].sum(-1) for part in self.parts], float(self.constant[at].sum())

    @property
    def totals(self) -> tuple[str, ...]:
        """Names that a limit may use."""
        sums = (name for name, parts in TOTALS.items() if all(p in self.costs for p in parts))
        return (*self.costs, *sums)

    def joined(self) -> "Problem":
        """The same with one part whose variants are all combinations, named "a+b"."""
        if len(self.parts) == 1:
            return self
        first, *rest = self.parts
        names, score, cost = first.variants, first.score, first.cost
        for part in rest:
            names = tuple(f"{a}+{b}" for a in names for b in part.variants)
            score = (score[:, :, None] + part.score[:, None, :]).reshape(self.layers, -1)
            cost = (cost[:, :, None] + part.cost[:, None, :]).reshape(self.layers, len(names), -1)
        return replace(self, parts=(Part("layer", names, score, cost),))

    def split(self, joint: Ints) -> Ints:
        """Variants per part, [L, P], of choices of `joined`, [L]."""
        sizes = [len(part.variants) for part in self.parts]
        return np.stack(np.unravel_index(joint, sizes), axis=-1).astype(np.int64)

    def score_of(self, taken: Ints) -> float:
        """Summed score of variants [L, P]."""
        rows = np.arange(self.layers)
        return float(sum(part.score[rows, taken[:, p]].sum() for p, part in enumerate(self.parts)))

    def total_of(self, taken: Ints, total: str) -> float:
        """A total of variants [L, P]."""
        columns, constant = self.column(total)
        rows = np.arange(self.layers)
        return constant + float(sum(c[rows, taken[:, p]].sum() for p, c in enumerate(columns)))


@dataclass(frozen=True)
class Limit:
    """`least <= total <= most`; inf on the side that is free. `text` is how the user wrote it."""

    total: str
    least: float = -np.inf
    most: float = np.inf
    text: str = ""

    def __post_init__(self) -> None:
        check_type("total of a limit", self.total, str, "the name of a total, such as 'decode_s'")
        for what, value in (("least", self.least), ("most", self.most)):
            check_type(f"{what} of {self.total}", value, (int, float, np.number), "a number")
            if np.isnan(value):
                raise InputError(f"{what} of {self.total} is {shown(value)}; give a number, or leave it out")
        if self.least > self.most:
            raise InputError(
                f"{self.total} is to be at least {self.least:.10g} and at most {self.most:.10g}; give least <= most"
            )

    def __str__(self) -> str:
        if self.text:
            return self.text
        sides = [f"{self.total} >= {self.least:.10g}"] if np.isfinite(self.least) else []
        sides += [f"{self.total} <= {self.most:.10g}"] if np.isfinite(self.most) else []
        return ", ".join(sides)

    def keeps(self, value: float, rel: float = 0.0) -> bool:
        """Whether a total is within; `rel` allows for the rounding of sums."""
        room = rel * abs(value)
        return self.least - room <= value <= self.most + room


def one_sided(limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """Limits with one finite side each, checked at the door; those with none are left out."""
    check_type("limits", limits, (list, tuple), "a list of Limit")
    out = []
    for limit in limits:
        check_type("a limit", limit, Limit, "a Limit, or read one with parse_limits")
        both = np.isfinite(limit.least) and np.isfinite(limit.most)
        text = "" if both else limit.text
        if np.isfinite(limit.least):
            out.append(Limit(limit.total, least=limit.least, text=text))
        if np.isfinite(limit.most):
            out.append(Limit(limit.total, most=limit.most, text=text))
    return tuple(out)
