"""Rows of one width: bounds over attention options, and the pairs of options that a bound leaves.

A row is a width, a number of layers and a feed-forward option. Its bound takes, of the attention options that keep each
rule beside it, the least attention score and the least and most parameters; the rules are looked up one by one, each in
its own order of attention options, so the bound is the row's own least score where one rule binds, and below it where
several do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.search.engine.answers import TOGETHER
from meshwright.search.engine.objective import Objective
from meshwright.search.engine.question import Rule
from meshwright.search.engine.table import EXACT, Table
from meshwright.search.shape import Array, Floats, Ints

_AT_ONCE = 1 << 20  # pairs, or rows of a bound
NEAR = 1e-10  # relative: scores this close are priced exactly before one is preferred


@dataclass(frozen=True)
class Order:
    """Attention options in the order of what they take under one resource and sign; first so many of them fit.

    Attributes:
        taken: [A] rising. score, lowest, highest: [A + 1] over the first n: least score, least and most parameters;
            entry 0 is of none.
    """

    taken: Floats
    score: Floats
    lowest: Floats
    highest: Floats


@dataclass(frozen=True)
class Pairs:
    """Options of one row's layers by rising value; `sure` where every rule is kept by more than what rounding hides."""

    value: Floats
    ffn: Ints
    attention: Ints
    sure: Array

    def __len__(self) -> int:
        return len(self.value)


class Rows:
    """Bounds and pairs of one table under one objective. Tallies `bounded` rows and `combined` pairs."""

    def __init__(self, table: Table, objective: Objective) -> None:
        self.table, self.objective = table, objective
        self.bounded = self.combined = 0
        self._orders: dict[tuple[str, int], Order] = {}

    def bounds(self, layers: Ints, rules: Sequence[Rule]) -> Floats:
        """Value below which no pair of a row lies, [L, F]; inf where none keeps the rules."""
        table, shape = self.table, (len(layers), len(self.table.ffn_shapes))
        self.bounded += shape[0] * shape[1]
        orders = [(self._order(rule), self._fitting(rule, layers)) for rule in rules]
        score = _tightest(np.maximum, [o.score[n] for o, n in orders])
        low = _tightest(np.maximum, [o.lowest[n] for o, n in orders])
        high = _tightest(np.minimum, [o.highest[n] for o, n in orders])
        out = np.broadcast_to(np.isfinite(score) & (low <= high), shape)
        # Where no option fits, any that exists stands in, so that nothing infinite meets a law.
        params = table.attention["params"]
        score, low, high = (
            np.where(out, score, 0.0),
            np.where(out, low, params.min()),
            np.where(out, high, params.max()),
        )
        total = self.objective.separable(layers) + self.objective.scale(layers)[:, None] * score
        total = total + self.objective.joint_least(layers, low, high)
        return np.where(out, self.objective.value(total), np.inf)

    def pairs(self, layers: int, open_ffn: Ints, rules: Sequence[Rule], cutoff: float, wanted: int) -> Pairs:
        """Pairs with these feed-forward options, of a value up to the cutoff and up to the wanted-th that surely fits."""
        every = np.arange(len(self.table.attention_shapes))
        step = max(1, _AT_ONCE // len(every))
        found: list[Pairs] = []
        for start in range(0, len(open_ffn), step):
            ffn = open_ffn[start : start + step]
            found.append(self._combine(layers, ffn, every, rules, cutoff))
            cutoff = min(cutoff, _nth(found, wanted))
        kept = _joined(found)
        near = kept.value <= cutoff + NEAR * abs(cutoff)
        order = np.flatnonzero(near)[np.argsort(kept.value[near], kind="stable")]
        return Pairs(kept.value[order], kept.ffn[order], kept.attention[order], kept.sure[order])

    def broken(self, layers: Ints, rules: Sequence[Rule]) -> dict[str, int]:
        """Of numbers of layers that no pair keeps the rules with, how many each rule alone puts out, the first counted."""
        counts: dict[str, int] = {}
        for rule in rules:
            taken = rule.sign * self.table.ffn[rule.resource]
            out = ~(self.table.room(rule, layers) - taken >= self._order(rule).taken[0]).any(axis=1)
            counts[rule.label], layers = int(out.sum()), layers[~out]
        counts[TOGETHER] = len(layers)
        return {label: count for label, count in counts.items() if count}

    def values(self, layers: int, ffn: Array, attention: Array) -> Floats:
        """Of options that broadcast."""
        objective, one = self.objective, np.array([layers])
        score = objective.separable(one)[0][ffn] + objective.scale(one)[0] * objective.attention[attention]
        return objective.value(score + objective.joint(layers, ffn, attention))

    def _combine(
        self, layers: int, ffn: Ints, attention: Ints, rules: Sequence[Rule], cutoff: float
    ) -> Pairs:
        table, f, a = self.table, ffn[:, None], attention[None]
        self.combined += len(ffn) * len(attention)
        fits = sure = np.ones((len(ffn), len(attention)), dtype=bool)
        for rule in rules:
            over = rule.sign * (table.cost(rule.resource, np.asarray(layers), f, a) - rule.limit)
            hidden = EXACT * (abs(rule.limit) + table.ends[rule.resource])
            fits, sure = fits & (over <= hidden), sure & (over <= -hidden)
        value = self.values(layers, f, a)
        at = np.nonzero(fits & (value <= cutoff + NEAR * abs(cutoff) if cutoff < np.inf else fits))
        return Pairs(value[at], ffn[at[0]], attention[at[1]], sure[at])

    def _fitting(self, rule: Rule, layers: Ints) -> Ints:
        """How many attention options, in the rule's order, keep it beside each feed-forward option, [L, F] or less."""
        room = self.table.room(rule, layers) - rule.sign * self.table.ffn[rule.resource]
        return np.searchsorted(self._order(rule).taken, room, side="right")

    def _order(self, rule: Rule) -> Order:
        key = (rule.resource, rule.sign)
        if key not in self._orders:
            taken = rule.sign * self.table.attention[rule.resource]
            order = np.argsort(taken, kind="stable")
            params = self.table.attention["params"][order]
            self._orders[key] = Order(
                taken[order],
                _running(np.minimum, self.objective.attention[order], np.inf),
                _running(np.minimum, params, np.inf),
                _running(np.maximum, params, -np.inf),
            )
        return self._orders[key]


def _running(ufunc: np.ufunc, column: Floats, none: float) -> Floats:
    return np.asarray(ufunc.accumulate(np.concatenate(([none], column))))


def _tightest(ufunc: np.ufunc, columns: Sequence[Floats]) -> Floats:
    out = columns[0]
    for column in columns[1:]:
        out = ufunc(out, column)
    return out


def _nth(found: Sequence[Pairs], wanted: int) -> float:
    """The wanted-th least value that surely fits; inf where there are fewer."""
    sure = np.concatenate([p.value[p.sure] for p in found])
    return float(np.partition(sure, wanted - 1)[wanted - 1]) if len(sure) >= wanted else np.inf


def _joined(found: Sequence[Pairs]) -> Pairs:
    names = ("value", "ffn", "attention", "sure")
    value, ffn, attention, sure = (np.concatenate([getattr(p, n) for p in found]) for n in names)
    return Pairs(value, ffn, attention, sure)
