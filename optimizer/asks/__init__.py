"""Commands that answer one question with its working, each a module that adds its own parser.

A module has `add(subparsers)`: it makes the parser with `arguments.command`, and its `run` imports what it needs,
calls public functions that return a Working, and ends in `answer.give(args, working)`. Adding a command is a module
here and its name in COMMANDS.
"""

from importlib import import_module
from typing import Any

COMMANDS: tuple[str, ...] = (
    "collective",
    "count",
    "decode",
    "fabric",
    "inventory",
    "limits",
    "pipeline",
    "prefill",
    "roofline",
    "shard",
    "train_time",
    "transfer",
)


def add_all(subparsers: Any) -> None:
    """Every command of this package; importing their modules imports nothing heavy."""
    for name in COMMANDS:
        import_module(f"{__name__}.{name}").add(subparsers)
