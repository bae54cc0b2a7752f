"""`meshwright search`: comes to the command line by the entry-point group `meshwright.commands`."""

import argparse
from typing import Any

from meshwright.optimizer import arguments


def add(subparsers: Any) -> None:
    """Add the parser of `search`."""
    parser = arguments.command(
        subparsers, "search", run, "best model shapes for a device: loss against latency"
    )
    add_option = parser.add_argument
    add_option(
        "--cluster", required=True, metavar="TEXT", help="a single device, such as jetson-agx-orin-64gb"
    )
    add_option("--prompt", type=arguments.count("--prompt"), required=True, metavar="N", help="tokens in")
    add_option("--output", type=arguments.count("--output"), required=True, metavar="N", help="tokens out")
    add_option("--weights", default="bf16", metavar="DTYPE", help="of stored weights (bf16)")
    add_option("--kv", default="bf16", metavar="DTYPE", help="of the cache (bf16)")
    add_option("--compute", default="fp16", metavar="DTYPE", help="whose peak prefill runs at (fp16)")
    add_option("--law", default="plas-10b", metavar="NAME", help="a loss law, or a YAML file (plas-10b)")
    add_option("--grid", default="plas", metavar="NAME", help="a grid of shapes, or a YAML file (plas)")
    add_option(
        "--latency",
        default="plas",
        choices=("plas",),
        help="the paper's aggregated forms; the full model comes later",
    )
    for name, text in (("ttft", "of prefill"), ("tpot", "of a decoded token"), ("total", "of both phases")):
        read = arguments.units(
            f"--{name}", lambda parsers, text: parsers.parse_seconds(text), keep_text=False
        )
        add_option(f"--{name}", type=read, metavar="TIME", help=f"longest time {text}, such as 100ms")
    size = arguments.units("--memory", lambda parsers, text: parsers.parse_bytes(text), keep_text=False)
    add_option("--memory", type=size, metavar="SIZE", help="instead of the device's, such as 8GiB")
    arguments.as_json(parser)


def run(args: argparse.Namespace) -> int:
    from meshwright.costmodel.inference.request import Request
    from meshwright.costmodel.inference.seconds import Device
    from meshwright.costmodel.roofline.operands import parse_dtype
    from meshwright.hardware.chip import ELEMENT_BYTES
    from meshwright.hardware.cluster import parse_cluster
    from meshwright.hardware.errors import InputError
    from meshwright.optimizer.asks.answer import give
    from meshwright.search.asked import Budget, search
    from meshwright.search.grid import load_grid
    from meshwright.search.law import load_law

    cluster = parse_cluster(args.cluster)
    if cluster.devices != 1:
        raise InputError(
            f"{cluster.name} has {cluster.devices} devices, a shape is searched for one; name a single device"
        )
    chip = cluster.chip
    memory = float(chip.memory_bytes if args.memory is None else args.memory)
    device = Device.of(chip, parse_dtype(args.compute)).holding(memory)
    sizes = (ELEMENT_BYTES[parse_dtype(args.weights)], ELEMENT_BYTES[parse_dtype(args.kv)])
    asked = Request(1, args.prompt, args.output, *sizes)
    limits = {
        f"{name}_s": getattr(args, name)
        for name in ("ttft", "tpot", "total")
        if getattr(args, name) is not None
    }
    return give(
        args,
        search(load_law(args.law), load_grid(args.grid), device, asked, Budget(**limits), where=cluster.name),
    )
