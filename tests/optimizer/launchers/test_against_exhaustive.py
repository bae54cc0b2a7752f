"""Under each launcher the search finds what exhaustive search finds among the layouts that it can run."""

from collections.abc import Iterator
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
# Small questions on which each of these limits alone costs its launcher something; see `costly`.
SEEDS = (
    9,
    10,
    14,
    15,
    23,
    36,
    41,
    58,
    78,
    84,
    96,
    120,
    122,
    123,
    128,
    150,
    *(SCHEDULED + n for n in (6, 39, 47, 73)),
)
COSTLY = {
    "megatron": {"recompute", "activations", "rank order", "modules", "schedule"},
    "maxtext": {"schedule", "micro-batches", "cp", "kinds", "uneven", "ep"},
    "torchtitan": {
        "kv heads",
        "recompute",
        "kinds",
        "offload",
        "cp kind",
        "fsdp",
        "experts",
        "rank order",
        "schedule",
    },
    "deepspeed": {"recompute", "kinds", "sp", "uneven", "cp kind", "ep", "rank order", "schedule"},
    "calculon": {"recompute", "uneven", "zero", "idle", "degrees", "schedule"},
}
MORE = (*range(160), *range(SCHEDULED, SCHEDULED + 80))
_MOST = 6_000  # plans of a question


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


def ranked(launcher: str, asked: Instance) -> Iterator[tuple[float, list[str]]]:
    """(seconds, what the launcher cannot run of it) of the plans that fit, fastest first."""
    space = priced(asked.seed, launcher in GPIPE, launcher in NO_SP)
    some = [batch for batch in space.batches if batch.seconds.size]
    if not some:
        return
    fits = [space.allowed(batch, asked.setting.capacity_bytes) for batch in some]
    every = np.concatenate([np.where(f, b.seconds, np.inf).ravel() for f, b in zip(fits, some, strict=True)])
    starts = np.cumsum([0, *(batch.seconds.size for batch in some)])
    for at in np.argsort(every, kind="stable").tolist():
        if not np.isfinite(every[at]):
            return
        of = int(np.searchsorted(starts, at, side="right")) - 1
        place, cut = divmod(at - int(starts[of]), len(some[of].cuts))
        yield float(every[at]), refused(launcher, asked.setting, plan_at(space, some[of], place, cut))


def best_under(launcher: str, asked: Instance) -> float:
    """Least seconds of the plans that fit and that the launcher can run; inf where there is none."""
    return next((seconds for seconds, limits in ranked(launcher, asked) if not limits), np.inf)


def costly(launcher: str, asked: Instance) -> set[str]:
    """Limits without which alone, whatever it is, the launcher would run a faster plan."""
    found: set[str] = set()
    for _, limits in ranked(launcher, asked):
        if not limits:
            return found
        found |= set(limits) if len(set(limits)) == 1 else set()
    return set()


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
        reshard=bool(row.reshard[0]),
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


def complaints(launcher: str, asked: Instance) -> list[str]:
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
    found = {seed: complaints(launcher, instance(seed)) for seed in SEEDS}
    assert {seed: told for seed, told in found.items() if told} == {}


@pytest.mark.full
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_search_equals_exhaustive_search_on_more(launcher: str) -> None:
    small = [asked for asked in map(instance, MORE) if 0 < asked.plans < _MOST]
    found = {asked.seed: complaints(launcher, asked) for asked in small}
    assert len(small) > 80 and {seed: told for seed, told in found.items() if told} == {}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_limit_costs_something_on_some_instance(launcher: str) -> None:
    """Or a search that forgot it would not be found out above."""
    assert set().union(*(costly(launcher, instance(seed)) for seed in SEEDS)) >= COSTLY[launcher]


def test_our_own_program_still_mixes_policies() -> None:
    """`jax` has no limits: its plans are those of the exhaustive search that mixes policies stage by stage."""
    seeds = [s for s in range(40) if instance(s).setting.framework.chooses and 0 < instance(s).plans < 8_000][
        :8
    ]
    assert {
        s: told for s in seeds if (told := mixed_complaints(instance(s), search_under("jax", instance(s), 3)))
    } == {}
    assert sum(instance(s).mixes_policies for s in seeds) >= 2
