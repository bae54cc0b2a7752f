"""The same shapes under several laws: how far their authors would disagree with a choice.

Losses of two laws stand on different data, tokenizers and floors and are never compared with each other; what is
compared is the order that each law gives the shapes, and what each would lose, in its own nats, by another's choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.costmodel.working import Value
from meshwright.hardware.errors import check_type
from meshwright.search.fit.scores import spearman
from meshwright.search.law import Law, Priced
from meshwright.search.law_columns import Column, LawError, ParameterCounts
from meshwright.search.shape import Shapes


@dataclass(frozen=True)
class Opinion:
    """What one law says of R shapes and of the one that was chosen under another.

    Attributes:
        agreement: rank correlation of its losses with the choosing law's; nan where either gives all the same.
        best: row that it would choose. rank: of the chosen row, 1 where it would choose the same.
        regret: its loss of the chosen row less that of its best; nats of its own.
    """

    priced: Priced
    agreement: float
    best: int
    rank: int
    regret: float


@dataclass(frozen=True)
class Spread:
    """Opinions of laws on R shapes; the first is the law that chose row `chosen`."""

    shapes: Shapes
    chosen: int
    opinions: tuple[Opinion, ...]

    def rows(self) -> tuple[Mapping[str, Value], ...]:
        """One row per law, for a table of model risk."""
        return tuple(self._row(opinion) for opinion in self.opinions)

    def notes(self) -> tuple[str, ...]:
        """What to read from the rows, and the ranges that the laws leave."""
        others = self.opinions[1:]
        same = sum(o.best == self.chosen for o in others)
        head = (
            f"model risk: of {len(others)} other laws {same} would choose the same shape; losses of different laws "
            "stand on different data and floors and are not compared"
        )
        return (head, *dict.fromkeys(line for o in self.opinions for line in o.priced.warnings))

    def _row(self, opinion: Opinion) -> Mapping[str, Value]:
        s, best = self.shapes, opinion.best
        loss = opinion.priced.loss
        return {
            "law": opinion.priced.law.name,
            "loss_of_choice": float(loss[self.chosen]),
            "choice_in_box": bool(opinion.priced.inside[self.chosen]),
            "rank_of_choice": f"{opinion.rank} of {len(s)}",
            "regret": opinion.regret,
            "own_best": f"{s.layers[best]} layers, width {s.width[best]}, {s.experts[best]} experts",
            "own_best_loss": float(loss[best]),
            "spearman": float(opinion.agreement) if np.isfinite(opinion.agreement) else "no order",
        }


def spread(
    shapes: Shapes,
    chosen: int,
    laws: Sequence[Law],
    counts: ParameterCounts | None = None,
    tokens: Column = None,
) -> Spread:
    """Price shapes under each law; the first law is the one that chose row `chosen`.

    shapes: what was open to the choice, such as the shapes within the budget, or the front. counts: their exact
    parameters, for laws that read a size. tokens: of training, for laws that have a term in them; a law fitted at
    another number of tokens flags every row.

    Errors: LawError for fewer than two laws, one law twice or a row that is not there; MissingVariableError.
    """
    check_type("shapes", shapes, Shapes, "Shapes", LawError)
    check_type("the chosen row", chosen, (int, np.integer), "its number", LawError)
    if not 0 <= chosen < len(shapes):
        raise LawError(f"row {chosen} is not one of the {len(shapes)} shapes; count from 0")
    names = [law.name for law in laws]
    if len(names) < 2:
        raise LawError(
            f"a spread compares two laws or more, and {len(names)} is given; name another, such as besiroglu"
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise LawError(f"law {twice[0]} is named twice; name each law once")
    priced = [law.loss(law.columns(shapes, counts, tokens)) for law in laws]
    return Spread(shapes, int(chosen), tuple(_opinion(one, priced[0], int(chosen)) for one in priced))


def _opinion(priced: Priced, first: Priced, chosen: int) -> Opinion:
    """Of shapes that a law calls equally good, the chosen one is its best."""
    loss = priced.loss
    rank = 1 + int((loss < loss[chosen]).sum())
    best = chosen if rank == 1 else int(loss.argmin())
    return Opinion(priced, spearman(first.loss, loss), best, rank, float(loss[chosen] - loss[best]))
