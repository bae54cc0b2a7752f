"""The cluster string and the levels it becomes."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.hardware.catalog import known_clusters
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import ClusterError, InputError, UnitError, UnknownNameError
from meshwright.hardware.network import SwitchTier, TorusAxis
from meshwright.hardware.slices import slice_table

LEGAL = (
    *(known.cluster for known in known_clusters()),
    *(f"{gen}:{text}" for gen, table in slice_table().generations.items() for text in table.shapes.values()),
    "v5e:16x16*4", "v5p:4x4x4*3", "tpu7x:2x2x1*2", "v5p-128*2", "h100:8x16384", "h100:8", "h100:4x1", "h100:1",
    "h100:2x6", "h800:8x256", "h100:8x1000@roce", "mi300x:8x64", "gb200:72x8", "gb200:36x2", "a100:8x3@roce200",
)  # fmt: skip


@pytest.mark.parametrize("text", LEGAL)
def test_levels_multiply_to_the_devices_and_the_name_reads_back(text):
    cluster = parse_cluster(text)
    assert prod(level.size for level in cluster.levels) == cluster.devices
    assert cluster.devices == cluster.chips * cluster.chip.devices_per_chip
    assert cluster.chips == prod(cluster.shape) * cluster.slices
    assert cluster.levels
    assert all(level.size > 1 for level in cluster.levels) or cluster.devices == 1
    again = parse_cluster(cluster.name)
    assert again.name == cluster.name
    assert again.levels == cluster.levels
    assert cluster.fabric_note
    assert cluster.sources
    if cluster.devices_per_host is not None:
        assert cluster.devices % cluster.devices_per_host == 0
    assert hash(cluster) == hash(parse_cluster(text))


def test_a_pod_is_three_wrapped_axes_at_the_peak_link_rate():
    cluster = parse_cluster("v5p:16x20x28")
    # docs.cloud.google.com/tpu/docs/v5p: 1200 GB/s both ways over 6 links
    assert cluster.levels == tuple(
        TorusAxis(axis, size, 100e9, True, 1e-6) for axis, size in (("x", 16), ("y", 20), ("z", 28))
    )
    assert (cluster.devices, cluster.devices_per_host, cluster.host_memory_bytes) == (8960, 4, 448 * 10**9)
    assert cluster.fabric_note == "one slice: the data-centre network is not used"
    assert cluster.warnings == (
        "v5p: Google's page gives 6,144 chips as the largest single job (16x16x24); this slice has 8,960",
    )


def test_slices_are_joined_by_the_data_centre_network():
    outer = parse_cluster("v5e:16x16*4").levels[-1]
    # 25 Gbit/s per chip (the book: 3.125e9 B/s)
    assert isinstance(outer, SwitchTier)
    assert (outer.name, outer.size, outer.bytes_per_s) == ("dcn", 4, 3.125e9)


def test_both_devices_of_a_tpu7x_chip_share_its_links():
    cluster = parse_cluster("tpu7x:4x4x4*2")
    package, x, *_, dcn = cluster.levels
    assert isinstance(package, SwitchTier)
    assert isinstance(x, TorusAxis)
    assert isinstance(dcn, SwitchTier)
    assert (package.name, package.size, package.bytes_per_s) == ("package", 2, 300e9)
    assert x.link_bytes_per_s == 50e9  # half of 100
    assert dcn.bytes_per_s == 6.25e9  # half of 12.5
    assert cluster.devices == 256
    assert cluster.devices_per_host == 8
    assert any("no source gives the on-package link" in text for text in cluster.warnings)


def test_a_superpod_is_nvlink_and_one_merged_fabric_level():
    cluster = parse_cluster("h100:8x128")
    nvlink, ib = cluster.levels
    assert isinstance(nvlink, SwitchTier)
    assert isinstance(ib, SwitchTier)
    assert (nvlink.name, nvlink.size, nvlink.bytes_per_s) == ("nvlink", 8, 450e9)
    assert (ib.name, ib.size, ib.bytes_per_s, ib.all_reduce_speedup) == ("ib400", 128, 50e9, 1.0)
    # (10.75 - 5.14) us / 6 ring steps of a 2 KiB all-gather, aiconfigurator's NCCL table
    assert nvlink.latency_s == pytest.approx(0.94e-6)
    assert cluster.warnings == ()


def test_the_default_fabric_carries_to_131072_gpus_and_says_what_it_assumes():
    cluster = parse_cluster("h100:8x16384")
    assert cluster.devices == 131_072
    assert [level.size for level in cluster.levels] == [8, 16384]
    assert cluster.fabric_note == (
        "fabric ib400 (the default): NDR InfiniBand, one 400 Gbit/s NIC per GPU, non-blocking leaf (32 nodes) and "
        "spine (128 nodes, one SuperPOD of 1,024 GPUs); beyond one SuperPOD a core without oversubscription is "
        "assumed (documented to 4,096 GPUs); 50 GB/s per device one way"
    )
    assert any("more than one SuperPOD (1,024 GPUs)" in text for text in cluster.warnings)


def test_one_unit_answers_faster_than_the_spine():
    inside, across = parse_cluster("h100:8x32").levels[1], parse_cluster("h100:8x64").levels[1]
    assert isinstance(inside, SwitchTier)
    assert isinstance(across, SwitchTier)
    assert (inside.latency_s, across.latency_s) == (2e-6, 10e-6)


def test_a_rack_of_72():
    rack, ib = parse_cluster("gb200:72x8").levels
    assert (rack.size, ib.size) == (72, 8)
    assert parse_cluster("gb200:72x8").devices_per_host == 4  # one compute tray


def test_a_mesh_without_a_switch_has_only_the_links_to_its_peers():
    whole, part = parse_cluster("mi300x:8x1").levels[0], parse_cluster("mi300x:4x1").levels[0]
    assert isinstance(whole, SwitchTier)
    assert isinstance(part, SwitchTier)
    assert whole.bytes_per_s == 448e9
    assert part.bytes_per_s == 3 * 64e9
    assert any("direct links without a switch" in text for text in parse_cluster("mi300x:8x1").warnings)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "h100:7x8",
            "h100: an NVLink domain has 8 chips and 7 of each are used; write h100:8x8 for whole domains",
        ),
        (
            "h800:4",
            "h800: an NVLink domain has 8 chips and 4 of each are used; write h800:8x1 for whole domains",
        ),
        (
            "gb200:36x2",
            "gb200: an NVLink domain has 72 chips and 36 of each are used; write gb200:72x2 for whole domains",
        ),
        (
            "mi300x:4x3",
            "mi300x: an xGMI domain has 8 chips and 4 of each are used; write mi300x:8x3 for whole domains",
        ),
    ],
)
def test_a_part_of_a_domain_is_said(text, warning):
    assert [w for w in parse_cluster(text).warnings if "domain has" in w] == [warning]


@pytest.mark.parametrize("text", ["h100:8x8", "h100:8", "gb200:72x2", "mi300x:8x3", "v5e:2x2"])
def test_whole_domains_need_no_word(text):
    assert not [w for w in parse_cluster(text).warnings if "domain has" in w]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H100:8x4", "h100:8x4"),
        ("h100:8", "h100:8x1"),
        ("a100-80gb:8x4", "a100:8x4"),
        ("h100:8x4@ib400", "h100:8x4"),  # the default needs no naming
        ("h100:8x4@IB400-SHARP", "h100:8x4@ib400-sharp"),
        ("v5p:28x16x20", "v5p:16x20x28"),
        ("trillium:16x8", "v6e:8x16"),
        ("v5p-128", "v5p:4x4x4"),
        ("v5litepod-16", "v5e:4x4"),
        ("tpu-v5p-128*2", "v5p:4x4x4*2"),
        ("ironwood:4x4x4", "tpu7x:4x4x4"),
        ("v5e:16x16*1", "v5e:16x16"),
        ("  v5e:16x16 ", "v5e:16x16"),
    ],
)
def test_canonical_names(text, name):
    assert parse_cluster(text).name == name


GRAMMAR = "write chip:shape[*slices][@fabric], like v5p:16x20x28, v5e:16x16*4 or h100:8x2048@ib400"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", ClusterError, f"cannot read cluster ''; {GRAMMAR}"),
        ("h100:8x", ClusterError, f"cannot read cluster 'h100:8x'; {GRAMMAR}"),
        ("h100:8x-4", ClusterError, f"cannot read cluster 'h100:8x-4'; {GRAMMAR}"),
        ("h100: 8x4", ClusterError, f"cannot read cluster 'h100: 8x4'; {GRAMMAR}"),
        ("h100", ClusterError, "cluster 'h100' has no shape; write it like h100:8x4"),
        ("v5p", ClusterError, "cluster 'v5p' has no shape; write it like v5p:4x4x4"),
        ("h100:8x0", ClusterError, "cluster 'h100:8x0' has a zero in it; every size is at least 1"),
        (
            "h100:16x4",
            ClusterError,
            (
                "h100:16x4 does not exist: NVLink 4 joins at most 8 h100 chips; "
                "write chips per domain x domains, like h100:8x8"
            ),
        ),
        (
            "h100:8x2x2",
            ClusterError,
            "h100 takes two sizes, chips per NVLink 4 domain x domains, like h100:8x4; got 3",
        ),
        ("h100:8x2*3", ClusterError, "'*slices' is for TPU slices; h100 takes domains: h100:8x3"),
        (
            "h100-64",
            ClusterError,
            "'h100-64' is not a cluster; write chips per domain x domains, like h100:8x8",
        ),
        (
            "h100:8x2@dcn",
            ClusterError,
            "fabric dcn is for tpu chips, not for h100; its default is @ib400",
        ),
        (
            "gb200:72x2@ib400",
            ClusterError,
            "fabric ib400 joins domains of 8 chips, and gb200 has domains of 72; its default is @ib400-nvl72",
        ),
        (
            "h100:8x9999999",
            ClusterError,
            "cluster 'h100:8x9999999' has more than 4,194,304 devices; check the shape",
        ),
        ("h101:8x2", UnknownNameError, "unknown chip 'h101'; did you mean h100 or h800 or h200?"),
        (
            "h100:8x2@ib40",
            UnknownNameError,
            "unknown fabric 'ib40'; did you mean ib400 or ib800 or ib200? (a path to a YAML file works too)",
        ),
        (
            "h100:8x1009@roce",
            ClusterError,
            (
                "1,009 domains cannot be split evenly over the tiers of fabric roce (2 x 192 x 8); "
                "use a count with factors that fit"
            ),
        ),
        (5, ClusterError, "cluster is 5; give a string such as 'h100:8x64'"),
        (None, ClusterError, "cluster is None; give a string such as 'h100:8x64'"),
        (
            "h100:8x4096@roce",
            ClusterError,
            "fabric roce joins at most 3,072 domains, not 4,096; use fewer, or give a larger fabric as @FILE.yaml",
        ),
    ],
)
def test_refusals(text, error, message):
    with pytest.raises(error) as caught:
        parse_cluster(text)
    assert str(caught.value) == message


@given(st.text(alphabet="vh1045epx:*@-8 .", max_size=24))
def test_any_string_is_a_cluster_or_an_input_error(text):
    try:
        cluster = parse_cluster(text)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert prod(level.size for level in cluster.levels) == cluster.devices


@pytest.mark.parametrize(
    "text", ["v5p:" + "4x" * 300 + "4", "v5p-" + "9" * 5000, "h100:8x4@/nowhere/fabric.yaml"]
)
def test_hostile_strings(text):
    with pytest.raises(InputError):
        parse_cluster(text)


def test_host_facts_come_from_the_user_or_stay_unknown():
    plain = parse_cluster("h100:8x4")
    assert (plain.host_memory_bytes, plain.cpu_update_params_per_s) == (None, None)
    told = parse_cluster("h100:8x4", host_memory="2 TB", cpu_update="3 Gparam/s")
    assert (told.host_memory_bytes, told.cpu_update_params_per_s) == (2 * 10**12, 3e9)
    with pytest.raises(UnitError, match="'2000' has no unit"):
        parse_cluster("h100:8x4", host_memory="2000")


def test_part_of_a_host_gets_its_share_of_the_memory():
    cluster = parse_cluster("v5e:2x2")  # half of 512 GiB for half of 8 chips
    assert (cluster.devices_per_host, cluster.host_memory_bytes) == (4, 256 * 2**30)
    assert cluster.warnings == (
        "4 of a host's 8 devices are used: its share of host memory, 256 GiB, is planned with",
    )


def test_fabric_by_keyword_or_in_the_string_but_not_both_ways():
    assert parse_cluster("h100:8x4", fabric="efa400").name == "h100:8x4@efa400"
    assert parse_cluster("h100:8x4@efa400", fabric="efa400").name == "h100:8x4@efa400"
    with pytest.raises(ClusterError, match="names fabric roce, and ib400 is given too; keep one"):
        parse_cluster("h100:8x4@roce", fabric="ib400")


@pytest.mark.parametrize(
    ("fabric", "message"),
    [
        ("", "unknown fabric ''; known: amd400, dcn, "),
        (5, "fabric is 5; give a name such as 'roce', a YAML file, or None"),
    ],
)
def test_a_fabric_that_is_no_name_is_refused(fabric, message):
    with pytest.raises(InputError) as caught:
        parse_cluster("h100:8x4", fabric=fabric)
    assert str(caught.value).startswith(message)


def test_price_is_per_chip_not_per_device():
    assert parse_cluster("v5p:4x4x4").price_usd_per_hour == pytest.approx(64 * 4.2)
    assert parse_cluster("h800:8x4").price_usd_per_hour is None
