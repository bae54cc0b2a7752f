"""`meshwright fabric`: the switches of a GPU cluster, and the bandwidth of each level."""

import argparse
from typing import Any

from meshwright.optimizer import arguments


def add(subparsers: Any) -> None:
    parser = arguments.command(
        subparsers,
        "fabric",
        run,
        "switches, cables, bandwidth and bisection of a GPU cluster, level by level",
    )
    parser.add_argument("cluster", metavar="CLUSTER", help="such as h100:8x128 or gb200:72x8")
    parser.add_argument("--fabric", metavar="NAME", help="the network beyond a domain; a name or a YAML file")
    parser.add_argument(
        "--profile", default="catalogue", metavar="NAME", help="whose figures: catalogue, or book"
    )
    arguments.as_json(parser)


def run(args: argparse.Namespace) -> int:
    from meshwright.costmodel.exchange.fabric_tree import fabric_tree
    from meshwright.hardware.cluster import parse_cluster
    from meshwright.optimizer.asks.answer import give

    return give(args, fabric_tree(parse_cluster(args.cluster, fabric=args.fabric, profile=args.profile)))
