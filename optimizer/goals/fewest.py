"""Fewest devices whose best plan keeps a limit on the step; of those plans the fastest.

Counts of devices whose frames all pass the limit by their bound go at once. The others are halved: a search over the
lower half of the counts, its cutoff the limit, either finds a plan (then no higher count matters) or proves that there is
none (then no lower one does). At the count that is left the fastest plan is searched. The refuted counts together are the
proof that no plan on fewer devices keeps the limit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from meshwright.costmodel.rows import Rows
from meshwright.optimizer.bounds import frame_bounds
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.queue import Level
from meshwright.optimizer.solve import Found, Search, SolveOptions, Watch
from meshwright.optimizer.space import Space, frames

Array = NDArray[Any]

LATE = "the bound of the degrees passes the limit"
# A limit is passed by so much, so that a plan that meets it exactly is not lost to rounding.
ROOM = 1 + 1e-9


@dataclass
class _Within(Search):
    """A search for plans within a limit that may be far from the best there is.

    Until the list of plans is full it goes straight down, as a search without a limit does; slower plans are dropped at
    the end.
    """

    limit_s: float = float("inf")

    @property
    def cutoff_s(self) -> float:
        cutoff = super().cutoff_s
        return min(cutoff, self.limit_s * ROOM) if len(self.best) > self.options.runner_ups else cutoff

    def run(self, refinements: int | None = None) -> bool:
        whole = super().run(refinements)
        self.best = {kind: found for kind, found in self.best.items() if self.keeps(found)}
        return whole

    def keeps(self, found: Found) -> bool:
        """Whether a plan is within the limit, as far as rounding in the solver can tell."""
        return found.value_s <= self.limit_s * ROOM + found.slack_s

    def _frames(self) -> Iterator[tuple[Array, Rows]]:
        for bounds, frame in super()._frames():
            near = bounds < self.limit_s * ROOM
            self.funnel.remove(LATE, int((~near).sum()))
            yield bounds[near], frame[near]


@dataclass
class Fewest:
    """The search for the fewest devices.

    Attributes:
        search: the one that holds the plan; the last one where there is none.
        whole: it was not cut short.
        open_devices: least count that a limit of the search left open; None where fewer devices than the plan's are
            proven to be too few. left_open: the search that did, and whether it was whole.
    """

    space: Space
    options: SolveOptions
    limit_s: float
    watch: Watch | None = None
    search: Search = field(init=False)
    whole: bool = field(init=False, default=True)
    open_devices: int | None = field(init=False, default=None)
    left_open: tuple[Search, bool] | None = field(init=False, default=None)
    funnel: Funnel = field(init=False, default_factory=Funnel)

    def run(self) -> None:
        """Search to the end, or until the watch ends it."""
        counts = self._counts()
        self.search = self._search(1, self.space.setting.cluster.devices)
        low, high, known = 0, len(counts) - 1, False
        while low < high or (low == high and not known):
            middle = (low + high) // 2 if known else high
            probe = self._search(counts[low], counts[middle], first=True)
            whole = probe.run()
            if probe.best:
                high, known, self.search = counts.index(int(probe.ranked[0].row.devices[0])), True, probe
                continue
            if self.open_devices is None and (not whole or probe.undecided):
                self.open_devices, self.left_open = counts[low], (probe, whole)
            low = middle + 1
            if not known:
                self.search, self.whole = probe, whole
            if probe.stopped:
                self.whole = False
                return
        if known:
            last = self._search(counts[high], counts[high])
            self.whole = last.run()
            if last.best:
                self.search = last
            else:  # cut short: the plan of a probe is all there is
                self.search.undecided += last.undecided
                self.search.stopped = last.stopped

    def _counts(self) -> list[int]:
        """Counts of devices with a frame whose bound keeps the limit, ascending."""
        found: set[int] = set()
        for batch in self.space.batches[: self.options.batch_sizes]:
            frame = frames(self.space, Funnel(), (batch,))
            if len(frame):
                near = frame_bounds(self.space.setting, frame) < self.limit_s * ROOM
                found.update(frame.devices[near].tolist())
        return sorted(found)

    def _search(self, least: int, most: int, first: bool = False) -> _Within:
        """A search over some counts; with `first` any plan will do."""
        watch = self.watch

        def any_plan(search: Search, bound_s: float, levels: Sequence[Level]) -> bool:
            assert isinstance(search, _Within)
            found = any(map(search.keeps, search.best.values()))
            return found or (watch is not None and watch(search, bound_s, levels))

        return _Within(
            self.space,
            replace(self.options, runner_ups=0) if first else self.options,
            self.funnel,
            least_devices=least,
            most_devices=most,
            watch=any_plan if first else watch,
            limit_s=self.limit_s,
        )
