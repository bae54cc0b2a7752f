"""`meshwright layers`: comes to the command line by the entry-point group `meshwright.commands`."""

import argparse
from typing import TYPE_CHECKING, Any

from meshwright.optimizer import arguments

if TYPE_CHECKING:
    from meshwright.costmodel.working import Working
    from meshwright.search.layers.problem import Limit
    from meshwright.search.layers.settle import Options
    from meshwright.search.layers.table import Table


def add(subparsers: Any) -> None:
    """Add the parser of `layers`."""
    parser = arguments.command(
        subparsers, "layers", run, "a variant of attention and feed-forward for each layer, proven best"
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="the base: a built-in name, a config.json or its folder"
    )
    _pricing(parser)
    add_option = parser.add_argument
    add_option("--limit", action="append", default=[], metavar="TEXT",
               help="such as 'decode_ms <= 20, memory_bytes <= 20GiB, params >= 4e9, kv_bytes <= 2GiB'")  # fmt: skip
    add_option("--solutions", type=arguments.whole("--solutions", 1, 100), default=1, metavar="N",
               help="choices to find, best first (1)")  # fmt: skip
    add_option("--differ", type=arguments.whole("--differ", 1, 100_000), default=1, metavar="N",
               help="layers in which each differs from all before (1)")  # fmt: skip
    add_option("--sweep", metavar="TEXT", help="the best along a limit: decode_ms=10ms..30ms:9")
    add_option("--csv", metavar="FILE", help="what --sweep found")
    add_option("--config", metavar="DIR", help="a folder for config.json and layers.yaml of the best choice")
    add_option("--work-limit", type=arguments.positive("--work-limit"), default=10.0, metavar="X",
               help="solver work for one program (10)")  # fmt: skip
    add_option("--labels", type=arguments.whole("--labels", 0, 10**7), default=100_000, metavar="N",
               help="partial choices held at once at most; 0 leaves all to CP-SAT (100000)")  # fmt: skip
    add_option(
        "--seed",
        type=arguments.whole("--seed", 0, 2**31 - 1),
        default=0,
        metavar="N",
        help="of the solver (0)",
    )
    arguments.as_json(parser)


def _pricing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is priced and scored, unless --table gives it")
    add_option = group.add_argument
    add_option("--table", metavar="FILE", help="what --save-table wrote: nothing is priced or scored again")
    add_option("--save-table", metavar="FILE", help="keep prices and scores for other limits")
    add_option("--cluster", metavar="TEXT", help="a single device, such as jetson-agx-orin-64gb")
    add_option("--variants", metavar="FILE", help="YAML: lists attention and ffn of named variants")
    add_option("--scores", metavar="FILE",
               help="CSV: layer,variant,score or layer,attention,ffn,score; lower is better")  # fmt: skip
    add_option("--higher-is-better", action="store_true", help="of the scores")
    add_option("--law", metavar="NAME", help="of the stand-in scores where none are given (plas-10b)")
    for name, text, usual in (
        ("batch", "sequences at once (1)", None),
        ("context", "tokens in the cache when a step decodes", None),
        ("prompt", "tokens that are prefilled (as many as the context)", None),
    ):
        add_option(f"--{name}", type=arguments.count(f"--{name}"), default=usual, metavar="N", help=text)
    add_option("--weights", metavar="DTYPE", help="of stored weights (bf16)")
    add_option("--kv", metavar="DTYPE", help="of the cache (bf16)")
    add_option(
        "--compute", metavar="DTYPE", help="of the products (fp16, or bf16 where the device lists no fp16)"
    )
    add_option("--efficiency", metavar="NAME", help="rates: ideal, edge, mfu=0.4 or a YAML file (ideal)")


def run(args: argparse.Namespace) -> int:
    from meshwright.optimizer.asks.answer import give
    from meshwright.optimizer.commands import complain
    from meshwright.optimizer.files import check_outputs
    from meshwright.search.layers.settle import Options
    from meshwright.search.layers.table import save_table
    from meshwright.search.output.config import check_folder

    _check(args)
    check_outputs(args.save_table, args.csv)
    if args.config is not None:
        check_folder(args.config)
    table = _table(args)
    limits = _limits(args, table)
    if args.save_table is not None:
        save_table(table, args.save_table)
    options = Options(args.work_limit, args.seed, args.labels)
    working, code = (_best if args.sweep is None else _swept)(args, table, limits, options)
    given = give(args, working)
    if code == 4:
        complain(
            f"the work limit of {options.work_limit:g} came before a proof; allow more with --work-limit or --labels"
        )
    return code or given


