"""Fabrics: shipped ones validate, tiers merge by rate, a user's file is held to the same rules."""

from pathlib import Path

import pytest

from meshwright.hardware.catalog import fabrics
from meshwright.hardware.chip import load_chip
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import ClusterError, InputError
from meshwright.hardware.fabric import load_fabric
from meshwright.hardware.network import SwitchTier

USER = """
name: two-to-one
title: test
summary: two racks, 2:1 between them
families: [nvidia]
tiers:
- name: rack
  children: {text: '4', source: us, confidence: vendor}
  rate_per_node: {text: 200 GB/s, source: us, confidence: vendor}
  oversubscription: {text: '1', source: us, confidence: vendor}
  latency: {text: 3 us, source: us, confidence: vendor}
- name: hall
  children: {text: '2', source: us, confidence: vendor}
  oversubscription: {text: '2', source: us, confidence: vendor}
  latency: {text: 5 us, source: us, confidence: vendor}
"""


@pytest.fixture
def write(tmp_path: Path):
    def to_file(text: str) -> str:
        path = tmp_path / "fabric.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return to_file


@pytest.mark.parametrize("name", fabrics())
def test_every_shipped_fabric_validates_under_its_file_name(name):
    fabric = load_fabric(name)
    assert fabric.name == name
    assert fabric.sources()
    assert not fabric.summary.endswith(".")


@pytest.mark.parametrize(
    "name",
    ["v5p", "tpu7x", "a100", "h100", "h800", "h200", "b200", "gb200", "b300", "gb300", "h100-96gb", "mi300x"],
)
def test_every_chip_has_a_default_fabric_that_takes_it(name):
    chip = load_chip(name)
    assert chip.family in load_fabric(chip.scale_out.default_fabric).families


def test_meta_roce_keeps_the_oversubscribed_tier_apart():
    # glennklockwood.com on Meta's H100 clusters: 384 nodes per pod, 8 pods, 7:1 between pods
    _, pod, aggregation = parse_cluster("h100:8x3072@roce").levels
    assert isinstance(pod, SwitchTier)
    assert isinstance(aggregation, SwitchTier)
    assert (pod.size, pod.bytes_per_s) == (384, 50e9)
    assert (aggregation.size, aggregation.bytes_per_s) == (8, pytest.approx(50e9 / 7))
    assert [level.size for level in parse_cluster("h100:8x384@roce").levels] == [8, 384]


def test_a_count_that_does_not_fill_pods_is_spread_and_said():
    cluster = parse_cluster("h100:8x1000@roce")
    assert [level.size for level in cluster.levels] == [8, 250, 4]
    assert cluster.warnings == (
        "fabric roce: 1,000 domains do not fill whole blocks of tier pod; taken as 4 blocks of 250",
    )


def test_amd_planning_figures():
    # AMD-AGI/Primus mi300x.yaml: pods of 64 at 50 GB/s per NIC, 25 GB/s between pods
    _, pod, cluster = parse_cluster("mi300x:8x64").levels
    assert isinstance(pod, SwitchTier)
    assert isinstance(cluster, SwitchTier)
    assert (pod.size, pod.bytes_per_s, pod.latency_s) == (8, 50e9, 2e-6)
    assert (cluster.size, cluster.bytes_per_s, cluster.latency_s) == (8, 25e9, 10e-6)


def test_in_network_reduction_only_where_asked_for():
    plain, sharp = parse_cluster("h200:8x16"), parse_cluster("h200:8x16@ib400-sharp")
    assert [level.all_reduce_speedup for level in plain.levels if isinstance(level, SwitchTier)] == [1.0, 1.0]
    # stas00/ml-engineering: 1.31 on H200 NVSwitch; the book: about 30 percent
    assert [level.all_reduce_speedup for level in sharp.levels if isinstance(level, SwitchTier)] == [
        1.31,
        1.3,
    ]
    inner = parse_cluster("h200:4x16@ib400-sharp").levels[0]
    assert isinstance(inner, SwitchTier)
    assert inner.all_reduce_speedup == 1.0  # engages above 4 GPUs


def test_slow_nics_per_node():
    _, efa = parse_cluster("a100-40gb:8x16@efa50").levels
    assert isinstance(efa, SwitchTier)
    assert efa.bytes_per_s == 6.25e9  # 4 x 100 Gbit/s for 8 GPUs


def test_a_user_fabric(write):
    path = write(USER)
    cluster = parse_cluster(f"h100:8x8@{path}")
    _, rack, hall = cluster.levels
    assert (rack, hall) == (SwitchTier("rack", 4, 25e9, 3e-6), SwitchTier("hall", 2, 12.5e9, 5e-6))
    assert cluster.name == f"h100:8x8@{path}"
    assert "(the default)" not in cluster.fabric_note


def test_a_user_fabric_that_borrows_the_default_name_is_still_the_users(write):
    cluster = parse_cluster(f"h100:8x8@{write(USER.replace('two-to-one', 'ib400'))}")
    assert [level.size for level in cluster.levels] == [8, 4, 2]
    assert "(the default)" not in cluster.fabric_note


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("latency:", "latencyy:", "latency"),
        ("200 GB/s", "200", "'200' has no unit"),
        ("text: '2', source: us, confidence: vendor}\n  latency: {text: 5", "text: '0', source: us, confidence: vendor}\n  latency: {text: 5", "as a ratio"),
        ("children: {text: '4', source: us, confidence: vendor}", "children: unlimited", "only the last tier"),
        ("confidence: vendor}\n- name: hall", "confidence: derived}\n- name: hall", "must state its rule"),
        ("name: two-to-one", "name: two-to-one\nname: again", "given twice"),
        ("name: two-to-one", "name: [", "not valid YAML"),
        ("families: [nvidia]", "families: [intel]", "families"),
    ],
)  # fmt: skip
def test_a_broken_user_fabric_is_one_line_naming_the_field(write, old, new, words):
    assert old in USER
    with pytest.raises(InputError, match=words) as caught:
        parse_cluster(f"h100:8x8@{write(USER.replace(old, new, 1))}")
    assert "\n" not in str(caught.value)


def test_no_rate_anywhere_is_an_error(write):
    text = USER.replace("  rate_per_node: {text: 200 GB/s, source: us, confidence: vendor}\n", "")
    with pytest.raises(
        ClusterError, match=r"no source gives one for a100; name a fabric with a rate, like @ib200"
    ):
        parse_cluster(f"a100:8x8@{write(text)}")
