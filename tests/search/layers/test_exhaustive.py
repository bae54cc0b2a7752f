"""Against listing every choice: the best, the proof that there is none, further choices, and what must not matter."""

from dataclasses import replace

import numpy as np
import pytest
from layer_cases import small, within

from meshwright.search.layers.instance import instance_of
from meshwright.search.layers.problem import Limit, Problem
from meshwright.search.layers.relax import relax, undominated
from meshwright.search.layers.settle import Options, settle
from meshwright.search.layers.solve import NoChoice, solve

CASES = range(120)
BY_PROGRAM = Options(labels=0)  # all left to CP-SAT
FEW_LABELS = Options(labels=3)  # labels overflow


def best_score(problem: Problem, limits: tuple[Limit, ...], options: Options) -> float | None:
    try:
        answer = solve(problem, limits, options=options)
    except NoChoice:
        return None
    proof = answer.best.proof
    assert proof.status == "OPTIMAL" and proof.gap <= 2 * proof.slack + 1e-12
    assert proof.relaxed <= proof.bound + proof.slack + 1e-9
    return proof.value


def test_the_cases_are_mixed() -> None:
    mixed = [(limits, len(within(problem, limits)[0])) for problem, limits in map(small, CASES)]
    empty = sum(kept == 0 for _, kept in mixed)
    assert 0.1 <= empty / len(mixed) <= 0.4
    from_below = sum(any(np.isfinite(x.least) for x in limits) for limits, _ in mixed)
    assert from_below / len(mixed) >= 0.4


@pytest.mark.parametrize(
    "options", [Options(), BY_PROGRAM, FEW_LABELS], ids=["both", "program", "few labels"]
)
def test_the_best_is_the_best_of_all(options: Options) -> None:
    for seed in CASES:
        problem, limits = small(seed)
        _, scores = within(problem, limits)
        found = best_score(problem, limits, options)
        if found is None:
            assert not len(scores), seed
        else:
            assert found == pytest.approx(scores.min(), abs=1e-7 * np.ptp(scores) + 1e-12), seed


def test_further_choices_are_the_best_of_those_that_differ() -> None:
    for seed in CASES:
        problem, limits = small(seed)
        kept, scores = within(problem, limits)
        if not kept:
            continue
        differ = 1 + seed % min(3, problem.layers)
        answer = solve(problem, limits, solutions=4, differ=differ)
        for i, choice in enumerate(answer.found[1:], start=1):
            left = [all((t != c.taken).any(1).sum() >= differ for c in answer.found[:i]) for t in kept]
            assert choice.proof.value == pytest.approx(scores[left].min(), abs=1e-6), seed
            assert choice.differs is not None and choice.differs >= differ
        if len(answer.found) < 4:
            assert "there is none" in answer.ended
            left = [all((t != c.taken).any(1).sum() >= differ for c in answer.found) for t in kept]
            assert not any(left), seed


def test_what_is_joined_or_removed_never_changes_the_best() -> None:
    """Layers that are alike, dominated rows, parts instead of products, the start, the names' order."""
    for seed in CASES:
        problem, limits = small(seed)
        whole = instance_of(problem, limits)
        apart = instance_of(problem, limits, alike=False)
        assert len(apart.groups) == problem.layers * len(problem.parts) >= len(whole.groups)
        scores = {
            settle(one, o).score
            for one in (whole, apart, undominated(whole))
            for o in (Options(), BY_PROGRAM)
        }
        assert len(scores) == 1, seed
        joint = best_score(problem.joined(), limits, Options())
        parts = best_score(problem, limits, Options())
        assert (joint is None) == (parts is None), seed
        if parts is None:
            continue
        assert joint == pytest.approx(parts, abs=1e-6), seed
        start = solve(problem, limits).best
        again = solve(problem, limits, start=start).best
        assert again.proof.value == pytest.approx(parts, abs=1e-6) and again.proof.status == "OPTIMAL"


def test_the_multipliers_bound_every_choice() -> None:
    for seed in CASES:
        problem, limits = small(seed)
        _, scores = within(problem, limits)
        instance = instance_of(problem, limits)
        relaxed = relax(instance)
        if relaxed is None:
            assert not len(scores), seed
        elif len(scores):
            bound = instance.offset + instance.tick * (relaxed.bound - relaxed.error) - instance.slack
            assert bound <= scores.min(), seed


def test_a_tighter_limit_never_helps_and_a_wider_never_hurts() -> None:
    for seed in CASES:
        problem, limits = small(seed)
        if not limits:
            continue
        first = limits[0]
        wider = (replace(first, least=first.least - 0.5, most=first.most + 0.5), *limits[1:])
        narrow, wide = (best_score(problem, x, Options()) for x in (limits, wider))
        if narrow is not None:
            assert wide is not None and wide <= narrow + 1e-6, seed
