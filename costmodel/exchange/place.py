"""Where an exchange takes place: a network as the cost model has it, or a cluster, whose links then run at full rate."""

from meshwright.costmodel.collectives import Network
from meshwright.costmodel.exchange.span import parse_span, whole
from meshwright.costmodel.placement import Group
from meshwright.costmodel.setting import network_of
from meshwright.hardware.calibration import load_efficiency
from meshwright.hardware.cluster import Cluster, parse_cluster
from meshwright.hardware.errors import InputError, LayoutError, check_type
from meshwright.hardware.fabric import fabric_names, load_fabric

Place = Network | Cluster | str


def cluster_at(place: Cluster | str) -> Cluster:
    """A cluster, or one by its string, like 'v5p:4x4x4'. Errors: those of parse_cluster."""
    check_type("cluster", place, (Cluster, str), "a cluster like 'v5p:4x4x4'")
    return parse_cluster(place) if isinstance(place, str) else place


def network_at(place: Place) -> Network:
    """The network of a cluster at the ideal rates that commands use; a network as it is.

    Errors: InputError for anything else, and those of parse_cluster.
    """
    taken = "a cluster like 'v5p:4x4x4', or the Network of one"
    check_type("network", place, (Network, Cluster, str), taken)
    if isinstance(place, Network):
        return place
    cluster = cluster_at(place)
    return network_of(cluster.levels, load_efficiency("ideal", cluster.chip))


def group_at(axes: Group | str | None, place: Place) -> Group:
    """Devices that take part: by the cluster's axes, like 'x,y'; all of them for None.

    Errors: LayoutError for axes in words beside a bare network, which knows no cluster.
    """
    if axes is None:
        return whole(network_at(place).levels)
    check_type(
        "group", axes, (Group, str), "axes like 'x,y', a group of parse_span, or None for all", LayoutError
    )
    if isinstance(axes, Group):
        if (found := len(axes.factors)) != (levels := len(network_at(place).levels)):
            raise LayoutError(
                f"a group of {found} levels is none of {levels}; parse_span it on the same cluster"
            )
        return axes
    if isinstance(place, Network):
        raise LayoutError(
            f"axes {axes[:60]!r} need a cluster; give it instead of its network, or parse_span them"
        )
    return parse_span(axes, cluster_at(place))


def name_of(place: Place) -> str:
    """A cluster's own name; none of a bare network."""
    return "" if isinstance(place, Network) else cluster_at(place).name


def leaf_domains(fabric: str) -> int | None:
    """Domains that share the first switches of a fabric; None for a name that is no fabric, or without a limit."""
    return load_fabric(fabric).tiers[0].capacity if fabric in fabric_names() else None


def check_bytes(size: float) -> None:
    """Raises InputError for a size of nothing."""
    check_type("size", size, (int, float), "bytes, a number above 0", InputError)
    if not 0 < size < float("inf"):
        raise InputError(f"{size:g} bytes have nothing to move; give the whole size, above 0")
