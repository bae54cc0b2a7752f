"""Model risk of a search: what other laws say of the shape that one law chose."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.costmodel.working import Step, Working
from meshwright.search.asked import Searched
from meshwright.search.law import Law
from meshwright.search.machine.pairs import kept
from meshwright.search.output.config import shape_name
from meshwright.search.spread import Spread, spread


def open_to_choice(done: Searched) -> tuple[np.ndarray, int]:
    """Rows that the choice was made among, and the place of the chosen one there.

    Those are the shapes that keep the first budget; with none the front, and the chosen is its least loss.
    """
    if done.budgets and done.best[0] is not None:
        rows = np.flatnonzero(kept(done.budgets[0], done.costs))
        return rows, int(np.flatnonzero(rows == done.best[0])[0])
    return done.on_front, len(done.on_front) - 1


def with_risk(working: Working, done: Searched, laws: Sequence[Law], tokens: float | None) -> Working:
    """The answer with a step for each other law, and what to read from them.

    Errors: as `spread`.
    """
    rows, chosen = open_to_choice(done)
    counts = replace(
        done.counts, **{f: getattr(done.counts, f)[rows] for f in done.counts.__dataclass_fields__}
    )
    found = spread(done.shapes[rows], chosen, (done.priced.law, *laws), counts, tokens)
    steps = {f"regret_{row['law']}": _step(found, n) for n, row in enumerate(found.rows()) if n}
    far = "; ".join(
        f"{one.priced.law.name} at such {', '.join(one.priced.outside)}"
        for one in found.opinions[1:]
        if one.priced.outside
    )
    notes = (found.notes()[0], *((f"extrapolated, not fitted there: {far}",) if far else ()), *working.notes)
    return replace(working, steps={**working.steps, **steps}, notes=notes)


def _step(found: Spread, n: int) -> Step:
    row, opinion = found.rows()[n], found.opinions[n]
    own = shape_name(found.shapes, opinion.best)
    told = f"its rank of the choice: {row['rank_of_choice']}; Spearman {row['spearman']}; its own best: {own}"
    return Step(opinion.regret, opinion.priced.law.unit, "", told)
