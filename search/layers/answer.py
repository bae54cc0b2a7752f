"""Choices as an answer: score and proof, totals beside their limits, which limits bind, runs of equal layers."""

from collections.abc import Sequence

import numpy as np

from meshwright.costmodel.working import Step, Value, Working
from meshwright.search.layers.limits import told
from meshwright.search.layers.problem import Limit, Problem, one_sided
from meshwright.search.layers.solve import Choice, Choices
from meshwright.search.layers.sweep import Point, Sweep
from meshwright.search.layers.table import Table

_UNITS = {"s": "s", "bytes": "B", "params": "params"}


def answer(table: Table, limits: Sequence[Limit], choices: Choices) -> Working:
    """The best choice in numbers, all choices as runs of layers."""
    best, proof = choices.best, choices.best.proof
    held = one_sided(limits)
    unit = table.problem.stand_in and "nats per token"
    sign = -1.0 if table.problem.higher_is_better else 1.0
    steps = {
        "status": Step(proof.status, "", "", _status(proof.status)),
        "score": Step(best.score, unit, "", _direction(table.problem)),
        "score_bound": Step(sign * proof.bound, unit, "", "no choice within the limits is better"),
        "gap": Step(proof.gap, unit, "", f"of it {proof.slack:.2g} for rounding to ticks"),
        **{
            name: Step(best.totals[name], _unit(name), "", _beside(name, held))
            for name in table.problem.totals
        },
        "choices_of_a_layer": Step(proof.choices),
        "rows": Step(proof.rows, "", "", "choices, one per group of layers that are alike and variant"),
        "rows_undominated": Step(proof.undominated),
        "rows_kept": Step(proof.kept, "", "", "not ruled out by the bound; what the program settles"),
        "labels": Step(proof.labels, "", "", "partial choices held at once"),
    }
    for n, choice in enumerate(choices.found[1:], start=2):
        note = f"{choice.proof.status}; differs in at least {choice.differs} layers from those before"
        steps[f"score_{n}"] = Step(choice.score, unit, "", note)
    alike = _ALIKE if len(choices.found) > 1 and proof.rows < _most_rows(table.problem) else ""
    notes = tuple(filter(None, (_label(table), choices.ended, alike, *table.notes, _CONSTANT)))
    rows = [row for n, choice in enumerate(choices.found, 1) for row in _runs(n, choice)]
    return Working(_question(table), _given(table, held), steps, _binding(best, held), notes, tuple(rows))


def swept(table: Table, along: Sweep, points: Sequence[Point]) -> Working:
    """One row per value of the swept limit."""
    rows: list[dict[str, Value]] = []
    for point in points:
        choice = point.choice
        row: dict[str, Value] = {
            f"limit_{along.total}": told(along.total, point.value),
            "status": point.status,
        }
        row["score"] = "" if choice is None else round(choice.score, 6)
        row["gap"] = "" if choice is None else float(f"{choice.proof.gap:.2g}")
        row |= {name: "" if choice is None else told(name, choice.totals[name]) for name in _SHOWN}
        rows.append(row)
    steps = {
        "points": Step(len(points)),
        "proven": Step(sum(p.status in ("OPTIMAL", "INFEASIBLE") for p in points)),
        "infeasible": Step(sum(p.status == "INFEASIBLE" for p in points)),
    }
    notes = tuple(filter(None, (_label(table), *table.notes, _CONSTANT)))
    return Working(
        f"{_question(table)}, along {along.total}", _given(table, ()), steps, "", notes, tuple(rows)
    )


_SHOWN = ("prefill_s", "decode_s", "memory_bytes", "kv_bytes", "params")
_CONSTANT = (
    "token table, head and the launches of every layer are constants beside the variants, as are activations: those of the "
    "widest variant in prefill"
)


_ALIKE = "some layers score and cost the same: choices may differ in nothing but which of them takes what"


def _most_rows(problem: Problem) -> int:
    """Rows where no two layers are alike."""
    return problem.layers * sum(len(part.variants) for part in problem.parts)


def _question(table: Table) -> str:
    asked = table.asked
    return (
        f"a variant for each layer of {asked['model']} on {asked['cluster']}, batch {asked['batch']}, "
        f"{asked['prompt']} tokens in, context {asked['context']}"
    )


def _given(table: Table, limits: Sequence[Limit]) -> dict[str, Step]:
    hidden = ("device_memory_bytes", "scores")
    given = {name: Step(value) for name, value in table.asked.items() if name not in hidden}
    given["scores"] = Step("a stand-in" if table.problem.stand_in else table.asked["scores"])
    given["memory"] = Step(table.asked["device_memory_bytes"], "B", "", "of the device")
    return given | {f"limit_{n}": Step(str(limit)) for n, limit in enumerate(limits, 1)}


def _label(table: Table) -> str:
    return (
        table.problem.stand_in and f"scores are {table.problem.stand_in}; give --scores for the model's own"
    )


def _direction(problem: Problem) -> str:
    word = "higher" if problem.higher_is_better else "lower"
    return f"summed over layers, {word} is better" + ("; a stand-in" if problem.stand_in else "")


def _status(status: str) -> str:
    return "proven within rounding" if status == "OPTIMAL" else "the work limit came before a proof"


def _unit(total: str) -> str:
    return _UNITS.get(total.rsplit("_", 1)[-1], "")


def _beside(total: str, limits: Sequence[Limit]) -> str:
    return ", ".join(str(limit) for limit in limits if limit.total == total)


def _binding(best: Choice, limits: Sequence[Limit]) -> str:
    """The limits in order of how little room they leave."""
    if not limits:
        return "no limit is given"
    left = []
    for limit in limits:
        total = best.totals[limit.total]
        bound = limit.most if np.isfinite(limit.most) else limit.least
        left.append((abs(bound - total) / abs(bound) if bound else abs(total), limit, total))
    left.sort(key=lambda item: item[0])
    return "; ".join(
        f"{limit}: {told(limit.total, total)}, {room:.2%} of room left" for room, limit, total in left
    )


def _runs(number: int, choice: Choice) -> list[dict[str, Value]]:
    """Layers one after the other that take the same variants, as rows."""
    rows: list[dict[str, Value]] = []
    names = [part.name for part in choice.problem.parts]
    first = 0
    for layer, taken in enumerate(choice.variants):
        if layer + 1 < len(choice.variants) and choice.variants[layer + 1] == taken:
            continue
        where = f"{first}-{layer}" if layer > first else str(layer)
        row: dict[str, Value] = {"solution": number, "layers": where}
        rows.append(row | dict(zip(names, taken, strict=True)))
        first = layer + 1
    return rows
