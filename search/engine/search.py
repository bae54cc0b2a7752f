"""The search: bound, prune, prove.

Rows are a width and a number of layers. All are bounded at once (`engine.rows`), and the lowest bound is settled first:
its feed-forward options whose own bound is below the best shape so far are combined with every attention option, as
columns, or by the program of `engine.program` where there are too many pairs. What comes near the best is priced by the
cost model, which decides: sums of parts only say where to look, with `NEAR` to spare. A budget is proved when no row has
a bound below its best. A tighter budget can only raise a bound, so for a front the bounds of one budget serve the next,
and a row is bounded again when it comes first.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwright.hardware.errors import InputError, shown
from meshwright.search.engine.answers import BEATEN, LISTED, SETTLED
from meshwright.search.engine.exact import Candidate, Exact, check_drift
from meshwright.search.engine.objective import Objective
from meshwright.search.engine.program import settle_by_program
from meshwright.search.engine.question import Rule
from meshwright.search.engine.rows import NEAR, Rows
from meshwright.search.engine.table import Table
from meshwright.search.shape import Floats, Ints

_AT_ONCE = 1 << 19  # feed-forward options bounded at once


@dataclass(frozen=True)
class Effort:
    """Work, not seconds: the same effort gives the same answer on any machine.

    Attributes:
        pairs: that bounds leave open in a row, above which its program is solved instead of columns of all.
        rows: settled at most, over all budgets of a question.
        points: of a front, at most.
        work: deterministic CP-SAT work for one program.
    """

    pairs: int = 1 << 24
    rows: int = 1_000_000
    points: int = 20_000
    work: float = 60.0

    def __post_init__(self) -> None:
        for name, least in (("pairs", 0), ("rows", 1), ("points", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name}={shown(value)} is not a whole number of at least {least}")
        if not isinstance(self.work, int | float) or not 0 < self.work < float("inf"):
            raise InputError(f"work={shown(self.work)} is not a number above 0")


@dataclass(order=True)
class Row:
    """Layers at a width. key: no shape of it has a lower value; under rules as tight as those of `solve` number `stamp`."""

    key: float
    table_at: int
    layer_at: int
    stamp: int = field(compare=False)
    best: list[Candidate] = field(compare=False, default_factory=list)


@dataclass
class Search:
    """State and tally of one question's search.

    Attributes:
        value: of a candidate. against: settles ties, by the lesser.
        proven: every budget so far. out: rows that no shape of keeps the limits, by limit. undecided: bounds of rows that the solver left open.
    """

    tables: Sequence[Table]
    objectives: Sequence[Objective]
    exact: Exact
    effort: Effort
    value: Callable[[Candidate], float]
    against: str
    out: dict[str, int] = field(default_factory=dict)
    undecided: list[float] = field(default_factory=list)
    proven: bool = True
    settled: set[tuple[int, int]] = field(default_factory=set)
    settles: int = 0
    programs: int = 0
    solves: int = 0
    _rows: list[Rows] = field(init=False)
    _heap: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rows = [Rows(t, o) for t, o in zip(self.tables, self.objectives, strict=True)]

    @property
    def bounded(self) -> int:
        return sum(rows.bounded for rows in self._rows)

    @property
    def combined(self) -> int:
        return sum(rows.combined for rows in self._rows)

    @property
    def listed(self) -> int:
        return sum(len(table.layers) for table in self.tables)

    def tally(self) -> dict[str, int]:
        """Rows by what became of them."""
        settled = len(self.settled)
        beaten = self.listed - sum(self.out.values()) - settled
        return {LISTED: self.listed, **self.out, BEATEN: beaten, SETTLED: settled}

    @property
    def bound(self) -> float:
        """No shape that the last budget left has a lower value, shapes found apart."""
        return min([row.key for row in self._heap[:1]] + self.undecided, default=np.inf)

    def solve(self, rules: Sequence[Rule], wanted: int = 1) -> list[Candidate]:
        """The best shapes under these rules, which must be as tight as those of the call before.

        None, or not the best, only where `proven` turns false.
        """
        self.solves += 1
        if self.solves == 1:
            self._bound_all(rules)
        best: list[Candidate] = []
        done: list[Row] = []
        while self._heap:
            cutoff = self.value(best[wanted - 1]) if len(best) >= wanted else np.inf
            if self._heap[0].key > cutoff + NEAR * abs(cutoff):
                break
            if self.settles >= self.effort.rows:
                self.proven = False
                break
            row = heapq.heappop(self._heap)
            row.best = [c for c in row.best if c.keeps(rules)]
            if (not row.best or wanted > 1) and not self._settle(row, rules, cutoff, wanted):
                continue
            best = sorted([*best, *row.best], key=self._order)[: max(wanted, 1)]
            done.append(row)
        for row in done:
            heapq.heappush(self._heap, row)
        if self.undecided and not (best and min(self.undecided) > self.value(best[-1])):
            self.proven = False
        return best

    def _order(self, candidate: Candidate) -> tuple[float, float, int]:
        return self.value(candidate), candidate.cost(self.against), candidate.place

    def _bound_all(self, rules: Sequence[Rule]) -> None:
        for at, (table, rows) in enumerate(zip(self.tables, self._rows, strict=True)):
            step = max(1, _AT_ONCE // len(table.ffn_shapes))
            for start in range(0, len(table.layers), step):
                layers = table.layers[start : start + step]
                keys = rows.bounds(layers, rules).min(axis=1)
                for label, count in rows.broken(layers[np.isinf(keys)], rules).items():
                    self.out[label] = self.out.get(label, 0) + count
                self._heap += [
                    Row(float(keys[i]), at, start + int(i), 1) for i in np.flatnonzero(keys < np.inf)
                ]
        heapq.heapify(self._heap)

    def _settle(self, row: Row, rules: Sequence[Rule], cutoff: float, wanted: int) -> bool:
        """Find the row's best shapes up to the cutoff; False where it has none, or must wait for its turn."""
        rows, table = self._rows[row.table_at], self.tables[row.table_at]
        layers = int(table.layers[row.layer_at])
        bounds = rows.bounds(np.array([layers]), rules)[0]
        if row.stamp < self.solves:
            row.key, row.stamp = max(row.key, float(bounds.min())), self.solves
            if row.key == np.inf:
                return False
            near = cutoff + NEAR * abs(cutoff)
            if row.key > min(near, self._heap[0].key if self._heap else np.inf):
                heapq.heappush(self._heap, row)
                return False
        self.settles += 1
        self.settled.add((row.table_at, row.layer_at))
        open_ffn = np.argsort(bounds, kind="stable")
        open_ffn = open_ffn[: np.searchsorted(bounds[open_ffn], cutoff + NEAR * abs(cutoff), side="right")]
        open_ffn = open_ffn[np.isfinite(bounds[open_ffn])]
        row.best = self._shapes(row, layers, open_ffn, rules, cutoff, wanted)
        if row.best:
            row.key = self.value(row.best[0])
            return True
        row.key = max(row.key, float(np.nextafter(cutoff + NEAR * abs(cutoff), np.inf)))
        if row.key < np.inf:
            heapq.heappush(self._heap, row)
        return False

    def _shapes(
        self, row: Row, layers: int, ffn: Ints, rules: Sequence[Rule], cutoff: float, wanted: int
    ) -> list[Candidate]:
        """Shapes of a row that keep the rules, as the cost model has them."""
        rows, table = self._rows[row.table_at], self.tables[row.table_at]

        def price(ffn: Ints, attention: Ints, told: Floats) -> list[Candidate]:
            priced = self.exact.price(table, row.layer_at, ffn, attention)
            check_drift("value", told, np.array([self.value(c) for c in priced]))
            return priced

        if len(ffn) * len(table.attention_shapes) > self.effort.pairs:
            self.programs += 1
            found, bound = settle_by_program(
                rows, layers, ffn, rules, cutoff, wanted, self.effort.work, price
            )
            if bound is not None:
                self.undecided.append(bound)
        else:
            pairs = rows.pairs(layers, ffn, rules, cutoff, wanted)
            found = price(pairs.ffn, pairs.attention, pairs.value) if len(pairs) else []
        kept = sorted((c for c in found if c.keeps(rules)), key=self._order)
        if len(kept) < wanted:
            return kept
        # What is further from the best was not searched for whole, so it must not stand in once the best is taken.
        last = self.value(kept[wanted - 1])
        return [c for c in kept if self.value(c) <= last + NEAR * abs(last)]
