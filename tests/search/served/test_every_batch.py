"""The best model that a slice serves, against plain loops over every shape, every part of the slice and every batch."""

from dataclasses import replace
from itertools import pairwise
from math import inf
from random import Random

import numpy as np
import pytest
from served_cases import CASES, Case, Oracle, drawn, oracles, pricer_of

from meshwright.costmodel.setting import ideal_network
from meshwright.optimizer.plan import Infeasible
from meshwright.search.grid import list_shapes
from meshwright.search.served.find import Choice, Limits, closest, find
from meshwright.search.served.serve import Serving, serve
from meshwright.search.served.slices import parts_of


def asked(case: Case) -> Serving:
    return serve(
        case.law, case.grid, case.cluster, case.request,
        tpot_s=case.tpot_s, ttft_s=case.ttft_s if case.ttft_s < inf else None, batch=case.batch,
        memory_bytes=case.memory_bytes, compute="bf16", extrapolate=True,
    )  # fmt: skip


@pytest.mark.parametrize("seed", CASES)
def test_the_answer_is_that_of_plain_loops(seed: int) -> None:
    case, good = drawn(seed)
    if not good:
        with pytest.raises(Infeasible):
            asked(case)
        return
    expected = max(good, key=lambda c: (c.tokens_per_s, -c.part.ways))
    best = asked(case).best
    assert (best.row, best.choice.part.ways, best.choice.batch) == (
        expected.row,
        expected.part.ways,
        expected.batch,
    )
    for name in ("token_s", "ttft_s", "device_bytes", "tokens_per_s"):
        assert getattr(best, name) == pytest.approx(getattr(expected, name), rel=1e-9)


def test_the_cases_are_of_every_sort() -> None:
    """Every limit ends a batch, batches are no powers of two, KV heads are copied and cut, some questions have no answer."""
    answers = [(case, max(good, key=lambda c: c.tokens_per_s)) for case, good in map(drawn, CASES) if good]
    assert len(CASES) - len(answers) >= 3
    assert len({cell.part.ways for _, cell in answers}) >= 4
    free = [(case, cell) for case, cell in answers if case.batch is None]
    assert sum(cell.batch & (cell.batch - 1) > 0 for _, cell in free) >= 3
    ends = [Oracle(case, cell.row, cell.part).cell(cell.batch + 1) for case, cell in free]
    assert {
        (one_more.token_s > case.tpot_s, one_more.device_bytes > case.memory_bytes)
        for (case, _), one_more in zip(free, ends, strict=True)
    } >= {(True, False), (False, True)}
    heads = [
        (cell.part.ways, int(list_shapes(case.grid).shapes.kv_heads[cell.row])) for case, cell in answers
    ]
    assert sum(ways > kv for ways, kv in heads) >= 2
    assert sum(1 < ways <= kv for ways, kv in heads) >= 1


@pytest.mark.parametrize("seed", CASES)
def test_the_closest_miss_is_the_closest(seed: int) -> None:
    """Of every shape and part the one whose worst share of a limit is least."""
    case, _ = drawn(seed)
    limits = Limits(case.tpot_s / 50, case.ttft_s)
    shapes = list_shapes(case.grid).shapes
    pricer = pricer_of(case, shapes, limits)
    parts = parts_of(ideal_network(case.cluster), case.cluster.devices)
    near = closest(pricer, np.arange(len(shapes)), [Choice(part, case.batch or 1) for part in parts])
    worst = min(
        max(c.token_s / limits.tpot_s, c.ttft_s / limits.ttft_s, c.device_bytes / case.memory_bytes)
        for c in (oracle.cell(case.batch or 1) for oracle in oracles(case))
    )
    assert max(pricer.shares(near).values()) == pytest.approx(worst, rel=1e-9)


@pytest.mark.parametrize("seed", CASES)
def test_larger_batches_take_longer_and_make_more_tokens(seed: int) -> None:
    """What `find` rests on: seconds, bytes and tokens per second never fall with the batch, by one or by much."""
    case, _ = drawn(seed)
    random, shapes = Random(seed), list_shapes(case.grid).shapes
    pricer = pricer_of(case, shapes, Limits())
    for part in parts_of(ideal_network(case.cluster), case.cluster.devices):
        rows = np.flatnonzero(part.cuts(shapes)).tolist()
        if not rows:
            continue
        first = random.choice((1, 2, 60, 500))
        batches = sorted({*range(first, first + 10), *(2**n + random.randint(0, n) for n in range(21))})
        row = int(random.choice(rows))
        series = [pricer.price(row, Choice(part, batch)) for batch in batches]
        for less, more in pairwise(series):
            assert more.token_s >= less.token_s * (1 - 1e-12)
            assert more.token_network_s >= less.token_network_s * (1 - 1e-12)
            assert more.tokens_per_s >= less.tokens_per_s * (1 - 1e-12)
            assert more.device_bytes > less.device_bytes
            assert more.ttft_s == less.ttft_s


def test_of_equal_losses_the_most_tokens() -> None:
    case = replace(drawn(0)[0], memory_bytes=3e9)
    shapes = list_shapes(case.grid).shapes[4::-1]
    pricer = pricer_of(case, shapes, Limits(tpot_s=0.02))
    parts = parts_of(ideal_network(case.cluster), case.cluster.devices)
    best, looked_at = find(pricer, np.zeros(len(shapes)), parts, None)
    every = [
        pricer.best_batch(row, part, None)
        for row in range(len(shapes))
        for part in parts
        if part.cuts(shapes)[row]
    ]
    assert best is not None and looked_at == len(shapes)
    assert best.row > 0 and best.tokens_per_s == max(served.tokens_per_s for served in every if served)
