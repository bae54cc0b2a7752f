"""`meshwright fit-law`: comes to the command line by the entry-point group `meshwright.commands`."""

import argparse
from typing import Any

from meshwright.optimizer import arguments


def add(subparsers: Any) -> None:
    """Add the parser of `fit-law`."""
    parser = arguments.command(subparsers, "fit-law", run, "a loss law fitted to your own trained models")
    add_option = parser.add_argument
    add_option("runs", metavar="RUNS", help="a CSV file, one row per trained model")
    add_option(
        "--form", metavar="NAME", help="plas, width_depth, aspect, size_tokens ... (the first that serves)"
    )
    add_option("--out", metavar="FILE", help="write the law here, for search --law")
    add_option("--name", default="fitted", metavar="NAME", help="of the law (fitted)")
    add_option(
        "--counts", default="all", choices=("all", "without_embedding"), help="what the sizes count (all)"
    )
    bootstrap = arguments.whole("--bootstrap", 0, 100_000)
    add_option(
        "--bootstrap", type=bootstrap, default=200, metavar="N", help="refits behind the intervals (200)"
    )
    starts = arguments.whole("--starts", 1, 10_000)
    add_option("--starts", type=starts, default=40, metavar="N", help="starts of the fit (40)")
    add_option(
        "--seed",
        type=arguments.whole("--seed", 0, 2**31),
        default=0,
        metavar="N",
        help="of split and starts (0)",
    )
    add_option("--correlations", action="store_true", help="the table is the correlation matrix")
    arguments.as_json(parser)


def run(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from meshwright.optimizer.asks.answer import give
    from meshwright.search.fit.answer import correlation_rows, working
    from meshwright.search.fit.fit import fit_law
    from meshwright.search.fit.law_file import check_target, write_law

    if args.out is not None:
        check_target(args.out)
    fit = fit_law(
        args.runs,
        args.form,
        name=args.name,
        bootstrap=args.bootstrap,
        starts=args.starts,
        seed=args.seed,
        counts=args.counts,
    )
    answer = working(fit)
    if args.correlations:
        answer = replace(answer, table=correlation_rows(fit))
    if args.out is not None:
        write_law(fit.law, args.out)
    return give(args, answer)
