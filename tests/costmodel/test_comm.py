"""The best case of every collective is never above what any placement gives.

The planner's bounds stand on this: a candidate is dropped unplaced when its best case is worse than a plan.
"""

from dataclasses import replace
from itertools import islice, product

import numpy as np
import pytest
from costmodel_cases import legal_layouts, make_setting
from hypothesis import given, settings
from hypothesis import strategies as st
from test_collectives import networks

from meshwright.costmodel.collectives import Network, duration
from meshwright.costmodel.comm import GROUPS, BestComm, PlacedComm
from meshwright.costmodel.estimate import stage_counts
from meshwright.costmodel.layout import DIMENSIONS, Layout, Placement
from meshwright.costmodel.placement import enumerate_placements, groups_of, groups_of_arrays
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.hardware.network import SwitchTier, TorusAxis

KINDS = ("gather", "reduce", "all_to_all", "send")
SIZES = np.array([0.0, 1.0, 1e4, 1e6, 1e8, 1e10])
ROUNDING = 1 + 1e-12


@st.composite
def degrees_on(draw: st.DrawFn, network: Network) -> dict[str, int]:
    """Degrees that some placement holds: each level dealt to the dimensions factor by factor."""
    degrees = dict.fromkeys(DIMENSIONS, 1)
    for size in network.sizes:
        left = size
        for name in draw(st.permutations(DIMENSIONS)):
            factor = draw(st.sampled_from([f for f in range(1, left + 1) if left % f == 0]))
            degrees[name] *= factor
            left //= factor
    return degrees


def best_of(network: Network, degrees: dict[str, int], ep: int, etp: int, rows: int) -> BestComm:
    stage = degrees["dp_replicate"] * degrees["dp_shard"] * degrees["cp"] * degrees["tp"]
    ways = {g: degrees.get(g, 1) for g in GROUPS} | {
        "shard": degrees["dp_shard"] * degrees["cp"],
        "ep": ep,
        "edp": stage // (ep * etp),
    }
    return BestComm(network, {g: np.full(rows, n) for g, n in ways.items()})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), network=networks())
