"""How a served model is cut: useful ways, where the cache goes, 1D against 2D weights; jax-ml/scaling-book, chapter 7."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodel.collectives import Network, duration, gather_loads
from meshwright.costmodel.exchange.operations import timed_loads
from meshwright.costmodel.exchange.span import group_of
from meshwright.costmodel.limits.thresholds import gather_s_per_byte, reduce_s_per_byte, torus_network
from meshwright.costmodel.readers import load_model
from meshwright.costmodel.serving import layout
from meshwright.costmodel.serving.layout_answer import matrix_steps, prompt_ways, sharding, useful_ways
from meshwright.costmodel.serving.service import Service
from meshwright.costmodel.setting import network_of
from meshwright.costmodel.textbook import textbook_model
from meshwright.hardware.calibration import load_efficiency
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import ClusterError
from meshwright.hardware.network import TorusAxis

KIND = textbook_model(8192, 28672, 2, 64, 8, 128, 1000).kinds[0]
LLAMA = load_model("llama-3-70b")


def network(cluster: str) -> Network:
    found = parse_cluster(cluster, profile="book")
    return network_of(found.levels, load_efficiency("ideal", found.chip))


def llama_on(cluster: str, **dtypes: str) -> Service:
    return Service(LLAMA, parse_cluster(cluster, profile="book"), 8192, **dtypes)


@given(st.integers(1, 4096), st.integers(1, 128), st.integers(1, 4096))
def test_the_cache_is_cut_over_all_devices_and_nothing_twice(ways: int, kv_heads: int, batch: int) -> None:
    placed = layout.place_cache(ways, kv_heads, batch)
    assert placed.heads * placed.batch * placed.sequence == ways
    assert kv_heads % placed.heads == 0 and batch % placed.batch == 0
    assert placed.all_to_alls == (2 if placed.batch > 1 else 0)


def test_llama_70b_on_sixteen_chips_has_its_cache_over_heads_and_batch() -> None:
    assert layout.place_cache(16, 8, 64) == layout.CachePlacement(8, 2, 1)
    assert layout.place_cache(16, 8, 1) == layout.CachePlacement(8, 1, 2)  # one sequence: over positions
    latent = load_model("deepseek-v3").kinds[-1]
    assert layout.cached_heads(latent) == 1


def test_useful_ways_of_the_book() -> None:
    """Chapter 8: 26 ways on two axes by FLOPs, 56 by reads at 64 sequences on one axis with beta = 8; chapter 7: 64."""
    one, two = (
        float(duration(gather_s_per_byte(torus_network(1.0, n), np.full(n, 2), exact=False))) for n in (1, 2)
    )
    assert useful_ways(2200.0, 1.0, two, 1, 28672, 64)[0] == pytest.approx(26.065, rel=1e-4)
    assert useful_ways(2200.0, 8.0, one, 1, 28672, 64)[1] == pytest.approx(56)
    assert useful_ways(2200.0, 8.0, one, 1, 16384, 32)[1] == pytest.approx(64)


@given(st.integers(1, 2000), st.sampled_from([0.5, 1.0, 2.0]))
def test_reads_hide_more_ways_than_flops_below_the_critical_batch_only(batch: int, weight: float) -> None:
    flops, reads = useful_ways(1.97e14, 8.2e11, 1 / 9e10, 8192, 28672, batch, weight)
    critical = weight * 1.97e14 / (2 * 8.2e11)
    assert (reads > flops) == (batch < critical)
    assert useful_ways(1.97e14, 8.2e11, 2 / 9e10, 8192, 28672, batch, weight) == pytest.approx(
        (flops / 2, reads / 2)
    )


def test_without_rings_the_network_binds_where_print_has_it_hidden() -> None:
    """Chapter 8, 4x8 at 64 sequences: 11.7 us against 17.9 of HBM with a ring; 23.3 without, which v5e:4x8 has not."""
    ring = matrix_steps(1.97e14, 8.2e11, 9e10, 8192, 28672, 64, 32)
    line = matrix_steps(1.97e14, 8.2e11, 4.5e10, 8192, 28672, 64, 32)
    assert ring["t_ici"].value == pytest.approx(11.651e-6, rel=1e-4) and ring["hbm_bound"].value is True
    assert line["t_ici"].value == pytest.approx(23.302e-6, rel=1e-4) and line["hbm_bound"].value is False
    found = sharding(llama_on("v5e:4x8"), 64)
    assert found.number("ways_throughput") == pytest.approx(13.1, rel=1e-3)
    assert found.number("ways_throughput_if_rings") == pytest.approx(2 * found.number("ways_throughput"))
    assert any("x and y of v5e:4x8 do not close into a ring" in note for note in found.notes)
    whole = sharding(llama_on("v5e:16x16"), 64)
    assert whole.number("ways_throughput") == pytest.approx(26.2, rel=1e-3)
    assert "ways_throughput_if_rings" not in whole.steps


def test_two_ways_of_weights_as_the_book_has_them() -> None:
    """Chapter 7, question 7: X = 8 and YZ = 64 of 512 chips at F = 4D, 11.3 BD/(sqrt(N) W), beyond 18 F/D chips."""
    torus = torus_network(1.0, 3)
    per_byte = [
        float(duration(gather_s_per_byte(torus, np.array(f), exact=False))) for f in ([2, 2, 2], [1, 2, 2])
    ]
    summed = float(duration(reduce_s_per_byte(torus, np.array([2, 1, 1]), exact=False)))
    found = layout.two_d(1.0, 4.0, 1.0, per_byte[0], summed, per_byte[1])
    assert found.best_x(512) == pytest.approx(8)
    assert found.best_s(1) == pytest.approx(np.sqrt(128))
    assert found.crossing == pytest.approx(72)
    assert found.best_s(found.crossing) == pytest.approx(found.one_d_s)
    assert all(found.best_s(512) <= found.seconds(512, x) for x in (1, 4, 7.9, 8.1, 64, 512))


@pytest.mark.parametrize("cluster", ["v5e:4x4", "v5p:4x4x8", "h100:8x4", "tpu7x:4x4x4"])
def test_groups_of_two_ways_fill_the_machine(cluster: str) -> None:
    net, sizes = network(cluster), np.array(network(cluster).sizes)
    found = list(layout.two_d_groups(net))
    for x, yz in found:
        assert (x.factors * yz.factors == sizes).all()
        inner, outer = (x, yz) if (x.strides == 1).all() else (yz, x)
        assert (inner.strides == 1).all() and (
            outer.strides == np.where(outer.strides > 1, inner.factors, 1)
        ).all()
    whole = group_of(net.sizes)
    one_d = 2 * float(duration(gather_loads(net, 2 * 64 * 8192, whole.factors, whole.strides)))
    assert layout.two_d_s(net, 8192, 28672, 64, *found[0]) == pytest.approx(one_d)


def test_two_ways_win_on_many_chips_and_with_many_rows_only() -> None:
    """v5p 8x8x8 at F = 4D: 512 chips are beyond the 72; on 4x4x4 hops of a second collective cost more than it saves."""
    wide = textbook_model(8192, 4 * 8192, 2, 64, 8, 128, 1000)
    far, near = (
        sharding(Service(wide, parse_cluster(f"v5p:{shape}", profile="book"), 8192), batch)
        for shape, batch in (("8x8x8", 4096), ("4x4x4", 32))
    )
    assert far.number("chips_2d") == pytest.approx(72) and far.number("X") > 1
    assert far.number("t_2d") < far.number("t_1d")
    assert near["X"] == 1


def test_no_place_is_faster_than_the_fastest() -> None:
    net = network("v5p:4x4x4")
    for operation in ("all-to-all", "all-gather"):
        best = layout.fastest_s(operation, net, 2.0**24, 4)
        for row in ([4, 1, 1], [2, 2, 1], [1, 2, 2]):
            assert best <= float(duration(timed_loads(operation, net, 2.0**24, group_of(row))))


def test_small_exchanges_cost_their_hops() -> None:
    """A byte takes as long as it is far: on v5e:4x4 two sequence shards are one hop apart."""
    placed = layout.place_cache(16, 8, 2)
    assert layout.cache_exchange_s(network("v5e:4x4"), KIND, 2, placed) == pytest.approx(2e-6)
    assert layout.cache_exchange_s(network("v5e:2x4"), KIND, 2, layout.place_cache(8, 8, 2)) == 0.0


def test_large_exchanges_cost_what_crosses_between_neighbours() -> None:
    """Two neighbours hold an eighth of the queries; each sends half of its half over one link, and outputs back."""
    queries = 2 * 4096 * 64 * 128
    placed = layout.place_cache(16, 8, 4096)
    seconds = layout.cache_exchange_s(network("v5e:4x4"), KIND, 4096, placed)
    assert seconds == pytest.approx(2 * queries / 8 / 4 / 45e9)


def test_collectives_of_a_step() -> None:
    """Each of the two blocks of a layer gathers and scatters its rows once."""
    net = network("v5e:2x4")  # eight kv heads on eight chips: the cache itself moves nothing
    group = group_of(net.sizes)
    once = float(duration(gather_loads(net, 2 * 512 * 8192, group.factors, group.strides)))
    assert layout.network_s(LLAMA, net, 512) == pytest.approx(80 * 2 * 2 * once)
    assert layout.network_s(LLAMA, network("v5e:1x1"), 512) == 0.0
    faster = replace(net, levels=tuple(_twice(level) for level in net.levels))
    assert layout.network_s(LLAMA, faster, 512) == pytest.approx(layout.network_s(LLAMA, net, 512) / 2)


def _twice(level: object) -> TorusAxis:
    assert isinstance(level, TorusAxis)
    return replace(level, link_bytes_per_s=2 * level.link_bytes_per_s, hop_s=0.0)


def test_latency_binds_below_the_batch_that_is_said() -> None:
    said = sharding(llama_on("v5e:4x4"), 64).number("batch_latency_bound")
    assert sharding(llama_on("v5e:4x4"), int(said))["latency_bound"] is True
    assert sharding(llama_on("v5e:4x4"), int(said) + 1)["latency_bound"] is False


def test_experts_lie_over_devices_that_divide_their_number() -> None:
    """16 experts on 128 chips: over 16, each cut 8 ways (chapter 7, question 6)."""
    mixture = textbook_model(4096, 16384, 64, 32, 8, 256, 32128, experts=16, top_k=2, tied=True)
    found = sharding(Service(mixture, parse_cluster("v5e:8x16", profile="book"), 8192, "int8", "int8"), 64)
    assert found["expert_ways"] == 16 and "each expert cut 8 ways" in found.steps["expert_ways"].note
    assert "X_opt" not in found.steps
    net = network("v5e:8x16")
    crossings = layout.crossings_s(mixture, net, group_of(net.sizes), 64)
    layers = 64 * (found.number("t_experts") + found.number("t_cache_exchange"))
    assert found.number("t_network") == pytest.approx(crossings + layers) and found.number("t_experts") > 0
    dense = textbook_model(4096, 2 * 16384, 64, 32, 8, 256, 32128)
    plain = sharding(Service(dense, parse_cluster("v5e:8x16", profile="book"), 8192, "int8", "int8"), 64)
    assert found.number("ways_throughput") == plain.number("ways_throughput")  # two experts' FLOPs
    assert found.number("ways_latency") == 8 * plain.number("ways_latency")  # sixteen experts' reads
    assert layout.experts_s(KIND, 8192, network("v5e:4x4"), 64) == 0.0


def test_one_device_is_not_cut() -> None:
    with pytest.raises(ClusterError, match="v5e:1x1 is one device and nothing is cut; give a larger one"):
        sharding(llama_on("v5e:1x1"), 1)


def test_a_prompt_is_cut_as_far_as_the_part_of_the_slice_allows() -> None:
    """26 ways hide over both rings of v5e:16x16; 16 ways lie on one ring or on lines of two axes, which hide 13."""
    limit, widest = prompt_ways(llama_on("v5e:16x16"))
    assert (limit, widest) == (pytest.approx(26.2, rel=1e-3), 8)
    narrow = textbook_model(1024, 256, 2, 8, 8, 128, 1000)
    assert prompt_ways(Service(narrow, parse_cluster("v5e:4x4"), 8192))[1] == 1
