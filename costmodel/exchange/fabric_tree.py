"""The switches and the bandwidth of each level of a GPU cluster: its working."""

from collections.abc import Iterator, Mapping

from meshwright.costmodel.collectives import Network
from meshwright.costmodel.exchange.operations import tree_bandwidth
from meshwright.costmodel.exchange.place import cluster_at
from meshwright.costmodel.exchange.span import whole
from meshwright.costmodel.working import Step, Value, Working
from meshwright.hardware.chip import Switch
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.errors import ClusterError
from meshwright.hardware.fattree import (
    FatTree,
    collective_bytes_per_s,
    domain_switches,
    fat_tree,
    leaf_switches,
    switches_bytes_per_s,
)
from meshwright.hardware.inventory import tier_bisection
from meshwright.hardware.network import SwitchTier
from meshwright.hardware.units import human_rate


def fabric_tree(cluster: Cluster | str) -> Working:
    """Counts of switches, cables, bandwidth and bisection by level; a fat tree with full bisection.

    Errors: ClusterError for a torus or a board; MissingFigureError where no source describes the switches.
    """
    cluster = cluster_at(cluster)
    chip = cluster.chip
    if chip.is_board:
        raise ClusterError(f"{cluster.name} is a board: one chip without a network, so there are no switches")
    if not isinstance(chip.scale_up, Switch):
        raise ClusterError(
            f"{cluster.name} is a torus, without switches; ask 'meshwright inventory {cluster.name}'"
        )
    inside = domain_switches(chip.name)
    leaf = leaf_switches(
        cluster.name.rpartition("@")[2] if "@" in cluster.name else chip.scale_out.default_fabric
    )
    size, domains = cluster.shape
    rails, links = inside.rails.count, inside.links_per_rail.count
    tree = fat_tree(domains, rails, links, leaf.ports.count)
    egress, link = chip.scale_up.per_chip_one_way.si, leaf.link.si
    given = {
        "gpus": Step(cluster.chips, note=f"{domains:,} domains of {size}"),
        "W_gpu": Step(
            egress, "B/s", note=f"into {chip.scale_up.kind}, one way; {chip.scale_up.per_chip_one_way.source}"
        ),
        "rails": Step(rails, note=f"of {links} links per domain; {inside.rails.source}"),
        "link": Step(link, "B/s", note=f"one way, {leaf.ports.count} ports a switch; {leaf.link.source}"),
    }
    steps = _counts(tree, inside.switches.count)
    node = rails * links * link
    steps["node_limit"] = Step(size * egress, "B/s", "gpus of a domain x W_gpu", "inside a domain, one way")
    if inside.ports is not None and inside.link is not None:
        total = switches_bytes_per_s(inside.switches.count, inside.ports.count, inside.link.si)
        formula = f"{inside.switches.count} x {inside.ports.count} x {inside.link.text}"
        steps["node_switches_total"] = Step(total, "B/s", formula, "what its switches could pass")
    steps["node_egress"] = Step(node, "B/s", "rails x links x link", "out of a domain, one way")
    steps["node_over_gpus"] = Step(node / (size * egress), "ratio", "node_egress / node_limit")
    if tree.leaves:
        total = min(domains, tree.block_domains) * node
        steps["leaf_total"] = Step(total, "B/s", "domains of a block x node_egress")
    if tree.spines:
        steps["spine_total"] = Step(tree.links * link, "B/s", "links x link", "into all spines, one way")
    return Working(
        question=f"Switches and bandwidth of {cluster.name}",
        given=given,
        steps=steps,
        binds=_binds(size * egress, node),
        notes=tuple(_notes(tree)),
        table=tuple(_rows(cluster, tree, egress, node)),
    )


def _counts(tree: FatTree, inside: int) -> dict[str, Step]:
    steps = {
        "domain_switches": Step(inside * tree.domains, "switch", f"{inside} x domains"),
        "blocks": Step(
            tree.blocks, note=f"of up to {tree.block_domains} domains that share their leaf switches"
        ),
        "leaves": Step(tree.leaves, "switch", "rails x blocks"),
        "spines": Step(tree.spines, "switch", "links / ports" if not tree.cores else "links / (ports / 2)"),
        "cores": Step(tree.cores, "switch", "links / ports" if tree.cores else ""),
    }
    steps["switches"] = Step(
        sum(int(steps[k].value) for k in ("domain_switches", "leaves", "spines", "cores")), "switch"
    )
    steps["cables"] = Step(tree.cables, note="between each leaf and each spine")
    return steps


def _rows(cluster: Cluster, tree: FatTree, egress: float, node: float) -> Iterator[Mapping[str, Value]]:
    """Each level: what its children send up, and what a gather reaches that ends there."""
    size, domains = cluster.shape
    block = min(domains, tree.block_domains)
    nic = node / size
    levels = [SwitchTier("nvlink", size, egress, 0.0)]
    if domains > 1:
        levels.append(SwitchTier("leaf", block, nic, 0.0))
    if tree.blocks > 1:
        levels.append(SwitchTier("spine and core" if tree.cores else "spine", tree.blocks, nic, 0.0))
    network = Network(tuple(levels), (1.0,) * len(levels))
    gathers = tree_bandwidth(network, whole(levels))
    inside = 1
    for level in levels:
        child = level.bytes_per_s * inside
        cut = tier_bisection(inside * level.size, level.bytes_per_s)
        yield {
            "level": level.name,
            "joins": level.size,
            "GPUs": inside * level.size,
            "a child sends": human_rate(child),
            "all send": human_rate(child * level.size),
            "bisection, both ways": human_rate(2 * cut),
            "per GPU": human_rate(collective_bytes_per_s(cut, inside * level.size)),
            "gather": human_rate(gathers.get(level.name, child)),
        }
        inside *= level.size


def _binds(inside: float, node: float) -> str:
    return f"a domain sends {node / inside:.3g} of what its GPUs exchange inside; above it nothing is oversubscribed"


def _notes(tree: FatTree) -> Iterator[str]:
    yield "gather: V / t of an all-gather of all GPUs below, were it to end at that level."
    if tree.cores:
        yield "Leaves have too few ports to reach every spine, so a core level joins the spines."
    elif tree.cables > 1:
        yield f"{tree.cables} cables join each leaf with each spine: so many times as many spines could be joined."
