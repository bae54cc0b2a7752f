"""Bounds are bounds: no pair of a row is below it, whatever the rules; tables are the cost model; more room is never worse."""

from dataclasses import replace

import numpy as np
import pytest
from shape_cases import LAWS, list_all, random_question

from meshwright.search.engine.answers import NoShape
from meshwright.search.engine.exact import priced_of, shapes_of
from meshwright.search.engine.objective import Loss, pieces_of
from meshwright.search.engine.parts import LINEAR, Meter, price_parts
from meshwright.search.engine.pieces import Split
from meshwright.search.engine.question import Limit, Question
from meshwright.search.engine.rows import NEAR, Rows
from meshwright.search.engine.solve import best_shape, exact_front
from meshwright.search.engine.table import Table, tables_of
from meshwright.search.grid import sides_of
from meshwright.search.shape import Floats, Ints


def tables(question: Question) -> list[Table]:
    sides, layers = sides_of(question.grid), np.array(question.grid.layers)
    parts = price_parts(question, sides.attention, sides.ffn)
    return tables_of(parts, np.array(question.grid.width), layers, np.arange(len(layers)))


def rows_of(question: Question) -> list[Rows]:
    found = tables(question)
    split = Split(question.law, question.tokens)
    pieces = pieces_of(split, found)
    return [Rows(table, Loss(table, split, pieces)) for table in found]


def least_of_rows(question: Question, table: Table) -> Floats:
    """The least loss of each row by the law and the cost model themselves, [L, F]; inf where no pair keeps the rules."""
    out = np.full((len(table.layers), len(table.ffn_shapes)), np.inf)
    f, a = (
        x.ravel()
        for x in np.meshgrid(*(np.arange(len(s)) for s in (table.ffn_shapes, table.attention_shapes)))
    )
    for at, layers in enumerate(table.layers.tolist()):
        shapes = shapes_of(table, layers, f, a)
        costs, kept = Meter(question).costs(shapes), np.ones(len(shapes), bool)
        for rule in question.rules():
            kept &= ~rule.broken_by(costs[rule.resource])
        np.minimum.at(out[at], f[kept], priced_of(question, shapes).loss[kept])
    return out


def broken(bounds: Floats, exact: Floats) -> Ints:
    """Rows whose bound passes what they reach by more than rounding."""
    return np.flatnonzero(bounds > exact + NEAR * np.abs(exact))


def test_no_row_of_random_questions_is_below_its_bound() -> None:
    """And where one rule binds, the bound is the row's least loss."""
    rows = tight = reached = 0
    for seed in range(500, 580):
        question = random_question(seed)
        for side in rows_of(question):
            bounds = side.bounds(side.table.layers, question.rules()).ravel()
            exact = least_of_rows(question, side.table).ravel()
            assert not len(broken(bounds, exact)), seed
            rows += len(exact)
            reached += int(np.isfinite(exact).sum())
            tight += int((bounds >= exact * (1 - 1e-9))[np.isfinite(exact)].sum())
    assert rows > 3000
    assert tight > 0.5 * reached


def test_a_bound_too_high_by_two_percent_is_caught() -> None:
    caught = 0
    for seed in range(500, 510):
        question = random_question(seed)
        for side in rows_of(question):
            bounds = side.bounds(side.table.layers, question.rules()).ravel()
            caught += len(broken(1.02 * bounds, least_of_rows(question, side.table).ravel())) > 0
    assert caught >= 5


def test_answers_change_when_bounds_are_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests against listing see such a bound too: with it, shapes are cut that are the best."""
    honest = Rows.bounds

    def inflated(self: Rows, layers: Ints, rules: object) -> Floats:
        bounds = honest(self, layers, rules)  # type: ignore[arg-type]
        odd = np.arange(bounds.shape[1]) % 2 == 0
        return np.where(odd, 1.02 * bounds, bounds)

    monkeypatch.setattr(Rows, "bounds", inflated)
    wrong = 0
    for seed in range(500, 520):
        question = random_question(seed)
        listed = list_all(question)
        if listed.kept.any():
            told = exact_front(question).priced.loss.tolist()
            wrong += told != pytest.approx(listed.loss[listed.front("total_s")].tolist())
    assert wrong >= 3


def test_sums_of_parts_are_the_cost_model() -> None:
    for seed in range(600, 620):
        question = random_question(seed, limits=False)
        for table in tables(question):
            f, a = (
                x.ravel()
                for x in np.meshgrid(np.arange(len(table.ffn_shapes)), np.arange(len(table.attention_shapes)))
            )
            for layers in table.layers.tolist():
                costs = Meter(question).costs(shapes_of(table, layers, f, a))
                for name in LINEAR:
                    told = table.cost(name, np.asarray(layers), f, a)
                    np.testing.assert_allclose(told, costs[name], 1e-12, err_msg=f"{seed} {name}")


def test_more_room_is_never_worse() -> None:
    """More memory, a later deadline, more parameters allowed: the loss falls or stays."""
    for seed in range(700, 715):
        free = random_question(seed, limits=False)
        if not len(list_all(free).shapes):
            continue
        cheapest = best_shape(free)
        last = np.inf
        for share in (0.3, 0.5, 0.8, 1.0):
            limits = (
                Limit("total_s", share * cheapest.costs["total_s"][0]),
                Limit("params", cheapest.costs["params"][0]),
            )
            device = free.device.holding(cheapest.costs["memory_bytes"][0] * (0.5 + share / 2))
            try:
                loss = best_shape(replace(free, limits=limits, device=device)).priced.loss[0]
            except NoShape:
                loss = np.inf
            assert loss <= last or np.isinf(last)
            last = loss
        assert last == cheapest.priced.loss[0]


def test_a_row_that_is_out_is_counted_once() -> None:
    for seed in range(800, 815):
        question = random_question(seed)
        try:
            certificate = best_shape(question).certificate
        except NoShape:
            continue
        rows = dict(certificate.rows)
        assert rows.pop("listed") == sum(rows.values())
        assert certificate.space == certificate.legal + sum(certificate.removed.values())
        assert certificate.legal == len(list_all(question).shapes)


def test_a_law_is_split_by_what_its_terms_read() -> None:
    splits = {name: Split(law, 1e11) for name, law in LAWS.items()}
    assert splits["plas-10b"].joint == ()
    assert splits["plas-10b"].of_attention == ("kv",)
    assert splits["gemstones-wdpt"].joint == ("size",)
    assert splits["zhao"].joint == ("experts", "size", "active")
