"""`meshwright search`: comes to the command line by the entry-point group `meshwright.commands`.

One device and a request is the mode of this module. Other packages bring further modes: each has `add_options`,
`wanted` and `answer`, and says by `wanted` that the question is its own.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from meshwright.hardware.errors import InputError
from meshwright.optimizer import arguments
from meshwright.search import modes

if TYPE_CHECKING:
    from meshwright.costmodel.working import Working
    from meshwright.search.asked import Budget, Searched
    from meshwright.search.board import Board
    from meshwright.search.law import Law

_DENSE, _APART = (
    20_000_000,
    0.02,
)  # rows above which a front is thinned, and how far apart its points then are
LISTED = 50_000  # rows of a grid that are priced one by one; a larger grid goes to the engine
FILES = ("plot", "csv", "parquet", "config")


def add(subparsers: Any) -> None:
    """Add the parser of `search`."""
    parser = arguments.command(
        subparsers, "search", run, "best model shapes for a device: loss against latency"
    )
    names = {"": _added(parser, _question, _limits, _pricing, _files)}
    names |= {mode.module: _added(parser, import_module(mode.module).add_options) for mode in modes.MODES}
    defaults = {name: parser.get_default(name) for part in names.values() for name in part}
    parser.set_defaults(options=modes.Options(names, defaults))
    arguments.as_json(parser)


def _added(
    parser: argparse.ArgumentParser, *adders: Callable[[argparse.ArgumentParser], object]
) -> tuple[str, ...]:
    """Names of the options that these add."""
    before = len(parser._actions)
    for add_options in adders:
        add_options(parser)
    return tuple(action.dest for action in parser._actions[before:])


def _question(parser: argparse.ArgumentParser) -> None:
    add_option = parser.add_argument
    add_option(
        "--cluster", metavar="TEXT", help="a device, such as jetson-agx-orin-64gb, or several with commas"
    )
    add_option("--prompt", type=arguments.count("--prompt"), metavar="N", help="tokens in")
    add_option("--output", type=arguments.count("--output"), metavar="N", help="tokens out")
    add_option("--batch", metavar="N", help="sequences at once (1); training: tokens a step")
    add_option("--weights", default="bf16", metavar="DTYPE", help="of stored weights (bf16)")
    add_option("--kv", default="bf16", metavar="DTYPE", help="of the cache (bf16)")
    add_option("--head", metavar="DTYPE", help="of the token table and the head (as the weights)")
    add_option(
        "--compute", metavar="DTYPE", help="of the products (fp16, or bf16 where the device lists no fp16)"
    )


def _limits(parser: argparse.ArgumentParser) -> None:
    add_option = parser.add_argument
    for name, text in (("ttft", "of prefill"), ("tpot", "of a decoded token"), ("total", "of both phases")):
        add_option(
            f"--{name}",
            type=arguments.seconds(f"--{name}"),
            metavar="TIME",
            help=f"longest time {text}, such as 100ms",
        )
    size = arguments.units("--memory", lambda parsers, text: parsers.parse_bytes(text), keep_text=False)
    add_option("--memory", type=size, metavar="SIZE", help="instead of the device's, such as 8GiB")
    add_option("--against", default="total", choices=("total", "ttft", "tpot", "memory"),
               help="what the front trades loss for (total)")  # fmt: skip
    add_option(
        "--budgets", metavar="LIST", help="best shape at each of these limits on --against: 50ms,100ms,200ms"
    )


def _pricing(parser: argparse.ArgumentParser) -> None:
    add_option = parser.add_argument
    add_option("--law", metavar="NAME", help="a loss law, or a YAML file (plas-10b; besiroglu for training)")
    add_option(
        "--laws", metavar="LIST", help="laws to hold the choice against, such as gemstones-wdpt,besiroglu"
    )
    add_option(
        "--tokens", type=arguments.count("--tokens"), metavar="N", help="of training, for laws that read them"
    )
    add_option(
        "--grid", metavar="NAME", help="a grid of shapes, or a YAML file (plas; pretraining for training)"
    )
    add_option("--latency", default="full", choices=("full", "plas"),
               help="the cost model, operator by operator, or the paper's aggregated forms (full)")  # fmt: skip
    add_option("--efficiency", metavar="NAME", help="rates: ideal, edge, mfu=0.4 or a YAML file (ideal)")


def _files(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("files")
    group.add_argument("--plot", metavar="FILE", help="draw the front (.svg or .png)")
    group.add_argument(
        "--csv",
        metavar="FILE",
        help="all shapes that were priced; of a grid above 50,000 rows the front and the best",
    )
    group.add_argument("--parquet", metavar="FILE", help="the same, typed")
    group.add_argument(
        "--config", metavar="DIR", help="a folder with config.json for each best shape and the front"
    )


def run(args: argparse.Namespace) -> int:
    from meshwright.optimizer.asks.answer import give

    mode = modes.chosen(args)
    if mode is None:
        return give(args, one_device(args))
    if args.config is not None:  # training alone reads it
        return give(args, _trained_with_config(args))
    working: Working = import_module(mode.module).answer(args)
    return give(args, working)


def _trained_with_config(args: argparse.Namespace) -> "Working":
    """The shapes that a training search ranks, as config.json too."""
    from meshwright.search.output.config import check_folder, write_configs
    from meshwright.search.trained.answer import working
    from meshwright.search.trained.command import found

    check_folder(args.config)
    made = found(args)
    rows = [chosen.row for chosen in made.outcome.ranked]
    note = f"meshwright search on {made.given.cluster.name} by {made.law.name}"
    write_configs(args.config, made.shapes, rows, made.grid.ends, made.given.training.seq_len, note)
    return working(made)


def one_device(args: argparse.Namespace) -> "Working":
    """The front of one device and the best shape under each budget; files as asked."""
    from meshwright.search.answer import answer
    from meshwright.search.asked import search_shapes
    from meshwright.search.grid import load_grid

    _need(args, "cluster", "prompt", "output")
    if "," in args.cluster:
        return _several(args)
    if args.loss is not None:
        raise InputError("--loss is reached by a device of --device-space or by one of several; name them")
    _check_files(args)
    laws = _laws(args)
    board = _board(args, args.cluster)
    grid = load_grid(args.grid or modes.GRID)
    find: Callable[..., Searched] = search_shapes
    if grid.size > LISTED:
        from meshwright.search.proven import prove_shapes

        find = partial(prove_shapes, apart=_APART if grid.size > _DENSE else 0.0)
    done = find(
        args.law or modes.LAW, grid, board.device, request_of(args), *_budgets(args),
        latency=args.latency, against=args.against, tokens=args.tokens,
    )  # fmt: skip
    working = answer(done, board)
    if grid.size > _DENSE:
        note = f"of the front points at least {_APART:.0%} apart are shown and written; each is on the exact front"
        working = replace(working, notes=(note, *working.notes))
    if done.certificates and (args.csv or args.parquet):
        note = f"the table has the front and the best alone: a grid of more than {LISTED:,} rows is not priced one by one"
        working = replace(working, notes=(note, *working.notes))
    if laws:
        from meshwright.search.risk import with_risk

        working = with_risk(working, done, laws, args.tokens)
    _write(args, done, board)
    return working


def _several(args: argparse.Namespace) -> "Working":
    """Each of several devices alone, and one shape for all."""
    from meshwright.search.asked import Budget
    from meshwright.search.grid import load_grid
    from meshwright.search.machine.several_answer import fronts_working

    for name in (*FILES, "laws", "budgets"):
        if getattr(args, name) is not None:
            raise InputError(f"--{name} is of a search on one device; name one, or leave it out")
    if (size := load_grid(args.grid or modes.GRID).size) > LISTED:
        raise InputError(
            f"the grid has {size:,} rows, and several devices list at most {LISTED:,}; search one by one"
        )
    boards = [_board(args, name.strip()) for name in args.cluster.split(",")]
    devices = {board.name: board.device for board in boards}
    if len(devices) < len(boards):
        raise InputError(f"--cluster names a device twice: {args.cluster[:80]}; name each once")
    working = fronts_working(
        devices, args.law or modes.LAW, args.grid or modes.GRID, request_of(args), *(_budgets(args) or [Budget()]),
        latency=args.latency, against=args.against, loss=args.loss, tokens=args.tokens,
    )  # fmt: skip
    notes = dict.fromkeys(note for board in boards for note in board.notes)
    return replace(working, notes=(*working.notes, *notes))


def _board(args: argparse.Namespace, name: str) -> "Board":
    from meshwright.search.board import board_of

    return board_of(
        name,
        compute=args.compute,
        weights=args.weights,
        efficiency="ideal" if args.efficiency is None else args.efficiency,
        memory_bytes=args.memory,
        otherwise="; what a cluster trains is asked with --train-tokens and --deadline, what it serves with --serve",
    )


def _laws(args: argparse.Namespace) -> "list[Law]":
    """The laws that the choice is held against."""
    from meshwright.search.law import load_law

    return [] if args.laws is None else [load_law(name.strip()) for name in args.laws.split(",")]


def request_of(args: argparse.Namespace) -> Any:
    """The request that the options describe."""
    from meshwright.costmodel.inference.request import Request
    from meshwright.costmodel.roofline.operands import parse_dtype
    from meshwright.hardware.chip import ELEMENT_BYTES
    from meshwright.hardware.units import parse_count

    weights, kv, head = (
        None if name is None else ELEMENT_BYTES[parse_dtype(name)]
        for name in (args.weights, args.kv, args.head)
    )
    assert weights is not None and kv is not None
    batch = (
        1
        if args.batch is None
        else arguments.units("--batch", lambda _, text: parse_count(text), False)(args.batch)
    )
    return Request(batch, args.prompt, args.output, weights, kv, head)


def _budgets(args: argparse.Namespace) -> "list[Budget]":
    from meshwright.hardware.units import parse_bytes, parse_seconds
    from meshwright.search.asked import Budget

    limits = {f"{name}_s": getattr(args, name) for name in ("ttft", "tpot", "total")}
    given = {name: value for name, value in limits.items() if value is not None}
    if args.budgets is None:
        return [Budget(**given)] if given else []
    field = "memory_bytes" if args.against == "memory" else f"{args.against}_s"
    if field in given:
        raise InputError(f"--budgets and --{args.against} both limit {args.against}; give one of them")
    parse = parse_bytes if args.against == "memory" else parse_seconds
    read = arguments.units("--budgets", lambda _, text: parse(text), keep_text=False)
    return [Budget(**given | {field: float(read(part.strip()))}) for part in args.budgets.split(",")]


def _need(args: argparse.Namespace, *names: str) -> None:
    missing = [f"--{name}" for name in names if getattr(args, name) is None]
    if missing:
        raise InputError(f"give {', '.join(missing)}; see meshwright search --help")


def _check_files(args: argparse.Namespace) -> None:
    """Before a search, so that no answer is lost."""
    from meshwright.optimizer.files import check_outputs
    from meshwright.optimizer.report.plot import plot_path
    from meshwright.search.output.config import check_folder
    from meshwright.search.output.table import check_parquet

    if args.plot is not None:
        plot_path(args.plot)
    if args.parquet is not None:
        check_parquet()
    check_outputs(args.plot, args.csv, args.parquet)
    if args.config is not None:
        check_folder(args.config)


def _write(args: argparse.Namespace, done: "Searched", board: "Board") -> None:
    from pathlib import Path

    from meshwright.search.output.config import write_configs
    from meshwright.search.output.table import columns_of, write_csv, write_parquet

    if args.csv is not None:
        write_csv(args.csv, columns_of(done))
    if args.parquet is not None:
        write_parquet(args.parquet, columns_of(done))
    if args.config is not None:
        rows = list(dict.fromkeys([i for i in done.best if i is not None] + done.on_front.tolist()))
        note = f"meshwright search on {board.name} by {done.priced.law.name}"
        write_configs(args.config, done.shapes, rows, done.grid.ends, args.prompt + args.output, note)
    if args.plot is not None:
        from meshwright.search.output.plot import draw_front

        draw_front(Path(args.plot), done, board.name)
