"""A product of more than 10^9 shapes: proved, sampled against, and what was priced is counted where it is priced."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from shape_cases import LAWS, RULES

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.search.engine.answers import Found, NoShape
from meshwright.search.engine.exact import priced_of
from meshwright.search.engine.parts import Meter
from meshwright.search.engine.question import Limit, Question
from meshwright.search.engine.search import Effort
from meshwright.search.engine.solve import best_shape, exact_front
from meshwright.search.grid import RULES as GRID_RULES
from meshwright.search.grid import Grid
from meshwright.search.price import Pricer
from meshwright.search.shape import Shapes

ORIN = Device.ideal(42.5e12, 204.8e9, 64e9)
FP16 = Request(batch=1, prompt=1024, output=16, weight_bytes=2, kv_bytes=2)
RATIOS = (*(x / 8 for x in range(2, 11)), *(x / 4 for x in range(6, 17)), 4.5, 5, 6, 8)
PAIRS = ((1, 1), *((e, k) for e in (4, 8, 16, 32, 64, 128) for k in (1, 2, 4, 8) if k <= e))
LIMITS = (Limit("total_s", 0.5), Limit("token_s", 0.02), Limit("memory_bytes", 8e9))


@cache
def grid() -> Grid:
    return Grid.model_validate(
        {
            "source": "a product too large to list", "layers": {"from": 1, "to": 64},
            "width": {"from": 256, "to": 4096, "step": 64}, "head_dim": (32, 64, 96, 128, 256),
            "kv_heads": {"from": 1, "to": 32}, "ffn_ratio": RATIOS, "experts": PAIRS, "shared": (0, 1, 2),
            "vocab": 151936, "tied": True, "rules": RULES,
        }
    )  # fmt: skip


def question(law: str, *limits: Limit) -> Question:
    tokens = 1e11 if "tokens" in LAWS[law].reads else None
    return Question(grid(), LAWS[law], ORIN, FP16, "full", limits, tokens)


@cache
def sampled() -> Shapes:
    """Legal shapes drawn at random, and shapes near the corners of the grid."""
    rng, g = np.random.default_rng(0), grid()
    draws: dict[str, Any] = {
        n: rng.choice(getattr(g, n), 400_000) for n in ("layers", "width", "head_dim", "ffn_ratio", "shared")
    }
    pair = np.array(g.experts)[rng.integers(len(g.experts), size=400_000)]
    heads = draws["width"] // draws["head_dim"]
    kv = rng.choice(np.array(g.kv_heads, int), 400_000)
    shapes = Shapes(heads=heads, kv_heads=kv, experts=pair[:, 0], top_k=pair[:, 1], **draws)
    for name in g.rules:
        shapes = shapes[GRID_RULES[name](shapes)]
    return shapes


def nearby(found: Found) -> Shapes:
    """The shape found with each decision moved by itself to every value of its axis."""
    g, rows = grid(), []
    one = {f: getattr(found.shapes, f)[0].item() for f in Shapes.__dataclass_fields__}
    for axis in ("layers", "width", "kv_heads", "ffn_ratio", "shared", "head_dim"):
        rows += [one | {axis: value} for value in getattr(g, axis)]
    rows += [one | {"experts": e, "top_k": k} for e, k in g.experts]
    for row in rows:
        row["heads"] = row["width"] // row["head_dim"]
    shapes = Shapes(**{name: np.array([row[name] for row in rows]) for name in one})
    for name in g.rules:
        shapes = shapes[GRID_RULES[name](shapes)]
    return shapes


@pytest.mark.parametrize("law", ["plas-10b", "gemstones-wdpt", "besiroglu", "zhao"])
@pytest.mark.parametrize("limits", [(), LIMITS], ids=["all fit", "three limits"])
def test_a_budget_over_a_billion_shapes(
    law: str, limits: tuple[Limit, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    priced: list[int] = []
    honest = Pricer.costs
    monkeypatch.setattr(
        Pricer, "costs", lambda self, shapes: (priced.append(len(shapes)), honest(self, shapes))[1]
    )
    asked = question(law, *limits)
    found = best_shape(asked)
    certificate = found.certificate
    assert certificate.status == "OPTIMAL"
    assert certificate.space == grid().size == 1_079_377_920
    assert certificate.parts_priced + certificate.shapes_priced == sum(priced)
    assert certificate.share_priced < 0.01
    assert certificate.bounded < 0.01 * certificate.space
    for shapes in (sampled(), nearby(found)):
        costs, kept = Meter(asked).costs(shapes), np.ones(len(shapes), bool)
        for rule in asked.rules():
            kept &= ~rule.broken_by(costs[rule.resource])
        loss = priced_of(asked, shapes).loss
        assert kept.sum() > 10
        assert loss[kept].min() >= found.priced.loss[0] * (1 - 1e-12)


def test_nothing_fits_a_billion_shapes() -> None:
    with pytest.raises(
        NoShape, match=r"total_s is limited to 1e-06, and the least of any shape is 0\.00656164"
    ) as error:
        best_shape(question("plas-10b", Limit("total_s", 1e-6)))
    assert error.value.limit == "total_s"
    assert error.value.exit_code == 3
    sample = Meter(question("plas-10b")).costs(sampled())["total_s"].min()
    assert error.value.least is not None
    assert error.value.least <= sample


def test_limits_that_clash_are_told_with_what_the_others_leave() -> None:
    with pytest.raises(NoShape, match="with the other limits kept") as error:
        best_shape(question("plas-10b", Limit("total_s", 0.05), Limit("params", least=5e10)))
    assert error.value.beside
    assert error.value.limit in ("total_s", "least params")


def test_effort_that_ends_is_told() -> None:
    cut = exact_front(question("plas-10b"), effort=Effort(points=3))
    assert cut.certificate.status == "FEASIBLE"
    assert len(cut) == 3
    found = best_shape(question("zhao"), effort=Effort(rows=2))
    whole = best_shape(question("zhao")).certificate
    assert found.certificate.status == "FEASIBLE"
    assert found.certificate.bound <= whole.value <= found.certificate.value
    assert found.certificate.gap > 0
    assert whole.gap == 0


def test_one_question_has_one_answer() -> None:
    first, again = (best_shape(question("krajewski", *LIMITS)).certificate.to_dict() for _ in range(2))
    assert first == again
    assert first["space_hash"] != best_shape(question("krajewski")).certificate.space_hash
