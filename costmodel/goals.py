"""What plans are compared by.

    step, chips   t B / b                  t seconds of a step, b its sequences, B those asked for
    cost          t B / b D                D devices used; idle ones are not paid for

Each is the row's seconds times a number that its degrees and its batch decide, so a bound on seconds stays one.
"""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from meshwright.costmodel.doors import check_positive
from meshwright.costmodel.workload import Training
from meshwright.hardware.errors import InputError, UnknownNameError, check_type
from meshwright.hardware.numbers import check_fields

Array = NDArray[Any]

GOALS = ("step", "cost", "chips")


@dataclass(frozen=True)
class Goal:
    """What a plan is chosen by.

    Attributes:
        name: `step`, least step time; `cost`, least money per token; `chips`, fewest chips within a limit, of those
            least step time.
        limit_s: of `chips`: seconds that a step of the batch asked for may take.
        deadline_s: of `chips`: seconds of the whole run that the limit was made from; None where it was given itself.
    """

    name: str = "step"
    limit_s: float | None = None
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def weight(self, asked: int, sequences: Array, devices: Array) -> Array:
        """What a second of a step of so many sequences on so many devices counts, [R]; `asked` are those of the batch."""
        scale: Array = asked / sequences
        return scale * devices if self.name == "cost" else scale


STEP = Goal()


def goal_of(
    name: str, training: Training, *, deadline_s: float | None = None, within_s: float | None = None
) -> Goal:
    """A goal, checked.

    Raises:
        UnknownNameError: no such goal. InputError: `chips` without a limit or with two, a deadline of a run whose
        length is not said, a limit that the goal does not read.
    """
    check_type("goal", name, str, f"one of {', '.join(GOALS)}")
    if name not in GOALS:
        raise UnknownNameError("goal", name, GOALS)
    check_positive(deadline_s=deadline_s, within_s=within_s)
    given = [word for word, value in (("deadline", deadline_s), ("within", within_s)) if value is not None]
    if name != "chips":
        if given:
            raise InputError(
                f"{given[0]} is read with goal chips, not with goal {name}; leave it out, or ask for the whole front: "
                "meshwright front --axes time,cost"
            )
        return Goal(name)
    if len(given) != 1:
        raise InputError(
            f"goal chips needs one limit, {'two are' if given else 'none is'} given; give deadline (with the tokens of "
            "the run), such as --deadline 30d --tokens 1T, or within, such as --within 1.5s a step"
        )
    if deadline_s is None:
        return Goal(name, float(within_s or 0))
    if training.total_tokens is None:
        raise InputError(
            "deadline is of the whole run, whose length is not given; give --tokens (total_tokens of Training), or the "
            "limit of one step with --within"
        )
    return Goal(
        name, float(deadline_s) * training.global_batch_tokens / training.total_tokens, float(deadline_s)
    )
