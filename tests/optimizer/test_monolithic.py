"""The search against one program of everything, in which degrees are integers that multiply: three ways to one answer.

Exhaustive search lists plans, the planner bounds and prunes, the whole program does neither. What it says is judged like an
answer of the planner: every rule stated again, the price of the cost model, memory of devices and hosts.
"""

from random import Random

import numpy as np
import pytest
from instances import Instance, instance, priced
from judge import FLOATS, flaws, search
from monolithic import Answer, Whole

from meshwright.costmodel.rows import Rows
from meshwright.optimizer.solve import Found

# The 100 of the first 1,000 instances with fewest plans, fewest first.
SMALLEST = (
    1, 68, 129, 354, 427, 432, 754, 955, 3, 944, 261, 275, 458, 531, 371, 6, 62, 222, 392, 400, 515, 712,
    984, 872, 587, 342, 368, 456, 473, 579, 947, 408, 268, 280, 328, 534, 571, 894, 889, 241, 481, 8, 348,
    24, 376, 566, 777, 60, 905, 73, 89, 601, 776, 874, 176, 209, 13, 518, 544, 588, 16, 121, 137, 155, 841,
    846, 181, 313, 627, 632, 792, 990, 127, 201, 682, 912, 536, 300, 569, 633, 752, 822, 731, 987, 80, 131,
    302, 357, 467, 707, 845, 448, 330, 745, 851, 369, 27, 216, 985, 913,
)  # fmt: skip
# Small ones about schedules that split the backward pass, and about where state lives.
SPECIAL = (
    10106, 10052, 10095, 10089, 10115, 10075, 10048, 10000, 10081, 10102, 10085, 10034, 10066, 10098,
    1024, 1080, 1008, 1074, 1090, 1122,
)  # fmt: skip
SLICE = Random(0).sample(SMALLEST, 8) + Random(0).sample(SPECIAL, 2)


def found_of(asked: Instance, answer: Answer) -> Found:
    """The plan as the planner would tell it."""
    decisions = answer.decisions
    assert decisions is not None
    columns = {n: np.array([decisions[n]]) for n in Rows.__dataclass_fields__ if n != "policies"}
    row = Rows(**columns, policies=np.zeros((1, len(asked.setting.model.kinds)), np.int64))
    seconds = answer.seconds
    return Found(row, answer.placement, answer.lengths, answer.mixes, seconds, seconds, answer.slack_s)


def complaints(asked: Instance) -> list[str]:
    """Nothing, if the whole program, exhaustive search and the planner agree."""
    answer, run = Whole(asked.setting, asked.constraints, asked.wishes).solve(), search(asked)
    if asked.answer is None:
        return [f"finds {answer}"] if answer.status != "INFEASIBLE" or run.ranked else []
    if answer.status != "OPTIMAL" or not run.ranked:
        return [
            f"{answer.status} by the whole program, {len(run.ranked)} plans by the planner, {asked.answer} fits"
        ]
    planned, best_s = run.ranked[0], asked.answer.seconds
    slack_s = answer.slack_s + FLOATS * best_s
    out = (
        [f"{answer.seconds} s, exhaustive search finds {best_s} s"]
        if abs(answer.seconds - best_s) > slack_s
        else []
    )
    if abs(answer.seconds - planned.value_s) > slack_s + planned.slack_s:
        out.append(f"{answer.seconds} s, the planner finds {planned.value_s} s")
    if answer.slack_s > 1e-5 * best_s:
        out.append(f"a slack of {answer.slack_s} s in {best_s} s tells little")
    return out + flaws(asked, found_of(asked, answer))


@pytest.mark.parametrize("seed", SLICE)
def test_the_whole_program_agrees(seed: int) -> None:
    asked = instance(seed)
    assert complaints(asked) == [], str(asked)


@pytest.mark.full
@pytest.mark.parametrize("seed", (*SMALLEST, *SPECIAL))
def test_the_whole_program_agrees_on_the_smallest(seed: int) -> None:
    asked = instance(seed)
    assert complaints(asked) == [], str(asked)


@pytest.mark.full
def test_these_are_the_smallest() -> None:
    plans = {seed: priced(seed)[0].plans for seed in range(1000)}
    assert tuple(sorted(plans, key=lambda seed: (plans[seed], seed))[: len(SMALLEST)]) == SMALLEST
