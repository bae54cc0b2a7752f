"""Plans nearer to the best than the model errs: all of them, and the one whose worst case is least.

Robust: each class of rates (FLOP/s, HBM, each kind of link, the host link) may be lower than stated by the error band,
one at a time. Of the plans inside the band the robust one has the least worst step over these cases and the stated one,
its cut and placement as they are. Plans outside the band are not looked at.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.estimate import digits, stage_counts, step_seconds, table_of
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.setting import Setting
from meshwright.hardware.errors import InputError, check_type
from meshwright.optimizer.decode import layout_of
from meshwright.optimizer.plan import SCHEMA_VERSION, Undecided
from meshwright.optimizer.question import error_band
from meshwright.optimizer.reasons.headline import infeasible
from meshwright.optimizer.reasons.machine import levers
from meshwright.optimizer.recommend import space_of
from meshwright.optimizer.solve import Search, SolveOptions, Watch
from meshwright.optimizer.space import Space

Array = NDArray[Any]
MOST = 1000  # plans listed at most
NOMINAL = "as stated"
_TIE = 5e-5  # as the page of a plan has it: no machine would tell the two apart


@dataclass(frozen=True)
class Near:
    """A plan inside the band.

    Attributes:
        value_s: step for the batch as asked, at the stated rates.
        worst_s, worst: its longest step over the cases, and the case.
        tie: nothing would tell it from the best.
    """

    layout: Layout
    value_s: float
    worst_s: float
    worst: str
    tie: bool


@dataclass(frozen=True)
class Band:
    """All plans inside the error band, the best first; each differs from the others in what a user sees.

    Attributes:
        band: share of step time. cases: what may be lower, the stated rates first.
        robust: index of the plan with the least worst case.
        whole: none is missing: neither beyond the most that are listed, nor left open by a limit of the search.
    """

    plans: tuple[Near, ...]
    band: float
    band_source: str
    cases: tuple[str, ...]
    robust: int
    whole: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "schema_version": SCHEMA_VERSION,
            "band": digits(self.band),
            "band_source": self.band_source,
            "cases": list(self.cases),
            "robust": self.robust,
            "whole": self.whole,
            "plans": [
                {
                    "layout": p.layout.to_dict(),
                    "value_s": digits(p.value_s),
                    "worst_s": digits(p.worst_s),
                    "worst": p.worst,
                    "tie": p.tie,
                }
                for p in self.plans
            ],
        }


@dataclass
class _BandSearch(Search):
    """A search that lists every visible kind of plan within a share of the best."""

    band: float = 0.0

    @property
    def cutoff_s(self) -> float:
        """No candidate beyond the band can enter; nor beyond the last that is listed."""
        values = sorted(f.value_s for f in self.best.values())
        if not values:
            return self.within_s
        limit = min(self.within_s, values[0] * (1 + self.band))
        return min(limit, values[MOST - 1]) if len(values) >= MOST else limit


def in_band(
    question: Setting,
    *,
    constraints: str | None = None,
    options: SolveOptions | None = None,
    band: float | None = None,
    watch: Watch | None = None,
) -> Band:
    """Every plan inside the error band of the model for this class of run, or inside `band`, and the robust one.

    Errors: InputError where the band is no share, Infeasible, Undecided as `recommend`.
    """
    check_type("question", question, Setting, "what resolve(model, cluster, training) returns")
    stated, source = error_band(question)
    if band is not None:
        check_type("band", band, (int, float), "a share of step time such as 0.1")
        if not 0 <= band < 1:
            raise InputError(f"band is {band}; give a share from 0 to below 1, such as 0.1")
        stated, source = float(band), "as asked"
    check_type("options", options, (SolveOptions, type(None)), "a SolveOptions, or None")
    options = replace(options or SolveOptions(), runner_ups=0)
    search = _BandSearch(space_of(question, constraints), options, watch=watch, band=stated)
    whole = search.run()
    if not search.best:
        raise (
            Undecided("the search ended with no plan found yet", None)
            if search.undecided
            else infeasible(search)
        )
    ranked = [f for f in search.ranked if f.value_s <= search.ranked[0].value_s * (1 + stated)]
    layouts = [layout_of(question, f) for f in ranked[:MOST]]
    names, seconds = _scenarios(search.space, layouts, stated)
    worst = seconds.max(axis=0)
    best_s = ranked[0].value_s
    plans = tuple(
        Near(
            x,
            f.value_s,
            float(worst[i]),
            names[int(seconds[:, i].argmax())],
            f.value_s - best_s < _TIE * best_s,
        )
        for i, (x, f) in enumerate(zip(layouts, ranked, strict=False))
    )
    complete = whole and not search.undecided and len(ranked) < MOST
    return Band(plans, stated, source, names, int(worst.argmin()), complete)


def _scenarios(space: Space, layouts: list[Layout], band: float) -> tuple[tuple[str, ...], Array]:
    """(names of the cases, step seconds for the batch as asked by case and layout)."""
    given = space.setting
    slower = [x for x in levers(space) if x.name != "HBM size"]
    settings = {NOMINAL: given} | {f"{x.name} {band:.0%} lower": x.scale(given, 1 - band) for x in slower}
    counts, stages = stage_counts(given, layouts)
    scale = np.array([given.training.sequences / (x.sequences or given.training.sequences) for x in layouts])
    seconds = [scale * step_seconds(table_of(s, layouts), stages, counts) for s in settings.values()]
    return tuple(settings), np.array(seconds)
