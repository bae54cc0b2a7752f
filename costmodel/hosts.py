"""Which stages share a host, how many devices each has there, and what the fullest host keeps.

Devices are numbered innermost level first; a host holds `devices_per_host` consecutive numbers. Stages are numbered
along pp from its innermost level out.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.layout import DIMENSIONS, Layout
from meshwright.costmodel.placement import factors_and_strides
from meshwright.costmodel.setting import Setting
from meshwright.hardware.cluster import Cluster

Array = NDArray[Any]
HostShare = tuple[tuple[int, int], ...]  # (stage, devices of it) on one host


def host_shares(cluster: Cluster, factors: Array, strides: Array) -> tuple[HostShare, ...]:
    """Every distinct way in which stages share a host under one placement.

    Args:
        factors, strides: of each dimension on each level, [dimensions, levels].
    """
    pp = DIMENSIONS.index("pp")
    used, sizes = tuple(np.prod(factors, axis=0).tolist()), tuple(level.size for level in cluster.levels)
    of_pp = tuple(factors[pp].tolist()), tuple(strides[pp].tolist())
    return _shares(used, *of_pp, sizes, cluster.devices_per_host or 1)


def stage_rooms(shares: Sequence[HostShare], host_bytes: float, stages: int) -> Array:
    """Bytes that one device of each stage may keep on a host at most, were it there for its own stage alone, [S]."""
    rooms = np.full(stages, np.inf)
    for stage, count in (pair for host in shares for pair in host):
        rooms[stage] = min(rooms[stage], host_bytes / count)
    return rooms


def fullest_host_bytes(setting: Setting, layout: Layout, host_bytes: Sequence[float]) -> float:
    """Bytes that the fullest host keeps for all of its devices.

    Args:
        layout: with its placement.
        host_bytes: per stage, bytes that one device keeps on its host.
    """
    if not any(host_bytes):
        return 0.0
    factors, strides = factors_and_strides([layout.placement])
    shares = host_shares(setting.cluster, factors[0], strides[0])
    return max(sum(devices * host_bytes[stage] for stage, devices in host) for host in shares)


@lru_cache(4096)
def _shares(
    used: tuple[int, ...],
    factors: tuple[int, ...],
    strides: tuple[int, ...],
    sizes: tuple[int, ...],
    devices_per_host: int,
) -> tuple[HostShare, ...]:
    """The same from the ranks used on each level, and the factors and strides of the stages."""
    device, stage = np.zeros(1, np.int64), np.zeros(1, np.int64)
    width, stages = 1, 1
    for level, size in enumerate(sizes):
        position = np.arange(used[level])
        of_pp = position // strides[level] % factors[level]
        device = (device[None, :] + width * position[:, None]).ravel()
        stage = (stage[None, :] + stages * of_pp[:, None]).ravel()
        width, stages = width * size, stages * factors[level]
    host = device // devices_per_host
    pairs, counts = np.unique(np.stack([host, stage], axis=1), axis=0, return_counts=True)
    first = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1))
    shares = {
        tuple(zip(s.tolist(), c.tolist(), strict=True))
        for s, c in zip(np.split(pairs[:, 1], first[1:]), np.split(counts, first[1:]), strict=True)
    }
    return tuple(sorted(shares))
