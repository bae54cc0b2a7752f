"""Groups of a network that limits are told for: one whole torus axis, two, three; a domain, all domains; slices."""

from dataclasses import dataclass, replace

import numpy as np

from meshwright.costmodel.collectives import Network
from meshwright.costmodel.limits.thresholds import Array
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.errors import ClusterError
from meshwright.hardware.network import SwitchTier, TorusAxis


@dataclass(frozen=True)
class Mixed:
    """Levels shared between FSDP and TP: factors of each, and how many axes (M_X, M_Y) that is on a torus."""

    data: Array
    tensor: Array
    axes: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class Groups:
    """Factors per level of the groups, by label.

    Attributes:
        data: ever wider; the last is the whole network.
        tensor: ever wider; of a switched network the domain only.
        mixed: None on a network of one level.
    """

    data: dict[str, Array]
    tensor: dict[str, Array]
    mixed: Mixed | None


def groups_of(network: Network) -> Groups:
    """Raises ClusterError for a single device."""
    sizes = np.array(network.sizes)
    if np.prod(sizes) == 1:
        raise ClusterError("one device communicates with nobody; give a cluster of several, like v5p:4x4x4")
    return _torus(network, sizes) if network.torus else _switched(network, sizes)


def _torus(network: Network, sizes: Array) -> Groups:
    numbers = np.arange(len(sizes))
    package = np.where([level.name == "package" for level in network.levels], sizes, 1)
    axes = sorted(network.torus, key=lambda i: (-_rate(network, i), -int(sizes[i])))

    def over(chosen: list[int], inner: Array) -> Array:
        return inner * np.where(np.isin(numbers, chosen), sizes, 1)

    counts = range(1, len(axes) + 1)
    data = {_axes(k): over(axes[:k], package) for k in counts}
    tensor = {_axes(k): over(axes[-k:], package) for k in counts}
    most = len(axes) - 1
    mixed = Mixed(over(axes[:most], np.ones_like(sizes)), over(axes[most:], package), (most, 1))
    return Groups(data, tensor, mixed if most else None)


def _switched(network: Network, sizes: Array) -> Groups:
    inside, outside = sizes.copy(), sizes.copy()
    inside[1:] = 1
    outside[0] = 1
    name = network.levels[0].name
    if len(sizes) == 1 or network.beyond(0):  # a single domain, or one device in each
        return Groups({name: sizes}, {name: sizes}, None)
    return Groups({name: inside, "all": sizes}, {name: inside}, Mixed(outside, inside))


def _axes(count: int) -> str:
    return f"{count}_axis" if count == 1 else f"{count}_axes"


def _rate(network: Network, index: int) -> float:
    axis = network.levels[index]
    return network.rate(index) * (2.0 if isinstance(axis, TorusAxis) and axis.wraps else 1.0)


def slice_level(cluster: Cluster, network: Network) -> tuple[Network, Array, int] | None:
    """The network of slices with the data-centre network between them, a group on all of it, and that level.

    Two slices where the cluster has one. None where nobody gives the chip's rate into that network.
    """
    levels, rate = network.levels, cluster.chip.scale_out_bytes_per_s
    if cluster.slices == 1:
        if rate is None or not network.torus:
            return None
        levels = (*levels, SwitchTier("dcn", 2, rate, 0.0))
        network = replace(network, levels=levels, achieved=(*network.achieved, 1.0))
    return network, np.array([level.size for level in levels]), len(levels) - 1
