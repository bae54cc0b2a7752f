"""The engine against listing every shape: best shapes, fronts, limits that nothing keeps; columns against the program."""

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from shape_cases import LAWS, Listed, list_all, random_question

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.search.engine.answers import Found, NoShape
from meshwright.search.engine.question import RESOURCES, Limit, Question
from meshwright.search.engine.search import Effort
from meshwright.search.engine.solve import best_shape, exact_front
from meshwright.search.grid import load_grid
from meshwright.search.shape import Shapes

ORIN = Device.ideal(42.5e12, 204.8e9, 64e9)  # plas.md 1.6
FP16 = Request(batch=1, prompt=1024, output=16, weight_bytes=2, kv_bytes=2)
PROGRAM = Effort(pairs=0)  # every row by its program
SEEDS = 50


def rows_of(shapes: Shapes) -> list[tuple[float, ...]]:
    return list(zip(*(getattr(shapes, f.name).tolist() for f in fields(Shapes)), strict=True))


def assert_same(found: Found, listed: Listed, rows: list[int]) -> None:
    """The same shapes in the same order, at the listing's own prices."""
    assert rows_of(found.shapes) == rows_of(listed.shapes[rows])
    np.testing.assert_allclose(found.priced.loss, listed.loss[rows], 1e-13)
    for name in RESOURCES:
        np.testing.assert_allclose(found.costs[name], listed.costs[name][rows], 1e-13)


def check(question: Question, against: str, effort: Effort | None = None, whole: bool = True) -> int:
    """Hold the answers to the listing; points of the front, 0 where nothing keeps the limits."""
    listed = list_all(question)
    if not listed.kept.any():
        with pytest.raises(NoShape) as error:
            exact_front(question, against=against, effort=effort)
        check_least(error.value, listed)
        return 0
    found = best_shape(question, against=against, effort=effort)
    row = listed.best(against)
    assert row is not None
    assert found.certificate.status == "OPTIMAL"
    assert_same(found, listed, [row])
    if not whole:
        return 1
    front, rows = exact_front(question, against=against, effort=effort), listed.front(against)
    assert front.certificate.status == "OPTIMAL"
    assert_same(front, listed, rows)
    return len(rows)


def check_least(error: NoShape, listed: Listed) -> None:
    """The limit that is named cannot be kept, and its least is the listing's."""
    if error.limit is None:
        assert not len(listed.shapes) or "several contradict" in str(error)
        return
    rules = listed.question.rules()
    rule = next(r for r in rules if r.label == error.limit)
    rows = np.ones(len(listed.shapes), bool)
    for other in rules if error.beside else ():
        rows &= ~other.broken_by(listed.costs[other.resource]) if other is not rule else True
    costs = listed.costs[rule.resource][rows]
    assert error.least == (costs.min() if rule.sign > 0 else costs.max())
    assert rule.broken_by(error.least)


@pytest.mark.parametrize("latency", ["plas", "full"])
def test_the_front_of_the_paper_s_grid(latency: str) -> None:
    question = Question(load_grid("plas"), LAWS["plas-10b"], ORIN, FP16, latency)  # type: ignore[arg-type]
    points = check(question, "total_s")
    assert points == {"plas": 120, "full": 167}[latency]  # 120: plas.md 1.6; 167 listed here
    fits = list_all(question).kept.sum()
    assert fits == 9474 or latency == "full"


@pytest.mark.parametrize(
    ("limit", "layers", "width", "ratio", "kv_heads", "loss"),
    [
        (Limit("total_s", 0.100), 20, 2560, 0.5, 1, 3.063),
        (Limit("total_s", 0.200), 28, 3072, 0.5, 1, 2.988),
        (Limit("token_s", 0.020 / 16), 12, 1792, 0.25, 2, 3.320),
    ],
)
def test_the_budgets_of_the_exhaustive_run(
    limit: Limit, layers: int, width: int, ratio: float, kv_heads: int, loss: float
) -> None:
    """plas.md 1.6."""
    found = best_shape(Question(load_grid("plas"), LAWS["plas-10b"], ORIN, FP16, "plas", (limit,)))
    s = found.shapes
    assert (s.layers[0], s.width[0], s.experts[0], s.top_k[0]) == (layers, width, 16, 1)
    assert (s.ffn_ratio[0], s.kv_heads[0]) == (ratio, kv_heads)
    assert found.priced.loss[0] == pytest.approx(loss, abs=5e-4)
    assert found.binding[limit.name] == found.costs[limit.name][0] / limit.most


def test_fronts_and_best_shapes_of_random_questions() -> None:
    points = [check(random_question(seed), RESOURCES[seed % len(RESOURCES)]) for seed in range(SEEDS)]
    assert 0 in points
    assert sum(points) > 500


@pytest.mark.full
def test_fronts_and_best_shapes_of_a_thousand_random_questions() -> None:
    for seed in range(1000, 2000):
        check(random_question(seed), RESOURCES[seed % len(RESOURCES)])


def test_the_program_of_a_row_gives_what_its_columns_give() -> None:
    for seed in range(100, 100 + 30):
        check(random_question(seed), RESOURCES[seed % len(RESOURCES)], PROGRAM, whole=False)


@pytest.mark.full
def test_the_program_gives_the_fronts_too() -> None:
    for seed in range(200, 400):
        check(random_question(seed), RESOURCES[seed % len(RESOURCES)], PROGRAM)


@pytest.mark.parametrize("effort", [None, PROGRAM])
def test_next_best_shapes_come_in_order(effort: Effort | None) -> None:
    for seed in range(300, 306):
        question = random_question(seed, limits=False)
        listed = list_all(question)
        if not len(listed.shapes):
            continue
        rows = np.lexsort((listed.costs["token_s"], listed.loss))[:7]
        found = best_shape(question, against="token_s", count=7, effort=effort)
        assert_same(found, listed, rows.tolist())


def test_a_sparse_front_lies_on_the_whole_one_and_leaves_no_wide_gap() -> None:
    question = Question(load_grid("plas"), LAWS["plas-10b"], ORIN, FP16)
    whole = exact_front(question)
    sparse = exact_front(question, apart=0.1)
    assert set(rows_of(sparse.shapes)) < set(rows_of(whole.shapes))
    costs, every = sparse.costs["total_s"], whole.costs["total_s"]
    assert (costs[:-1] < costs[1:] * 0.9).all()
    for low, high in pairwise(costs.tolist()):  # the next below the gap was taken
        assert low == every[every < high * 0.9].max()


@pytest.mark.parametrize("law", ["plas-10b", "gemstones-wdpt", "krajewski"])
def test_only_shapes_inside_the_law_s_box(law: str) -> None:
    tokens = {"plas-10b": None, "gemstones-wdpt": 2e11, "krajewski": 3e10}[law]
    grid = load_grid("plas").model_copy(
        update={"layers": (2, 8, 16), "head_dim": (64, 128), "experts": ((1, 1), (8, 2), (64, 1)), "shared": (0, 1),
                "rules": ("shared_beside_experts", *load_grid("plas").rules)}
    )  # fmt: skip
    question = Question(grid, LAWS[law], ORIN, FP16, "full", (), tokens, inside_only=True)
    assert check(question, "total_s") > 3
    loose = exact_front(replace(question, inside_only=False))
    assert not loose.priced.inside.all()
    assert loose.certificate.legal > exact_front(question).certificate.legal
