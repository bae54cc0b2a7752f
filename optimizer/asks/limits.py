"""`meshwright limits`: when training stops being compute bound, and how a batch splits over the chips."""

import argparse
from typing import TYPE_CHECKING, Any

from meshwright.hardware.errors import InputError
from meshwright.optimizer import arguments
from meshwright.optimizer.asks.answer import give
from meshwright.optimizer.asks.collective import machine
from meshwright.optimizer.asks.count import SEQ, add_model, read_model

if TYPE_CHECKING:
    from meshwright.costmodel.limits.strong_scaling import Curve
    from meshwright.costmodel.setting import Setting


def add(subparsers: Any) -> None:
    """The parser of the command."""
    parser = arguments.command(
        subparsers, "limits", run,
        "When DP, FSDP, TP, EP and DP over slices stop being compute bound; with a batch the best FSDP x TP.",
    )  # fmt: skip
    add_model(parser)
    machine(parser)
    add = parser.add_argument
    add("--batch", metavar="N", help="per step, such as 4Mi tokens or 1024seq sequences; adds the best split")
    add("--seq", type=arguments.count("--seq"), default=SEQ, metavar="N", help=f"tokens per sequence ({SEQ})")
    add(
        "--comm-streams",
        default="independent",
        metavar="WORD",
        help="independent: FSDP and TP traffic overlap, or shared: they add, four times the batch (independent)",
    )
    add("--dtype", default="bf16", metavar="NAME", help="of the large products: bf16, fp16, fp8 or fp4")
    add("--optimizer", default="adamw", metavar="NAME", help="adamw, adamw8bit or sgd; for memory")
    add("--framework", default="jax", metavar="NAME", help="whose memory habits apply: jax or megatron")
    add("--curve", action="store_true", help="instead: seconds on ever more chips at this batch")
    add("--plot", metavar="FILE", help="draw that curve too, as .png or .svg")
    arguments.as_json(parser)


def run(args: argparse.Namespace) -> int:
    """Answer and print."""
    from meshwright.costmodel.limits.answer import limits, scaling

    drawn = args.curve or args.plot is not None
    if drawn and args.batch is None:
        raise InputError(
            "strong scaling keeps the batch and changes the chips; give --batch, such as --batch 4Mi"
        )
    given = _setting(args)
    if args.plot is not None:
        _draw(args.plot, given)
    return give(args, scaling(given)[0] if args.curve else limits(given, with_batch=args.batch is not None))


def _setting(args: argparse.Namespace) -> "Setting":
    from meshwright.costmodel.workload import Training, parse_batch
    from meshwright.hardware.cluster import parse_cluster
    from meshwright.optimizer.question import resolve

    tokens, tolerance = (args.seq, 0.0) if args.batch is None else parse_batch(args.batch, args.seq)
    if tolerance:
        raise InputError(
            f"--batch {args.batch[:40]}: limits are of one batch; leave out the tolerance after ~"
        )
    training = Training(tokens, args.seq, compute_dtype=args.dtype, optimizer=args.optimizer)
    cluster = parse_cluster(args.cluster, fabric=args.fabric, profile=args.profile)
    return resolve(
        read_model(args), cluster, training, efficiency=args.efficiency, overlap="full",
        comm_streams=args.comm_streams, framework=args.framework,
    )  # fmt: skip


def _draw(name: str, given: "Setting") -> None:
    from meshwright.costmodel.limits.answer import scaling
    from meshwright.optimizer.report import plot

    path = plot.plot_path(name)
    working, found = scaling(given)
    curves = [plot.Curve(label, list(x), list(y)) for label, x, y in _lines(found, given)]
    plot.draw(path, working.question, ("chips", "seconds of the layers, forward"), curves)


def _lines(found: "Curve", given: "Setting") -> list[tuple[str, Any, Any]]:
    chips = found.devices / given.cluster.chip.devices_per_chip
    named = {
        "products": found.math_s,
        "FSDP traffic": found.fsdp_s,
        "TP traffic": found.tensor_s,
        "FSDP x TP traffic, best split": found.mixed_s,
    }
    return [(label, chips.tolist(), seconds.tolist()) for label, seconds in named.items()]
