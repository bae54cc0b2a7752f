"""Bounds of rows with open policies: below every policy that there is, and below every mix of policies.

Instances choose few tensors, so that all choices can be listed; with the shipped framework, which chooses all, some
are drawn.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

import numpy as np
import pytest
from exhaustive_oracle import Floats
from instances import Instance, instance, with_memory
from tensor_oracle import choices, drawn_choice, name_of

from meshwright.costmodel.comm import PlacedComm
from meshwright.costmodel.estimate import step_seconds
from meshwright.costmodel.framework import load_framework
from meshwright.costmodel.shapes import Shapes
from meshwright.costmodel.stages import StageTable
from meshwright.costmodel.tensors import HOST, OPEN
from meshwright.optimizer.bounds import frame_bounds
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.cuts import Cuts
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.lines import lines_of
from meshwright.optimizer.menus import Menus
from meshwright.optimizer.refine import Refiner
from meshwright.optimizer.settled import Placed
from meshwright.optimizer.space import Space, frames
from meshwright.optimizer.units import Units

SLICE = range(10)
HOSTED = range(7, 40, 8)  # questions about offload
PRICES = (0, 3, 14)
FLOATS = 1e-9
MIXES = 300  # of every row


@dataclass(frozen=True)
class Open:
    """A placed row with open policies, and every policy of each layer kind that it may take.

    Attributes:
        table: of the row as it is.
        exact: of the row MIXES times, with a lane for every policy; `lanes` are their layer kinds.
    """

    asked: Instance
    menus: Menus
    table: StageTable
    exact: StageTable
    lanes: np.ndarray
    units: Units

    def cuts(self, prices: int, hosted: bool = False, beside: float = 0.0) -> Cuts:
        lines = lines_of(self.menus, self.table, self.table.costs, np.zeros(1, np.int64), prices, hosted)
        return Cuts.of(self.table.costs, self.units, lines, beside=beside)


@lru_cache
def opened(seed: int, shipped: bool) -> tuple[Open, ...]:
    """A few placed rows of an instance, as the search lists them without a cutoff."""
    asked = instance(seed)
    if shipped:
        every = replace(load_framework("jax"), reserve_bytes=0, reserve_share=0.0)
        asked = replace(asked, setting=replace(asked.setting, framework=every))
    setting = asked.setting
    space = Space(setting, parse_constraints(asked.constraints))
    refiner = Refiner(space, Funnel())
    children = frames(space, refiner.funnel, space.batches)
    if not setting.framework.chooses or not len(children):
        return ()
    bounds = frame_bounds(setting, children)
    for step in refiner.steps:
        bounds, children = step(bounds, children, np.inf)
        if not len(children):
            return ()
    assert isinstance(children, Placed)
    few = np.random.default_rng(seed).choice(len(children), min(len(children), 4), replace=False)
    return tuple(one for i in few.tolist() for one in _open(asked, space.menus, children[[i]], shipped))


def _open(asked: Instance, menus: Menus, plan: Placed, draws: bool) -> Iterator[Open]:
    setting, row, random = asked.setting, plan.rows, Random(asked.seed)
    codes: list[int] = []
    lanes: list[int] = []
    for kind in range(len(setting.model.kinds)):
        assert row.policies[0, kind] & OPEN
        listed = menus.of(row, kind)
        some = set(listed.codes[0][listed.exist[0]].tolist())
        costs = Shapes.of(setting, row).kinds[kind].policies
        here, away = (any((c >> HOST > 0) == host for c in some) for host in (False, True))
        drawn = (drawn_choice(random, setting, costs, away) for _ in range(100))
        for code in drawn if draws else choices(setting, costs, away):
            allowed = asked.wishes.policy(name_of(code, costs.present))
            some |= {code} if allowed and (away if code >> HOST else here) else set()
        codes += sorted(some)
        lanes += [kind] * len(some)
    if set(lanes) != set(range(len(setting.model.kinds))):
        return  # the wishes leave a kind no policy
    comm = PlacedComm(setting.network, plan.groups)
    same = np.zeros(MIXES, np.int64)
    chosen = row[same].with_columns(policies=np.array([codes] * MIXES, np.int64))
    yield Open(
        asked,
        menus,
        StageTable.of(setting, row, comm),
        StageTable.of(setting, chosen, PlacedComm(setting.network, plan[same].groups), tuple(lanes)),
        np.array(lanes),
        Units.of(setting, int(row.vpp[0])),
    )


def mixed(this: Open, random: Random) -> tuple[Floats, Floats, Floats]:
    """(seconds of the nominal batch, bytes of the fullest stage, and on hosts) of random cuts and mixes, [MIXES] each."""
    row, units = this.table.rows, len(this.units)
    pp, kinds = int(row.pp[0]), len(this.asked.setting.model.kinds)
    counts = np.zeros((MIXES, pp, len(this.lanes)))
    lanes = [np.flatnonzero(this.lanes == kind).tolist() for kind in range(kinds)]
    for mix in range(MIXES):
        some = [random.sample(of, min(len(of), random.choice((1, 2, 2, 3)))) for of in lanes]
        at = [0, *sorted(random.sample(range(1, units), pp - 1)), units]
        for stage in range(pp):
            layers = (this.units.prefix[at[stage + 1]] - this.units.prefix[at[stage]]).astype(int).tolist()
            for kind, n in enumerate(layers):
                one, other = random.choice(some[kind]), random.choice(some[kind])
                k = random.randint(0, n)
                counts[mix, stage, one] += n - k
                counts[mix, stage, other] += k
    stages, scale = np.arange(pp)[None, :], this.asked.setting.training.sequences / int(row.sequences[0])
    seconds = scale * step_seconds(this.exact, stages, counts)
    held, away = (f(stages, counts).max(axis=1) for f in (this.exact.stage_bytes, this.exact.host_bytes))
    return seconds, held, away


def check_mixes(seed: int, shipped: bool) -> int:
    """Rows checked: at any memory no bound passes a mix that fits it."""
    for at, this in enumerate(opened(seed, shipped)):
        seconds, held, _ = mixed(this, Random(1000 * seed + at))
        for share in (0.0, 0.02, 0.1, 0.3, 0.6, 1.0):
            capacity = int(np.ceil(np.quantile(held, share)))
            least = seconds[held <= capacity].min()
            setting = with_memory(this.asked.setting, capacity, this.asked.setting.cluster.host_memory_bytes)
            for prices in PRICES:
                cuts = this.cuts(prices)
                bounds = {
                    "coarse": cuts.bounds(setting, coarse=True),
                    "fine": cuts.bounds(setting),
                    "some": cuts.bounds(setting, some=this.table.some_stages()),
                    "below": cuts.bounds(setting, least * (1 + FLOATS)),
                }
                for name, bound in bounds.items():
                    assert bound[0] <= least, (str(this.asked), at, share, prices, name, bound[0], least)
    return len(opened(seed, shipped))


def check_hosted(seed: int, shipped: bool) -> int:
    """Rows checked: with hosts no bound passes a mix that fits device and host."""
    some = [
        (at, this)
        for at, this in enumerate(opened(seed, shipped))
        if this.table.rows.offloads("activations")[0]
    ]
    for at, this in some:
        seconds, held, away = mixed(this, Random(1000 * seed + at))
        for share in (0.0, 0.05, 0.2, 0.5):
            # The fastest of those that save so much at most: the bound knows only of the sum.
            fits = held + away <= np.quantile(held + away, share)
            one = int(np.flatnonzero(fits)[seconds[fits].argmin()])
            setting = with_memory(this.asked.setting, int(np.ceil(held[one])), None)
            for prices in PRICES[1:]:
                bound = this.cuts(prices, hosted=True, beside=float(away[one])).bounds(setting)
                assert bound[0] <= seconds[one], (str(this.asked), at, share, prices)
    return len(some)


def check_lines(seed: int, shipped: bool) -> int:
    """Policies checked: each lies on or above every line."""
    checked = 0
    for this in opened(seed, shipped):
        memory, seconds = this.exact.memory, this.exact.layer_s[0]
        for prices in PRICES:
            lines = this.cuts(prices).lines
            for kind in range(len(this.asked.setting.model.kinds)):
                of = np.flatnonzero(this.lanes == kind)
                device, working = memory.saved[0, of], memory.working[0, of]
                worth = seconds[of, None] + device[:, None] * lines.price[0]
                assert (lines.least[0, kind] <= worth * (1 + FLOATS)).all(), (str(this.asked), prices, kind)
                assert (lines.saved[0, kind] <= device * (1 + FLOATS) + 1).all()
                if lines.working is not None:
                    assert (lines.working[0, kind] <= (working + device) * (1 + FLOATS) + 1).all()
                if lines.most is not None:
                    assert (lines.most[0, kind] * (1 + FLOATS) + 1 >= device).all()
                checked += len(of)
    return checked


@pytest.mark.parametrize("shipped", [False, True])
def test_no_bound_of_an_open_row_passes_a_mix(shipped: bool) -> None:
    assert sum(check_mixes(seed, shipped) for seed in SLICE) > 15


def test_no_bound_passes_a_mix_that_fits_device_and_host() -> None:
    assert sum(check_hosted(seed, True) for seed in HOSTED) > 4


@pytest.mark.parametrize("shipped", [False, True])
def test_every_policy_lies_above_every_line(shipped: bool) -> None:
    assert sum(check_lines(seed, shipped) for seed in SLICE) > 300


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10, 300))
def test_open_rows_of_300_instances(seed: int) -> None:
    for shipped in (False, True):
        check_mixes(seed, shipped)
        check_hosted(seed, shipped)
        check_lines(seed, shipped)
