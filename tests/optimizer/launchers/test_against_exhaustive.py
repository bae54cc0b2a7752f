"""Under each launcher the search finds what exhaustive search finds among the layouts that it can run."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from exhaustive_oracle import Batch, PricedSpace, price_everything
from independent_launchers import GPIPE, NO_SP, refused
from instances import SCHEDULED, Instance, instance
from judge import FLOATS, layout_of
from judge import complaints as mixed_complaints

from meshwright.costmodel.layout import CP_KINDS, OFFLOADS, Layout
from meshwright.costmodel.policies import tensor_bits
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.schedules import SCHEDULES
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.tensors import word_of
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.solve import Search, SolveOptions
from meshwright.optimizer.space import Space

LAUNCHERS = ("megatron", "maxtext", "torchtitan", "deepspeed", "calculon")
SEEDS = (*range(40), *range(SCHEDULED, SCHEDULED + 8))
MORE = (*range(40, 120), *range(SCHEDULED + 8, SCHEDULED + 60))
_FEW, _MANY = 12, 60


def chosen(count: int, seeds: tuple[int, ...] = SEEDS) -> list[int]:
    """Seeds of small questions, most of them with an answer: pipelines, chunks, hosts, mixtures, split schedules."""
    small = [s for s in seeds if 0 < instance(s).plans < (6_000 if count == _FEW else 60_000)]
    return small[:: max(1, len(small) // count)][:count]


@cache
def priced(seed: int, gpipe: bool, no_sp: bool) -> PricedSpace:
    """Plans in which all layers of a kind have one policy, with a name: no launcher with limits takes others."""
    asked = instance(seed)
    wishes = replace(
        asked.wishes,
        asks_schedule=gpipe or asked.wishes.asks_schedule,
        asks_sp=no_sp or asked.wishes.asks_sp,
    )
    named = replace(asked.setting.framework, chooses=frozenset())
    return price_everything(replace(asked.setting, framework=named), wishes)


def best_under(launcher: str, asked: Instance) -> float:
    """Least seconds of the plans that fit and that the launcher can run; inf where there is none."""
    space = priced(asked.seed, launcher in GPIPE, launcher in NO_SP)
    best = np.inf
    for batch in space.batches:
        if not batch.seconds.size:
            continue
        seconds = np.where(space.allowed(batch, asked.setting.capacity_bytes), batch.seconds, np.inf)
        flat = seconds.ravel()
        for at in np.argsort(flat, kind="stable"):
            if flat[at] >= best:
                break
            place, cut = divmod(int(at), len(batch.cuts))
            if not refused(launcher, asked.setting, plan_at(space, batch, place, cut)):
                best = float(flat[at])
                break
    return best


def plan_at(space: PricedSpace, batch: Batch, place: int, cut: int) -> Layout:
    return as_layout(
        space.setting,
        space.rows[batch.of[place : place + 1]],
        layers_per_stage=batch.cuts[cut],
        placement=batch.placements[batch.placement_of[place]],
    )


def as_layout(setting: Setting, row: Rows, **more: object) -> Layout:
    names = (
        "dp_replicate",
        "dp_shard",
        "zero",
        "cp",
        "tp",
        "pp",
        "vpp",
        "ep",
        "etp",
        "micro_batch",
        "sequences",
    )
    number = {name: int(getattr(row, name)[0]) for name in names}
    return Layout(
        **number,
        cp_kind=CP_KINDS[int(row.cp_kind[0])],
        sp=bool(row.sp[0]),
        schedule=SCHEDULES[int(row.schedule[0])],
        policies=tuple(
            word_of(int(code), tensor_bits(setting.framework, kind))
            for code, kind in zip(row.policies[0], setting.model.kinds, strict=True)
        ),
        offload=OFFLOADS[int(row.offload[0])],
        **more,  # type: ignore[arg-type]
    )


def search_under(launcher: str, asked: Instance, runner_ups: int) -> Search:
    setting = replace(asked.setting, launcher=launcher)
    run = Search(Space(setting, parse_constraints(asked.constraints)), SolveOptions(runner_ups=runner_ups))
    if run.space.offloads and run.space.any_policy:  # else no door lets the question in
        run.run()
    return run


def complaints(launcher: str, seed: int) -> list[str]:
    asked = instance(seed)
    run = search_under(launcher, asked, runner_ups=0)
    setting = run.setting
    expected = best_under(launcher, asked)
    if run.undecided:
        return [f"{len(run.undecided)} candidates undecided"]
    if not run.best or not np.isfinite(expected):
        return (
            [] if not run.best and not np.isfinite(expected) else [f"{run.ranked[:1]}, expected {expected}"]
        )
    best = run.ranked[0]
    out = [f"breaks {word}" for word in refused(launcher, setting, layout_of(setting, best))]
    if abs(best.value_s - expected) > best.slack_s + FLOATS * expected:
        out.append(f"finds {best.value_s:.9g} s, exhaustive search {expected:.9g} s: {best.row}")
    return out


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_search_equals_exhaustive_search(launcher: str) -> None:
    found = {seed: complaints(launcher, seed) for seed in chosen(_FEW)}
    assert {seed: told for seed, told in found.items() if told} == {}


@pytest.mark.full
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_search_equals_exhaustive_search_on_more(launcher: str) -> None:
    found = {seed: complaints(launcher, seed) for seed in chosen(_MANY, MORE)}
    assert {seed: told for seed, told in found.items() if told} == {}


def test_the_instances_tell_launchers_apart() -> None:
    """Each launcher costs something on some of them, or the comparison above says little."""
    for launcher in LAUNCHERS:
        slower = [
            seed
            for seed in chosen(_FEW)
            if (free := priced(seed, False, False).best(instance(seed).setting.capacity_bytes)) is not None
            and best_under(launcher, instance(seed)) > free.seconds * (1 + FLOATS)
        ]
        assert len(slower) >= 2, launcher


def test_our_own_program_still_mixes_policies() -> None:
    """`jax` has no limits: its plans are those of the exhaustive search that mixes policies stage by stage."""
    seeds = [s for s in range(40) if instance(s).setting.framework.chooses and 0 < instance(s).plans < 8_000][
        :8
    ]
    assert {
        s: told for s in seeds if (told := mixed_complaints(instance(s), search_under("jax", instance(s), 3)))
    } == {}
    assert sum(instance(s).mixes_policies for s in seeds) >= 2
