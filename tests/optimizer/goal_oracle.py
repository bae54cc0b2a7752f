"""What goals, ties and fronts are by exhaustive search: plans of a priced space as columns."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from exhaustive_oracle import DEGREES, Floats, PricedSpace
from mixed_oracle import Placed, same_but_policies

ROUNDING = 1e-12  # of sums in another order


@dataclass(frozen=True)
class Plans:
    """Plans that fit devices and hosts: all, or where layers of a kind may differ those that none beats in all columns.

    What is asked of them is always the least of one column within limits on others, so what is beaten is not missed.

    Attributes:
        seconds: for the batch asked for. device_bytes: of the fullest device. devices: used.
        degrees: how many of them, and of chunks, are above 1.
    """

    seconds: Floats
    device_bytes: Floats
    devices: Floats
    degrees: Floats

    @property
    def device_s(self) -> Floats:
        return self.seconds * self.devices

    def on(self, axis: str) -> Floats:
        """Costs and chips count devices here: the same order, other units."""
        return {
            "time": self.seconds,
            "memory": self.device_bytes,
            "chips": self.devices,
            "cost": self.device_s,
        }[axis]

    def fewest(self, limit_s: float) -> tuple[int, float] | None:
        """Fewest devices of the plans within a limit, and the least seconds on as many."""
        near = self.seconds <= limit_s
        if not near.any():
            return None
        least = self.devices[near].min()
        return int(least), float(self.seconds[near & (self.devices == least)].min())

    def front(self, axes: tuple[str, str]) -> Floats:
        """Undominated pairs by the first axis, [N, 2]."""
        first, second = (self.on(axis) for axis in axes)
        kept: list[int] = []
        for i in np.lexsort((second, first)).tolist():
            if not kept or second[i] < second[kept[-1]]:
                kept.append(i)
        return np.stack([first[kept], second[kept]], axis=1)


def plans_of(space: PricedSpace) -> Plans:
    """All that fit at the capacity of the space's setting."""
    rows = space.rows
    above = np.sum([getattr(rows, n) > 1 for n in (*DEGREES, "ep", "vpp")], axis=0)
    columns: list[list[Floats]] = [[], [], [], []]
    for batch in space.batches:
        fits = space.allowed(batch, space.setting.capacity_bytes)
        of_row = (np.broadcast_to(x[batch.of][:, None], fits.shape) for x in (rows.devices, above))
        for column, values in zip(columns, (batch.seconds, batch.device_bytes, *of_row), strict=True):
            column.append(values[fits].astype(float))
    alike = np.stack([np.concatenate(x) if x else np.zeros(0) for x in columns], axis=1)
    return Plans(*(_with_mixes(space, above, alike) if space.setting.framework.chooses else alike).T)


def _with_mixes(space: PricedSpace, above: Any, alike: Floats) -> Floats:
    """The unbeaten of plans whose layers agree and of all whose layers mix two policies per stage and kind; [N, 4]."""
    best, known = _unbeaten(alike), {}  # type: tuple[Floats, dict[Any, Any]]
    for batch in space.batches:
        for members in same_but_policies(space, batch) if batch.seconds.size else ():
            placed, of = Placed(space, batch, members, known), int(batch.of[members[0]])
            own = np.array([space.rows.devices[of], above[of]], float)
            for cut in batch.cuts:
                like = best[(best[:, 2:] <= own).all(axis=1)]
                new = [[*pair, *own] for pair in _down(placed, cut, like)]
                best = _unbeaten(np.concatenate([best, new])) if new else best
    return best


def _down(placed: Placed, cut: tuple[int, ...], like: Floats) -> Iterator[tuple[float, float]]:
    """(seconds, device bytes) of a placed cut with its fastest mixes in less and less memory.

    Without what cannot but be beaten by plans that are `like` it in devices and degrees.
    """
    setting = placed.space.setting
    ways = [points for points, _ in placed.ways(cut, setting.capacity_bytes)]
    if not all(map(len, ways)):
        return
    least = max(float(points[:, 2].min()) for points in ways)
    useful = float(like[like[:, 1] <= least * (1 + ROUNDING), 0].min(initial=np.inf)) / placed.scale
    if not placed.floor_s(cut) < useful:
        return
    if not int(placed.row.offload[0]) or setting.cluster.host_memory_bytes is None:
        ways = [points * [1.0, 0.0, 1.0, 1.0] for points in ways]
    room = float(setting.capacity_bytes)
    while True:
        some = [points[points[:, 2] <= room] for points in ways]
        found = placed.best(cut, some, useful) if all(map(len, some)) else None
        if found is None:
            return
        seconds, places, _ = found
        full = max(float(points[at, 2]) for points, at in zip(some, places, strict=True))
        yield placed.scale * seconds, full
        room = full * (1 - ROUNDING)


def _unbeaten(points: Floats) -> Floats:
    kept: list[int] = []
    for at in np.lexsort(points.T[::-1]):
        if not (points[kept] <= points[at] * (1 + ROUNDING)).all(axis=1).any():
            kept.append(int(at))
    return points[kept]
