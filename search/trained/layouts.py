"""Best layouts of shapes, one search for each, and the tally of what was priced."""

from dataclasses import dataclass, field

from meshwright.costmodel.layout import Layout
from meshwright.costmodel.setting import Setting
from meshwright.hardware.errors import LayoutError
from meshwright.optimizer.constraints import Constraint
from meshwright.optimizer.decode import decode
from meshwright.optimizer.solve import Search, SolveOptions
from meshwright.optimizer.space import Space
from meshwright.optimizer.wishes import refuse_impossible
from meshwright.search.architecture import Ends, model_of
from meshwright.search.shape import Shapes
from meshwright.search.trained.floors import replace_model

# A limit is passed by so much, so that a plan that meets it exactly is not lost to rounding; what is found is held
# against the limit itself.
_ROOM = 1 + 1e-9


@dataclass(frozen=True)
class Fastest:
    """The fastest layout of a shape within a limit.

    Attributes:
        layout: None where there is none.
        bound_s: below no layout's seconds; inf where it is proven that none keeps the limit.
    """

    layout: Layout | None
    step_s: float
    bound_s: float

    @property
    def proven(self) -> bool:
        return self.bound_s >= self.step_s


@dataclass
class Layouts:
    """Searches layouts of shapes for one question.

    Attributes:
        searches: shapes whose layouts were searched.
        plans_priced: plans (a layout, its placement, its stages) of which the cost model made the full price.
        rows_bounded: rows of the layout space (see `trained.pairs`) whose costs a bound was computed from.
        refused: why constraints leave a shape no layout, of the first such shape.
    """

    given: Setting
    shapes: Shapes
    ends: Ends
    wishes: tuple[Constraint, ...]
    options: SolveOptions
    searches: int = field(default=0, init=False)
    plans_priced: int = field(default=0, init=False)
    rows_bounded: int = field(default=0, init=False)
    refused: LayoutError | None = field(default=None, init=False)

    def setting(self, row: int) -> Setting:
        """The question of one shape."""
        return replace_model(self.given, model_of(self.shapes, row, self.ends))

    def fastest(self, row: int, within_s: float) -> Fastest:
        """The fastest layout of a shape, if its step takes at most `within_s`."""
        given = self.setting(row)
        nothing = Fastest(None, float("inf"), float("inf"))
        self.searches += 1
        try:
            refuse_impossible(given, self.wishes)
        except LayoutError as error:  # of this shape; another may have a layout
            self.refused = self.refused or error
            return nothing
        search = Search(Space(given, self.wishes), self.options, within_s=within_s * _ROOM)
        search.run()
        self.plans_priced += search.solved
        self.rows_bounded += search.funnel.entered.get("rows", 0)
        bound = min(search.undecided, default=float("inf"))
        for found in search.ranked:
            layout, priced = decode(given, found)
            if priced.step_s <= within_s:
                return Fastest(layout, priced.step_s, bound)
        return Fastest(None, float("inf"), bound)
