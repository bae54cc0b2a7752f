"""Under each launcher the search finds what exhaustive search finds among the layouts that it can run."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from exhaustive_oracle import Batch, PricedSpace, price_everything
from independent_launchers import GPIPE, NO_SP, refused
from instances import Instance, instance
from judge import FLOATS, layout_of

from meshwright.costmodel.layout import CP_KINDS, OFFLOADS, POLICIES, Layout
from meshwright.costmodel.rows import Rows
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.solve import Search, SolveOptions
from meshwright.optimizer.space import Space

LAUNCHERS = ("megatron", "maxtext", "torchtitan", "deepspeed", "calculon")
SEEDS = range(80)
_FEW, _MANY = 9, 40


def chosen(count: int) -> list[int]:
    """Seeds of small questions, most of them with an answer: pipelines, chunks, hosts, mixtures."""
    small = [s for s in SEEDS if 0 < instance(s).plans < (6_000 if count == _FEW else 60_000)]
    return small[:: max(1, len(small) // count)][:count]


@cache
def priced(seed: int, gpipe: bool, no_sp: bool) -> PricedSpace:
    asked = instance(seed)
    wishes = replace(
        asked.wishes,
        asks_schedule=gpipe or asked.wishes.asks_schedule,
        asks_sp=no_sp or asked.wishes.asks_sp,
    )
    return price_everything(asked.setting, wishes)


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
        space.rows[batch.of[place : place + 1]],
        layers_per_stage=batch.cuts[cut],
        placement=batch.placements[batch.placement_of[place]],
    )


def as_layout(row: Rows, **more: object) -> Layout:
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
        schedule="interleaved" if number["vpp"] > 1 else "gpipe" if row.gpipe[0] else "1f1b",
        policies=tuple(POLICIES[p] for p in row.policies[0]),
        offload=OFFLOADS[int(row.offload[0])],
        **more,  # type: ignore[arg-type]
    )


def complaints(launcher: str, seed: int) -> list[str]:
    asked = instance(seed)
    setting = replace(asked.setting, launcher=launcher)
    run = Search(Space(setting, parse_constraints(asked.constraints)), SolveOptions(runner_ups=0))
    run.run()
    expected = best_under(launcher, asked)
    if run.undecided:
        return [f"{len(run.undecided)} candidates undecided"]
    if not run.best or not np.isfinite(expected):
        return (
            [] if not run.best and not np.isfinite(expected) else [f"{run.ranked[:1]}, expected {expected}"]
        )
    best = run.ranked[0]
    out = [f"breaks {word}" for word in refused(launcher, setting, layout_of(best))]
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
    found = {seed: complaints(launcher, seed) for seed in chosen(_MANY)}
    assert {seed: told for seed, told in found.items() if told} == {}


def test_the_instances_tell_launchers_apart() -> None:
    """Each launcher costs something on some of them, or the comparison above says little."""
    for launcher in LAUNCHERS:
        slower = [
            seed
            for seed in chosen(_FEW)
            if (asked := instance(seed)).answer is not None
            and best_under(launcher, asked) > asked.answer.seconds * (1 + FLOATS)
        ]
        assert len(slower) >= 2, launcher
