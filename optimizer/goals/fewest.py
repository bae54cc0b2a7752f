"""Fewest devices whose best plan keeps a limit on the step; of those plans the fastest.

Counts of devices whose frames all pass the limit by their bound go at once. The others are halved: a search over the
lower half of the counts, its cutoff the limit, either finds a plan (then no higher count matters) or proves that there is
none (then no lower one does). At the count that is left the fastest plan is searched. The refuted counts together are the
proof that no plan on fewer devices keeps the limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from meshwright.optimizer.bounds import frame_bounds
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.queue import Level
from meshwright.optimizer.solve import Search, SolveOptions, Watch
from meshwright.optimizer.space import Space, frames

# A limit is passed by so much, so that a plan that meets it exactly is not lost to rounding.
ROOM = 1 + 1e-9


@dataclass
class Fewest:
    """The search for the fewest devices.

    Attributes:
        search: the one that holds the plan; the last one where there is none.
        whole: it was not cut short.
        open_devices: least count that a limit of the search left open; None where fewer devices than the plan's are
            proven to be too few.
    """

    space: Space
    options: SolveOptions
    limit_s: float
    watch: Watch | None = None
    search: Search = field(init=False)
    whole: bool = field(init=False, default=True)
    open_devices: int | None = field(init=False, default=None)
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
            if not whole or probe.undecided:
                self.open_devices = counts[low] if self.open_devices is None else self.open_devices
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

    def _counts(self) -> list[int]:
        """Counts of devices with a frame whose bound keeps the limit, ascending."""
        found: set[int] = set()
        for batch in self.space.batches[: self.options.batch_sizes]:
            frame = frames(self.space, Funnel(), (batch,))
            if len(frame):
                near = frame_bounds(self.space.setting, frame) < self.limit_s * ROOM
                found.update(frame.devices[near].tolist())
        return sorted(found)

    def _search(self, least: int, most: int, first: bool = False) -> Search:
        """A search over some counts; with `first` any plan will do."""
        watch, options = self.watch, self.options

        def any_plan(search: Search, bound_s: float, levels: Sequence[Level]) -> bool:
            return bool(search.best) or (watch is not None and watch(search, bound_s, levels))

        return Search(
            self.space,
            replace(options, runner_ups=0) if first else options,
            self.funnel,
            least_devices=least,
            most_devices=most,
            within_s=self.limit_s * ROOM,
            watch=any_plan if first else watch,
        )
