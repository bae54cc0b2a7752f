"""Labels and program are two ways to one answer: they agree where neither can be listed; a cut-off run claims no more
than is true; the same question gives the same answer.
"""

from typing import Any

import numpy as np
import pytest
from layer_cases import middling, small

from meshwright.hardware.errors import InputError
from meshwright.search.layers.instance import SCORE_TICKS, instance_of
from meshwright.search.layers.labels import label
from meshwright.search.layers.near import Near
from meshwright.search.layers.problem import Limit, Problem
from meshwright.search.layers.program import solve_program
from meshwright.search.layers.relax import relax, undominated
from meshwright.search.layers.settle import Options, settle
from meshwright.search.layers.solve import NoChoice, Unsettled, solve


def test_labels_alone_and_the_program_alone_agree() -> None:
    for seed in range(6):
        problem, limits = middling(seed)
        instance = undominated(instance_of(problem, limits))
        relaxed = relax(instance)
        assert relaxed is not None
        near = Near(instance, relaxed, np.inf)
        near.run(100_000)
        assert near.closed
        solved = solve_program(instance, 0, None, None, 10.0, 0)
        assert (solved.status, solved.score) == ("OPTIMAL", near.score)


def test_labels_that_overflow_prove_no_more_than_is_true() -> None:
    for seed in range(120):
        instance = instance_of(*small(seed))
        relaxed = relax(instance)
        if relaxed is None:
            continue
        best = settle(instance, Options(labels=0)).score
        for most in (1, 2, 5):
            for window in (10.0, SCORE_TICKS / 50, 2.0 * SCORE_TICKS):
                found = label(instance, relaxed, window, most)
                own = found.score if found.counts is not None else np.inf
                assert min(own, relaxed.bound + found.proven) <= best + 1, (seed, most, window)
                assert own >= best


def test_a_bound_that_is_too_high_is_noticed() -> None:
    """The tests above would catch multipliers whose bound is 2% off."""
    caught = 0
    for seed in range(40):
        problem, limits = middling(seed)
        relaxed = relax(instance_of(problem, limits))
        best = settle(instance_of(problem, limits), Options()).score
        caught += relaxed is not None and 1.02 * relaxed.bound > best
        if caught > 3:
            return
    pytest.fail("no case is tight enough to tell")


def test_a_small_effort_leaves_a_gap_that_holds() -> None:
    problem, limits = middling(1)
    proven = solve(problem, limits).best.proof
    rushed = solve(problem, limits, options=Options(work_limit=1e-3, labels=10)).best.proof
    assert rushed.status == "FEASIBLE"
    assert rushed.bound <= proven.value <= rushed.value
    assert rushed.gap > 0
    with pytest.raises(Unsettled, match="no choice was found within the work limit of 1e-06, nor a proof"):
        solve(problem, limits, options=Options(work_limit=1e-6, labels=0))


def test_the_same_question_has_the_same_answer() -> None:
    problem, limits = middling(2)
    first, again = (solve(problem, limits, solutions=2, differ=5) for _ in range(2))
    assert [c.proof for c in first.found] == [c.proof for c in again.found]
    assert all((a.taken == b.taken).all() for a, b in zip(first.found, again.found, strict=True))


def test_limits_that_clash_are_named_with_what_can_be_reached() -> None:
    problem, limits = middling(0)
    least = solve(problem, (Limit("params", least=0.8 * limits[3].least / 0.6),)).best.totals
    assert least["params"] >= 0.8 * limits[3].least / 0.6
    impossible = Limit("decode_s", most=1.0, text="decode_s <= 1")
    with pytest.raises(
        NoChoice, match=r"no choice keeps decode_s <= 1: the least decode_s reachable is .* whatever"
    ):
        solve(problem, (*limits, impossible))
    with pytest.raises(NoChoice) as caught:
        solve(
            problem,
            (
                Limit("params", least=600, text="params >= 600"),
                Limit("weight_bytes", most=900, text="w <= 900"),
            ),
        )
    told = str(caught.value)
    assert "no choice keeps params >= 600 and w <= 900 together" in told
    assert "without params >= 600, the most params reachable is" in told
    assert "without w <= 900, the least weight_bytes reachable is" in told


@pytest.mark.parametrize("junk", [3, "x", object(), [1], np.zeros(2)], ids=lambda junk: type(junk).__name__)
def test_whatever_comes_in_at_a_door_is_refused_in_one_line(junk: Any) -> None:
    problem, limits = middling(0)
    doors = (
        lambda: solve(junk),
        lambda: solve(problem, [junk]),
        lambda: solve(problem, limits, options=junk),
        lambda: solve(problem, limits, start=junk),
        lambda: solve(problem, limits, solutions=[junk]),  # type: ignore[arg-type]
        lambda: Problem(junk, problem.costs, problem.constant),
        lambda: Limit(junk, most="x"),  # type: ignore[arg-type]
        lambda: Options(work_limit=[junk]),  # type: ignore[arg-type]
    )
    for door in doors:
        with pytest.raises(InputError) as caught:
            door()
        assert "\n" not in str(caught.value)
