"""The network as a list of levels, innermost first.

A level is a torus axis or a switched tier. All rates are bytes/s in one direction and per *device*
(what the program sees), all sizes count children: devices for the first level, blocks of the level
below for the rest, so the product of sizes is the number of devices.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class TorusAxis:
    """One axis of a torus or mesh.

    A wrapped axis is a ring: both of a device's links on the axis carry traffic at `link_bytes_per_s`
    each way. An axis that does not wrap, or a part of one, is a line at the one-way rate. `one_way` is for
    programs that send round a ring in one direction only.
    """

    name: str
    size: int
    link_bytes_per_s: float
    wraps: bool
    hop_s: float
    one_way: bool = False


@dataclass(frozen=True)
class SwitchTier:
    """One tier of a switched network.

    `bytes_per_s` is what one device can send into this tier (its NVLink egress, its share of the
    node's NICs, its share of an oversubscribed uplink). `all_reduce_speedup` is what in-network
    reduction gains on an all-reduce; 1 where there is none.
    """

    name: str
    size: int
    bytes_per_s: float
    latency_s: float
    all_reduce_speedup: float = 1.0


Level = TorusAxis | SwitchTier

# Tiers that belong to the machine itself; every other tier is the network beyond it (NICs, DCN).
SCALE_UP_TIERS = frozenset({"package", "nvlink", "xgmi"})
