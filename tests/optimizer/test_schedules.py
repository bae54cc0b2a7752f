"""Schedules that split the backward pass: bounds and answers against exhaustive search over all of them."""

import numpy as np
import pytest
from instances import SCHEDULED
from judge import agrees
from test_bounds import case, check_every_candidate, check_refinements

from meshwright.costmodel.layer import least_seconds
from meshwright.costmodel.policies import Chosen, open_code
from meshwright.costmodel.stages import StageTable
from meshwright.optimizer.bounds import best_comm

SLICE = range(SCHEDULED, SCHEDULED + 24)
ALL = range(SCHEDULED, SCHEDULED + 300)


@pytest.mark.parametrize("seed", SLICE)
def test_the_plan_is_the_best_of_all_schedules(seed: int) -> None:
    agrees(seed)


@pytest.mark.parametrize("seed", SLICE)
def test_no_bound_passes_the_optimum_of_any_schedule(seed: int) -> None:
    check_every_candidate(seed)
    check_refinements(seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", ALL)
def test_no_bound_and_no_plan_is_wrong_on_300_instances(seed: int) -> None:
    agrees(seed)
    check_every_candidate(seed)
    check_refinements(seed)


def test_every_schedule_is_the_best_somewhere() -> None:
    """A judge that never sees a schedule win, or memory bind, judges nothing."""
    answers = [case(seed).asked for seed in SLICE]
    best = [int(a.answer.row.schedule[0]) for a in answers if a.answer is not None]
    assert len(set(best)) >= 4
    assert sum(a.memory_binding for a in answers) >= 5


def test_no_bound_of_a_layer_passes_its_seconds_where_weight_gradients_hide_nothing() -> None:
    """By the seconds that wait where nothing is repeated (`Seconds.spare_s`), against every policy of the instances."""
    waiting = tight = 0
    for seed in SLICE:
        this = case(seed)
        setting, rows = this.asked.setting, this.rows[this.rows.splits]
        if not len(rows):
            continue
        exact = StageTable.of(setting, rows, best_comm(setting, rows))
        hosts = rows.offloads("activations")[:, None]
        opened = np.where(hosts, open_code(True), open_code(False)) + np.zeros_like(rows.policies)
        none = StageTable.of(setting, rows.with_columns(policies=opened), best_comm(setting, rows))
        for k, chosen in enumerate(exact.shapes.chosen):
            one = Chosen(**{name: column[:, None] for name, column in vars(chosen).items()})
            least, seconds = least_seconds(setting, none.layers[k], one)[:, 0], exact.layers[k].total
            assert (least <= seconds * (1 + 1e-12)).all(), seed
            launches = none.layers[k].parts["launch"]
            part = (chosen.repeated_s > 0) & (none.layers[k].spare_s > launches)
            waiting += int(part.sum())
            tight += int((least[part] >= seconds[part] * (1 - 1e-12)).sum())
    assert tight > 100 and waiting > 100, (waiting, tight)
