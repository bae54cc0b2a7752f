"""What each subcommand does. Heavy modules are imported where they are used, so that `chips` stays quick."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from meshwright.hardware.errors import InputError, MeshwrightError
from meshwright.optimizer import arguments

if TYPE_CHECKING:
    from meshwright.costmodel.setting import Setting
    from meshwright.optimizer.plan import Infeasible, Plan, Priced, Undecided
    from meshwright.optimizer.reasons.asked import Reason
    from meshwright.optimizer.report.page import Block

    Answered = Priced | Infeasible | Undecided


class Clock:
    """Seconds by phase, for --timings; never part of an answer."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._laps: list[str] = []

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._laps.append(f"{name} {now - self._last:.3f} s")
        self._last = now

    def show(self) -> None:
        total = time.perf_counter() - self._start
        print(f"timings: {', '.join(self._laps)}, total {total:.3f} s", file=sys.stderr)


def recommend(args: argparse.Namespace) -> int:
    """Search, print, write, and give the reasons that were asked for."""
    clock = Clock()
    from meshwright.costmodel.goals import goal_of
    from meshwright.optimizer.plan import Infeasible, Plan
    from meshwright.optimizer.progress import interrupt, watching
    from meshwright.optimizer.reasons.asked import reasons_of
    from meshwright.optimizer.reasons.effort import Effort
    from meshwright.optimizer.reasons.headline import narrowed
    from meshwright.optimizer.reasons.why_not import check_asked
    from meshwright.optimizer.recommend import bounded

    options, constraints = arguments.options_of(args, args.runner_ups), arguments.constraints_of(args)

    reasons = {
        "--why-not": args.why_not,
        "--shadow": args.shadow,
        "--in-band": args.in_band,
        "--robust": args.robust,
    }
    if args.goal != "step" and (
        asked := [name for name, value in reasons.items() if value not in (None, False)]
    ):
        raise InputError(
            f"{asked[0]} compares step times, the goal is {args.goal[:40]}; leave one of them out"
        )

    effort = Effort()  # of the reasons; an interrupt that the search had no use for ends them

    def ask(given: "Setting") -> "Plan":
        goal = goal_of(args.goal, given.training, deadline_s=args.deadline, within_s=args.within)
        with watching(args.progress) as effort.watch:
            try:
                return bounded(replace(given, goal=goal), constraints, options, effort.watch)
            except Infeasible as no:
                if not args.no_ways_out:
                    with suppress(KeyboardInterrupt):  # the answer stands without
                        no = narrowed(no, given, constraints, options, effort)
                raise no from None

    def check(given: "Setting") -> None:
        if args.why_not is not None:
            check_asked(given, constraints, args.why_not)

    def why(given: "Setting", answer: "Answered") -> "Iterator[Reason]":
        wanted = any(value not in (None, False) for value in reasons.values())
        if wanted and effort.stopped and isinstance(answer, Plan):
            interrupt()
        yield from reasons_of(args, given, constraints, options, answer, effort)

    return _answer(args, clock, "search", ask, why, check)


def estimate(args: argparse.Namespace) -> int:
    """Price the user's own layout."""
    clock = Clock()
    from meshwright.costmodel.layout import parse_layout
    from meshwright.optimizer.question import price

    layout = parse_layout(args.layout)
    return _answer(args, clock, "estimate", lambda given: price(given, layout))


def _answer(
    args: argparse.Namespace,
    clock: Clock,
    phase: str,
    ask: "Callable[[Setting], Priced]",
    why: "Callable[[Setting, Answered], Iterable[Reason]]" = lambda given, answer: (),
    check: "Callable[[Setting], None]" = lambda given: None,
) -> int:
    """From the question to the exit code: read, check, ask, write, print, say why. No plan is an answer too."""
    from meshwright.optimizer.files import check_output, save_plan
    from meshwright.optimizer.plan import Infeasible, Undecided

    clock.lap("imports")
    if args.output is not None:
        check_output(args.output)
    given = setting(args)
    check(given)
    clock.lap("reading")
    answer: Answered
    try:
        answer = ask(given)
    except (Infeasible, Undecided) as no_plan:
        answer = no_plan
    clock.lap(phase)
    if args.output is not None:  # first: a reader that leaves early must not cost the file
        save_plan(answer, args.output)
    missing = _tell(args, answer, why(given, answer))
    clock.lap("report")
    if args.timings:
        clock.show()
    ends = [end for end in (answer, missing) if isinstance(end, MeshwrightError)]
    for end in ends:
        complain(end)
    return ends[0].exit_code if ends else 0


def _tell(args: argparse.Namespace, answer: "Answered", why: "Iterable[Reason]") -> "MeshwrightError | None":
    """Print the answer and its reasons; what kept a reason from being found, so that it costs the answer nothing."""
    from meshwright.optimizer.files import to_json
    from meshwright.optimizer.report.page import emit

    if not args.json and (blocks := _page(answer, args.output)):
        _show(blocks)
    reasons, missing = {}, None
    try:
        for reason in why:
            reasons[reason.key] = reason.data
            if not args.json:
                emit("\n")
                _show(reason.page)
    except MeshwrightError as error:
        missing = error
    finally:  # an interrupt costs the answer nothing either
        if args.json:
            emit(to_json(answer, reasons))
    return missing


def _page(answer: "Priced | Infeasible | Undecided", output: str | None) -> "list[Block]":
    """What the terminal shows of an answer."""
    from meshwright.optimizer.plan import Infeasible, Undecided
    from meshwright.optimizer.report import answer as pages
    from meshwright.optimizer.report.page import faint
    from meshwright.optimizer.report.proof import infeasible

    blocks: list[Block] = []
    if isinstance(answer, Infeasible):
        blocks += infeasible(answer)
    elif not isinstance(answer, Undecided):
        blocks += pages.answer(answer)
    elif answer.best is not None:
        blocks += pages.answer(answer.best)
    if output is not None:
        blocks.append(faint(f"\nwritten to {output}"))
    return blocks


