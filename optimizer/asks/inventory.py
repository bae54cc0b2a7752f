"""`meshwright inventory`: what a slice, pod or cluster consists of."""

import argparse
from typing import Any

from meshwright.optimizer import arguments
from meshwright.optimizer.asks.answer import give


def add(subparsers: Any) -> None:
    """The parser of the command."""
    parser = arguments.command(
        subparsers, "inventory", run,
        "hosts, cores, totals, links, wraparound and bisection of a slice or cluster",
    )  # fmt: skip
    add = parser.add_argument
    add("cluster", metavar="CLUSTER", help="such as v5p:16x20x28, v5e:8x16*2 or h100:8x128")
    add("--fabric", metavar="NAME", help="the network beyond a domain; a name or a YAML file")
    add("--profile", default="catalogue", metavar="NAME", help="whose figures: catalogue or book (catalogue)")
    arguments.as_json(parser)


def run(args: argparse.Namespace) -> int:
    """Answer and print."""
    from meshwright.costmodel.roofline.inventory import inventory
    from meshwright.hardware.cluster import parse_cluster

    return give(args, inventory(parse_cluster(args.cluster, fabric=args.fabric, profile=args.profile)))
