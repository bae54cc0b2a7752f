"""Faults put into the search: the judge of the other tests must complain about each."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from instances import Instance, instance
from judge import complaints, search

from meshwright.costmodel import pipeline, stages
from meshwright.costmodel.legal import RULES
from meshwright.optimizer import bounds, program, solve, space
from meshwright.optimizer.solve import SolveOptions

POOL = range(48)

# Rules that the lists of `optimizer.space` are made by, so that dropping the rule changes nothing.
BUILT_IN = {
    "uses at most the devices there are",
    "the batch is whole micro-batches",
    "every chunk has a layer",
    "interleaving runs whole rounds of pp micro-batches",
}


def small(asked: Instance) -> bool:
    return asked.plans < 60_000 and asked.answer is not None


def first_caught(
    pool: Iterator[Instance], options: SolveOptions | None = None
) -> tuple[Instance, list[str]] | None:
    """The first instance whose search goes wrong in the judge's eyes."""
    for asked in pool:
        if found := complaints(asked, search(asked, options)):
            return asked, found
    return None


@contextmanager
def replaced(name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """`name` in every module of the optimizer and of stages that has imported it; put back afterwards."""
    modules = [m for m in (bounds, program, solve, space, stages) if hasattr(m, name)]
    before = [getattr(m, name) for m in modules]
    for module in modules:
        setattr(module, name, make(getattr(module, name)))
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            setattr(module, name, value)


def pool() -> Iterator[Instance]:
    """Instances with their exhaustive answer worked out before any fault is in place."""
    return iter([asked for asked in map(instance, POOL) if small(asked)])


def test_without_a_fault_nothing_is_complained_about() -> None:
    assert first_caught(pool()) is None


def test_a_bound_two_percent_too_high_is_caught() -> None:
    assert first_caught(pool(), SolveOptions(runner_ups=0, bound_scale=1.02)) is not None


@pytest.mark.parametrize("stage", [0, 1])
def test_one_micro_batch_too_few_in_flight_on_a_stage_is_caught(stage: int) -> None:
    def fewer(in_flight: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(rows: Any, number: Any) -> Any:
            held = in_flight(rows, number)
            return np.where((number == stage) & (held >= 1), held - 1, held)

        return faulty

    tight = iter([asked for asked in pool() if asked.memory_binding])
    with replaced("in_flight", fewer):
        assert first_caught(tight) is not None
    assert stages.in_flight is pipeline.in_flight


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_a_dropped_rule_is_caught(name: str) -> None:
    instances = pool()
    with replaced("RULES", lambda rules: tuple(r for r in rules if r.name != name)):
        caught = first_caught(instances)
    assert (caught is None) == (name in BUILT_IN), caught
