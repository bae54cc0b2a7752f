"""The space lists exactly the layouts that are legal: nothing lost, nothing extra."""

import numpy as np
import pytest
from independent_rules import Candidate
from instances import build

from meshwright.costmodel.legal import RULES
from meshwright.costmodel.rows import Rows
from meshwright.optimizer import space as spaces
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.funnel import Funnel
from meshwright.optimizer.space import Space, frames, with_experts, with_sharding

SLICE = range(48)

# Rules that the lists are made by already, so that dropping the rule changes nothing.
BUILT_IN = {
    "uses at most the devices there are",
    "the batch is whole micro-batches",
    "every chunk has a layer",
    "interleaving runs whole rounds of pp micro-batches",
}


def listed(seed: int) -> set[tuple[int, ...]]:
    """What the planner lists, before any bound."""
    asked, _ = build(seed)
    space, funnel = Space(asked.setting, parse_constraints(asked.constraints)), Funnel()
    frame = frames(space, funnel)
    if not len(frame):
        return set()
    rows = with_experts(space, frame, funnel)
    return _columns(with_sharding(space, rows, funnel)) if len(rows) else set()


def legal(seed: int) -> set[tuple[int, ...]]:
    """What plain loops with independently stated rules leave."""
    return _columns(build(seed)[1].rows)


def _columns(rows: Rows) -> set[tuple[int, ...]]:
    return set(map(tuple, np.stack([getattr(rows, name) for name in Candidate._fields], axis=1).tolist()))


@pytest.mark.parametrize("seed", SLICE)
def test_the_space_is_the_legal_layouts(seed: int) -> None:
    assert listed(seed) == legal(seed)


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_a_dropped_rule_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [legal(seed) for seed in SLICE]
    monkeypatch.setattr(spaces, "RULES", tuple(r for r in RULES if r.name != name))
    caught = any(listed(seed) != right for seed, right in zip(SLICE, expected, strict=True))
    assert caught == (name not in BUILT_IN)
