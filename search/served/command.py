"""`meshwright search --serve`: the mode that asks for the best model a slice serves.

It reads options that the command has: --cluster, --prompt, --output, --batch, --weights, --kv, --head, --compute,
--tpot, --ttft, --memory, --law, --tokens, --grid, --efficiency; and --params and --extrapolate of `trained.command`.
"""

import argparse
from typing import TYPE_CHECKING

from meshwright.hardware.errors import InputError
from meshwright.optimizer import arguments

if TYPE_CHECKING:
    from meshwright.costmodel.working import Working
    from meshwright.search.served.serve import Serving


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--serve",
        action="store_true",
        help="best model that a slice serves within --tpot and --ttft, cut by tensor parallelism into replicas of --batch",
    )


def wanted(args: argparse.Namespace) -> bool:
    return bool(args.serve)


def answer(args: argparse.Namespace) -> "Working":
    """The page of `found`."""
    from meshwright.search.served.answer import working

    return working(found(args))


def found(args: argparse.Namespace) -> "Serving":
    """The answer itself."""
    from meshwright.costmodel.inference.request import Request
    from meshwright.costmodel.roofline.operands import parse_dtype
    from meshwright.hardware.chip import ELEMENT_BYTES
    from meshwright.search.grid import load_grid
    from meshwright.search.law import load_law
    from meshwright.search.modes import GRID, LAW
    from meshwright.search.served.serve import serve

    missing = [f"--{name}" for name in ("cluster", "prompt", "output") if getattr(args, name) is None]
    if missing:
        raise InputError(
            f"--serve needs {', '.join(missing)}, such as --cluster v5e:4x4 --prompt 8192 --output 512"
        )
    weights, kv = (ELEMENT_BYTES[parse_dtype(name)] for name in (args.weights, args.kv))
    head = None if args.head is None else ELEMENT_BYTES[parse_dtype(args.head)]
    return serve(
        load_law(args.law or LAW),
        load_grid(args.grid or GRID),
        args.cluster,
        Request(1, args.prompt, args.output, weights, kv, head),
        tpot_s=args.tpot,
        ttft_s=args.ttft,
        batch=None if args.batch is None else arguments.count("--batch")(args.batch),
        compute=args.compute,
        weights=args.weights,
        efficiency=args.efficiency or "ideal",
        memory_bytes=None if args.memory is None else float(args.memory),
        tokens=args.tokens,
        params=args.params or (0.0, float("inf")),
        extrapolate=args.extrapolate,
    )
