"""An answer with its working: what was put in, each step by its formula, and what binds.

Functions that answer one question of a user return a Working; the command line prints it on one screen and as JSON.
Numbers come from the cost model's own functions, a Working only names them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = float | int | bool | str


def told(value: float) -> str:
    """A number in a sentence: four digits, thousands apart, never a power of ten where a reader counts."""
    size = abs(value)
    return f"{value:,.0f}" if 1e3 <= size < 1e9 else f"{value:.4g}"


@dataclass(frozen=True)
class Step:
    """One number of a working.

    Attributes:
        unit: SI and spelled as a user reads it: 's', 'B', 'FLOP', 'FLOP/s', 'B/s', 'FLOP/B', 'tokens', 'ratio', ''.
        formula: in the symbols of `given` and of earlier steps; empty where it was put in.
        note: a condition, a source or what an approximation leaves out.
    """

    value: Value
    unit: str = ""
    formula: str = ""
    note: str = ""


@dataclass(frozen=True)
class Working:
    """The answer to one question.

    Attributes:
        question: in one line.
        given: what was put in, by symbol; figures of a chip carry their source in the note.
        steps: results by name, in the order in which they follow from each other. Names are attribute-like and
            fixed: `working["t_math"]` is the value.
        binds: what binds and by how much, in one sentence.
        notes: what a user should know about the answer: approximations, conditions, other ways.
        table: further rows of numbers for answers that are lists; each row has the same keys.
    """

    question: str
    given: Mapping[str, Step]
    steps: Mapping[str, Step]
    binds: str = ""
    notes: tuple[str, ...] = ()
    table: tuple[Mapping[str, Value], ...] = field(default=())

    def __getitem__(self, name: str) -> Value:
        """The value of a step, or of something given."""
        return (self.steps[name] if name in self.steps else self.given[name]).value

    def __str__(self) -> str:
        """Plain text: the question, every number with its unit and formula, rows of the table, what binds."""
        numbers = [_plain(name, step) for part in (self.given, self.steps) for name, step in part.items()]
        rows = [", ".join(_plain(name, Step(value)) for name, value in row.items()) for row in self.table]
        return "\n".join(filter(None, (self.question, *numbers, *rows, self.binds, *self.notes)))

    def number(self, name: str) -> float:
        """The same where it must be a number; raises TypeError for words."""
        value = self[name]
        if isinstance(value, str):
            raise TypeError(f"{name} is the word {value!r}, not a number")
        return float(value)


def _plain(name: str, step: Step) -> str:
    value = f"{step.value:.6g}" if isinstance(step.value, float) else str(step.value)
    return f"{name} = {value} {step.unit}".rstrip() + (f" ({step.formula})" if step.formula else "")
