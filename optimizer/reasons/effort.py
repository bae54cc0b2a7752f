"""What the reasons of an answer may cost, and who looks on while they are found.

The work is counted in placed plans whose stages are settled, over all questions that are asked: no clock, so that the same
question has the same reasons on any machine.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from meshwright.optimizer.progress import Progress
from meshwright.optimizer.queue import Level
from meshwright.optimizer.solve import Search, Watch

EACH, ALL = 256, 768
# A plan whose hosts are short has the mixes of its policies found by prices of both memories: so many times the work.
_SHORT_HOSTS = 16


@dataclass
class Effort:
    """Work left for reasons.

    Attributes:
        each: work on one question, after which it is left open. left: on all that are still asked.
        watch: shows what is tried; once it is told to stop, nothing more is asked.
    """

    each: float = EACH
    left: float = ALL
    watch: Progress | None = None

    @classmethod
    def endless(cls, watch: Progress | None = None) -> "Effort":
        """As much as it takes."""
        return cls(inf, inf, watch)

    @property
    def stopped(self) -> bool:
        """Whether the user ended it."""
        return self.watch is not None and self.watch.stopped

    @property
    def over(self) -> str:
        """Why nothing more is asked; empty while there is work left."""
        if self.stopped:
            return "interrupted"
        return "" if self.left > 0 else "the effort for reasons is spent"

    @contextmanager
    def on(self, trying: str) -> Iterator[None]:
        """What is tried in the block, for who looks on."""
        before = self.watch.trying if self.watch is not None else ""
        if self.watch is not None:
            self.watch.trying = trying
        self.tick(trying)
        try:
            yield
        finally:
            if self.watch is not None:
                self.watch.trying = before

    def tick(self, told: str) -> bool:
        """Show what is done where no search runs; whether the user ended it."""
        return self.watch is not None and self.watch.say(told)

    def watching(self, ends: Callable[[Search], bool]) -> Watch:
        """A watch of one search, which ends it where `ends` says so or its work is done."""

        def watch(search: Search, bound_s: float, levels: Sequence[Level]) -> bool:
            stopped = self.watch is not None and self.watch(search, bound_s, levels)
            return ends(search) or stopped or work_of(search) >= min(self.each, self.left)

        return watch

    def spend(self, search: Search) -> None:
        """Take off what a search that ended has cost."""
        self.left -= work_of(search)


def work_of(search: Search) -> int:
    """Work that a search has done so far."""
    dear = _SHORT_HOSTS if search.space.menus.any_tensor else 1
    return search.solved + (dear - 1) * search.shorts
