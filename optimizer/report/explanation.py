"""The page of an explanation: what binds, where the rest goes, by operator, class and stage."""

from collections.abc import Iterator

from meshwright.optimizer.reasons.explain import Explanation
from meshwright.optimizer.reasons.operators import Operator
from meshwright.optimizer.report import words
from meshwright.optimizer.report.answer import does_not_fit
from meshwright.optimizer.report.page import Block, faint, headline, line, table, title
from meshwright.optimizer.report.working import shown

_MOST_OPERATORS = 12
_CAUSES = {
    "rate": "rates short of peak",
    "shape": "few tokens or narrow",
    "experts": "grouped products",
    "traffic": "more elementwise traffic",
}


def explanation(made: Explanation) -> Iterator[Block]:
    """One screen."""
    inputs, estimate = made.plan.inputs, made.plan.estimate
    yield headline(
        f"{inputs['model']['name']} on {inputs['cluster']['name']}: {words.seconds(estimate.step_s)} a step"
    )
    yield from does_not_fit(estimate)
    yield line(_stages(made))
    yield title("What binds", "seconds of the step by what they wait for")
    decimals = words.decimals_for(estimate.step_s)
    rows = [(n, words.fixed(s, decimals), words.percent(s / estimate.step_s)) for n, s in made.binds.items()]
    yield table([*rows, ("sum", words.fixed(estimate.step_s, decimals), "")], "lrr", header=("", "s", ""))
    yield title("Operators", f"of stage {made.slowest}, forward and backward of a step; floor: at peak rates")
    header = ("operator", "s", "floor", "reached", "nearer roof", "most of the rest")
    yield table(_operators(made, decimals), "lrrrll", header=header)
    if made.traffic:
        yield title("Communication", "of one device over a step; alone: before any of it hides")
        header = ("class", "sent", "on", "floor, s", "alone, s", "exposed, s")
        yield table(
            [
                (t.name, shown(t.sent_bytes, "B"), t.link, *(words.fixed(s, decimals) for s in (t.floor_s, t.alone_s, t.exposed_s)))
                for t in made.traffic
            ],
            "lrlrrr",
            header=header,
        )  # fmt: skip
    yield faint(
        "Repeated work is the operator recompute. Elementwise bytes count once in the floor; lower_s leaves them out."
    )


def _stages(made: Explanation) -> str:
    held, usable = made.stages[made.fullest].memory_bytes, made.plan.estimate.capacity_bytes
    part, size = max(made.fullest_parts.items(), key=lambda item: item[1])
    full = (
        f"{words.gib(held)} of {words.gib(usable)} GiB usable ({held / usable:.0%}), most of it {part} "
        f"({words.gib(size)})"
    )
    if len(made.stages) == 1:
        return f"one stage; memory {full}"
    seconds = [stage.micro_batch_s for stage in made.stages]
    mean = sum(seconds) / len(seconds)
    return (
        f"slowest stage {made.slowest} of {len(seconds)}: {words.seconds(seconds[made.slowest])} a micro-batch, "
        f"{seconds[made.slowest] / mean - 1:.1%} above the mean; fullest stage {made.fullest}: {full}"
    )


def _operators(made: Explanation, decimals: int) -> Iterator[tuple[str, ...]]:
    several = len({o.layer for o in made.operators if o.layer != "ends"}) > 1
    largest = sorted(made.operators, key=lambda o: -o.seconds)
    for o in largest[:_MOST_OPERATORS]:
        name = f"{o.layer}: {o.name}" if several and o.layer != "ends" else o.name
        numbers = (
            words.fixed(o.seconds, decimals),
            words.fixed(o.floor_s, decimals),
            words.percent(o.achieved, 0),
        )
        yield name, *numbers, o.bound, _rest(o, decimals)
    if others := largest[_MOST_OPERATORS:]:
        seconds, floor = sum(o.seconds for o in others), sum(o.floor_s for o in others)
        numbers = (
            words.fixed(seconds, decimals),
            words.fixed(floor, decimals),
            words.percent(floor / seconds, 0),
        )
        yield f"{len(others)} others", *numbers, "", ""


def _rest(operator: Operator, decimals: int) -> str:
    cause, seconds = max(operator.rest.items(), key=lambda item: item[1])
    return f"{words.fixed(seconds, decimals)} {_CAUSES[cause]}" if seconds > 0 else ""
