"""Kinds of questions that `meshwright search` answers beside one device: each a module of its own package.

A module has `add_options(parser)`, `wanted(args)` and `answer(args)`; it is imported when the parser is built, so its top
level is light.
"""

import argparse
from importlib import import_module
from typing import Any, NamedTuple

from meshwright.hardware.errors import InputError


class Mode(NamedTuple):
    """A kind of question: the module that answers it, the option that asks for it, and the options of others that it reads."""

    module: str
    option: str
    reads: tuple[str, ...]


LAW, GRID = "plas-10b", "plas"  # what a device is searched with where nobody says
ONE_DEVICE = ("loss",)  # options of the modes that the mode without one reads: several devices reach a loss
MODES: tuple[Mode, ...] = (
    Mode(
        "meshwright.search.trained.command",
        "--train-tokens",
        ("cluster", "law", "grid", "batch", "efficiency", "config"),
    ),
    Mode(
        "meshwright.search.served.command",
        "--serve",
        ("cluster", "prompt", "output", "batch", "weights", "kv", "head", "compute", "tpot", "ttft", "memory",
         "law", "tokens", "grid", "efficiency", "params", "extrapolate"),
    ),
    Mode(
        "meshwright.search.machine.command",
        "--device-space",
        # it refuses the first line itself
        ("cluster", "memory", "compute", "efficiency",
         "prompt", "output", "batch", "weights", "kv", "head", "law",
         "grid", "tokens", "latency", "ttft", "tpot", "total"),
    ),
)  # fmt: skip


class Options(NamedTuple):
    """Names of the options of every mode, the empty name those of one device, and what they are when not given."""

    names: dict[str, tuple[str, ...]]
    defaults: dict[str, Any]

    def given(self, args: argparse.Namespace, module: str) -> list[str]:
        return [name for name in self.names[module] if getattr(args, name) != self.defaults[name]]


def chosen(args: argparse.Namespace) -> Mode | None:
    """The one mode that is asked for, None for one device. An option that it would not read is refused, never passed over."""
    wanted = [mode for mode in MODES if import_module(mode.module).wanted(args)]
    if len(wanted) > 1:
        asked = " and ".join(mode.option for mode in wanted)
        raise InputError(f"{asked} ask different questions; ask one at a time")
    reads = wanted[0].reads if wanted else ONE_DEVICE
    for mode in MODES:
        for name in () if mode in wanted else args.options.given(args, mode.module):
            if name not in reads:
                raise InputError(
                    f"{_option(name)} is of {mode.option}, which is not given; give it, or leave {_option(name)} out"
                )
    if not wanted:
        return None
    asked = args.options.given(args, wanted[0].module)[0]
    for name in args.options.given(args, ""):
        if name not in reads:
            raise InputError(f"{_option(name)} is not read with {_option(asked)}; leave it out")
    return wanted[0]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
