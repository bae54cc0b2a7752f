"""The spread of laws over a choice: ranks and regret by hand, never a comparison of their losses."""

from dataclasses import dataclass

import numpy as np
import pytest

from meshwright.search.law import load_law
from meshwright.search.law_columns import LawError, MissingVariableError
from meshwright.search.shape import Shapes
from meshwright.search.spread import spread


@dataclass(frozen=True)
class Counts:
    params: np.ndarray
    active_params: np.ndarray
    end_params: np.ndarray


def shapes():
    """Wide and shallow, narrow and deep, and small: about as many parameters in the first two."""
    column = {
        "heads": [24, 8, 6],
        "kv_heads": [12, 4, 3],
        "head_dim": 128,
        "ffn_ratio": 4.0,
        "experts": 1,
        "top_k": 1,
    }
    rows = {"layers": [4, 32, 12], "width": [3072, 1024, 768], "shared": 0}
    return Shapes(**{name: np.broadcast_to(value, 3) for name, value in {**column, **rows}.items()})


def counts():
    s = shapes()
    body = 15.0 * s.layers * s.width**2
    return Counts(body + 2 * 50304 * s.width, body + 2 * 50304 * s.width, 2.0 * 50304 * s.width)


def test_laws_differ_on_depth_and_each_says_what_a_choice_costs_it():
    plas, gemstones = load_law("plas-10b"), load_law("gemstones-wdpt")
    one = plas.loss(shapes()).loss
    other = gemstones.loss(gemstones.columns(shapes(), counts(), 10e9)).loss
    chosen = int(one.argmin())
    found = spread(shapes(), chosen, [plas, gemstones, load_law("besiroglu")], counts(), tokens=10e9)
    assert found.opinions[0].regret == 0 and found.opinions[0].rank == 1 and found.opinions[0].agreement == 1
    assert found.opinions[1].regret == pytest.approx(other[chosen] - other.min())
    assert found.opinions[1].best == int(other.argmin())
    assert found.opinions[1].rank == 1 + int((other < other[chosen]).sum())
    rows = found.rows()
    assert [row["law"] for row in rows] == ["plas-10b", "gemstones-wdpt", "besiroglu"]
    assert rows[0]["loss_of_choice"] == pytest.approx(one[chosen])
    assert rows[0]["rank_of_choice"] == "1 of 3"
    same = sum(o.best == chosen for o in found.opinions[1:])
    assert found.notes()[0].startswith(
        f"model risk: of 2 other laws {same} would choose the same shape; losses of"
    )


def test_a_choice_among_equals_is_each_laws_own():
    """Two rows that are one shape: the chosen one is the best of both."""
    s = shapes()[np.array([1, 1, 2])]
    found = spread(
        s,
        1,
        [load_law("plas-10b"), load_law("gemstones-wdpt")],
        Counts(*(np.full(3, 5e8),) * 2, np.full(3, 1e8)),
        1e10,
    )
    assert [o.best for o in found.opinions] == [1, 1]
    assert [o.regret for o in found.opinions] == [0, 0]


def test_refusals():
    plas, besiroglu = load_law("plas-10b"), load_law("besiroglu")
    for arguments, told in (
        ((shapes(), 0, [plas]), "a spread compares two laws or more, and 1 is given"),
        ((shapes(), 3, [plas, besiroglu]), "row 3 is not one of the 3 shapes; count from 0"),
        ((shapes(), 0, [plas, plas]), "law plas-10b is named twice; name each law once"),
        ((3, 0, [plas, besiroglu]), "shapes is 3; give Shapes"),
    ):
        with pytest.raises(LawError) as caught:
            spread(*arguments)
        assert str(caught.value).startswith(told)
    with pytest.raises(MissingVariableError, match=r"^law besiroglu needs parameters .* and tokens"):
        spread(shapes(), 0, [plas, besiroglu])
