"""The command line: reads arguments, calls the subcommand, turns errors into one line and an exit code.

0 ok, 1 a check disagrees, 2 bad input, 3 proven infeasible, 4 undecided, 5 an optional part is missing,
130 interrupted.

Other packages add subcommands through the entry-point group `meshwright.commands`: each entry is a function
that takes argparse's subparsers, adds a parser and sets its default `run`, a function from the parsed arguments
to the exit code.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from meshwright.hardware.errors import InputError, MeshwrightError, UnknownNameError
from meshwright.optimizer import arguments, asks, commands
from meshwright.optimizer.goals import commands as goals
from meshwright.optimizer.reasons import commands as reasons
from meshwright.optimizer.traces import commands as traces

GROUP = "meshwright.commands"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    args = argparse.Namespace()
    try:
        args = _read(list(sys.argv[1:] if argv is None else argv))
        return int(args.run(args))
    except MeshwrightError as error:
        commands.complain(error)
        if getattr(args, "json", False):
            commands.show_refusal(error)
        return error.exit_code


class _Parser(argparse.ArgumentParser):
    """argparse, with its complaints turned into ours."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


class _Version(argparse.Action):
    def __call__(self, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"meshwright {version('meshwright')}")
        raise SystemExit(0)


def build_parser() -> tuple[argparse.ArgumentParser, Any]:
    """The parser, and its subparsers for others to add to."""
    parser = _Parser(
        prog="meshwright",
        description="The provably best way to lay a language model over a cluster.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_recommend(subparsers)
    _add_estimate(subparsers)
    _add_compare(subparsers)
    goals.add(subparsers)
    reasons.add(subparsers)
    traces.add(subparsers)
    _add_catalogues(subparsers)
    asks.add_all(subparsers)
    return parser, subparsers


def _read(words: list[str]) -> argparse.Namespace:
    parser, subparsers = build_parser()
    if not words:
        raise InputError(f"name a command: {', '.join(subparsers.choices)}; see meshwright --help")
    name = words[0]
    if name not in subparsers.choices and name != "--version":
        broken = _add_extensions(subparsers)
        for complaint in broken:
            commands.complain(complaint)
        if not name.startswith("-") and name not in subparsers.choices:
            raise UnknownNameError("command", name, subparsers.choices)
    args, rest = parser.parse_known_args(_negative_values(words))
    if rest:
        raise InputError(
            f"unrecognized arguments: {' '.join(rest)[:80]}; see meshwright {args.command} --help"
        )
    return args


def _negative_values(words: list[str]) -> list[str]:
    """`--batch -1Mi` as `--batch=-1Mi`: argparse would take the value for an option and say that it is missing."""
    joined: list[str] = []
    for word in words:
        if re.match(r"-\.?\d", word) and joined and re.fullmatch(r"--[a-z-]+", joined[-1]):
            joined[-1] += f"={word}"
        elif re.match(r"-\.?\d", word):
            raise InputError(f"{word[:40]!r} is below zero; every size and count is above")
        else:
            joined.append(word)
    return joined


def _add_extensions(subparsers: Any) -> list[str]:
    """Commands of other packages; one that does not load is told, not fatal."""
    from importlib.metadata import entry_points

    complaints = []
    for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name):
        try:
            entry.load()(subparsers)
        except Exception as error:  # noqa: BLE001 - whatever another package does
            complaints.append(
                f"command {entry.name!r} does not load ({type(error).__name__}: {error}); it is left out"
            )
    return complaints


def _add_recommend(subparsers: Any) -> None:
    parser = arguments.command(subparsers, "recommend", commands.recommend, "the proven best layout")
    arguments.question(parser)
    arguments.constraint(parser)
    goals.add_options(parser)
    parser.add_argument(
        "--runner-ups",
        type=arguments.whole("--runner-ups", 0, 100),
        default=3,
        metavar="N",
        help="next best plans to prove (3)",
    )
    arguments.effort(parser)
    reasons.add_options(parser)
    _output(parser)


def _add_estimate(subparsers: Any) -> None:
    parser = arguments.command(subparsers, "estimate", commands.estimate, "the price of your own layout")
    parser.epilog = (
        "Exit code 0 says that the layout was priced, also where it does not fit the memory: the page then starts with "
        "DOES NOT FIT, and the JSON has fits: false with short_bytes, of a device, or host_short_bytes, of a host."
    )
    arguments.question(parser)
    parser.add_argument(
        "--layout",
        required=True,
        metavar="TEXT",
        help="such as tp=8,pp=8,dp=8,micro_batch=1,zero=1,recompute=full",
    )
    _output(parser)


def _add_compare(subparsers: Any) -> None:
    parser = arguments.command(
        subparsers, "compare", commands.compare, "two plan files side by side, term by term"
    )
    parser.add_argument("a", metavar="PLAN_A", help="a file of `recommend -o` or `estimate -o`")
    parser.add_argument("b", metavar="PLAN_B")
    arguments.launcher(parser, "also: whether this launcher can run each, and which of its rules say no")
    parser.add_argument("--model", metavar="PATH", help="the model's config.json, where a plan names a file")
    parser.add_argument("--efficiency", metavar="FILE", help="the rates' YAML file, likewise")
    arguments.as_json(parser)


def _add_catalogues(subparsers: Any) -> None:
    chips = arguments.command(subparsers, "chips", commands.chips, "what is known of each chip")
    chips.add_argument("names", nargs="*", metavar="CHIP")
    clusters = arguments.command(
        subparsers, "clusters", commands.clusters, "how clusters are written; reference systems; fabrics"
    )
    models = arguments.command(
        subparsers, "models", commands.models, "the built-in models, or all facts of one"
    )
    models.add_argument(
        "names", nargs="*", metavar="MODEL", help="a name, a part of names, a config.json or its folder"
    )
    for parser in (chips, clusters, models):
        parser.add_argument("--sources", action="store_true", help="where each figure comes from")
        arguments.as_json(parser)


def _output(parser: argparse.ArgumentParser) -> None:
    arguments.as_json(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the answer too (YAML, or JSON for *.json)"
    )
    parser.add_argument("--timings", action="store_true", help="print seconds by phase to stderr")
