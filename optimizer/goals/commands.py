"""`meshwright front`, and the options of `recommend` that say the goal. Heavy modules are imported where they are used."""

import argparse
from typing import Any

from meshwright.optimizer import arguments


def add_options(parser: argparse.ArgumentParser) -> None:
    """What a plan is chosen by."""
    add = parser.add_argument
    add(
        "--goal",
        default="step",
        metavar="NAME",
        help="step (time, the default), cost (per token), chips (fewest in time)",
    )
    add(
        "--deadline",
        type=arguments.seconds("--deadline"),
        metavar="TIME",
        help="of the run, such as 30d: for --goal chips, with --tokens",
    )
    add(
        "--within",
        type=arguments.seconds("--within"),
        metavar="TIME",
        help="of one step, such as 1.5s: for --goal chips",
    )


def add(subparsers: Any) -> None:
    """The parser of `front`."""
    parser = arguments.command(
        subparsers, "front", front, "proven best plans of which none is better in both of two goals"
    )
    arguments.question(parser)
    arguments.constraint(parser)
    add_ = parser.add_argument
    add_("--axes", default="time,chips", metavar="A,B", help="two of time, memory, chips, cost (time,chips)")
    add_(
        "--points",
        type=arguments.whole("--points", 1, 100_000),
        default=100,
        metavar="N",
        help="plans at most (100)",
    )
    add_(
        "--apart",
        type=arguments.share("--apart", zero=True),
        default=0.0,
        metavar="SHARE",
        help="next plan with so much less memory or chips, such as 5%% (0: all)",
    )
    add_("--csv", metavar="FILE", help="write the front as a table")
    add_("--plot", metavar="FILE", help="draw it, as .png or .svg")
    arguments.effort(parser)
    arguments.progress(parser)
    arguments.as_json(parser)


def front(args: argparse.Namespace) -> int:
    """Walk the front, write, print."""
    from meshwright.optimizer import commands
    from meshwright.optimizer.files import check_outputs
    from meshwright.optimizer.goals.front import check_axes, front_in
    from meshwright.optimizer.progress import watching
    from meshwright.optimizer.reasons.commands import print_json
    from meshwright.optimizer.report import front as pages
    from meshwright.optimizer.report.page import show
    from meshwright.optimizer.report.plot import plot_path

    check_axes(args.axes)
    picture = None if args.plot is None else plot_path(args.plot)
    check_outputs(args.csv, args.plot)
    given = commands.setting(args)
    with watching(args.progress) as watch:
        made = front_in(
            given, args.axes, arguments.constraints_of(args),
            points=args.points, apart=args.apart, options=arguments.options_of(args), watch=watch,
        )  # fmt: skip
    if args.csv is not None:
        pages.write(args.csv, made)
    if picture is not None:
        pages.draw_front(picture, made)
    if args.json:
        print_json(made.to_dict())
    else:
        show(pages.front(made))
    if made.proven:
        return 0
    commands.complain(made.open_end)
    return 130 if made.stopped else 4
