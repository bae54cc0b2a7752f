"""`meshwright collective`: how long one collective takes."""

import argparse
from typing import TYPE_CHECKING, Any

from meshwright.optimizer import arguments

if TYPE_CHECKING:
    from meshwright.costmodel.collectives import Network
    from meshwright.costmodel.exchange.operations import Routing
    from meshwright.hardware.cluster import Cluster


def add(subparsers: Any) -> None:
    parser = arguments.command(
        subparsers, "collective", run, "how long one collective takes, and on which links"
    )
    add = parser.add_argument
    add(
        "operation",
        metavar="OPERATION",
        help="all-gather, reduce-scatter, all-reduce, all-to-all, ragged-all-to-all or permute",
    )
    add("size", metavar="SIZE", help="the whole array: 1GiB, or bf16[8192,28672]; of ragged, all tokens")
    machine(parser)
    add(
        "--axes",
        metavar="TEXT",
        help="that take part: x,y or nvlink,leaf; a part of one x:2, every fourth chip of it x:4@4; all if left out",
    )
    add("--over", metavar="N", help="so many devices instead, innermost levels first")
    add("--sharded-over", metavar="TEXT", help="axes outside the collective that shard the array too")
    add("--one-way", action="store_true", help="send round rings in one direction only")
    add(
        "--sharp",
        default="fabric",
        metavar="WORD",
        help="all-reduce in switches: fabric (its measured gain), off or theory",
    )
    add("--experts", type=arguments.whole("--experts", 1, 10**6), metavar="E", help="of a ragged exchange")
    add("--top-k", type=arguments.whole("--top-k", 1, 10**6), metavar="K", help="experts of a token")
    add("--fraction", type=arguments.positive("--fraction"), metavar="X", help="sent of a full exchange")
    arguments.as_json(parser)


def machine(parser: argparse.ArgumentParser) -> None:
    """Options that name the machine and whose figures count."""
    add = parser.add_argument
    add("--cluster", required=True, metavar="TEXT", help="such as v5p:4x4x4, v5e:8x16 or h100:8x32")
    add("--fabric", metavar="NAME", help="the network beyond a domain; a name or a YAML file")
    add(
        "--profile",
        default="catalogue",
        metavar="NAME",
        help="whose figures: catalogue (vendors'), or book (the scaling book's)",
    )
    add("--efficiency", default="ideal", metavar="NAME", help="ideal, default or a YAML file (ideal)")


def network(args: argparse.Namespace) -> "tuple[Cluster, Network]":
    """The cluster that the options name, and its network at the efficiency's rates."""
    from meshwright.costmodel.setting import network_of
    from meshwright.hardware.calibration import load_efficiency
    from meshwright.hardware.cluster import parse_cluster

    cluster = parse_cluster(args.cluster, fabric=args.fabric, profile=args.profile)
    return cluster, network_of(cluster.levels, load_efficiency(args.efficiency, cluster.chip))


def run(args: argparse.Namespace) -> int:
    from meshwright.costmodel.exchange.collective import collective
    from meshwright.costmodel.exchange.span import check_apart, first_devices, parse_span, whole
    from meshwright.hardware.errors import InputError
    from meshwright.optimizer.asks.answer import give

    if args.axes and args.over:
        raise InputError(f"--axes {args.axes} and --over {args.over} both say who takes part; keep one")
    cluster, links = network(args)
    if args.over:
        group = first_devices(arguments.whole("--over", 1, 10**9)(args.over), cluster.levels)
    else:
        group = parse_span(args.axes, cluster) if args.axes else whole(cluster.levels)
    ways = 1
    if args.sharded_over:
        others = parse_span(args.sharded_over, cluster)
        check_apart(group, others, cluster.levels)
        ways = int(others.size)
    return give(
        args,
        collective(
            args.operation,
            size_of(args.size, "say with --sharded-over which axes outside the collective split it"),
            links,
            group,
            sharded_ways=ways,
            routing=_routing(args),
            sharp=args.sharp,
            one_way=args.one_way,
            where=cluster.name,
        ),
    )


def size_of(text: str, way_out: str = "") -> float:
    """Bytes of '1GiB', or of a whole array like 'bf16[1024,8192]'."""
    from meshwright.costmodel.sharding.parse import parse_whole
    from meshwright.hardware.units import parse_bytes

    return parse_whole(text, way_out).bytes if "[" in text else float(parse_bytes(text))


def _routing(args: argparse.Namespace) -> "Routing | None":
    from meshwright.costmodel.exchange.operations import OPERATIONS, Routing
    from meshwright.hardware.errors import InputError

    given = {"--top-k": args.top_k, "--fraction": args.fraction, "--experts": args.experts}
    useless = [option for option, value in given.items() if value is not None]
    if useless and args.operation in OPERATIONS and args.operation != "ragged-all-to-all":
        raise InputError(
            f"{useless[0]} is for ragged-all-to-all, not for {args.operation}; drop it, or ask for that"
        )
    if args.top_k is not None and args.fraction is not None:
        raise InputError("--top-k and --fraction both say what is sent; keep one")
    if args.top_k is None and args.fraction is None and args.experts is None:
        return None
    return Routing(args.top_k, args.experts, args.fraction)
