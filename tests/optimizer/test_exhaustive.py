"""The search against exhaustive search on random small instances: same optimum, same runner-ups, same refusals."""

from dataclasses import replace
from functools import lru_cache

import pytest
from instances import Instance, instance, mix, with_memory
from judge import FLOATS, agrees, candidate_of, complaints, layout_of, search

from meshwright.costmodel.estimate import estimate
from meshwright.costmodel.layout import Layout, layout_text, parse_layout
from meshwright.hardware.network import Level, TorusAxis
from meshwright.optimizer.decode import decode
from meshwright.optimizer.solve import Found, SolveOptions

ALL = range(1000)
SLICE = range(40)
MIX = range(64)  # whose shares are printed by default


def assert_balanced(instances: list[Instance], capsys: pytest.CaptureFixture[str]) -> None:
    shares = mix(instances)
    with capsys.disabled():
        print(f"\n{len(instances)} instances, {sum(i.plans for i in instances):,} plans priced exhaustively")
        for name, share in shares.items():
            print(f"  {share:4.0%}  {name}")
    assert shares["memory-binding"] >= 0.30
    assert shares["infeasible"] >= 0.10
    assert shares["pp>1 with an uneven optimum"] >= 0.30
    assert shares["two policies of a kind on one stage"] >= 0.20
    assert shares["offload in the optimum"] >= 0.10


def test_the_mix_of_the_slice_is_balanced(capsys: pytest.CaptureFixture[str]) -> None:
    assert_balanced([instance(seed) for seed in MIX], capsys)


@pytest.mark.full
def test_the_mix_is_balanced(capsys: pytest.CaptureFixture[str]) -> None:
    assert_balanced([instance(seed) for seed in ALL], capsys)


@pytest.mark.parametrize("seed", SLICE)
def test_search_equals_exhaustive_search(seed: int) -> None:
    agrees(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_search_equals_exhaustive_search_on_1000_instances(seed: int) -> None:
    asked = instance(seed)
    # Enough for every proof: one of them (seed 149, streams that are independent) needs 5,400 plans settled.
    options = SolveOptions(runner_ups=(0, 3)[seed % 2], refinements=50_000)
    assert complaints(asked, search(asked, options)) == [], str(asked)


@lru_cache
def few() -> tuple[Instance, ...]:
    """Some small instances that have an answer."""
    small = [asked for asked in map(instance, SLICE) if asked.answer is not None and asked.plans < 8_000]
    return tuple(small[:10])


def test_a_mixed_plan_reads_back_from_its_text() -> None:
    mixed = 0
    for asked in (asked for asked in map(instance, MIX) if asked.mixes_policies and asked.plans < 8_000):
        found = search(asked).ranked[0]
        setting = asked.setting
        layout, priced = decode(setting, found)
        assert Layout.from_dict(layout.to_dict()) == layout, str(asked)
        read = replace(parse_layout(layout_text(layout)), placement=layout.placement)
        assert read == layout, str(asked)
        own = estimate(setting, layout_of(setting, found))
        assert priced.step_s == pytest.approx(own.step_s, rel=1e-12)
        assert priced.stage_bytes == pytest.approx(own.stage_bytes, rel=1e-12)
        assert priced.host_bytes == pytest.approx(own.host_bytes, rel=1e-12)
        assert sum(priced.parts.values()) == pytest.approx(priced.step_s, rel=1e-9)
        assert priced.lower_s <= priced.step_s <= priced.upper_s
        mixed += bool(layout.stage_policies)
    assert mixed > 10


def test_two_runs_are_one() -> None:
    for asked in few():
        first, second = search(asked), search(asked)
        assert first.funnel == second.funnel
        assert [_everything(f) for f in first.ranked] == [_everything(f) for f in second.ranked]


def _everything(found: Found) -> tuple[object, ...]:
    return candidate_of(found), found.placement, found.lengths, found.value_s, found.bound_s, found.slack_s


@pytest.mark.parametrize("name", ["tp", "pp", "zero", "micro_batch", "devices"])
def test_a_constraint_never_helps(name: str) -> None:
    """One that the best plan meets changes nothing, one that it breaks gives no faster plan."""
    for asked in few():
        best = search(asked).ranked[0]
        value = int(getattr(best.row, name)[0])
        kept = search(asked, further=f"{name} == {value}").ranked[0]
        assert kept.value_s == pytest.approx(best.value_s, abs=best.slack_s + kept.slack_s), str(asked)
        for lost in search(asked, further=f"{name} != {value}").ranked:
            assert lost.value_s >= best.value_s - best.slack_s - lost.slack_s, str(asked)


def test_more_memory_never_slows() -> None:
    for asked in few():
        setting, last = asked.setting, search(asked).ranked[0]
        for gain in (1.05, 1.3, 4.0):
            device, host = int(gain * setting.capacity_bytes), setting.cluster.host_memory_bytes
            larger = with_memory(setting, device, None if host is None else int(gain * host))
            best = search(replace(asked, setting=larger)).ranked[0]
            assert best.value_s <= last.value_s * (1 + FLOATS) + best.slack_s + last.slack_s, str(asked)
            last = best


def test_faster_links_never_slow() -> None:
    for asked in few():
        cluster = asked.setting.cluster
        levels = tuple(_faster(level) for level in cluster.levels)
        faster = replace(asked.setting, cluster=replace(cluster, levels=levels))
        before, after = search(asked).ranked[0], search(replace(asked, setting=faster)).ranked[0]
        assert after.value_s <= before.value_s + before.slack_s + after.slack_s, str(asked)


def _faster(level: Level) -> Level:
    if isinstance(level, TorusAxis):
        return replace(level, link_bytes_per_s=2 * level.link_bytes_per_s)
    return replace(level, bytes_per_s=2 * level.bytes_per_s)
