"""Faults put into the search: the judge of the other tests must complain about each."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from exhaustive_oracle import Wishes, price_everything
from independent_rules import Candidate
from instances import Instance, answered, instance
from judge import complaints, search
from tiny_models import assemble, layer_kind, tower

from meshwright.costmodel import pipeline, stages
from meshwright.costmodel.legal import RULES
from meshwright.costmodel.model import Attention, Ffn
from meshwright.costmodel.setting import Setting, setting
from meshwright.costmodel.workload import Training
from meshwright.hardware.cluster import parse_cluster
from meshwright.optimizer import bounds, cuts, entries, program, settle, solve, space
from meshwright.optimizer.solve import Search, SolveOptions

# Small instances of the random mix in which several plans lie within two percent of the best.
CLOSE = (7, 10, 18, 21, 95, 125)
# Small ones in which memory decides, by the stage that decides it.
TIGHT = ((4, 12, 14, 28, 42, 53, 60, 66, 101), (125, 517, 777, 811, 828))
# Where dualpipev is asked for and memory decides.
TURNING = (10_051, 10_275, 11_053)
# Moments at which stages of dualpipev may be fullest: some weight gradients late, and most micro-batches in flight.
MOMENTS: dict[str, Callable[[Any], Any]] = {
    "the one with most in flight is left out": lambda found: found[:1],
    "the one with weight gradients late is left out": lambda found: found[-1:],
    "late weight gradients need nothing": lambda found: tuple((held, 0 * late) for held, late in found),
}

# What each rule forbids, made the only thing that is asked for. Without the rule the search finds a plan.
FORBIDDEN: dict[str, tuple[str, Callable[[Candidate], bool]]] = {
    "tp divides the heads": ("tp == 2", lambda x: x.tp == 2),
    "tp divides the feed-forward width": ("tp == 2", lambda x: x.tp == 2),
    "tp divides the vision tower": ("tp == 2", lambda x: x.tp == 2),
    "cp and tp divide the sequence": ("cp == 2", lambda x: x.cp == 2),
    "all_to_all cuts the heads over cp too": (
        "cp_kind == all_to_all, cp == 2",
        lambda x: x.cp_kind == "all_to_all",
    ),
    "interleaved chunks are equal within a stage": ("vpp == 2", lambda x: x.vpp == 2),
    "a schedule that splits backward has micro-batches to fill it": (
        "schedule == zb_h2",  # needs three at pp=2, of the two sequences there are
        lambda x: x.schedule == "zb_h2",
    ),
    "offloaded weights are sharded by ZeRO-3": ("offload == parameters, zero == 0", lambda x: x.zero == 0),
    "offloaded gradients leave fully reduced": (
        "offload == optimizer+gradients, dp_replicate == 2",
        lambda x: x.dp_replicate == 2,
    ),
}
# Rules that the lists of the space, or the placement of experts, keep anyway: dropping them changes nothing.
BUILT_IN = {
    "uses at most the devices there are",
    "ep divides the experts and the stage",
    "the batch is whole micro-batches",
    "every chunk has a layer",
    "interleaving runs whole rounds of pp micro-batches",
}


def forbidden(name: str) -> Instance:
    """A question to two GPUs whose only answers break the named rule."""
    heads = {"tp divides the heads": (6, 3), "all_to_all cuts the heads over cp too": (3, 3)}.get(
        name, (4, 2)
    )
    width = 2049 if name == "tp divides the feed-forward width" else 2048
    seq_len = 1026 if name == "cp and tp divide the sequence" else 1024  # 1026 is not a multiple of 2 * cp
    kinds = tuple(
        layer_kind(f"kind{i}", 1024, Attention(*heads, 128, 128), Ffn(width + 1024 * i, True)) for i in (0, 1)
    )
    # Ten alternating layers are two rounds of two chunks of two, and two layers left over.
    pattern = (0, 1) * 5 if name == "interleaved chunks are equal within a stage" else (0, 0)
    model = assemble(1024, 16_000, kinds[: max(pattern) + 1], pattern, tied=False)
    images = int(name == "tp divides the vision tower")
    if images:
        model = replace(model, tower=tower(1024, 192, 3, 1024, layers=1, patches=64, tokens=16))
    text, predicate = FORBIDDEN[name]
    wishes, hosts = Wishes(candidate=predicate, asks_schedule="schedule" in text), {}
    if text.startswith("offload"):
        offload = text.partition(",")[0].removeprefix("offload == ")
        wishes = Wishes(predicate, offload=lambda o: o == offload)
        hosts = {"host_memory": "1 TB", "cpu_update": "1 Gparam/s"}
    asked = setting(model, parse_cluster("h100:2x1", **hosts), Training(2 * seq_len, seq_len, images=images))
    return answered(-1, price_everything(asked, wishes), text, wishes)


@contextmanager
def replaced(name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """`name` in every module of the optimizer and of stages that has imported it; put back afterwards."""
    modules = [m for m in (bounds, cuts, entries, program, settle, solve, space, stages) if hasattr(m, name)]
    before = [getattr(m, name) for m in modules]
    for module in modules:
        setattr(module, name, make(getattr(module, name)))
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            setattr(module, name, value)


def runs(seeds: Iterable[int], options: SolveOptions | None = None) -> list[tuple[Instance, Search]]:
    """Searches alone, for a fault to be in place while they run. Exhaustive answers are worked out without one."""
    return [(instance(seed), search(instance(seed), options)) for seed in seeds]


def caught(searches: list[tuple[Instance, Search]]) -> dict[int, list[str]]:
    """Complaints by seed, for those that have any."""
    found = {asked.seed: complaints(asked, run) for asked, run in searches}
    return {seed: said for seed, said in found.items() if said}


def test_without_a_fault_nothing_is_complained_about() -> None:
    assert caught(runs({*CLOSE, *TIGHT[0], *TIGHT[1]})) == {}
    assert caught(runs(CLOSE, SolveOptions(runner_ups=0))) == {}
    assert caught(runs(CLOSE, SolveOptions(runner_ups=7))) == {}


@contextmanager
def inflated(factor: float) -> Iterator[None]:
    """Every search bound times a factor, at all levels of refinement."""

    def times(bound: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: factor * bound(*given, **named)

    honest = cuts.Cuts.bounds

    def cut_bounds(self: cuts.Cuts, setting: Setting, cutoff_s: float = np.inf, *more: Any) -> Any:
        return factor * honest(self, setting, cutoff_s / factor, *more)

    cuts.Cuts.bounds = cut_bounds  # type: ignore[method-assign]
    try:
        with replaced("frame_bounds", times), replaced("row_bounds", times):
            yield
    finally:
        cuts.Cuts.bounds = honest  # type: ignore[method-assign]


@pytest.mark.parametrize("runner_ups", [0, 7])
def test_a_bound_two_percent_too_high_is_caught(runner_ups: int) -> None:
    options = SolveOptions(runner_ups=runner_ups)
    warm = [instance(seed) for seed in CLOSE]
    with inflated(1.02):
        searches = runs(CLOSE, options)
    assert caught(searches), [str(asked) for asked in warm]


@pytest.mark.parametrize("stage", [0, 1])
def test_one_micro_batch_too_few_in_flight_on_a_stage_is_caught(stage: int) -> None:
    def fewer(peaks: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(rows: Any, number: Any, *more: Any) -> Any:
            return tuple(
                (np.where((number == stage) & (held > 1), held - 1, held), late)
                for held, late in peaks(rows, number, *more)
            )

        return faulty

    warm = [instance(seed) for seed in TIGHT[stage]]
    with replaced("peaks", fewer):
        searches = runs(TIGHT[stage])
    assert stages.peaks is pipeline.peaks
    assert caught(searches), [str(asked) for asked in warm]


@pytest.mark.parametrize("fault", sorted(MOMENTS))
def test_a_forgotten_moment_of_weight_gradients_is_caught(fault: str) -> None:
    warm = [instance(seed) for seed in TURNING]
    assert caught(runs(TURNING)) == {}
    with replaced("peaks", lambda peaks: lambda *of: MOMENTS[fault](peaks(*of))):
        searches = runs(TURNING)
    assert caught(searches), [str(asked) for asked in warm]


@pytest.mark.parametrize("name", sorted(FORBIDDEN))
def test_a_dropped_rule_is_caught(name: str) -> None:
    asked = forbidden(name)
    assert asked.answer is None
    assert complaints(asked, search(asked)) == []
    with replaced("RULES", lambda rules: tuple(r for r in rules if r.name != name)):
        run = search(asked)
    said = complaints(asked, run)
    assert len(said) == 1
    assert said[0].startswith("finds")
    assert repr(name) in said[0]


@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # rows that no rule keeps out may have less than one expert copy
@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_rule_that_is_built_into_the_lists_is_not_missed(name: str) -> None:
    with replaced("RULES", lambda rules: tuple(r for r in rules if r.name != name)):
        searches = runs(CLOSE)
    assert caught(searches) == {}


def test_every_rule_is_one_or_the_other() -> None:
    assert {rule.name for rule in RULES} == set(FORBIDDEN) | BUILT_IN
