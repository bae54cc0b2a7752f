"""Tokens of a run and the loss that they bring: a given number, or as many as the deadline allows."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from meshwright.costmodel.serving.server import largest
from meshwright.hardware.errors import WorkloadError
from meshwright.search.architecture import Ends, counts_of
from meshwright.search.law import Law
from meshwright.search.law_columns import LawError
from meshwright.search.law_forms import Array
from meshwright.search.shape import Floats, Ints, Shapes

_MOST_STEPS = 2**40
_ROUNDING = 1e-12  # a deadline divided by a step may miss a whole number by this share
_PROBES = 16


@dataclass(frozen=True)
class Losses:
    """A law over the shapes of one search."""

    law: Law
    shapes: Shapes
    ends: Ends

    def of(self, tokens: Floats | float) -> Floats:
        """Loss of every shape at so many tokens, [R] from [R] or a number."""
        columns = self.law.columns(self.shapes, counts_of(self.shapes, self.ends), np.asarray(tokens, float))
        return np.broadcast_to(self.law.loss(columns).loss, (len(self.shapes),))

    def at(self, row: int, tokens: float) -> float:
        """Loss of one shape."""
        return float(Losses(self.law, self.shapes[np.array([row])], self.ends).of(tokens)[0])


class Tokens(ABC):
    """How many tokens a shape is trained on, by the seconds of its step."""

    losses: Losses
    batch: int
    deadline_s: float

    @abstractmethod
    def steps(self, step_s: Floats) -> Ints:
        """Whole steps of a run; 0 where the deadline comes first."""

    @abstractmethod
    def tokens(self, steps: Floats | float) -> Floats | float:
        """Tokens of so many steps."""

    @abstractmethod
    def limit_s(self, row: int, loss: float, floor_s: float) -> float:
        """Longest step, of those from `floor_s`, for which a shape ends in time with a loss below; 0 where none does."""

    def hoped(self, floor_s: Floats) -> Floats:
        """Loss of every shape whose steps take so long, of those that miss the deadline too, [R]."""
        return self.losses.of(self.tokens(np.maximum(self.steps(floor_s), 1)))

    def loss(self, row: int, step_s: float) -> float:
        """Of one shape; inf where no run ends in time."""
        steps = int(self.steps(np.array([step_s]))[0]) if np.isfinite(step_s) else 0
        return self.losses.at(row, float(self.tokens(float(steps)))) if steps else np.inf


@dataclass(frozen=True)
class Fixed(Tokens):
    """A given number: whole steps, the last one filled up."""

    losses: Losses
    batch: int
    deadline_s: float
    wanted: int

    @property
    def count(self) -> int:
        return -(-self.wanted // self.batch)

    def steps(self, step_s: Floats) -> Ints:
        return np.where(step_s * self.count <= self.deadline_s * (1 + _ROUNDING), self.count, 0)

    def tokens(self, steps: Floats | float) -> Floats | float:
        return float(self.wanted)

    def limit_s(self, row: int, loss: float, floor_s: float) -> float:
        return self.deadline_s / self.count if self.losses.at(row, self.wanted) < loss else 0.0


@dataclass(frozen=True)
class Free(Tokens):
    """As many whole steps as end in time.

    Raises:
        LawError: the law has no term in tokens, or its loss rises with them.
    """

    losses: Losses
    batch: int
    deadline_s: float

    def __post_init__(self) -> None:
        law = self.losses.law
        if "tokens" not in law.reads:
            at = "" if law.tokens is None else f" (it was fitted at {law.tokens:g} of them)"
            raise LawError(
                f"law {law.name} has no term in tokens{at}, so they cannot be free; give --train-tokens a number, "
                "or choose a law that reads them, such as besiroglu or gemstones-wdpt"
            )
        if not np.isfinite(self.deadline_s):
            raise WorkloadError("free tokens need a deadline, such as --deadline 30d")

    def steps(self, step_s: Floats) -> Ints:
        whole = np.floor(self.deadline_s / step_s * (1 + _ROUNDING))
        return np.asarray(np.minimum(whole, _MOST_STEPS), np.int64)

    def tokens(self, steps: Floats | float) -> Floats | float:
        return steps * float(self.batch)

    def hoped(self, floor_s: Floats) -> Floats:
        self._falls(self.steps(floor_s))
        return super().hoped(floor_s)

    def limit_s(self, row: int, loss: float, floor_s: float) -> float:
        if not np.isfinite(loss):
            return self.deadline_s
        one = Losses(self.losses.law, self.losses.shapes[np.array([row])], self.losses.ends)
        most = int(self.steps(np.array([floor_s]))[0])
        not_below = largest(lambda n: n == 0 or float(one.of(n * float(self.batch))[0]) >= loss, most)
        return self.deadline_s / (not_below + 1) if not_below < most else 0.0

    def _falls(self, most: Ints) -> None:
        """Raises LawError where more tokens are worse: then the most that fit would not be best, nor a bound."""
        shares = np.linspace(0.0, 1.0, _PROBES)
        last: Array = np.full(len(most), np.inf)
        for share in shares:
            loss = self.losses.of(np.maximum(most, 1) ** share * float(self.batch))
            if (loss > last * (1 + _ROUNDING)).any():
                raise LawError(
                    f"loss by law {self.losses.law.name} rises with tokens, so the most that a deadline allows are not "
                    "the best; give --train-tokens a number"
                )
            last = loss
