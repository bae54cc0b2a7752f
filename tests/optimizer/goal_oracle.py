"""What goals, ties and fronts are by exhaustive search: every plan of a priced space as columns."""

from dataclasses import dataclass

import numpy as np
from exhaustive_oracle import DEGREES, Floats, PricedSpace


@dataclass(frozen=True)
class Plans:
    """Every plan that fits devices and hosts.

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

    def front(self, axes: tuple[str, str], rounding: float) -> list[tuple[float, float]]:
        """Undominated pairs by the first axis; times and costs nearer than `rounding` are equal."""
        first, second = (self.on(axis) for axis in axes)
        near = [rounding if axis in ("time", "cost") else 0.0 for axis in axes]
        kept: list[tuple[float, float]] = []
        for i in np.lexsort((second, first)):
            a, b = float(first[i]), float(second[i])
            if kept and b >= kept[-1][1] * (1 - near[1]):
                continue
            while kept and a <= kept[-1][0] * (1 + near[0]):
                kept.pop()
            kept.append((a, b))
        return kept


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
    return Plans(*(np.concatenate(x) if x else np.zeros(0) for x in columns))
