"""Options that several commands share, and argparse types for quantities whose complaints name the option."""

import argparse
import math
from collections.abc import Callable
from typing import Any

from meshwright.hardware.errors import InputError


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
