"""`meshwright pipeline`: the bubble of a pipeline, or what its hops cost."""

import argparse
from typing import Any

from meshwright.optimizer import arguments


def add(subparsers: Any) -> None:
    parser = arguments.command(
        subparsers, "pipeline", run, "how long stages of a pipeline wait, or how long its hops take"
    )
    add = parser.add_argument
    add("--stages", required=True, type=arguments.whole("--stages", 1, 10**6), metavar="P")
    add("--micro-batches", required=True, type=arguments.whole("--micro-batches", 1, 10**9), metavar="M")
    add(
        "--chunks",
        type=arguments.whole("--chunks", 1, 1000),
        metavar="V",
        help="of a stage, interleaved (1)",
    )
    add(
        "--backward-over-forward",
        type=arguments.positive("--backward-over-forward"),
        metavar="X",
        help="seconds of backward per second of forward (2)",
    )
    add(
        "--tokens",
        type=arguments.count("--tokens"),
        metavar="B",
        help="of the batch: asks for the hops instead",
    )
    add("--width", type=arguments.count("--width"), metavar="D", help="of the residual, with --tokens")
    add("--layers", type=arguments.count("--layers"), metavar="L", help="with --tokens")
    add("--rate", metavar="RATE", help="from stage to stage, with --tokens: '90 GB/s'")
    arguments.as_json(parser)


def run(args: argparse.Namespace) -> int:
    from meshwright.costmodel.exchange.bubble import hops, schedule
    from meshwright.hardware.errors import InputError
    from meshwright.hardware.units import parse_bytes_per_s
    from meshwright.optimizer.asks.answer import give

    of_hops = {"--width": args.width, "--layers": args.layers, "--rate": args.rate}
    if args.tokens is None:
        if useless := [option for option, value in of_hops.items() if value is not None]:
            raise InputError(f"{useless[0]} is for the hops; give --tokens too, or drop it")
        ratio, chunks = args.backward_over_forward or 2.0, args.chunks or 1
        return give(
            args, schedule(args.stages, args.micro_batches, backward_over_forward=ratio, chunks=chunks)
        )
    of_bubble = {"--chunks": args.chunks, "--backward-over-forward": args.backward_over_forward}
    if useless := [option for option, value in of_bubble.items() if value is not None]:
        raise InputError(f"{useless[0]} is for the bubble and changes no hop; drop it, or --tokens")
    if missing := [option for option, value in of_hops.items() if value is None]:
        raise InputError(f"the hops of {args.tokens:,} tokens need {', '.join(missing)} too")
    rate = parse_bytes_per_s(args.rate)
    return give(args, hops(args.tokens, args.width, args.stages, args.micro_batches, args.layers, rate))
