"""Fronts and budgets: plas.md 1.6 on the paper's grid, and the definition itself on random columns."""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.hardware.errors import InputError
from meshwright.search.front import best, front
from meshwright.search.grid import list_shapes, load_grid
from meshwright.search.plas import memory_bytes
from meshwright.search.price import Pricer
from meshwright.search.shape import Floats, Shapes

ORIN = Device.ideal(42.5e12, 204.8e9, 64e9)  # plas.md 1.6
FP16 = Request(batch=1, prompt=1024, output=16, weight_bytes=2, kv_bytes=2)
INT8 = Request(batch=1, prompt=1024, output=16, weight_bytes=1, kv_bytes=1)


def plas_loss(s: Shapes) -> Floats:
    """Equation 2 with table 6, as plas.md 1.2 prints them."""
    l, d, r, rho = s.layers.astype(float), s.width.astype(float), s.ffn_ratio, s.activation
    widths = 0.031 * rho**1.09 / (r**0.17 * d**-0.33) + 500 / (r**0.17 * d**0.97)
    return np.asarray(9.96 / l**1.63 + widths + 0.20 / s.kv_width**0.05 + 2.53)


class Columns(NamedTuple):
    loss: Floats
    decode_s: Floats
    total_s: Floats
    memory_bytes: Floats


@cache
def evaluated(inference: Request) -> tuple[Shapes, Columns]:
    grid, fits = load_grid("plas"), {"fits_memory": lambda s: memory_bytes(s, inference) <= ORIN.memory_bytes}
    shapes = list_shapes(grid, fits).shapes
    costs = Pricer(grid.ends, ORIN, inference, "plas").costs(shapes)
    decode_s = inference.output * costs.token_s
    return shapes, Columns(plas_loss(shapes), decode_s, costs.total_s, costs.memory_bytes)


@pytest.mark.parametrize(
    ("phase", "budget_s", "layers", "width", "experts", "top_k", "ratio", "kv_heads", "loss", "latency_s"),
    [
        ("total_s", 0.100, 20, 2560, 16, 1, 0.5, 1, 3.063, 0.0973),
        ("total_s", 0.200, 28, 3072, 16, 1, 0.5, 1, 2.988, 0.1947),
        ("decode_s", 0.020, 12, 1792, 16, 1, 0.25, 2, 3.320, 0.0193),
    ],
)
def test_the_budgets_of_the_exhaustive_run(
    phase: str, budget_s: float, layers: int, width: int, experts: int, top_k: int, ratio: float,
    kv_heads: int, loss: float, latency_s: float,
) -> None:  # fmt: skip
    """plas.md 1.6; latencies at 200 ms and 20 ms are not printed there, they are computed here."""
    shapes, columns = evaluated(FP16)
    latency = getattr(columns, phase)
    row = best(columns.loss, latency, budget_s)
    assert row is not None
    s = shapes[[row]]
    assert (s.layers[0], s.width[0], s.experts[0], s.top_k[0]) == (layers, width, experts, top_k)
    assert (s.ffn_ratio[0], s.kv_heads[0]) == (ratio, kv_heads)
    assert columns.loss[row] == pytest.approx(loss, abs=5e-4)
    assert latency[row] == pytest.approx(latency_s, abs=5e-5)


def test_the_papers_front_has_120_points_and_is_the_definition() -> None:
    _, columns = evaluated(FP16)
    rows = front(columns.loss, columns.total_s)
    assert len(rows) == 120
    assert set(rows) == _by_definition(columns.loss, columns.total_s)


def test_findings_of_the_paper_on_its_front() -> None:
    """plas.md 1.6: only MoE at batch 1, K = 1, a ratio well under 4, and int8 helps by less than 2."""
    shapes, columns = evaluated(FP16)
    s = shapes[front(columns.loss, columns.total_s)]
    assert (s.experts > 1).all()
    assert (s.top_k == 1).all()
    assert s.ffn_ratio.mean() < 1.5
    _, quick = evaluated(INT8)
    for budget_s in (0.02, 0.1, 0.2, 0.5):
        row, slow = (best(c.loss, c.total_s, budget_s) for c in (quick, columns))
        assert row is not None
        assert slow is not None
        assert quick.loss[row] <= columns.loss[slow]


def test_a_limit_on_memory_joins_the_budget() -> None:
    shapes, columns = evaluated(FP16)
    row = best(columns.loss, columns.total_s, 0.1, (columns.memory_bytes, 2e9))
    fits = (columns.total_s <= 0.1) & (columns.memory_bytes <= 2e9)
    assert row is not None
    assert fits[row]
    assert columns.loss[row] == columns.loss[fits].min()
    assert len(shapes) == len(columns.loss)
    assert best(columns.loss, columns.total_s, 1e-6) is None


few = st.integers(0, 6).map(float)  # few values, so that ties and twins occur
table = st.lists(st.tuples(few, few), max_size=40)


@given(table)
def test_a_front_is_the_definition(points: list[tuple[float, float]]) -> None:
    loss, cost = np.array(points, dtype=float).reshape(-1, 2).T
    rows = front(loss, cost)
    assert set(rows.tolist()) == _by_definition(loss, cost)
    assert (np.diff(cost[rows]) > 0).all()
    assert (np.diff(loss[rows]) < 0).all()
    for row in range(len(loss)):  # each row is matched in both by a point of the front
        assert ((loss[rows] <= loss[row]) & (cost[rows] <= cost[row])).any()


@given(table, few, few)
def test_more_budget_is_never_a_worse_loss(
    points: list[tuple[float, float]], budget: float, more: float
) -> None:
    loss, cost = np.array(points, dtype=float).reshape(-1, 2).T
    row, richer = best(loss, cost, budget), best(loss, cost, budget + more)
    if row is None:
        assert not (cost <= budget).any()
        return
    assert richer is not None
    assert loss[richer] <= loss[row]
    assert row in front(loss, cost)


def test_columns_that_cannot_be_compared_are_refused() -> None:
    one, two = np.ones(1), np.ones(2)
    with pytest.raises(InputError, match="columns of one length"):
        front(one, two)
    with pytest.raises(InputError, match="row 1 holds nan"):
        front(np.array([1, np.nan]), two)
    with pytest.raises(InputError, match="budget"):
        best(two, two, np.nan)


def _by_definition(loss: Floats, cost: Floats) -> set[int]:
    """Every pair compared: undominated rows, of equal ones the first."""
    kept = set()
    for i in range(len(loss)):
        as_good = (loss <= loss[i]) & (cost <= cost[i])
        equal = (loss == loss[i]) & (cost == cost[i])
        if not (as_good & ~equal).any() and np.flatnonzero(equal)[0] == i:
            kept.add(i)
    return kept
