"""`meshwright shard`: what a sharded product, or a change of sharding, costs."""

import argparse
from typing import Any

from meshwright.optimizer import arguments
from meshwright.optimizer.asks.collective import machine, network


def add(subparsers: Any) -> None:
    parser = arguments.command(
        subparsers,
        "shard",
        run,
        "which collectives a sharded product needs, and the cheapest way to compute it",
    )
    add = parser.add_argument
    add(
        "sharding",
        metavar="SHARDING",
        help="'A[I_X,J] @ B[J_X,K] -> C[I,K_X]', several with ';' between, or 'A[I_X,J] -> A[I,J_X]'",
    )
    add("--sizes", required=True, metavar="TEXT", help="of the dimensions: I=8192,J=8192,K=28672")
    machine(parser)
    add(
        "--mesh",
        metavar="TEXT",
        help="X=4,Y=16, or by the cluster's axes X=x,Y=y*z; its axes in order if left out",
    )
    add("--dtype", default="bf16", metavar="NAME", help="of arrays and products (bf16)")
    add(
        "--free",
        metavar="NAMES",
        help="arrays that may be stored in any sharding: A,B or all (but the output)",
    )
    add("--like", metavar="TEXT", help="stored as another array is: Out=In")
    add("--memory", metavar="SIZE", type=arguments.size("--memory"), help="of a device at most: 300MB")
    add(
        "--overlap",
        default="full",
        metavar="WORD",
        help="full: communication runs under the products; none: after one another (full)",
    )
    arguments.as_json(parser)


def run(args: argparse.Namespace) -> int:
    from meshwright.costmodel.roofline.operands import parse_dtype
    from meshwright.costmodel.setting import hbm_bytes_per_s, product_flop_per_s
    from meshwright.costmodel.sharding.asked import Machine
    from meshwright.costmodel.sharding.mesh import parse_mesh
    from meshwright.costmodel.sharding.product import shard
    from meshwright.hardware.calibration import load_efficiency
    from meshwright.hardware.chip import ELEMENT_BYTES
    from meshwright.hardware.errors import UnknownNameError
    from meshwright.hardware.units import parse_bytes
    from meshwright.optimizer.asks.answer import give

    if args.overlap not in ("full", "none"):
        raise UnknownNameError("overlap", args.overlap, ("full", "none"))
    cluster, links = network(args)
    efficiency, dtype = load_efficiency(args.efficiency, cluster.chip), parse_dtype(args.dtype)
    device = Machine(
        parse_mesh(args.mesh, cluster, links),
        product_flop_per_s(cluster.chip, efficiency, dtype),
        hbm_bytes_per_s(cluster.chip, efficiency),
    )
    return give(
        args,
        shard(
            args.sharding,
            device,
            _sizes(args.sizes),
            element_bytes=ELEMENT_BYTES[dtype],
            free=args.free.split(",") if args.free else (),
            like=_pairs("--like", args.like) if args.like else None,
            memory_bytes=parse_bytes(args.memory) if args.memory else None,
            overlap=args.overlap == "full",
            where=cluster.name,
        ),
    )


def _sizes(text: str) -> dict[str, int]:
    from meshwright.hardware.errors import InputError, UnitError
    from meshwright.hardware.units import parse_count

    sizes = {}
    for name, value in _pairs("--sizes", text).items():
        try:
            sizes[name] = parse_count(value)
        except UnitError as error:
            raise InputError(f"--sizes {name}: {error}") from None
    return sizes


def _pairs(option: str, text: str) -> dict[str, str]:
    """'I=8192,J=4096' by name."""
    from meshwright.hardware.errors import InputError

    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not name or not equals or not value:
            raise InputError(f"{option}: cannot read {part.strip()[:40]!r}; write name=value,name=value")
        if name in found:
            raise InputError(f"{option}: {name} is given twice; keep one")
        found[name] = value
    return found
