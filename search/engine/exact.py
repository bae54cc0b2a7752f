"""Candidates priced by the cost model and the law themselves: what the tables found is held to them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from meshwright.optimizer.plan import ModelDriftError
from meshwright.search.architecture import counts_of
from meshwright.search.engine.parts import LINEAR, Meter
from meshwright.search.engine.question import Question, Rule
from meshwright.search.engine.table import Table
from meshwright.search.law import Priced
from meshwright.search.shape import Floats, Ints, Shapes

_DRIFT = 1e-9  # relative; tables add the same numbers in another order


@dataclass(frozen=True)
class Candidate:
    """One shape. place: in the listing of the grid. shape: its decisions. costs: over LINEAR."""

    place: int
    shape: tuple[float, ...]
    loss: float
    costs: tuple[float, ...]
    inside: bool

    def cost(self, resource: str) -> float:
        return self.costs[LINEAR.index(resource)]

    def keeps(self, rules: Iterable[Rule]) -> bool:
        return not any(rule.broken_by(self.cost(rule.resource)) for rule in rules)


@dataclass
class Exact:
    """Prices shapes of a question once each."""

    question: Question
    meter: Meter = field(init=False)
    _known: dict[int, Candidate] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.meter = Meter(self.question)

    def price(self, table: Table, layer_at: int, ffn: Ints, attention: Ints) -> list[Candidate]:
        """Candidates of one row.

        Errors: ModelDriftError where the tables and the cost model disagree by more than rounding.
        """
        places = self._places(table, layer_at, ffn, attention)
        new = [i for i, place in enumerate(places) if place not in self._known]
        if new:
            layers = int(table.layers[layer_at])
            shapes = shapes_of(table, layers, ffn[new], attention[new])
            costs = self.meter.costs(shapes)
            for name in LINEAR:
                told = table.cost(name, np.asarray(layers), ffn[new], attention[new])
                check_drift(name, told, costs[name])
            priced = priced_of(self.question, shapes)
            decided = zip(*(getattr(shapes, f.name).tolist() for f in fields(Shapes)), strict=True)
            paid = zip(*(costs[name].tolist() for name in LINEAR), strict=True)
            told_of = zip(new, decided, priced.loss.tolist(), paid, priced.inside.tolist(), strict=True)
            for i, shape, loss, row, inside in told_of:
                self._known[places[i]] = Candidate(places[i], shape, loss, row, inside)
        return [self._known[place] for place in places]

    def _places(self, table: Table, layer_at: int, ffn: Ints, attention: Ints) -> list[int]:
        """Positions in the listing of the whole grid; Python's numbers, as a grid may pass 2^63."""
        grid = self.question.grid
        sides = (
            len(grid.head_dim) * len(grid.kv_heads),
            len(grid.experts) * len(grid.shared) * len(grid.ffn_ratio),
        )
        row = int(table.layer_place[layer_at]) * len(grid.width) + table.at
        pairs = zip(table.attention_place[attention].tolist(), table.ffn_place[ffn].tolist(), strict=True)
        return [(row * sides[0] + a) * sides[1] + f for a, f in pairs]


def shapes_of(table: Table, layers: int, ffn: Ints, attention: Ints) -> Shapes:
    """The shapes that options of both sides make."""
    a, f = table.attention_shapes[attention], table.ffn_shapes[ffn]
    return Shapes(
        np.full(len(ffn), layers),
        a.width,
        a.heads,
        a.kv_heads,
        a.head_dim,
        f.ffn_ratio,
        f.experts,
        f.top_k,
        f.shared,
    )


def shapes_from(candidates: Sequence[Candidate]) -> Shapes:
    """Their shapes as columns."""
    columns = zip(fields(Shapes), zip(*(c.shape for c in candidates), strict=True), strict=True)
    return Shapes(**{f.name: np.array(column) for f, column in columns})


def priced_of(question: Question, shapes: Shapes) -> Priced:
    """Losses by the law, with its own counts of parameters."""
    counts = counts_of(shapes, question.grid.ends)
    return question.law.loss(question.law.columns(shapes, counts, question.tokens))


def check_drift(name: str, told: Floats, priced: Floats) -> None:
    """Raises ModelDriftError where two columns that must agree do not."""
    off = np.abs(told - priced) > _DRIFT * np.abs(priced)
    if off.any():
        at = int(np.flatnonzero(off)[0])
        raise ModelDriftError(
            f"{name} of a shape is {told[at]:.12g} by parts and {priced[at]:.12g} by the cost model; this is a fault of "
            "the search: list the grid, and report it"
        )
