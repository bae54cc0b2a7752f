"""Random small problems, and every choice of them listed: the judge of the program."""

from itertools import product

import numpy as np

from meshwright.search.layers.problem import Floats, Ints, Limit, Part, Problem

COSTS = ("decode_s", "weight_bytes", "kv_bytes", "params")


def small(seed: int) -> tuple[Problem, tuple[Limit, ...]]:
    """Up to 5 layers of up to 4 choices; shared and own costs, layers alike, whole and broken numbers, both bounds."""
    r = np.random.default_rng(seed)
    layers, parts = int(r.integers(1, 6)), int(r.integers(1, 3))
    made = []
    whole = bool(r.random() < 0.5)  # whole costs shared by layers, as they are where the model has one kind
    for p in range(parts):
        variants = int(r.integers(1, 5 if parts == 1 else 3))
        score = r.uniform(-1, 1, (layers, variants))
        cost = r.uniform(0, 1, (layers, variants, 4))
        if whole:
            cost = np.broadcast_to(r.integers(0, 5, (variants, 4)).astype(float), cost.shape).copy()
        if r.random() < 0.3:  # layers alike
            score[:] = score[0]
            cost[:] = cost[0]
        if r.random() < 0.3:
            score = np.rint(score * 2)
        made.append(Part(("attention", "ffn")[p], tuple(f"v{i}" for i in range(variants)), score, cost))
    constant = r.integers(0, 5, 4).astype(float) if whole else r.uniform(0, 1, 4)
    problem = Problem(tuple(made), COSTS, constant)
    taken = listed(problem)
    limits = []
    for name in r.permutation(problem.totals)[: r.integers(0, 5)].tolist():
        total = np.array([problem.total_of(t, name) for t in taken])
        least, most = np.sort(r.uniform(total.min() - 0.1, total.max() + 0.1, 2))
        if whole and r.random() < 0.5:  # just reached
            least, most = np.sort(r.choice(total, 2))
        kind = r.integers(0, 3)
        limits.append(Limit(name, least=least if kind != 0 else -np.inf, most=most if kind != 1 else np.inf))
    return problem, tuple(limits)


def listed(problem: Problem) -> list[Ints]:
    """Every choice, [L, P] each."""
    rows = list(product(*(range(len(part.variants)) for part in problem.parts)))
    return [np.array(taken) for taken in product(rows, repeat=problem.layers)]


def within(problem: Problem, limits: tuple[Limit, ...]) -> tuple[list[Ints], Floats]:
    """Every choice that keeps the limits, and its score."""
    kept = [t for t in listed(problem) if all(x.keeps(problem.total_of(t, x.total)) for x in limits)]
    return kept, np.array([problem.score_of(t) for t in kept])


def middling(seed: int) -> tuple[Problem, tuple[Limit, ...]]:
    """24 layers of 5 x 4 variants whose costs layers share, scores of their own, four limits that bind."""
    r = np.random.default_rng(seed)
    layers, parts = 24, []
    for name, variants in (("attention", 5), ("ffn", 4)):
        size = np.sort(r.integers(1, 40, variants))[::-1].astype(float)
        loss = (size[0] - size) * r.uniform(0.5, 2, (layers, 1)) * r.uniform(0.8, 1.2, (layers, variants))
        kv = size * (name == "attention")
        cost = np.stack([size * 1.1 + kv * r.uniform(0.5, 2), size * 2, kv, size], -1)
        whole = np.broadcast_to(cost, (layers, variants, 4))
        parts.append(Part(name, tuple(f"{name}{i}" for i in range(variants)), loss, whole))
    problem = Problem(tuple(parts), COSTS, np.ones(4))
    full = {name: problem.total_of(np.zeros((layers, 2), int), name) for name in COSTS}
    return problem, (
        Limit("decode_s", most=0.7 * full["decode_s"]),
        Limit("weight_bytes", most=0.72 * full["weight_bytes"]),
        Limit("kv_bytes", most=0.6 * full["kv_bytes"]),
        Limit("params", least=0.6 * full["params"]),
    )
