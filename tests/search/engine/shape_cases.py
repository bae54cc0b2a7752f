"""Random small questions, and their answers by listing every shape."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device, Machine
from meshwright.search.engine.exact import priced_of
from meshwright.search.engine.parts import Meter
from meshwright.search.engine.question import RESOURCES, Limit, Question
from meshwright.search.front import front
from meshwright.search.grid import Grid, list_shapes
from meshwright.search.law import Law, law_names, load_law
from meshwright.search.shape import Floats, Shapes

LAWS = {name: load_law(name) for name in law_names()}
RULES = (
    "heads_fill_width", "kv_heads_divide_heads", "top_k_within_experts", "shared_beside_experts",
    "whole_expert_width", "distinct",
)  # fmt: skip


@dataclass(frozen=True)
class Listed:
    """Every legal shape of a question's grid, priced."""

    question: Question
    shapes: Shapes
    costs: dict[str, Floats]
    loss: Floats
    inside: Any

    @property
    def kept(self) -> Any:
        """Shapes that keep the limits, the device's memory among them."""
        kept = np.ones(len(self.shapes), bool) if not self.question.inside_only else self.inside.copy()
        for rule in self.question.rules():
            kept &= ~rule.broken_by(self.costs[rule.resource])
        return kept

    def best(self, against: str) -> int | None:
        """Least loss, then least cost, then first."""
        rows = np.flatnonzero(self.kept)
        if not len(rows):
            return None
        return int(rows[np.lexsort((self.costs[against][rows], self.loss[rows]))[0]])

    def front(self, against: str) -> list[int]:
        rows = np.flatnonzero(self.kept)
        return [int(i) for i in rows[front(self.loss[rows], self.costs[against][rows])]]


def list_all(question: Question) -> Listed:
    shapes = list_shapes(question.grid).shapes
    priced = priced_of(question, shapes)
    return Listed(question, shapes, Meter(question).costs(shapes), priced.loss, priced.inside)


def random_question(seed: int, limits: bool = True, law: Law | None = None) -> Question:
    """A grid of at most some thousand shapes, any law and latency, limits at costs that shapes have or near them."""
    rng = np.random.default_rng(seed)
    latency = ("full", "plas")[int(rng.integers(2))]
    law = LAWS[str(rng.choice(sorted(LAWS)))] if law is None else law
    grid = random_grid(rng, filled=latency == "plas")
    batch = 1 if latency == "plas" else int(rng.integers(1, 9))
    sizes = rng.choice([0.5, 1, 2], 3)
    request = Request(batch, int(rng.integers(1, 3000)), int(rng.integers(1, 300)), *sizes[:2], sizes[2])
    prefill, decode = (
        Machine(rng.uniform(1e12, 1e14), rng.uniform(1e12, 1e14), rng.uniform(1e10, 1e12), rng.uniform(0.3, 1),
                rng.uniform(0, 2), rng.choice([0, 1e-4]))
        for _ in range(2)
    )  # fmt: skip
    tokens = float(rng.choice([1e10, 3e11])) if "tokens" in law.reads else None
    device = Device(prefill, decode, 1e15)
    free = Question(grid, law, device, request, latency, (), tokens)  # type: ignore[arg-type]
    shapes = list_shapes(grid).shapes
    if not limits or not len(shapes):
        return free
    costs = Meter(free).costs(shapes)
    names = rng.choice(RESOURCES, int(rng.integers(0, 4)), replace=False)
    asked = tuple(_limit(rng, str(name), np.sort(costs[name])) for name in names)
    memory = float(rng.choice([1e15, np.quantile(costs["memory_bytes"], rng.uniform(0.2, 1))]))
    return Question(grid, law, device.holding(memory), request, latency, asked, tokens)  # type: ignore[arg-type]


def _limit(rng: np.random.Generator, name: str, costs: Floats) -> Limit:
    """At a cost that some shape has to the bit, or anywhere; now and then out of reach."""
    at = float(costs[int(rng.integers(len(costs)))]) * float(rng.choice([1, 1, rng.uniform(0.5, 1.5)]))
    if rng.random() < 0.3:
        return Limit(name, least=at, most=float(rng.choice([np.inf, 3 * at])))
    return Limit(name, most=at)


def random_grid(rng: np.random.Generator, filled: bool) -> Grid:
    """`filled`: heads fill the width, as PLAS' forms want."""

    def some(values: Any, most: int) -> list[Any]:
        picked = sorted(
            rng.choice(len(values), int(rng.integers(1, min(most, len(values)) + 1)), replace=False)
        )
        return [values[i] for i in picked]

    pairs = [[1, 1], [4, 1], [8, 1], [8, 2], [16, 1], [16, 2], [16, 4], [64, 8], [2, 4]]
    needed = {"top_k_within_experts", "shared_beside_experts", *(["heads_fill_width"] if filled else [])}
    needed |= {
        "heads_fill_width",
        "kv_heads_divide_heads",
        "whole_expert_width",
    }  # or the axes must all combine
    rules = [r for r in RULES if r in needed or rng.random() < 0.8]
    return Grid.model_validate(
        {
            "source": "random",
            "layers": some([1, 2, 3, 4, 6, 8, 12, 16, 24, 48], 5),
            "width": some([64, 128, 192, 256, 512, 768, 1024, 1536, 4096], 4),
            "head_dim": [64, *some([32, 128], 1)],
            "kv_heads": some([1, 2, 3, 4, 8, "heads"], 5),
            "ffn_ratio": some([0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0], 5),
            "experts": some(pairs, 5),
            "shared": some([0, 1, 2], 2),
            "vocab": int(rng.choice([1000, 32000])),
            "tied": bool(rng.integers(2)),
            "rules": rules,
        }
    )
