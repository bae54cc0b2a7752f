"""Of plans that are equally good, the one with most memory to spare, then the simplest.

Lexicographic by solving: the value is pinned at the best one and its slack, then memory is taken away by halves until no
plan is left, then what still fits is listed and the simplest of it taken.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from meshwright.costmodel.layout import DIMENSIONS, Layout
from meshwright.optimizer.constraints import Constraint
from meshwright.optimizer.decode import decode, value_of
from meshwright.optimizer.queue import Level
from meshwright.optimizer.settled import VISIBLE, order
from meshwright.optimizer.solve import Found, Search
from meshwright.optimizer.space import Space

# Headroom counts in so many parts of the usable memory: closer plans are equal.
PARTS_OF_MEMORY = 100
# What every visible kind has of its own, by the names of constraints.
PINNED = tuple(name for name in VISIBLE if name != "schedule")
# Tied plans that are compared for simplicity.
MOST = 16


def preferred(search: Search) -> Found:
    """The plan to recommend of a finished search that has one."""
    best, given = search.ranked[0], search.setting
    if search.undecided:
        return best
    part = given.capacity_bytes / PARTS_OF_MEMORY

    def value(found: Found) -> float:
        return value_of(given, found.row, decode(given, found)[1].step_s)

    def parts_of(found: Found) -> int:
        return ceil(max(decode(given, found)[1].stage_bytes) / part)

    def looks_on(again: Search, bound_s: float, levels: Sequence[Level]) -> bool:
        """Shows the search that is settled; it may still end this one."""
        return search.watch is not None and search.watch(search, least_s, levels)

    most, least_s = value(best) + best.slack_s, best.value_s - best.slack_s

    wishes = (*search.space.constraints, *_of_kinds(search, most))

    def tied(parts: int, runner_ups: int = 0) -> list[Found]:
        """Plans of the best value in so many parts of the memory."""
        leaner = replace(given, memory_limit_bytes=int(parts * part))
        again = Search(
            Space(leaner, wishes, search.space.rules),
            replace(search.options, runner_ups=runner_ups),
            least_devices=search.least_devices,
            most_devices=search.most_devices,
            within_s=most,
            watch=looks_on,
        )
        again.run()
        return [found for found in again.ranked if value(found) <= most]

    none, some = 0, parts_of(best)
    trial = some - 1
    while none < trial:
        if found := tied(trial):
            best, some = found[0], parts_of(found[0])
        else:
            none = trial
        trial = (none + some) // 2
    return min(
        tied(some, MOST - 1) or [best],
        key=lambda found: (simplicity(decode(given, found)[0]), order(found.row)),
    )


def _of_kinds(search: Search, most: float) -> tuple[Constraint, ...]:
    """What plans of value `most` at the utmost must be: the list of a search holds the best of each visible kind, so where
    it reaches beyond `most`, only the kinds of the plans up to there; else nothing."""
    best = search.ranked[0]
    if search.cutoff_s - best.slack_s <= most:
        return ()
    rows = [found.row for found in search.ranked if found.value_s - found.slack_s <= most]
    pins = {name: sorted({str(int(getattr(row, name)[0])) for row in rows}) for name in PINNED}
    return tuple(
        Constraint(f"{name} of tied plans", name, "in", tuple(values)) for name, values in pins.items()
    )


def simplicity(layout: Layout) -> tuple[int, ...]:
    """Lower is simpler: degrees and chunks above 1, offload, recompute, several policies, uneven stages, schedule, data
    sharding."""
    degrees = (*(getattr(layout, name) for name in DIMENSIONS), layout.ep, layout.vpp)
    words = {word for stage in layout.policy_words for word in stage}
    return (
        sum(degree > 1 for degree in degrees),
        layout.offload != "none",
        words != {"none"},
        len(words) > 1 or any("*" in word for word in words),
        len(set(layout.layers_per_stage)) > 1,
        layout.schedule not in ("1f1b", "interleaved"),
        layout.zero,
    )
