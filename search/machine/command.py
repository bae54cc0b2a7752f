"""`meshwright search --device-space FILE`: the device is free, at a price."""

import argparse
from typing import TYPE_CHECKING, Any

from meshwright.hardware.errors import InputError
from meshwright.optimizer import arguments

if TYPE_CHECKING:
    from meshwright.costmodel.working import Working


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
    from meshwright.costmodel.inference.request import Request
    from meshwright.costmodel.roofline.operands import parse_dtype
    from meshwright.hardware.chip import ELEMENT_BYTES
    from meshwright.hardware.units import parse_count
    from meshwright.search.asked import Budget
    from meshwright.search.grid import load_grid
    from meshwright.search.law import load_law
    from meshwright.search.machine.answers import device_answer
    from meshwright.search.machine.space import load_space

    for option in ("cluster", "memory", "compute", "efficiency"):
        if getattr(args, option, None) is not None:
            raise InputError(f"--{option} names what --device-space leaves open; give one of the two")
    for option in ("prompt", "output"):
        if getattr(args, option) is None:
            raise InputError(f"--{option} is missing; a device is chosen for tokens in and out")
    weight_bytes, kv_bytes = (ELEMENT_BYTES[parse_dtype(text)] for text in (args.weights, args.kv))
    head = getattr(args, "head", None)
    batch = getattr(args, "batch", None)
    request = Request(
        1 if batch is None else parse_count(batch),
        args.prompt,
        args.output,
        weight_bytes,
        kv_bytes,
        None if head is None else ELEMENT_BYTES[parse_dtype(head)],
    )
    times = {f"{name}_s": getattr(args, name) for name in ("ttft", "tpot", "total")}
    return device_answer(
        load_space(args.device_space),
        load_law(args.law),
        load_grid(args.grid),
        request,
        Budget(**{name: limit for name, limit in times.items() if limit is not None}),
        args.loss,
        latency=args.latency,
        tokens=getattr(args, "tokens", None),
    )