def compare(args: argparse.Namespace) -> int:
    """Two files side by side."""
    from meshwright.optimizer.compare import compare as line_up
    from meshwright.optimizer.files import load_priced
    from meshwright.optimizer.reasons.question import Files, files_for

    plans = {"a": load_priced(args.a), "b": load_priced(args.b)}
    each = files_for(list(plans.values()), Files(args.model, args.efficiency))
    files = {side: vars(found) for side, found in zip(plans, each, strict=True)}
    reasons = {side: _unchecked(getattr(args, side), plan, files[side]) for side, plan in plans.items()}
    unchecked = {side: reason for side, reason in reasons.items() if reason is not None}
    made, able = line_up(plans["a"], plans["b"]), {}
    if args.launcher is not None:
        from meshwright.optimizer.reasons.launcher import plan_runs_on

        able = {side: plan_runs_on(plan, args.launcher, **files[side]) for side, plan in plans.items()}
    if args.json:
        launcher = {"launcher": {side: runs.to_dict() for side, runs in able.items()}} if able else {}
        _print_json(made.to_dict() | launcher | ({"unchecked": unchecked} if unchecked else {}))
    else:
        from meshwright.optimizer.report.comparison import comparison
        from meshwright.optimizer.report.launcher import runs as told
        from meshwright.optimizer.report.page import faint, show, title

        blocks = [*comparison(made, (args.a, args.b))]
        blocks += [faint(f"{side}: as its file says it; {reason}") for side, reason in unchecked.items()]
        blocks += [title("Launcher", args.launcher)] if able else []
        for side, found in able.items():
            blocks += told(found, side)
        show(blocks)
    return 0


def _unchecked(path: str, plan: "Priced", files: dict[str, Any]) -> str | None:
    """Why the figures of one of the two cannot be made again; a refusal of them names the file."""
    from meshwright.optimizer.reasons.question import check_written

    try:
        return check_written(plan, **files)
    except MeshwrightError as error:
        raise InputError(f"{path}: {error}") from None


def chips(args: argparse.Namespace) -> int:
    from meshwright.hardware.catalog import boards
    from meshwright.hardware.catalog import chips as names
    from meshwright.hardware.chip import load_chip
    from meshwright.optimizer.report import catalog

    chosen = [load_chip(name).name for name in args.names] or [*names(), *boards()]
    if args.json:
        _print_json(catalog.chips_data(chosen))
    else:
        _show(catalog.chips_page(chosen, args.sources))
    return 0


def clusters(args: argparse.Namespace) -> int:
    from meshwright.optimizer.report import catalog

    if args.json:
        _print_json(catalog.clusters_data())
    else:
        _show(catalog.clusters_page(args.sources))
    return 0


def models(args: argparse.Namespace) -> int:
    from meshwright.optimizer.report import catalog

    chosen = catalog.models_called(args.names)
    if args.json:
        _print_json(catalog.models_data(chosen))
    elif len(chosen) == 1:
        _show(catalog.model_page(chosen[0]))
    else:
        _show(catalog.models_page(chosen, args.sources))
    return 0


def setting(args: argparse.Namespace) -> "Setting":
    """The question of `recommend`, `estimate` and `balance`."""
    from meshwright.costmodel.workload import Training, parse_batch
    from meshwright.hardware.cluster import parse_cluster
    from meshwright.optimizer.question import resolve

    tokens, tolerance = parse_batch(args.batch, args.seq)
    training = Training(
        global_batch_tokens=tokens,
        seq_len=args.seq,
        batch_tolerance=tolerance,
        compute_dtype=args.dtype,
        optimizer=args.optimizer,
        moe_imbalance=args.moe_imbalance,
        expert_capacity=args.expert_capacity,
        total_tokens=args.tokens,
        mtp=args.mtp,
        images=args.images,
        trainable=args.trainable,
    )
    cluster = parse_cluster(
        args.cluster, host_memory=args.host_memory, cpu_update=args.cpu_update, fabric=args.fabric
    )
    return resolve(
        args.model, cluster, training, efficiency=args.efficiency, overlap=args.overlap,
        comm_streams=args.comm_streams, framework=args.framework, launcher=args.launcher,
    )  # fmt: skip


def show_refusal(error: "MeshwrightError") -> None:
    """A proven no, or a question left open, as JSON on stdout; of bad input there is nothing to say but the line."""
    from meshwright.optimizer.report.page import emit

    status = {3: "INFEASIBLE", 4: "UNKNOWN"}.get(error.exit_code)
    if status is not None:
        told = error.to_dict() if hasattr(error, "to_dict") else {}
        emit(json.dumps({"status": status, "reason": str(error)} | told, indent=2, sort_keys=True) + "\n")


def complain(error: object) -> None:
    """One line on stderr, whatever the message holds."""
    text = " ".join(str(error).split())
    encoding = sys.stderr.encoding or "ascii"
    with suppress(OSError):  # a reader that has left, as with `2>&1 | head`, does not change the exit code
        print(f"meshwright: {text}".encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)


def _print_json(data: dict[str, Any]) -> None:
    from meshwright.optimizer.report.page import emit

    emit(json.dumps(data, sort_keys=True, indent=2) + "\n")


def _show(blocks: "Iterable[Block]") -> None:
    from meshwright.optimizer.report.page import show

    show(blocks)
