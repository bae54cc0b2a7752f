"""Communication of a plan by class and by link: bytes, the floor, and what of it is exposed.

Every figure is the stage's own from the cost model, asked again with other collectives: at peak rates, on one level
of the network alone, or counting bytes in place of seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel import collectives
from meshwright.costmodel.comm import Bytes, Comm, PlacedComm
from meshwright.costmodel.estimate import parts_of, stage_counts
from meshwright.costmodel.lanes import Lanes
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.placement import Groups, groups_of
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import COMM_CLASSES, Setting
from meshwright.costmodel.stages import StageTable
from meshwright.hardware.network import TorusAxis
from meshwright.optimizer.reasons.machine import links

Array = NDArray[Any]
HOST = "host link"


@dataclass(frozen=True)
class Traffic:
    """One class of communication on the slowest stage, over a whole step.

    Attributes:
        sent_bytes: what one device sends (a ring's worth: V (1 - 1/N) of a gather, twice that of an all-reduce).
        link: which kind of link keeps it longest, `host link` for offload.
        floor_s: alone at peak rates. alone_s: alone at the rates of the plan. exposed_s: what the step waits for.
    """

    name: str
    sent_bytes: float
    link: str
    floor_s: float
    alone_s: float
    exposed_s: float


@dataclass(frozen=True)
class Link:
    """One kind of link, over a whole step: how long all classes keep it busy at its peak rate, and at the plan's.

    `bytes_per_s` is the peak of one device into the level, of one link one way on a torus.
    """

    name: str
    bytes_per_s: float
    floor_s: float
    busy_s: float


@dataclass(frozen=True)
class _View:
    """The exposed parts of one stage under other rates or collectives."""

    setting: Setting
    layout: Layout
    stage: int
    at_end: int

    def parts(self, setting: Setting, comm: Callable[[Groups], Comm] | None = None) -> dict[str, float]:
        rows = Rows.of([self.layout], setting)
        groups = groups_of([self.layout.placement], rows.ep, rows.etp)
        lanes = Lanes.of(setting.model, [self.layout]).kinds
        comm_of = comm(groups) if comm else PlacedComm(setting.network, groups)
        table = StageTable.of(setting, rows, comm_of, lanes)
        counts, stages = stage_counts(setting, [self.layout])
        found = parts_of(table, stages, counts, np.array([self.stage]), np.array([self.at_end]))
        return {name: float(found[name][0]) for name in COMM_CLASSES}


def traffic_of(
    setting: Setting, layout: Layout, stage: int, at_end: int
) -> tuple[tuple[Traffic, ...], tuple[Link, ...]]:
    """(classes that send anything, kinds of links that carry anything) of a complete layout.

    Args:
        stage: whose micro-batches are looked at; at_end: whose work once per step.
    """
    view = _View(setting, layout, stage, at_end)
    peak = replace(setting.floor, overlap="none")
    exposed, alone, floor = (view.parts(s) for s in (setting, setting.serial, peak))
    sent = view.parts(setting.serial, _Sent)
    host = setting.rates.host_bytes_per_s
    sent["offload"] = alone["offload"] * host if host is not None else 0.0
    on_links = {
        name: tuple(view.parts(s, partial(_OnLevels, s.network, levels=on)) for s in (peak, setting.serial))
        for name, on in links(setting)
    }
    classes = []
    for name in COMM_CLASSES:
        if alone[name] > 0:
            longest = max(on_links, key=lambda link: on_links[link][1][name], default=HOST)
            link = HOST if name == "offload" else longest
            classes.append(Traffic(name, sent[name], link, floor[name], alone[name], exposed[name]))
    found = [
        Link(
            name,
            _peak_rate(setting, on[0]),
            *(sum(v for c, v in p.items() if c != "offload") for p in on_links[name]),
        )
        for name, on in links(setting)
    ]
    if alone["offload"] > 0:
        rate = setting.cluster.chip.host_link_bytes_per_s
        found.append(Link(HOST, rate or 0.0, floor["offload"], alone["offload"]))
    return tuple(classes), tuple(link for link in found if link.busy_s > 0)


def _peak_rate(setting: Setting, level: int) -> float:
    at = setting.cluster.levels[level]
    return at.link_bytes_per_s if isinstance(at, TorusAxis) else at.bytes_per_s


@dataclass(frozen=True)
class _OnLevels(PlacedComm):
    """Collectives as some levels alone see them."""

    levels: tuple[int, ...]

    def _loads(self, formula: Callable[..., Array], group: str, sizes: Bytes) -> Array:
        return super()._loads(formula, group, sizes)[..., list(self.levels)]


@dataclass(frozen=True)
class _Sent(Comm):
    """Bytes that one device sends, where others give seconds."""

    groups: Groups

    def _loads(self, formula: Callable[..., Array], group: str, sizes: Bytes) -> Array:
        sizes = np.asarray(sizes, float)
        members = getattr(self.groups, group).size.astype(float)
        if sizes.ndim == 2:
            members = members[:, None]
        others = np.where(members > 1, 1.0 if formula is collectives.send_loads else 1.0 - 1.0 / members, 0.0)
        times = 2.0 if formula is collectives.reduce_loads else 1.0
        return (times * others * sizes)[..., None]
