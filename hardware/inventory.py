"""What a number of chips, or a cluster, consists of: hosts, cores, memory, links, distances and bisections.

A torus wraps or not by the rules of slices.py. Bisections count one direction: all links that a cut through the middle
of an axis crosses, twice as many on a ring. Source: jax-ml/scaling-book, chapters 2 and 12.
"""

from dataclasses import dataclass
from math import prod

from meshwright.hardware.chip import Chip, Torus
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.network import Level, TorusAxis
from meshwright.hardware.onchip import GpuUnits, TpuUnits, units_of
from meshwright.hardware.slices import wrap_flags


@dataclass(frozen=True)
class Totals:
    """Of a number of chips; None where no source gives the figure.

    Attributes:
        cores: TensorCores of TPUs, SMs of GPUs.
        hbm_bytes: nominal, not what a compiler leaves.
        flop_per_s: by dtype, dense.
    """

    chips: int
    devices: int
    hosts: int | None
    cores: int | None
    hbm_bytes: float
    hbm_bytes_per_s: float
    flop_per_s: dict[str, float]
    host_bytes: float | None


@dataclass(frozen=True)
class Wire:
    """One level of a network.

    Attributes:
        per_chip_bytes_per_s: one way: of one link of an axis, or into a tier.
        max_hops: between the two places furthest apart on an axis; None on a tier.
        bisection_bytes_per_s: one way, of one block that the level joins: a slice, a domain, all.
    """

    name: str
    size: int
    wraps: bool | None
    per_chip_bytes_per_s: float
    max_hops: int | None
    bisection_bytes_per_s: float


def totals(chip: Chip, chips: int, blocks: int = 1) -> Totals:
    """Sums over chips; `blocks` are slices or domains, which share no host."""
    hosts = None
    dram = None
    if chip.host is not None:
        per_host = chip.host.chips_per_host.count
        hosts = blocks * -(-chips // (blocks * per_host))
        if chip.host.dram_per_host is not None:
            dram = chip.host.dram_per_host.si * chips / per_host
    return Totals(
        chips=chips,
        devices=chips * chip.devices_per_chip,
        hosts=hosts,
        cores=_cores(chip, chips),
        hbm_bytes=chips * chip.memory.capacity.si,
        hbm_bytes_per_s=chips * chip.memory.bandwidth.si,
        flop_per_s={str(dtype): chips * figure.si for dtype, figure in chip.peak.items()},
        host_bytes=dram,
    )


def pod_chips(chip: Chip) -> int:
    """Chips of the largest torus, or of one switched domain."""
    return chip.scale_up.pod_chips.count if isinstance(chip.scale_up, Torus) else chip.scale_up.domain.count


def wires(cluster: Cluster) -> tuple[Wire, ...]:
    """Levels of a cluster's network, innermost first; a board has none."""
    if cluster.chip.is_board:
        return ()
    out = []
    devices = 1
    for level in cluster.levels:
        devices *= level.size
        out.append(_wire(level, cluster, max(1, devices // cluster.chip.devices_per_chip)))
    return tuple(out)


def wraps(chip: Chip, shape: tuple[int, ...]) -> tuple[bool, ...]:
    """Which axes of a slice are rings, in the order in which they are given.

    Errors: ClusterError where nobody states the rule; empty for chips without a torus.
    """
    return wrap_flags(chip.scale_up, shape) if isinstance(chip.scale_up, Torus) else ()


def max_hops(size: int, ring: bool) -> int:
    """Hops between the two places furthest apart on an axis."""
    return size // 2 if ring else size - 1


def axis_bisection(chips: int, size: int, ring: bool, link_bytes_per_s: float) -> float:
    """Bytes/s one way through the cut across one torus axis: a link per line of chips, two on rings."""
    return (2.0 if ring else 1.0) * chips / size * link_bytes_per_s


def tier_bisection(chips: int, per_chip_bytes_per_s: float) -> float:
    """Bytes/s one way between two halves of what a switched tier without oversubscription joins."""
    return chips / 2 * per_chip_bytes_per_s


def links_per_chip(chip: Chip) -> int | None:
    """ICI links: one each way along every axis."""
    return 2 * chip.scale_up.dims if isinstance(chip.scale_up, Torus) else None


def host_rate(nic_bytes_per_s: float, chips_per_host: int) -> float:
    """A chip's share of its host's NIC."""
    return nic_bytes_per_s / chips_per_host


def _cores(chip: Chip, chips: int) -> int | None:
    units = units_of(chip.name)
    if isinstance(units, TpuUnits):
        return chips * units.cores.count
    return chips * units.sms.count if isinstance(units, GpuUnits) else None


def _wire(level: Level, cluster: Cluster, block_chips: int) -> Wire:
    per_chip = cluster.chip.devices_per_chip
    if isinstance(level, TorusAxis):
        link = level.link_bytes_per_s * per_chip
        cut = axis_bisection(prod(cluster.shape), level.size, level.wraps, link)
        return Wire(level.name, level.size, level.wraps, link, max_hops(level.size, level.wraps), cut)
    rate = level.bytes_per_s * per_chip
    return Wire(level.name, level.size, None, rate, None, tier_bisection(block_chips, rate))
