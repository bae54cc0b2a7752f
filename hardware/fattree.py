"""Fat trees of switches: how many a number of domains needs, and what bandwidth each level has.

A leaf switch gives half of its ports to domains and half to spines, so that as much can leave a block as its devices
send (full bisection). Two levels of p-port switches reach p^2 / 2 links, p / 2 of each leaf to different spines; beyond
that a spine gives half of its ports to cores, up to p^3 / 4 links.

    leaves  = rails x blocks of domains          spines = links / p        (links / (p / 2) below cores)
    cores   = links / p                          block  = (p / 2) / links per rail, domains

Source: jax-ml/scaling-book, chapter 12 (1,024 to 4,096 H100; GB200 rails).
"""

from dataclasses import dataclass
from functools import cache
from math import ceil

from meshwright.hardware.errors import ClusterError, MissingFigureError
from meshwright.hardware.figures import DATA, CountFigure, RateFigure, Strict, load_yaml


class DomainSwitches(Strict):
    """Switches of one scale-up domain, and its links to each of the rails outside."""

    switches: CountFigure
    ports: CountFigure | None = None
    link: RateFigure | None = None
    rails: CountFigure
    links_per_rail: CountFigure


class LeafSwitches(Strict):
    """The switches of a fabric, all of one kind."""

    ports: CountFigure
    link: RateFigure


class _Table(Strict):
    domain: dict[str, DomainSwitches]
    leaf: dict[str, LeafSwitches]


@dataclass(frozen=True)
class FatTree:
    """Switches that join domains.

    Attributes:
        links: of all domains to leaf switches.
        block_domains: domains that share their leaf switches.
        blocks, leaves, spines, cores: counts; no spines where one block is all, no leaves where one domain is.
        cables: between each leaf and each spine.
    """

    domains: int
    links: int
    block_domains: int
    blocks: int
    leaves: int
    spines: int
    cores: int
    cables: int


@cache
def _table() -> _Table:
    return load_yaml(DATA / "switches.yaml", _Table)


def domain_switches(chip: str) -> DomainSwitches:
    """Errors: MissingFigureError for a chip whose switches no source counts."""
    known = _table().domain
    if chip not in known:
        raise MissingFigureError(
            f"no source counts the switches of {chip}; they are known of {', '.join(known)}: ask for one of these, like "
            f"h100:8x64 or gb200:72x8; what links of {chip} carry says 'meshwright inventory'"
        )
    return known[chip]


def leaf_switches(fabric: str) -> LeafSwitches:
    """Errors: MissingFigureError for a fabric whose switches no source describes."""
    known = _table().leaf
    if fabric not in known:
        raise MissingFigureError(
            f"no source gives the switch ports of fabric {fabric}; they are known of {', '.join(known)}: name one of "
            f"these after the cluster, like h100:8x64@ib400"
        )
    return known[fabric]


def fat_tree(domains: int, rails: int = 8, links_per_rail: int = 1, ports: int = 64) -> FatTree:
    """The smallest tree with full bisection.

    Errors: ClusterError where three levels do not reach, or a rail needs more ports than a leaf has.
    """
    half = ports // 2
    if links_per_rail > half:
        raise ClusterError(
            f"a domain has {links_per_rail} links per rail and a leaf switch {half} ports for them; use switches with more"
        )
    block = half // links_per_rail
    blocks = ceil(domains / block)
    leaves = rails * blocks
    up = min(domains, block) * links_per_rail  # of one leaf, as many as down
    links = leaves * up
    spines = ceil(links / ports)
    if blocks == 1:
        return FatTree(domains, links, block, 1, leaves if domains > 1 else 0, 0, 0, 0)
    if spines <= up:
        return FatTree(domains, links, block, blocks, leaves, spines, 0, up // spines)
    if links > ports * half * half:
        raise ClusterError(
            f"{links:,} links are more than three levels of {ports}-port switches join ({ports * half * half:,}); "
            f"use fewer domains"
        )
    return FatTree(domains, links, block, blocks, leaves, ceil(links / half), spines, 1)


def switches_bytes_per_s(switches: float, ports: float, link_bytes_per_s: float) -> float:
    """What switches pass through, one way."""
    return switches * ports * link_bytes_per_s


def collective_bytes_per_s(bisection: float, devices: float) -> float:
    """Bytes/s of each device that a bisection in one direction allows: half of the devices share it."""
    return bisection * 2.0 / devices
