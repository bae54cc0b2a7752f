"""The search against exhaustive search on random small instances: same optimum, same runner-ups, same refusals."""

from dataclasses import replace

import pytest
from instances import Instance, instance, mix, with_memory
from judge import FLOATS, candidate_of, complaints, search

from meshwright.hardware.network import SwitchTier, TorusAxis
from meshwright.optimizer.solve import Found

ALL = range(300)
SLICE = range(80)  # what fits in about a minute
FEW = (1, 3, 12, 14, 33, 38)


def assert_balanced(instances: list[Instance], capsys: pytest.CaptureFixture[str]) -> None:
    shares = mix(instances)
    with capsys.disabled():
        print(f"\n{len(instances)} instances, {sum(i.plans for i in instances):,} plans priced exhaustively")
        for name, share in shares.items():
            print(f"  {share:4.0%}  {name}")
    assert shares["memory-binding"] >= 0.30
    assert shares["infeasible"] >= 0.10
    assert shares["pp>1 with an uneven optimum"] >= 0.30


def test_the_mix_of_the_slice_is_balanced(capsys: pytest.CaptureFixture[str]) -> None:
    assert_balanced([instance(seed) for seed in SLICE], capsys)


@pytest.mark.full
def test_the_mix_is_balanced(capsys: pytest.CaptureFixture[str]) -> None:
    assert_balanced([instance(seed) for seed in ALL], capsys)


@pytest.mark.parametrize("seed", SLICE)
def test_search_equals_exhaustive_search(seed: int) -> None:
    asked = instance(seed)
    assert complaints(asked, search(asked)) == [], str(asked)


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_search_equals_exhaustive_search_on_300_instances(seed: int) -> None:
    asked = instance(seed)
    assert complaints(asked, search(asked)) == [], str(asked)


@pytest.mark.parametrize("seed", FEW)
def test_two_runs_are_one(seed: int) -> None:
    first, second = search(instance(seed)), search(instance(seed))
    assert first.funnel == second.funnel
    assert [_everything(f) for f in first.ranked] == [_everything(f) for f in second.ranked]


def _everything(found: Found) -> tuple[object, ...]:
    return candidate_of(found), found.placement, found.lengths, found.value_s, found.bound_s, found.slack_s


@pytest.mark.parametrize("seed", FEW)
def test_a_constraint_never_helps(seed: int) -> None:
    asked = instance(seed)
    best = search(asked).ranked[0]
    for name in ("tp", "pp", "zero", "micro_batch", "devices"):
        value = int(getattr(best.row, name)[0])
        kept = search(asked, further=f"{name} == {value}").ranked[0]
        assert kept.value_s == pytest.approx(best.value_s, abs=best.slack_s + kept.slack_s), name
        lost = search(asked, further=f"{name} != {value}").ranked
        if lost:
            assert lost[0].value_s >= best.value_s - best.slack_s - lost[0].slack_s, name


@pytest.mark.parametrize("seed", FEW)
def test_more_memory_never_slows(seed: int) -> None:
    asked = instance(seed)
    last = search(asked).ranked[0]
    for gain in (1.05, 1.3, 4.0):
        setting = asked.setting
        larger = with_memory(setting, int(gain * setting.capacity_bytes), setting.cluster.host_memory_bytes)
        best = search(replace(asked, setting=larger)).ranked[0]
        assert best.value_s <= last.value_s * (1 + FLOATS) + best.slack_s + last.slack_s
        last = best


@pytest.mark.parametrize("seed", FEW)
def test_faster_links_never_slow(seed: int) -> None:
    asked = instance(seed)
    cluster = asked.setting.cluster
    levels = []
    for level in cluster.levels:
        if isinstance(level, TorusAxis):
            levels.append(replace(level, link_bytes_per_s=2 * level.link_bytes_per_s))
        else:
            assert isinstance(level, SwitchTier)
            levels.append(replace(level, bytes_per_s=2 * level.bytes_per_s))
    faster = replace(asked.setting, cluster=replace(cluster, levels=tuple(levels)))
    before, after = search(asked).ranked[0], search(replace(asked, setting=faster)).ranked[0]
    assert after.value_s <= before.value_s + before.slack_s + after.slack_s
