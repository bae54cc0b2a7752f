"""The devices of a space as arrays: levels, prices, and their order by price."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.hardware.errors import InputError
from meshwright.search.machine.space import AXES, DeviceSpace, quantity
from meshwright.search.shape import Floats, Ints

_PRICE_DIGITS = 6  # two sums that differ by rounding alone are one price


@dataclass(frozen=True)
class Points:
    """All devices of a space, by level of compute, bandwidth and memory: arrays [C, W, M].

    Attributes:
        values: levels of each axis, rising. price: inf where a rule forbids the device.
        removed: devices that each rule forbids; each counted at the first.
        by_rank: flat index of the legal devices by price; of equal prices the first index.
        rank: place of each device in `by_rank`; len(by_rank) where it is forbidden.
    """

    values: tuple[Floats, Floats, Floats]
    price: Floats
    removed: Mapping[str, int]
    by_rank: Ints
    rank: Ints

    def __len__(self) -> int:
        return len(self.by_rank)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Levels of each axis."""
        compute, bandwidth, memory = self.values
        return len(compute), len(bandwidth), len(memory)

    def place(self, rank: int) -> tuple[int, int, int]:
        """Levels of the device at a place in the order of price."""
        compute, bandwidth, memory = np.unravel_index(int(self.by_rank[rank]), self.shape)
        return int(compute), int(bandwidth), int(memory)


def points_of(space: DeviceSpace) -> Points:
    """List and price the devices of a space.

    Errors: InputError where the rules leave none.
    """
    levels = [space.levels(axis) for axis in AXES]
    at = dict(zip(AXES, np.meshgrid(*(values for values, _ in levels), indexing="ij"), strict=True))
    price = np.full(at["compute"].shape, space.price.fixed)
    for prices in np.meshgrid(*(prices for _, prices in levels), indexing="ij"):
        price = price + prices
    for term in space.price.terms:
        price = price + term.price * at[term.of] / quantity(term.of, term.each)
    legal, removed = np.ones(price.shape, dtype=np.bool_), {}
    for rule in space.rules:
        per = at[rule.per] / quantity(rule.per, rule.each)
        holds = np.ones_like(legal)
        if rule.least is not None:
            holds &= at[rule.of] >= quantity(rule.of, rule.least) * per
        if rule.most is not None:
            holds &= at[rule.of] <= quantity(rule.of, rule.most) * per
        removed[rule.name] = int((legal & ~holds).sum())
        legal &= holds
    if not legal.any():
        worst = max(removed, key=lambda name: removed[name])
        raise InputError(
            f"the rules of device space {space.name} leave no device: {worst} forbids {removed[worst]:,} of "
            f"{legal.size:,}; loosen it"
        )
    price = np.where(legal, np.round(price, _PRICE_DIGITS), np.inf)
    by_rank = np.argsort(price, axis=None, kind="stable")[: int(legal.sum())]
    rank = np.full(price.size, len(by_rank), dtype=np.int64)
    rank[by_rank] = np.arange(len(by_rank))
    compute, bandwidth, memory = (values for values, _ in levels)
    return Points((compute, bandwidth, memory), price, removed, by_rank, rank.reshape(price.shape))
