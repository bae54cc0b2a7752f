"""The reasons that `recommend` was asked for, each as a page and as JSON."""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright.costmodel.setting import Setting
from meshwright.optimizer.commands import complain
from meshwright.optimizer.plan import Infeasible, LimitMissed, Plan, Priced, Undecided
from meshwright.optimizer.reasons.effort import Effort
from meshwright.optimizer.reasons.question import Question
from meshwright.optimizer.solve import SolveOptions

if TYPE_CHECKING:
    from meshwright.optimizer.report.page import Block


@dataclass(frozen=True)
class Reason:
    """One reason: its key in the JSON, its data there, and its page."""

    key: str
    data: dict[str, Any]
    page: "Iterable[Block]"


def reasons_of(
    args: argparse.Namespace,
    given: Setting,
    constraints: str | None,
    options: SolveOptions,
    answer: Priced | Infeasible | Undecided,
    effort: Effort | None = None,
) -> Iterator[Reason]:
    """Solved one after the other; of a search that was cut short none is given, which is told.

    Of a proven no what is known so far is given where an interrupt or the end of `effort` keeps the rest from being found.
    """
    from meshwright.optimizer.progress import interrupt, watching
    from meshwright.optimizer.report import reasons as pages

    effort = effort or Effort()
    if isinstance(answer, LimitMissed):
        return  # its fastest plan is the reason
    if isinstance(answer, Infeasible):
        if not args.no_ways_out:
            from meshwright.optimizer.reasons.infeasible import why_none

            with watching(args.progress) as watch:
                effort.watch = effort.watch if effort.stopped else watch
                none = why_none(given, constraints, options, answer, effort)
            yield Reason("why", none.to_dict(), pages.why_none(none))
            if effort.stopped:
                interrupt()
    elif not isinstance(answer, Plan):
        if args.why_not is not None or args.shadow or args.in_band is not None or args.robust:
            complain("the search was cut short, so the reasons asked for are left out")
    else:
        if args.why_not is not None:
            from meshwright.optimizer.reasons.why_not import why_not_in

            with watching(args.progress) as watch:
                effort.watch = watch
                other = why_not_in(Question(given, constraints, answer), args.why_not, options, effort)
            yield Reason("why_not", other.to_dict(), pages.why_not(other))
            if watch.stopped:
                interrupt()
        if args.shadow:
            from meshwright.optimizer.reasons.shadow import prices_of

            with watching(args.progress) as watch:
                prices = prices_of(
                    Question(given, constraints, answer), answer, options, Effort.endless(watch)
                )
            yield Reason("shadow_prices", prices.to_dict(), pages.shadow(prices))
            if watch.stopped:
                interrupt()
        if args.in_band is not None or args.robust:
            from meshwright.optimizer.reasons.band import in_band

            with watching(args.progress) as watch:
                try:
                    near = in_band(
                        given,
                        constraints=constraints,
                        options=options,
                        band=args.in_band or None,
                        watch=watch,
                    )
                except Undecided:
                    if not watch.stopped:
                        raise
            if watch.stopped:  # plans of a part of the space are no band
                interrupt()
            yield Reason("band", near.to_dict(), pages.band(near, args.robust))
