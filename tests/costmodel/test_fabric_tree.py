"""Fat trees: counts of published systems, full bisection of any, and what no source gives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodel.exchange.fabric_tree import fabric_tree
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import ClusterError, MissingFigureError
from meshwright.hardware.fattree import domain_switches, fat_tree, leaf_switches, switches_bytes_per_s


@pytest.mark.parametrize(
    ("cluster", "blocks", "leaves", "spines", "cores", "cables", "switches"),
    [
        # jax-ml/scaling-book, chapter 12: the SuperPOD of 1,024 and its growth
        ("h100:8x128", 4, 32, 16, 0, 2, 560),
        ("h100:8x256", 8, 64, 32, 0, 1, 1024 + 96),
        ("h100:8x512", 16, 128, 128, 64, 1, 2048 + 320),
        # 8 racks of 72, 4 rails of 8 leaves, 9 spines
        ("gb200:72x8", 8, 32, 9, 0, 2, 144 + 41),
        ("h100:8x32", 1, 8, 0, 0, 0, 128 + 8),
        ("h100:8x1", 1, 0, 0, 0, 0, 4),
    ],
)  # fmt: skip
def test_published_systems(
    cluster: str, blocks: int, leaves: int, spines: int, cores: int, cables: int, switches: int
) -> None:
    tree = fabric_tree(parse_cluster(cluster, profile="book"))
    wanted = {
        "blocks": blocks, "leaves": leaves, "spines": spines, "cores": cores, "cables": cables, "switches": switches,
    }  # fmt: skip
    assert {name: tree[name] for name in wanted} == wanted


def test_bandwidth_of_the_superpod() -> None:
    """Chapter 12, quiz 2 and 3."""
    tree = fabric_tree(parse_cluster("h100:8x128", profile="book"))
    expected = {
        "node_switches_total": 6.4e12, "node_limit": 3.6e12, "node_egress": 400e9, "leaf_total": 12.8e12,
        "spine_total": 51.2e12,
    }  # fmt: skip
    assert {name: tree[name] for name in expected} == pytest.approx(expected)
    assert [row["gather"] for row in tree.table] == ["514.3 GB/s", "412.9 GB/s", "17.07 TB/s"]
    assert tree.table[0]["bisection, both ways"] == "3.6 TB/s"


@settings(max_examples=200, derandomize=True)
@given(
    domains=st.integers(2, 2000),
    rails=st.integers(1, 16),
    links=st.integers(1, 32),
    ports=st.sampled_from([64, 72, 144]),
)
def test_as_much_can_leave_as_comes_in(domains: int, rails: int, links: int, ports: int) -> None:
    try:
        tree = fat_tree(domains, rails, links, ports)
    except ClusterError as error:
        assert "more than three levels" in str(error)
        return
    assert tree.links >= domains * rails * links
    assert tree.leaves * (ports // 2) >= tree.links
    assert tree.blocks * tree.block_domains >= domains
    if tree.blocks > 1:
        down = ports // 2 if tree.cores else ports
        assert tree.spines * down >= tree.links and tree.cores * ports >= (tree.links if tree.cores else 0)
        if not tree.cores:
            assert tree.spines * tree.cables <= tree.links / tree.leaves  # ports of a leaf


def test_what_no_source_gives_is_refused() -> None:
    with pytest.raises(
        MissingFigureError, match=r"no source counts the switches of mi300x; they are known of a100, h100"
    ):
        domain_switches("mi300x")
    with pytest.raises(MissingFigureError, match=r"no source gives the switch ports of fabric ib200"):
        leaf_switches("ib200")
    with pytest.raises(MissingFigureError, match=r"ask for one of these, like h100:8x64 or gb200:72x8"):
        fabric_tree("h200:8x1")
    with pytest.raises(
        MissingFigureError, match=r"name one of these after the cluster, like h100:8x64@ib400"
    ):
        fabric_tree(parse_cluster("h100:8x64@roce"))
    for way_out in ("h100:8x64", "gb200:72x8", "h100:8x64@ib400", "a100:8x64@ib400"):
        assert fabric_tree(parse_cluster(way_out)).number("switches") > 0
    with pytest.raises(ClusterError, match=r"v5p:4x4x4 is a torus, without switches"):
        fabric_tree(parse_cluster("v5p:4x4x4"))
    with pytest.raises(ClusterError, match=r"40 links per rail and a leaf switch 32 ports"):
        fat_tree(4, 4, 40)
    assert switches_bytes_per_s(4, 64, 25e9) == 6.4e12
