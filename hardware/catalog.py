"""What ships with the package: chips, boards, fabrics, calibrations and reference systems, by name."""

from functools import cache

from meshwright.hardware.calibration import efficiency_names
from meshwright.hardware.chip import board_names, chip_names, load_chip
from meshwright.hardware.fabric import fabric_names
from meshwright.hardware.figures import DATA, Strict, load_yaml

__all__ = ["KnownCluster", "boards", "chips", "efficiencies", "fabrics", "known_clusters", "load_chip"]


class KnownCluster(Strict):
    """A reference system: its cluster string, what it is, and who says so."""

    cluster: str
    title: str
    source: str


class _KnownClusters(Strict):
    clusters: tuple[KnownCluster, ...]


def chips() -> tuple[str, ...]:
    """Names of all chips that clusters are made of, as the cluster string writes them."""
    return chip_names()


def boards() -> tuple[str, ...]:
    """Names of all edge boards and consumer devices; each is a cluster string by itself."""
    return board_names()


def fabrics() -> tuple[str, ...]:
    """Names of all shipped fabrics, as '@' takes them."""
    return fabric_names()


def efficiencies() -> tuple[str, ...]:
    """Names of all shipped calibrations."""
    return efficiency_names()


@cache
def known_clusters() -> tuple[KnownCluster, ...]:
    """Reference systems, for `meshwright clusters`."""
    return load_yaml(DATA / "clusters.yaml", _KnownClusters).clusters
