"""What open policies cost at least: never above what any policy costs, and near it."""

from functools import lru_cache

import numpy as np
import pytest

import meshwright as mw
from meshwright.costmodel.layer import least_seconds
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.policies import named_column, open_code
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.stages import StageTable
from meshwright.costmodel.tensors import OPEN
from meshwright.costmodel.workload import Training
from meshwright.optimizer.bounds import best_comm
from meshwright.optimizer.constraints import parse_constraints
from meshwright.optimizer.menus import Menu
from meshwright.optimizer.relaxed import bytes_of_all, least_seconds_within
from meshwright.optimizer.space import Space

LAYOUTS = (
    Layout(),
    Layout(tp=4, dp_shard=4, zero=3),
    Layout(tp=2, cp=2, zero=1, pp=2, micro_batch=2),
    Layout(cp=2, cp_kind="all_to_all", dp_shard=2, zero=2),
    Layout(tp=2, sp=False, dp_replicate=2),
)
EXPERTS = (Layout(ep=4, dp_shard=4, zero=1), Layout(tp=2, etp=2, ep=2, dp_replicate=2, micro_batch=2))
MODES = (("calibrated", "shared"), ("full", "independent"), ("none", "shared"))
FLOATS = 1e-9
Case = tuple[Setting, StageTable, Menu, np.ndarray, np.ndarray]


@lru_cache
def case(model: str, mode: tuple[str, str], offload: str) -> tuple[Case, ...]:
    """Per layer kind: the table of open rows, their menu, exact seconds and which policies exist, [R, P]."""
    given = mw.resolve(
        model,
        "v5p:4x4x4",
        Training(64 * 4096, 4096),
        overlap=mode[0],
        comm_streams=mode[1],  # type: ignore[arg-type]
    )
    some = [*LAYOUTS, *(EXPERTS if any(k.ffn.experts for k in given.model.kinds) else ())]
    rows = Rows.of(some, given)
    away = "activations" in offload
    rows = rows.with_columns(
        policies=np.full_like(rows.policies, open_code(away)), offload=np.full(len(rows), 1 if away else 0)
    )
    table = StageTable.of(given, rows, best_comm(given, rows))
    space = Space(given, parse_constraints(None))
    out = []
    for kind in range(len(given.model.kinds)):
        menu = space.menus.of(rows, kind)
        exact = np.full((len(rows), menu.codes.shape[1]), np.inf)
        exist = menu.exist[menu.of_row]
        _, chosen = menu.chosen_rows(rows, kind, exist)
        exact[exist] = StageTable.of(given, chosen, best_comm(given, chosen)).layer_s[:, kind]
        out.append((given, table, menu, exact, exist))
    return tuple(out)


CASES = [
    (m, mode, o) for m in ("llama-3-8b", "mixtral-8x7b", "deepseek-v3") for mode in MODES for o in ("none",)
]
CASES += [("llama-3-8b", mode, "activations") for mode in MODES]


@pytest.mark.parametrize(("model", "mode", "offload"), CASES)
def test_no_policy_is_faster_than_its_bounds(model: str, mode: tuple[str, str], offload: str) -> None:
    for kind, (given, table, menu, exact, exist) in enumerate(case(model, mode, offload)):
        chosen, every = menu.of_rows(), np.arange(len(exact))
        least = least_seconds(given, table.layers[kind], chosen)
        assert (least[exist] <= exact[exist] * (1 + FLOATS)).all()
        if mode == (
            "none",
            "shared",
        ):  # nothing hides: only a scatter inside experts and all_to_all are not exact
            turned = (table.rows.cp_kind == 1)[:, None] & (chosen.passes > 0)
            plain = exist & (chosen.expert_scatters == 0) & ~turned
            assert np.allclose(least[plain], exact[plain], rtol=1e-9)
        for p in range(exact.shape[1]):
            within = least_seconds_within(table.shapes, kind, every, table.layers[kind], chosen.device[:, p])
            assert (within[exist[:, p]] <= exact[exist[:, p], p] * (1 + FLOATS)).all()


def test_a_bound_two_percent_too_high_is_caught() -> None:
    """Of what may be saved within a policy's bytes, the bound is that near to some policy in every case."""
    for model, mode, offload in CASES:
        caught = 0
        for kind, (_, table, menu, exact, exist) in enumerate(case(model, mode, offload)):
            device, every = menu.of_rows().device, np.arange(len(exact))
            for p in range(exact.shape[1]):
                within = least_seconds_within(table.shapes, kind, every, table.layers[kind], device[:, p])
                caught += int((1.02 * within > exact[:, p])[exist[:, p]].sum())
        assert caught, (model, mode, offload)


def test_everything_saved_takes_no_longer_than_nothing_repeated() -> None:
    for kind, (_, table, _menu, _, _) in enumerate(case("deepseek-v3", MODES[0], "none")):
        every = np.arange(len(table.rows))
        within = least_seconds_within(
            table.shapes, kind, every, table.layers[kind], bytes_of_all(table.shapes, kind)
        )
        assert np.allclose(within, table.layers[kind].total, rtol=1e-12)
        assert np.isinf(
            least_seconds_within(table.shapes, kind, every, table.layers[kind], np.full(len(every), -np.inf))
        ).all()


def test_a_menu_is_the_names_and_what_has_none() -> None:
    _, _, menu, _, exist = case("llama-3-8b", MODES[0], "none")[0]
    names = named_column(np.where(exist, menu.codes[menu.of_row], OPEN))
    assert all(set(row[there].tolist()) == set(range(6)) for row, there in zip(names, exist, strict=True))
    given = case("llama-3-8b", MODES[0], "none")[0][0]
    rows = Rows.of([Layout()], given)
    only = Space(given, parse_constraints("recompute != tensors")).menus.of(rows, 0)
    assert sorted(named_column(only.codes)[0].tolist()) == list(range(5))