def test_best_case_of_every_collective_is_below_every_placement(
    data: st.DataObject, network: Network
) -> None:
    """All communicators, the joint ones of ZeRO and of experts included, from latency to bandwidth."""
    degrees = data.draw(degrees_on(network))
    stage = int(np.prod([n for d, n in degrees.items() if d != "pp"]))
    etp = data.draw(st.sampled_from((1, degrees["tp"])))
    ep = data.draw(st.sampled_from([e for e in range(1, stage // etp + 1) if stage // etp % e == 0]))
    placements = list(islice(enumerate_placements(degrees, network.levels), 3000))
    assert placements
    many = len(placements)
    groups = groups_of(placements, np.full(many, ep), np.full(many, etp))
    placed, best = PlacedComm(network, groups), best_of(network, degrees, ep, etp, 1)
    for group in GROUPS:
        assert (getattr(groups, group).size == best.degrees[group]).all(), group
        for kind in KINDS:
            for size in SIZES:
                truth = duration(getattr(placed, kind)(group, np.full(many, size)))
                bound = duration(getattr(best, kind)(group, np.full(1, size)))
                assert bound[0] <= truth.min() * ROUNDING, (group, kind, size)


def tables(setting: Setting, layout: Layout, most: int) -> tuple[StageTable, StageTable, list[Layout]]:
    """The layout's table at its best case (one row) and over its placements."""
    degrees = {d: getattr(layout, d) for d in DIMENSIONS}
    found: list[Placement] = list(islice(enumerate_placements(degrees, setting.cluster.levels), most))
    one, all_rows = Rows.of([layout], setting), Rows.of([layout] * len(found), setting)
    best = best_of(setting.network, degrees, layout.ep, layout.etp, 1)
    placed = PlacedComm(setting.network, groups_of(found, all_rows.ep, all_rows.etp))
    return StageTable.of(setting, one, best), StageTable.of(setting, all_rows, placed), [layout] * len(found)


WORLDS = [
    ("llama-3.2-1b", "v5p:4x4x4"),
    ("llama-3.2-1b", "v5e:4x8"),
    ("llama-3.2-1b", "h100:8x8"),
    ("mixtral-8x7b", "v5p:2x2x4*2"),
    ("mixtral-8x7b", "tpu7x:2x2x2"),
    ("deepseek-v2-lite", "h100:8x4@ib400-sharp"),
]


def check_coefficients(setting: Setting, layout: Layout) -> None:
    """Seconds of layers, ends, hops and of what is done once: what the bounds add up."""
    best, placed, all_layouts = tables(setting, layout, 300)
    stages = np.arange(layout.pp)[None, :]
    counts, _ = stage_counts(setting, all_layouts)
    assert (best.layer_s <= placed.layer_s.min(axis=0) * ROUNDING).all()
    assert (best.costs.ends_s(stages) <= placed.costs.ends_s(stages).min(axis=0) * ROUNDING).all()
    assert best.hop_s[0] <= placed.hop_s.min() * ROUNDING
    assert (best.once_s(stages, counts[:1]) <= placed.once_s(stages, counts).min(axis=0) * ROUNDING).all()
    assert best.once_mean_s()[0] <= placed.once_s(stages, counts).max(axis=1).min() * ROUNDING


def draw_setting(data: st.DataObject, model: str, cluster: str) -> Setting:
    asked = make_setting(
        model,
        cluster,
        64,
        4096,
        overlap=data.draw(st.sampled_from(("calibrated", "full", "none"))),
        streams=data.draw(st.sampled_from(("shared", "independent"))),
        framework=data.draw(st.sampled_from(("jax", "megatron"))),
    )
    return asked.floor if data.draw(st.booleans()) else asked


def draw_legal(data: st.DataObject, model: str, cluster: str) -> Layout:
    return data.draw(st.sampled_from(legal_layouts(make_setting(model, cluster, 64, 4096))))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
@pytest.mark.parametrize(("model", "cluster"), WORLDS)
def test_best_case_of_every_coefficient_is_below_every_placement(
    model: str, cluster: str, data: st.DataObject
) -> None:
    check_coefficients(draw_setting(data, model, cluster), draw_legal(data, model, cluster))


@pytest.mark.full
@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
@pytest.mark.parametrize(("model", "cluster"), WORLDS)
def test_best_case_of_every_coefficient_many_times(model: str, cluster: str, data: st.DataObject) -> None:
    check_coefficients(draw_setting(data, model, cluster), draw_legal(data, model, cluster))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data(), network=networks())
def test_splits_without_order_are_below_every_order(data: st.DataObject, network: Network) -> None:
    """Placements are refined in two steps, factors first: each dimension as if innermost is no slower."""
    degrees = data.draw(degrees_on(network))
    stage = int(np.prod([n for d, n in degrees.items() if d != "pp"]))
    etp = data.draw(st.sampled_from((1, degrees["tp"])))
    ep = data.draw(st.sampled_from([e for e in range(1, stage // etp + 1) if stage // etp % e == 0]))
    placements = list(islice(enumerate_placements(degrees, network.levels), 500))
    ways = np.ones((len(placements), len(DIMENSIONS), len(network.levels)), np.int64)
    for row, placement in enumerate(placements):
        for level, members in enumerate(placement):
            for name, factor in members:
                ways[row, DIMENSIONS.index(name), level] = factor
    many, narrow = np.full(len(placements), ep), np.full(len(placements), etp)
    ordered = PlacedComm(network, groups_of(placements, many, narrow))
    loose = PlacedComm(network, groups_of_arrays(ways, np.ones_like(ways), many, narrow))
    for group, kind, size in product(GROUPS, KINDS, SIZES):
        sizes = np.full(len(placements), size)
        bound, truth = (duration(getattr(x, kind)(group, sizes)) for x in (loose, ordered))
        assert (bound <= truth * ROUNDING).all(), (group, kind, size)


def test_collectives_of_one_group_are_bounded_together() -> None:
    """A gather held up by one level's latency and a scatter held up by another level's rate share their wait.

    Bounding each apart and adding the bounds would pass the placed sum by a sixth here.
    """
    base = make_setting("llama-3.2-1b", "v5p:4x4x4", 128, 4096, overlap="none", framework="megatron")
    levels = (TorusAxis("x", 64, 1e11, True, 0.0), SwitchTier("dcn", 2, 1e12, 9e-4))
    setting = replace(base, cluster=replace(base.cluster, levels=levels, devices=128))
    best, placed, _ = tables(setting, Layout(dp_shard=128, zero=3, layers_per_stage=(16,)), 10)
    fsdp = best.layers[0].parts["fsdp"][0]
    assert 9e-4 < fsdp <= placed.layers[0].parts["fsdp"].min() * ROUNDING