def _best(
    args: argparse.Namespace, table: "Table", limits: "tuple[Limit, ...]", options: "Options"
) -> "tuple[Working, int]":
    """The answer and the exit code."""
    from meshwright.search.layers.answer import answer
    from meshwright.search.layers.config import write_config
    from meshwright.search.layers.solve import solve

    choices = solve(table.problem, limits, solutions=args.solutions, differ=args.differ, options=options)
    if args.config is not None:
        write_config(args.config, table, choices.best)
    return answer(table, limits, choices), 0 if choices.proven else 4


def _swept(
    args: argparse.Namespace, table: "Table", limits: "tuple[Limit, ...]", options: "Options"
) -> "tuple[Working, int]":
    """The answer and the exit code: 3 where no point of the sweep has a choice."""
    from meshwright.search.layers.answer import swept
    from meshwright.search.layers.sweep import columns_of, parse_sweep, sweep
    from meshwright.search.output.table import write_csv

    along = parse_sweep(args.sweep)
    points = sweep(table.problem, along, limits, options)
    if args.csv is not None:
        write_csv(args.csv, columns_of(table.problem, along, points))
    statuses = {p.status for p in points}
    code = 4 if statuses - {"OPTIMAL", "INFEASIBLE"} else 3 if statuses == {"INFEASIBLE"} else 0
    return swept(table, along, points), code


def _limits(args: argparse.Namespace, table: "Table") -> "tuple[Limit, ...]":
    """The user's limits; the device's memory where they leave memory free."""
    import numpy as np

    from meshwright.search.layers.limits import parse_limits
    from meshwright.search.layers.problem import Limit

    limits = parse_limits(",".join(args.limit))
    if any(limit.total == "memory_bytes" and np.isfinite(limit.most) for limit in limits):
        return limits
    held = float(table.asked["device_memory_bytes"])
    return (*limits, Limit("memory_bytes", most=held, text="memory_bytes <= the device's memory"))


_PRICED = (
    "cluster", "variants", "scores", "law", "batch", "context", "prompt", "weights", "kv", "compute", "efficiency",
)  # fmt: skip


def _check(args: argparse.Namespace) -> None:
    from meshwright.hardware.errors import InputError

    if args.table is not None:
        given = [f"--{name}" for name in _PRICED if getattr(args, name) is not None]
        given += ["MODEL"] * (args.model is not None) + ["--higher-is-better"] * args.higher_is_better
        if given:
            raise InputError(
                f"--table holds what {', '.join(given)} would say; leave them out, or price anew without --table"
            )
    else:
        missing = ["MODEL"] * (args.model is None)
        missing += [f"--{name}" for name in ("cluster", "variants", "context") if getattr(args, name) is None]
        if missing:
            raise InputError(f"give {', '.join(missing)}, or --table; see meshwright layers --help")
    if args.law is not None and args.scores is not None:
        raise InputError("--scores and --law both score; give one of them")
    if args.higher_is_better and args.scores is None:
        raise InputError("--higher-is-better speaks of --scores; give them")
    if args.csv is not None and args.sweep is None:
        raise InputError("--csv holds what --sweep found; give --sweep")
    if args.sweep is not None and (args.config is not None or args.solutions > 1):
        raise InputError("--sweep finds one choice per point; leave out --config and --solutions")


def _table(args: argparse.Namespace) -> "Table":
    from meshwright.costmodel.roofline.operands import parse_dtype
    from meshwright.hardware.chip import ELEMENT_BYTES
    from meshwright.search.board import board_of
    from meshwright.search.layers.price import Asked
    from meshwright.search.layers.scores import read_scores
    from meshwright.search.layers.stand_in import DEFAULT
    from meshwright.search.layers.table import build_table, load_table
    from meshwright.search.layers.variants import load_variants

    if args.table is not None:
        return load_table(args.table)
    weights = args.weights or "bf16"
    board = board_of(
        args.cluster, compute=args.compute, weights=weights, efficiency=args.efficiency or "ideal"
    )
    asked = Asked(
        args.batch or 1,
        args.prompt or args.context,
        args.context,
        ELEMENT_BYTES[board.weights],
        ELEMENT_BYTES[parse_dtype(args.kv or "bf16")],
    )
    given = None if args.scores is None else read_scores(args.scores)
    return build_table(
        args.model, load_variants(args.variants), board, asked, given,
        law=args.law or DEFAULT, higher_is_better=args.higher_is_better,
    )  # fmt: skip
