"""What each subcommand does. Heavy modules are imported where they are used, so that `chips` stays quick."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.costmodel.setting import Setting
    from meshwright.optimizer.plan import Infeasible, Plan, Priced, Undecided


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
    """Search, print, write."""
    clock = Clock()
    from meshwright.optimizer.plan import Infeasible, Undecided, check_output
    from meshwright.optimizer.recommend import recommend_in
    from meshwright.optimizer.solve import SolveOptions

    clock.lap("imports")
    if args.output is not None:
        check_output(args.output)
    given = _setting(args)
    options = SolveOptions(args.runner_ups, args.work_limit, args.seed)
    clock.lap("reading")
    try:
        plan = recommend_in(given, ",".join(args.constraint) or None, options)
    except Infeasible as error:
        return _infeasible(args, error)
    except Undecided as error:
        return _undecided(args, error)
    clock.lap("search")
    _answer(args, plan)
    clock.lap("report")
    if args.timings:
        clock.show()
    return 0


def estimate(args: argparse.Namespace) -> int:
    """Price the user's own layout."""
    clock = Clock()
    from meshwright.costmodel.layout import parse_layout
    from meshwright.optimizer.plan import check_output
    from meshwright.optimizer.question import price

    clock.lap("imports")
    if args.output is not None:
        check_output(args.output)
    layout = parse_layout(args.layout)
    given = _setting(args)
    clock.lap("reading")
    priced = price(given, layout)
    clock.lap("estimate")
    _answer(args, priced)
    clock.lap("report")
    if args.timings:
        clock.show()
    return 0


def compare(args: argparse.Namespace) -> int:
    """Two files side by side."""
    from meshwright.optimizer.compare import compare as line_up
    from meshwright.optimizer.plan import load_priced

    made = line_up(load_priced(args.a), load_priced(args.b))
    if args.json:
        _print_json(made.to_dict())
    else:
        from meshwright.optimizer.report.comparison import comparison
        from meshwright.optimizer.report.page import show

        show(comparison(made, (args.a, args.b)))
    return 0


def chips(args: argparse.Namespace) -> int:
    from meshwright.hardware.catalog import chips as names
    from meshwright.hardware.chip import load_chip
    from meshwright.optimizer.report import catalog

    chosen = [load_chip(name).name for name in args.names] or list(names())
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
    from meshwright.costmodel.readers import model_names
    from meshwright.hardware.errors import UnknownNameError
    from meshwright.optimizer.report import catalog

    known = model_names()
    chosen = [name for name in known if not args.names or any(part.lower() in name for part in args.names)]
    if not chosen:
        raise UnknownNameError("model", args.names[0], known)
    if args.json:
        _print_json(catalog.models_data(chosen))
    else:
        _show(catalog.models_page(chosen, args.sources))
    return 0


def _setting(args: argparse.Namespace) -> "Setting":
    """The question of `recommend` and `estimate`."""
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
        total_tokens=args.tokens,
    )
    cluster = parse_cluster(
        args.cluster, host_memory=args.host_memory, cpu_update=args.cpu_update, fabric=args.fabric
    )
    return resolve(
        args.model, cluster, training, efficiency=args.efficiency, overlap=args.overlap,
        comm_streams=args.comm_streams, framework=args.framework,
    )  # fmt: skip


def _answer(args: argparse.Namespace, plan: "Priced") -> None:
    """Write the file first: a reader that leaves early must not cost it."""
    from meshwright.optimizer.plan import save_plan

    if args.output is not None:
        save_plan(plan, args.output)
    if args.json:
        _print_json(plan.to_dict())
        return
    from meshwright.optimizer.report.answer import answer
    from meshwright.optimizer.report.page import faint

    blocks = list(answer(plan))
    if args.output is not None:
        blocks.append(faint(f"\nwritten to {args.output}"))
    _show(blocks)


def _infeasible(args: argparse.Namespace, error: "Infeasible") -> int:
    """A proven no is an answer: the reason on stderr, the closest miss and the funnel on stdout."""
    if args.json:
        layout = None if error.layout is None else error.layout.to_dict()
        _print_json(
            {
                "status": "INFEASIBLE",
                "reason": error.reason,
                "short_bytes": error.short_bytes,
                "layout": layout,
                "removed": error.removed,
            }
        )
    else:
        from meshwright.optimizer.report.proof import infeasible

        _show(infeasible(error))
    complain(error)
    return error.exit_code


def _undecided(args: argparse.Namespace, error: "Undecided") -> int:
    """What was found so far, if anything, and that it is not proven."""
    best: Plan | None = error.best
    if best is not None:
        _answer(args, best)
    elif args.json:
        _print_json({"status": "UNKNOWN", "reason": str(error)})
    complain(error)
    return error.exit_code


def complain(error: object) -> None:
    """One line on stderr, whatever the message holds."""
    text = " ".join(str(error).split())
    encoding = sys.stderr.encoding or "ascii"
    print(f"meshwright: {text}".encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)


def _print_json(data: dict[str, Any]) -> None:
    from meshwright.optimizer.report.page import emit

    emit(json.dumps(data, sort_keys=True, indent=2) + "\n")


def _show(blocks: "Sequence[Any] | Any") -> None:
    from meshwright.optimizer.report.page import show

    show(blocks)
