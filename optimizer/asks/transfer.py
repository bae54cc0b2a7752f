"""`meshwright transfer`: one chip to another, or from the hosts to one chip that uses it."""

import argparse
from typing import Any

from meshwright.optimizer import arguments
from meshwright.optimizer.asks.collective import machine, network


def add(subparsers: Any) -> None:
    parser = arguments.command(
        subparsers, "transfer", run, "first and last byte of a transfer; a host-offloaded array to one chip"
    )
    add = parser.add_argument
    add("size", metavar="SIZE", help="what is moved: 16MiB, or bf16[8,128,8192]")
    machine(parser)
    add("--src", metavar="PLACE", help="coordinates of the sending chip: 0,0")
    add("--dst", metavar="PLACE", help="of the receiving chip: 3,3")
    add(
        "--links",
        type=arguments.whole("--links", 1, 12),
        metavar="N",
        help="by which it leaves, if not all shortest",
    )
    add(
        "--from-host",
        action="store_true",
        help="instead: an array in the memory of all hosts, wanted by one chip",
    )
    add("--times", metavar="ARRAY", help="with --from-host: multiplied there with bf16[8,131072]")
    add("--host-rate", metavar="RATE", help="of the host link of a device: '16 GB/s', instead of the chip's")
    arguments.as_json(parser)


def run(args: argparse.Namespace) -> int:
    from meshwright.costmodel.exchange.transfer import Device, point_to_point, pull
    from meshwright.costmodel.setting import hbm_bytes_per_s, host_bytes_per_s, product_flop_per_s
    from meshwright.hardware.calibration import load_efficiency
    from meshwright.hardware.errors import InputError
    from meshwright.hardware.units import parse_bytes_per_s
    from meshwright.optimizer.asks.answer import give
    from meshwright.optimizer.asks.collective import size_of

    cluster, links = network(args)
    dst = _place("--dst", args.dst)
    if not args.from_host:
        if args.src is None or dst is None:
            raise InputError(
                "a transfer needs --src and --dst, or --from-host; write them like --src 0,0 --dst 3,3"
            )
        if args.times or args.host_rate:
            raise InputError("--times and --host-rate go with --from-host; drop them, or ask for that")
        src = _place("--src", args.src)
        assert src is not None
        moved = point_to_point(size_of(args.size), links, src, dst, links=args.links, where=cluster.name)
        return give(args, moved)
    if args.src or args.links:
        raise InputError("--from-host takes every chip's part; drop --src and --links")
    chip, efficiency = cluster.chip, load_efficiency(args.efficiency, cluster.chip)
    rate = parse_bytes_per_s(args.host_rate) if args.host_rate else chip.host_link_bytes_per_s
    device = Device(
        product_flop_per_s(chip, efficiency, "bf16"),
        hbm_bytes_per_s(chip, efficiency),
        host_bytes_per_s(efficiency, rate),
    )
    rows, elements = _used(args.size, args.times) if args.times else (0.0, 0.0)
    pulled = pull(size_of(args.size), links, device, dst, rows=rows, elements=elements, where=cluster.name)
    return give(args, pulled)


def _used(array: str, times: str) -> tuple[float, float]:
    """Rows of the other operand, and elements of the array."""
    from meshwright.costmodel.sharding.parse import parse_whole
    from meshwright.hardware.errors import InputError

    if "[" not in array:
        raise InputError(f"--times {times} needs the array's shape too; write it like int8[131072,131072]")
    whole, other = parse_whole(array), parse_whole(times)
    if other.dims[-1:] != whole.dims[:1]:
        raise InputError(
            f"the last dimension of {times} is {other.dims[-1]} and the first of {array} is {whole.dims[0]}: "
            f"they must be the same"
        )
    return other.elements({}) / float(other.dims[-1]), whole.elements({})


def _place(option: str, text: str | None) -> tuple[int, ...] | None:
    from meshwright.hardware.errors import InputError

    if text is None:
        return None
    parts = text.strip("()").split(",")
    if not all(p.strip().isascii() and p.strip().isdigit() and len(p) < 10 for p in parts):
        raise InputError(f"{option}: cannot read {text[:40]!r}; write coordinates like 0,3 or 0,3,1")
    return tuple(int(p) for p in parts)
