"""What stages are cut from."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.legal import chunk_periods, pattern_period, whole_chunks
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.optimizer.launchers.catalogue import launcher_of

Array = NDArray[Any]


@dataclass(frozen=True)
class Units:
    """Layers, or with v chunks a stage v pattern periods at a time, or one where chunks may differ.

    Attributes:
        prefix: layers of each kind in the first u units, [units + 1, kinds].
        runs: first unit of every run of equal units, and the end.
        even: every stage must hold equally many, as the launcher demands.
        lengths: whether a stage may hold 1, 2, ... units, [units]; None for any number.
    """

    prefix: Array
    runs: tuple[int, ...]
    even: bool = False
    lengths: NDArray[np.bool_] | None = None

    @property
    def alike(self) -> bool:
        """Every unit holds the same layers."""
        return len(self.runs) == 2

    @staticmethod
    def of_rows(setting: Setting, rows: Rows) -> "Units":
        """Of rows with equally many chunks that may hold as many pattern periods (`legal.chunk_periods`)."""
        vpp, each = int(rows.vpp[0]), int(chunk_periods(setting, rows[:1])[0])
        if not each:
            return Units.of(setting, vpp)
        units = Units.periods(setting)
        return replace(units, lengths=whole_chunks(vpp, each, np.arange(1, len(units) + 1)))

    @staticmethod
    def of(setting: Setting, vpp: int) -> "Units":
        pattern = np.array(setting.model.pattern)
        kinds = len(setting.model.kinds)
        layers = np.eye(kinds)[pattern]
        if vpp > 1:
            period = pattern_period(setting.model.pattern)
            size = period * vpp
            layers = np.repeat(layers[:period].sum(axis=0)[None, :] * vpp, len(pattern) // size, axis=0)
        prefix = np.vstack([np.zeros(kinds), np.cumsum(layers, axis=0)])
        changes = np.flatnonzero((layers[1:] != layers[:-1]).any(axis=1)) + 1
        return Units(prefix, (0, *changes.tolist(), len(layers)), launcher_of(setting).even_stages)

    @staticmethod
    def periods(setting: Setting) -> "Units":
        """Pattern periods: what all units are whole numbers of, but for stages of single layers of several kinds."""
        pattern, period = np.array(setting.model.pattern), pattern_period(setting.model.pattern)
        layers = np.eye(len(setting.model.kinds))[pattern[:period]].sum(axis=0)
        count = len(pattern) // period
        return Units(np.arange(count + 1)[:, None] * layers, (0, count), launcher_of(setting).even_stages)

    def __len__(self) -> int:
        return len(self.prefix) - 1

    @cached_property
    def shares(self) -> Array:
        """Layers of each kind of every share of the units in order, [shares, kinds]."""
        start, stop = np.triu_indices(len(self) + 1, 1)
        if self.alike:
            start, stop = start[start == 0], stop[start == 0]
        shares: Array = np.unique(self.prefix[stop] - self.prefix[start], axis=0)
        return shares

    @cached_property
    def sorts(self) -> Array:
        """Layers of each kind in each sort of unit, [sorts, kinds]."""
        return self._sorted[0]

    @cached_property
    def sort_of_run(self) -> Array:
        """Sort of each run, [runs]."""
        return self._sorted[1]

    @cached_property
    def _sorted(self) -> tuple[Array, Array]:
        units = np.diff(self.prefix, axis=0)[list(self.runs[:-1])]
        sorts, of_run = np.unique(units, axis=0, return_inverse=True)
        return sorts, of_run.ravel()

    @cached_property
    def sorts_before(self) -> Array:
        """Units of each sort in the first u units, [units + 1, sorts]."""
        of_unit = np.repeat(self.sort_of_run, np.diff(self.runs))
        return np.vstack([np.zeros(len(self.sorts)), np.cumsum(np.eye(len(self.sorts))[of_unit], axis=0)])

    def possible(self, pp: Array, stages: int) -> Array:
        """Sorts that each stage may hold a unit of, one unit at least being left to every other, [R, S, sorts]."""
        stage = np.arange(stages)[None, :]
        first = np.minimum(stage, len(self))
        beyond = np.clip(len(self) - pp[:, None] + stage + 1, 0, len(self))
        found: Array = self.sorts_before[beyond] > self.sorts_before[first]
        return found

    def lightest(self, working: Array, pp: Array, stages: int) -> Array:
        """Bytes of the heaviest layer of each stage while it runs backward, at least, [R, S]: of a unit it may hold; a single
        stage holds all. From those of each kind, [R, K]."""
        each = np.where(self.sorts > 0, working[:, None, :], 0.0).max(axis=2)
        least = np.where(self.possible(pp, stages), each[:, None, :], np.inf).min(axis=2)
        least = np.where(pp[:, None] == 1, each.max(axis=1)[:, None], least)
        found: Array = np.where(np.isfinite(least), least, 0.0)
        return found

    def equal_shares(self, pp: Array, count: Array, stages: int) -> tuple[Array, Array]:
        """(units of each sort on each stage [R, S, sorts], none beyond a row's last; whether pp divides them [R]).

        All stages hold the same number; `count` is how many there are to share, [R].
        """
        share = (count // pp).astype(np.int64)[:, None]
        stage = np.minimum(np.arange(stages)[None, :], pp[:, None])
        start = stage * share
        stop = np.where(stage < pp[:, None], start + share, start)
        return self.sorts_before[stop] - self.sorts_before[start], share[:, 0] * pp == count
