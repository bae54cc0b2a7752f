"""Options that several commands share, and argparse types for quantities whose complaints name the option."""

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meshwright.hardware.errors import InputError

if TYPE_CHECKING:
    from meshwright.optimizer.solve import SolveOptions


def command(
    subparsers: Any, name: str, run: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    """A subcommand: `run` takes the parsed arguments and returns the exit code."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=text, description=text, allow_abbrev=False
    )
    parser.set_defaults(run=run)
    return parser


def as_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="print JSON; the same bytes for the same question"
    )


def question(parser: argparse.ArgumentParser) -> None:
    """The options that say what is asked."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a built-in name, a config.json or its folder")
    add("--cluster", required=True, metavar="TEXT", help="such as v5p:16x20x28 or h100:8x64")
    add(
        "--batch",
        required=True,
        metavar="N",
        help="per step: 4Mi tokens, 1024seq sequences, 4Mi~5%% may move",
    )
    add("--seq", required=True, type=count("--seq"), metavar="N", help="tokens per sequence")
    add(
        "--tokens",
        type=count("--tokens"),
        metavar="N",
        help="of the whole run, such as 15T: adds days and money",
    )
    add("--efficiency", default="default", metavar="NAME", help="default, ideal, mfu=0.4 or a YAML file")
    add("--overlap", default="calibrated", metavar="WORD", help="calibrated, full or none")
    add("--comm-streams", default="shared", metavar="WORD", help="shared or independent")
    launcher(
        parser,
        "whose limits bound the layout: megatron, maxtext, torchtitan, deepspeed, calculon, jax (all) or any (jax)",
    )
    add("--framework", metavar="NAME", help="whose memory habits apply: jax or megatron (the launcher's)")
    add("--optimizer", default="adamw", metavar="NAME", help="adamw, adamw8bit or sgd")
    add("--dtype", default="bf16", metavar="NAME", help="of the large products: bf16, fp16, fp8 or fp4")
    add(
        "--moe-imbalance",
        type=number("--moe-imbalance"),
        default=1.0,
        metavar="X",
        help="fullest expert rank over mean (1)",
    )
    add(
        "--expert-capacity",
        type=number("--expert-capacity"),
        metavar="X",
        help="rows of every expert over the mean; beyond it tokens are dropped",
    )
    add(
        "--mtp",
        type=whole("--mtp", 0, 1000),
        default=0,
        metavar="N",
        help="multi-token-prediction modules to train, of those the model carries (0)",
    )
    add(
        "--images",
        type=whole("--images", 0, 100_000),
        default=0,
        metavar="N",
        help="images of every sequence, among its tokens; trains the vision tower (0: text only)",
    )
    add(
        "--trainable",
        default="all",
        metavar="TEXT",
        help="what is trained: all, all-embedding-tower (all but parts), lora:16 or lora:16:qkv+out",
    )
    add(
        "--host-memory",
        type=size("--host-memory"),
        metavar="SIZE",
        help="of one host, such as 2TB; allows offload",
    )
    add(
        "--cpu-update",
        type=rate("--cpu-update"),
        metavar="RATE",
        help="of one host, such as '1 Gparam/s'; allows optimizer offload",
    )
    add("--fabric", metavar="NAME", help="the network beyond a domain; a name or a YAML file")


def launcher(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--launcher", metavar="NAME", help=text)


def progress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--progress",
        action="store_true",
        help="a line on stderr while a search lasts, also where that is no terminal",
    )


def constraint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--constraint",
        action="append",
        default=[],
        metavar="TEXT",
        help="such as 'tp<=8, pp in {1,2,4}, offload == none'",
    )


def constraints_of(args: argparse.Namespace) -> str | None:
    """All that `constraint` read, as one string; None where it is nothing."""
    return ",".join(text for text in args.constraint if text.strip()) or None


def effort(parser: argparse.ArgumentParser) -> None:
    """How far a search goes: the fields of `SolveOptions` but runner-ups."""
    add = parser.add_argument
    add(
        "--batch-sizes",
        type=whole("--batch-sizes", 1, 10_000),
        default=16,
        metavar="N",
        help="sizes of a batch tolerance to consider: the one asked for and the most divisible (16)",
    )
    add(
        "--refinements",
        type=whole("--refinements", 1, 10**9),
        default=2500,
        metavar="N",
        help="steps of the search at most; what is open then bounds the answer (2500)",
    )
    add(
        "--work-limit",
        type=positive("--work-limit"),
        default=10.0,
        metavar="X",
        help="solver work per candidate (10)",
    )
    add(
        "--seed",
        type=whole("--seed", 0, 2**31 - 1),
        default=0,
        metavar="N",
        help="seed of the solver (0)",
    )


def options_of(args: argparse.Namespace, runner_ups: int = 3) -> "SolveOptions":
    """What `effort` read."""
    from meshwright.optimizer.solve import SolveOptions

    return SolveOptions(runner_ups, args.work_limit, args.seed, args.refinements, args.batch_sizes)


def units(option: str, parse: Callable[[Any, str], object], keep_text: bool) -> Callable[[str], Any]:
    """An argparse type from one of the unit parsers, whose complaints then name the option."""

    def read(text: str) -> Any:
        from meshwright.hardware import units as parsers

        try:
            value = parse(parsers, text)
        except InputError as error:
            raise InputError(f"{option}: {error}") from None
        return text if keep_text else value

    return read


def count(option: str) -> Callable[[str], Any]:
    return units(option, lambda parsers, text: parsers.parse_count(text), keep_text=False)


def seconds(option: str) -> Callable[[str], Any]:
    return units(option, lambda parsers, text: parsers.parse_seconds(text), keep_text=False)


def size(option: str) -> Callable[[str], Any]:
    return units(option, lambda parsers, text: parsers.parse_bytes(text), keep_text=True)


def rate(option: str) -> Callable[[str], Any]:
    return units(option, lambda parsers, text: parsers.parse_params_per_s(text), keep_text=True)


def whole(option: str, least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 12 and least <= int(text) <= most):
            raise InputError(f"{option}: {text[:40]!r} is not a whole number from {least} to {most}")
        return int(text)

    return read


def number(option: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{option}: {text[:40]!r} is not a finite number")
        return value

    return read


def positive(option: str) -> Callable[[str], float]:
    parsed = number(option)

    def read(text: str) -> float:
        value = parsed(text)
        if value <= 0:
            raise InputError(f"{option}: {text[:40]!r} is not above zero")
        return value

    return read


def share(option: str, zero: bool = False) -> Callable[[str], float]:
    """`5%` or `0.05`; 0% only where `zero` allows it."""

    def read(text: str) -> float:
        try:
            value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            value = -1.0
        if not (0 < value < 1 or (zero and value == 0)):
            least = "from 0% to below 100%" if zero else "above 0% and below 100%"
            raise InputError(f"{option}: {text[:40]!r} is not a share {least}, such as 5%")
        return value

    return read
