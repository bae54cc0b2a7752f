"""Watching a search from the command line: a line while it lasts, and Ctrl-C that keeps what was found."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from meshwright.optimizer.queue import Level
from meshwright.optimizer.solve import Search

_QUIET_S = 2.0  # searches that end sooner say nothing
_EVERY_S = {True: 0.2, False: 2.0}  # between two lines, on a terminal and elsewhere


class Progress:
    """A watch of a search: says how far it is where that is wanted, and ends it once `stop` is called."""

    def __init__(self, show: bool) -> None:
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._show = show or self._terminal
        self._start = time.monotonic()
        self._next = self._start + _QUIET_S
        self._stop = self._drawn = False
        self.trying = ""  # what is tried now, of several things

    def __call__(self, search: Search, bound_s: float, levels: Sequence[Level]) -> bool:
        return self._tell(
            lambda: f"{self.trying + ': ' if self.trying else ''}{line_of(search, bound_s, levels)}"
        )

    def say(self, text: str) -> bool:
        """The same where no search runs; whether to stop."""
        return self._tell(lambda: text)

    def _tell(self, text: Callable[[], str]) -> bool:
        now = time.monotonic()
        if self._show and now >= self._next:
            self._next = now + _EVERY_S[self._terminal]
            self._draw(f"meshwright: {now - self._start:.0f} s: {text()}")
        return self._stop

    def stop(self) -> None:
        self._stop = True

    @property
    def stopped(self) -> bool:
        """Whether it was interrupted, be it after the search."""
        return self._stop

    def _draw(self, text: str) -> None:
        self._drawn = True
        print(
            f"\r{text}\x1b[K" if self._terminal else text,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    def clear(self) -> None:
        """Take the line off the terminal."""
        if self._terminal and self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def line_of(search: Search, bound_s: float, levels: Sequence[Level]) -> str:
    """Bound, best plan and candidates left."""
    bound_s = min([bound_s, *search.undecided])
    best_s = min((f.value_s for f in search.best.values()), default=None)
    unit = "device-seconds" if search.setting.goal.name == "cost" else "s"
    found = f"best {best_s:.4g} {unit} a step" if best_s is not None else "no plan yet"
    gap = f" (gap {max(0.0, 1 - bound_s / best_s):.2%})" if best_s is not None else ""
    left = sum(map(len, levels))
    return f"{found}, none below {bound_s:.4g} {unit}{gap}, {left:,} candidates open"


def interrupt() -> None:
    """Interrupt the program again, for what comes after a search that was interrupted as it ended."""
    signal.raise_signal(signal.SIGINT)


@contextmanager
def watching(show: bool) -> Iterator[Progress]:
    """A watch for searches in the block. The first Ctrl-C ends a search with what it has; the next acts as before."""
    progress = Progress(show)
    before = signal.getsignal(signal.SIGINT)
    listens = threading.current_thread() is threading.main_thread() and callable(before)

    def first(number: int, frame: FrameType | None) -> None:
        progress.stop()
        signal.signal(signal.SIGINT, before)

    if listens:
        signal.signal(signal.SIGINT, first)
    try:
        yield progress
    finally:
        progress.clear()
        if listens:
            signal.signal(signal.SIGINT, before)
