"""The pages of `profile` and `calibrate`."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwright.optimizer.report import words
from meshwright.optimizer.report.page import Block, bullet, faint, headline, line, table, title
from meshwright.optimizer.report.working import shown

if TYPE_CHECKING:
    from meshwright.optimizer.runs_file import RunsCalibration
    from meshwright.optimizer.traces.answer import Operation, Profile
    from meshwright.optimizer.traces.calibrate import Calibration

_MOST_OPERATIONS = 12
_LONGEST_NAME = 44
_NONE = "-"


def page(made: "Profile") -> Iterator[Block]:
    """One screen."""
    yield headline(
        f"{made.trace}: {words.seconds(made.step_s)} a step on {made.device} ({made.maker}), against {made.chip}"
    )
    yield line(_steps(made))
    decimals = words.decimals_for(made.step_s)
    planned = made.plan_step_s is not None
    yield title("Where the step goes", "communication and copies: what does not run under compute")
    header = ("", "trace, s", "", *(("plan, s", "trace/plan") if planned else ()))
    rows = [
        (p.name, words.fixed(_number(p.a), decimals), words.percent(_number(p.a) / made.step_s))
        + ((_fixed(p.b, decimals), _ratio(p.a, p.b)) if planned else ())
        for p in made.parts
    ]
    total = "sum", words.fixed(made.step_s, decimals), ""
    if planned:
        assert made.plan_step_s is not None
        rows.append((*total, words.fixed(made.plan_step_s, decimals), _ratio(made.step_s, made.plan_step_s)))
    else:
        rows.append(total)
    yield table(rows, "l" + "r" * (len(header) - 1), header=header)
    yield title("Kinds of operation", "shares of peak: of the operations whose FLOPs or bytes are known")
    header = ("kind", "a step", "s", "known", "of FLOP/s", "of HBM", *(("plan, s",) if planned else ()))
    yield table(
        [
            (k.name, shown(k.count), words.fixed(k.seconds, decimals))
            + (_percent(k.known_s / k.seconds if k.seconds else None), _percent(k.flop_share), _percent(k.hbm_share))
            + ((_fixed(k.planned_s, decimals),) if planned else ())
            for k in made.kinds
        ],
        "l" + "r" * (len(header) - 1),
        header=header,
    )  # fmt: skip
    if made.carried:
        yield title("Communication and copies", "hidden: under compute")
        header = (
            "class",
            "a step",
            "hidden, s",
            "exposed, s",
            "sent",
            "link",
            "of its peak",
            *(("plan, s",) if planned else ()),
        )
        yield table(
            [
                (c.name, shown(c.count), words.fixed(c.hidden_s, decimals), words.fixed(c.exposed_s, decimals))
                + (_NONE if c.sent_bytes is None else shown(c.sent_bytes, "B"), c.link or _NONE, _percent(c.link_share))
                + ((_fixed(c.planned_s, decimals),) if planned else ())
                for c in made.carried
            ],
            "lrrrrlr" + "r" * planned,
            header=header,
        )  # fmt: skip
    yield title("Operations", "largest gap to the roofline first")
    yield table(_operations(made, decimals), "l" + "l" * planned + "rrrrr", header=_operation_header(planned))
    if planned:
        yield title(
            "Operators of the plan", "beside traced products of their sizes, and attention; -: no counterpart"
        )
        header = ("operator", "trace, s", "plan, s", "trace/plan")
        rows = [
            (p.name, _fixed(p.a, decimals), _fixed(p.b, decimals), _ratio(p.a, p.b)) for p in made.operators
        ]
        yield table(rows, "lrrr", header=header)
    for note in made.notes:
        yield bullet(note)


def _steps(made: "Profile") -> str:
    told = f"{words.plural(made.steps, 'step')} by {made.found}"
    if made.shortest_s is not None and made.longest_s is not None and made.steps > 1:
        told += (
            f", {words.seconds(made.shortest_s)} to {words.seconds(made.longest_s)}; below the mean of them"
        )
    if made.plan_step_s is not None:
        told += f"; the plan says {words.seconds(made.plan_step_s)}"
    return told


def _operation_header(planned: bool) -> tuple[str, ...]:
    return ("operation", *(("in the plan",) if planned else ()), "a step", "s", "floor", "reached", "gap")


def _operations(made: "Profile", decimals: int) -> Iterator[tuple[str, ...]]:
    planned = made.plan_step_s is not None
    told = [o for o in made.operations if o.floor_s is not None]
    for o in told[:_MOST_OPERATIONS]:
        yield (_name(o), *((o.operator or _NONE,) if planned else ()), *_numbers([o], decimals))
    for rest, what in (
        (told[_MOST_OPERATIONS:], "others"),
        ([o for o in made.operations if o.floor_s is None], "without a floor"),
    ):
        if rest:
            yield (f"{len(rest)} {what}", *(("",) if planned else ()), *_numbers(rest, decimals))


def _numbers(operations: "list[Operation]", decimals: int) -> tuple[str, ...]:
    count, seconds = sum(o.count for o in operations), sum(o.seconds for o in operations)
    head = shown(count), words.fixed(seconds, decimals)
    if any(o.floor_s is None for o in operations):
        return (*head, _NONE, _NONE, _NONE)
    floor = sum(o.floor_s or 0.0 for o in operations)
    return (
        *head, words.fixed(floor, decimals), words.percent(floor / seconds if seconds else 0.0), words.fixed(seconds - floor, decimals),
    )  # fmt: skip


def _name(o: "Operation") -> str:
    half = _LONGEST_NAME // 2 - 1
    name = o.name if len(o.name) <= _LONGEST_NAME else f"{o.name[:half]}..{o.name[-half:]}"
    sizes = f" [{'x'.join(map(str, o.shape))}]" if o.shape else ""
    return f"{name}{sizes}{f' {o.dtype}' if o.dtype else ''}"


def calibrated(made: "Calibration", path: str) -> Iterator[Block]:
    """One screen."""
    yield headline(
        f"{made.trace}: shares of the peaks of {made.chip} that {made.device} reached{f' ({made.hardware})' if made.hardware else ''}"
    )
    rows = [
        (r.name, f"{r.share:.4g}", f"{r.count:,}", _NONE if r.low is None else f"{r.low:.3g} to {r.high:.3g}")
        for r in made.reached
    ]
    yield table(rows, "lrrr", header=("number", "share", "operations", "middle 80%"))
    if made.silent:
        yield title("Not told by this trace", "they stay as in default")
        yield table([(name, reason) for name, reason in made.silent.items()], "ll")
    yield faint(f"\nwritten to {path}; use it with --efficiency {path}")


def calibrated_runs(made: "RunsCalibration", path: str) -> Iterator[Block]:
    """One screen."""
    yield headline(f"{made.table}: {sum(made.runs.values())} runs of {made.software}")
    for chip, fitted in made.fitted.items():
        error = f"mean error {fitted.before:.1%} before, {fitted.after:.1%} after"
        yield title(chip, f"{words.plural(made.runs[chip], 'run')}; {error}")
        rows = [
            (
                n,
                f"{f:.3f}",
                f"x/÷ {math.exp(fitted.spreads[n]):.2f}",
                "yes" if n in fitted.told else "no: held",
            )
            for n, f in fitted.factors.items()
        ]
        yield table(rows, "lrrl", header=("number", "over default", "spread", "told by the runs"))
    if made.too_large:
        yield line(
            f"{words.plural(made.too_large, 'run')} would not fit memory as {made.software} is modelled to hold it: check the layout"
        )
    yield faint(f"\nwritten to {path}; use it with --efficiency {path}")


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _fixed(value: object, decimals: int) -> str:
    return _NONE if value is None else words.fixed(_number(value), decimals)


def _ratio(trace: object, plan: object) -> str:
    return f"{_number(trace) / _number(plan):.2f}" if trace is not None and plan else _NONE


def _percent(value: float | None) -> str:
    return _NONE if value is None else words.percent(value)
