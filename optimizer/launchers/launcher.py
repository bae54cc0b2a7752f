"""A launcher as data: what it can run, rule by rule, each with the launcher's own source.

Where a rule reads one row it is a filter of the space with its name in the funnel. What rows do not hold (the layers of
the stages, the placement) is told by `layout_holds`, and the space keeps it by `even_stages` and `rank_orders`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.layout import DIMENSIONS, Layout, Placement
from meshwright.costmodel.legal import Rule, chunk_unit
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


def _any_layout(setting: Setting, layout: Layout) -> bool:
    return True


@dataclass(frozen=True)
class LauncherRule(Rule):
    """A rule of one launcher; `message` says what it takes, the layout's numbers and the way out.

    Attributes:
        reads: the decisions that `holds` looks at, by their names in constraints: the space keeps the rule once all of
            them are taken. Empty for a rule about what rows do not hold.
        source: where the launcher says so: file and lines of the snapshot that the launcher names.
        layout_holds: the same question about what a row does not hold.
    """

    reads: frozenset[str] = field(kw_only=True)
    source: str = field(kw_only=True)
    layout_holds: Callable[[Setting, Layout], bool] = field(default=_any_layout, kw_only=True)


@dataclass(frozen=True)
class Launcher:
    """What one launcher can run.

    Attributes:
        framework: whose memory habits apply (`costmodel.framework`).
        snapshot: the version of the launcher that the rules were read from.
        rules: what a layout must obey beside the rules of every layout; none for a launcher that runs all of them.
        policies, offloads, schedules: the words it takes; None for all. Without a pipeline any launcher runs 1f1b.
        mixes: layers of one kind may have different policies, and policies without a name.
        opens: decisions that the space lists only when asked, and must list for this launcher: schedule (GPipe), sp.
        even_stages: every stage holds the same layers.
        rank_orders: nestings of the ranks, innermost first, that it can number; none for any placement.
        one_level: each degree sits on one network level.
        chips: vendors of the chips it runs on; none for any.
        mtp: multi-token-prediction modules on the last stage are among what was read of it.
        images: so is a vision tower on the first stage.
        trainable: a part of the weights can be trained, or low-rank adapters.
        note: what to know before trusting its numbers.
    """

    name: str
    framework: str
    snapshot: str = ""
    rules: tuple[LauncherRule, ...] = ()
    policies: tuple[str, ...] | None = None
    offloads: tuple[str, ...] | None = None
    schedules: tuple[str, ...] | None = None
    mixes: bool = False
    opens: frozenset[str] = frozenset()
    even_stages: bool = False
    rank_orders: tuple[tuple[str, ...], ...] = ()
    one_level: bool = False
    chips: tuple[str, ...] = ()
    mtp: bool = False
    images: bool = False
    trainable: bool = False
    note: str = ""

    @property
    def bounds(self) -> bool:
        """Whether it leaves anything out of the space."""
        return bool(self.rules)

    def words(self, name: str) -> tuple[str, ...] | None:
        """The words it takes of a decision; None for all."""
        return {"recompute": self.policies, "offload": self.offloads, "schedule": self.schedules}.get(name)

    def takes(self, name: str, word: str) -> bool:
        """Whether it takes a word of a decision."""
        words = self.words(name)
        return words is None or word in words

    @property
    def bounds_placement(self) -> bool:
        return bool(self.rank_orders) or self.one_level

    def orders(self, factors: Ints) -> Bools:
        """Whether its ranks can sit on the network in each split of the degrees, [R, dimensions, levels] -> [R]."""
        good = np.ones(len(factors), bool)
        if self.rank_orders:
            good = np.any([nested(factors, order) for order in self.rank_orders], axis=0)
        if self.one_level:
            good &= ((factors > 1).sum(axis=2) <= 1).all(axis=1)
        return good


def nested(factors: Ints, order: Sequence[str]) -> Bools:
    """Whether ranks numbered in `order`, innermost first, fill the levels so: a dimension sits on no level further in
    than one before it. Factors of each dimension on each level, [R, dimensions, levels]."""
    used = factors[:, [DIMENSIONS.index(name) for name in order]] > 1
    level = np.arange(factors.shape[2])
    outermost = np.where(used, level, -1).max(axis=2)
    innermost = np.where(used, level, factors.shape[2]).min(axis=2)
    before = np.maximum.accumulate(outermost, axis=1)[:, :-1]
    good: Bools = (innermost[:, 1:] >= before).all(axis=1)
    return good


def even_stages(launcher: str, told: str, source: str) -> LauncherRule:
    """Every stage holds the same layers."""

    def holds(setting: Setting, rows: Rows) -> Bools:
        units = np.array([setting.model.layers // chunk_unit(setting, int(v)) for v in rows.vpp], np.int64)
        good: Bools = units % rows.pp == 0
        return good

    return LauncherRule(
        f"{launcher}: stages hold equal layers", holds,
        lambda s, x: (
            f"{told}; {s.model.layers} layers over pp={x.pp}, vpp={x.vpp} as "
            f"layers={'/'.join(map(str, x.layers_per_stage[:8]))}{'/...' if x.pp > 8 else ''} are not; use a pp that "
            "divides them"
        ),
        reads=frozenset({"pp", "vpp"}), source=source,
        layout_holds=lambda s, x: len(set(x.layers_per_stage)) <= 1,
    )  # fmt: skip


def ranks_in_order(
    launcher: str, orders: tuple[tuple[str, ...], ...], told: str, source: str
) -> LauncherRule:
    """Ranks are numbered in one of a few nestings of the dimensions."""

    def holds(setting: Setting, layout: Layout) -> bool:
        if not layout.placement:
            return True
        factors = factors_of(layout.placement)
        return any(bool(nested(factors, order)[0]) for order in orders)

    return LauncherRule(
        f"{launcher}: rank order",
        lambda s, rows: np.ones(len(rows), bool),
        lambda s, x: f"{told}; this placement nests them otherwise: leave the placement out",
        reads=frozenset(), source=source, layout_holds=holds,
    )  # fmt: skip


def factors_of(placement: Placement) -> Ints:
    """Factors of each dimension on each level, [1, dimensions, levels]."""
    factors = np.ones((1, len(DIMENSIONS), len(placement)), np.int64)
    for level, members in enumerate(placement):
        for name, factor in members:
            factors[0, DIMENSIONS.index(name), level] = factor
    return factors


def rule(
    name: str,
    reads: str,
    holds: Callable[[Setting, Rows], Any],
    told: Callable[[Setting, Layout], str],
    source: str,
) -> LauncherRule:
    """A rule that one row tells; `reads` are names separated by spaces."""
    return LauncherRule(name, holds, told, reads=frozenset(reads.split()), source=source)
