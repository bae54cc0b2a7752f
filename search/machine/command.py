"""`meshwright search --device-space FILE`: the device is free, at a price."""

import argparse
from typing import TYPE_CHECKING, Any

from meshwright.hardware.errors import InputError
from meshwright.optimizer import arguments

if TYPE_CHECKING:
    from meshwright.costmodel.working import Working

_REFUSED = {
    ("cluster", "memory", "compute"): "the device is what is looked for",
    ("efficiency",): "the file's own `prefill` and `decode` say what share of its peaks is reached",
}


def add_options(parser: Any) -> None:
    group = parser.add_argument_group("a free device")
    group.add_argument(
        "--device-space",
        metavar="NAME",
        help="levels and prices of a device, by name (example) or a YAML file",
    )
    group.add_argument(
        "--loss",
        type=arguments.positive("--loss"),
        metavar="NATS",
        help="the cheapest device that reaches it; without it, the front of price against loss",
    )


def wanted(args: argparse.Namespace) -> bool:
    return args.device_space is not None


def answer(args: argparse.Namespace) -> "Working":
    """Errors: InputError for options that a space of devices leaves no room for; NoDeviceError."""
    from meshwright.search.asked import Budget
    from meshwright.search.command import request_of
    from meshwright.search.grid import load_grid
    from meshwright.search.law import load_law
    from meshwright.search.machine.answers import device_answer
    from meshwright.search.machine.space import load_space
    from meshwright.search.modes import GRID, LAW

    for options, why in _REFUSED.items():
        for option in options:
            if getattr(args, option) is not None:
                raise InputError(f"--{option}: {why}; leave it out with --device-space")
    missing = [f"--{option}" for option in ("prompt", "output") if getattr(args, option) is None]
    if missing:
        raise InputError(f"give {' and '.join(missing)}: a device is chosen for tokens in and out")
    times = {f"{name}_s": getattr(args, name) for name in ("ttft", "tpot", "total")}
    return device_answer(
        load_space(args.device_space),
        load_law(args.law or LAW),
        load_grid(args.grid or GRID),
        request_of(args),
        Budget(**{name: limit for name, limit in times.items() if limit is not None}),
        args.loss,
        latency=args.latency,
        tokens=args.tokens,
    )
