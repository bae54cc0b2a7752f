"""The space lists exactly the layouts that are legal: nothing lost, nothing extra."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from independent_rules import PREDICATES, Candidate
from instances import SCHEDULED, SEEING, STATES, instance, priced

from meshwright.costmodel.legal import RULES
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.optimizer import space as spaces
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.space import Space, frames, with_experts, with_sharding

SLICE = (
    *range(32), *range(STATES, STATES + 8), *range(SCHEDULED, SCHEDULED + 12), *range(SEEING + 32, SEEING + 38),
)  # fmt: skip

# Rules that the lists are made by already, so that dropping the rule changes nothing.
BUILT_IN = {
    "uses at most the devices there are",
    "the batch is whole micro-batches",
    "every chunk has a layer",
    "interleaving runs whole rounds of pp micro-batches",
}


@cache
def question(seed: int) -> tuple[Setting, str, set[tuple[int, ...]]]:
    """Setting, constraints, and what plain loops with independently stated rules leave."""
    space, constraints, *_ = priced(seed)
    return space.setting, constraints, _columns(space.rows)


def listed(seed: int) -> set[tuple[int, ...]]:
    """What the planner lists, before any bound."""
    setting, constraints, _ = question(seed)
    space, funnel = Space(setting, parse_constraints(constraints)), Funnel()
    frame = frames(space, funnel, space.batches)
    if not len(frame):
        return set()
    rows = with_experts(space, frame, funnel)
    return _columns(with_sharding(space, rows, funnel)[1]) if len(rows) else set()


def _columns(rows: Rows) -> set[tuple[int, ...]]:
    return set(map(tuple, np.stack([getattr(rows, name) for name in Candidate._fields], axis=1).tolist()))


@pytest.mark.parametrize("seed", SLICE)
def test_the_space_is_the_legal_layouts(seed: int) -> None:
    assert listed(seed) == question(seed)[2]


def test_kv_heads_that_a_divisor_of_the_heads_does_not_cut_refuse_it() -> None:
    """6 heads in 3 groups: tp=2 would give a rank a group and a half."""
    asked = instance(0)
    kind = asked.setting.model.kinds[0]
    grouped = replace(kind, attention=replace(kind.attention, heads=6, kv_heads=3))
    setting = replace(asked.setting, model=replace(asked.setting.model, kinds=(grouped,)))
    assert set(frames(Space(setting, ()), Funnel(), [setting.training.sequences]).tp.tolist()) <= {1, 3, 6}


@pytest.mark.parametrize("name", [name for name in PREDICATES if name != "tp divides the heads"])
def test_a_dropped_rule_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [question(seed)[2] for seed in SLICE]
    monkeypatch.setattr(spaces, "RULES", tuple(r for r in RULES if r.name != name))
    caught = any(listed(seed) != right for seed, right in zip(SLICE, expected, strict=True))
    assert caught == (name not in BUILT_IN)
