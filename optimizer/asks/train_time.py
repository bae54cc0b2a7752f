"""`meshwright train-time`: days, chip-hours, money and energy of a training run, and what failures take."""

import argparse
from typing import TYPE_CHECKING, Any

from meshwright.hardware.errors import InputError
from meshwright.optimizer import arguments
from meshwright.optimizer.asks.answer import give
from meshwright.optimizer.asks.count import SEQ, add_model, read_model

if TYPE_CHECKING:
    from meshwright.costmodel.limits.run_answer import Speed
    from meshwright.costmodel.model import ModelSpec
    from meshwright.hardware.cluster import Cluster


def add(subparsers: Any) -> None:
    """The parser of the command."""
    parser = arguments.command(
        subparsers, "train-time", run,
        "Days, chip-hours, money and energy of a training run at an MFU or by its best plan.",
    )  # fmt: skip
    add_model(parser)
    add = parser.add_argument
    add(
        "--cluster", required=True, action="append", metavar="TEXT",
        help="such as v5p:16x20x28 or h100:8x512; several are compared",
    )  # fmt: skip
    add(
        "--tokens",
        required=True,
        type=arguments.count("--tokens"),
        metavar="N",
        help="of the run, such as 15T",
    )
    add("--mfu", type=_mfu, metavar="X", help="share of peak, such as 0.4")
    add(
        "--batch",
        metavar="N",
        help="per step, such as 4Mi; without --mfu the best plan for it gives the speed",
    )
    add("--seq", type=arguments.count("--seq"), default=SEQ, metavar="N", help=f"tokens per sequence ({SEQ})")
    add(
        "--price",
        type=arguments.positive("--price"),
        metavar="USD",
        help="per chip-hour, instead of list price",
    )
    add("--power", type=_watts, metavar="WATT", help="of one chip, such as 700W, where no source gives it")
    add(
        "--mtbf",
        type=arguments.seconds("--mtbf"),
        metavar="TIME",
        help="between failures of the whole job, such as 3h",
    )
    add(
        "--checkpoint",
        type=arguments.seconds("--checkpoint"),
        metavar="TIME",
        help="to write one, such as 5min",
    )
    add(
        "--restart",
        type=arguments.seconds("--restart"),
        metavar="TIME",
        help="from failure to the next step (0 s)",
    )
    add(
        "--deadline",
        type=arguments.seconds("--deadline"),
        metavar="TIME",
        help="such as 30d: chips that finish in time",
    )
    add("--profile", default="catalogue", metavar="NAME", help="whose figures: catalogue or book (catalogue)")
    add("--fabric", metavar="NAME", help="the network beyond a domain; a name or a YAML file")
    add(
        "--efficiency",
        default="default",
        metavar="NAME",
        help="of the best plan: default, ideal or a YAML file",
    )
    add("--dtype", default="bf16", metavar="NAME", help="of the large products: bf16, fp16, fp8 or fp4")
    add(
        "--host-memory",
        type=arguments.size("--host-memory"),
        metavar="SIZE",
        help="of one host; allows offload",
    )
    add(
        "--cpu-update", type=arguments.rate("--cpu-update"), metavar="RATE",
        help="of one host, such as '1 Gparam/s'; allows optimizer offload in the best plan",
    )  # fmt: skip
    arguments.as_json(parser)


def _mfu(text: str) -> float:
    try:
        return arguments.positive("--mfu")(text)
    except InputError as error:
        way_out = "write a share of peak above 0 and at most 1, such as 0.4"
        raise InputError(f"{error}; {way_out}") from None


def _watts(text: str) -> Any:
    return arguments.units("--power", lambda parsers, given: parsers.parse_watts(given), keep_text=False)(
        text
    )


def run(args: argparse.Namespace) -> int:
    """Answer and print."""
    from meshwright.costmodel.limits.run_answer import compare_runs, train_time
    from meshwright.costmodel.limits.run_time import Failures
    from meshwright.hardware.cluster import parse_cluster

    if (args.mtbf is None) != (args.checkpoint is None):
        raise InputError(
            "--mtbf and --checkpoint belong together: time between failures and time to write, such as "
            "--mtbf 3h --checkpoint 5min"
        )
    if args.restart is not None and args.mtbf is None:
        raise InputError("--restart counts failures; give --mtbf and --checkpoint too, or leave it out")
    if args.mfu is not None and (args.host_memory is not None or args.cpu_update is not None):
        raise InputError(
            "--host-memory and --cpu-update change the best plan and --mfu says the speed; give --batch instead of --mfu"
        )
    model = read_model(args)
    failures = None
    if args.mtbf is not None:
        failures = Failures(args.mtbf, args.checkpoint, args.restart or 0.0)
    runs = {}
    for text in args.cluster:
        cluster = parse_cluster(
            text,
            host_memory=args.host_memory,
            cpu_update=args.cpu_update,
            fabric=args.fabric,
            profile=args.profile,
        )
        runs[cluster.name] = train_time(
            model, cluster, args.tokens, args.seq, _speed(args, model, cluster), usd_per_chip_hour=args.price,
            watts=args.power, failures=failures, deadline_s=args.deadline, dtype=args.dtype,
        )  # fmt: skip
    return give(args, compare_runs(runs) if len(runs) > 1 else next(iter(runs.values())))


def _speed(args: argparse.Namespace, model: "ModelSpec", cluster: "Cluster") -> "Speed":
    """From the MFU that was given, else from the best plan for the batch."""
    from meshwright.costmodel.limits.run_answer import Speed
    from meshwright.costmodel.workload import Training, parse_batch
    from meshwright.optimizer.recommend import recommend

    if args.mfu is not None:
        if args.batch is not None:
            raise InputError("--mfu says the speed and --batch asks for the best plan's; keep one")
        return Speed(mfu=args.mfu)
    if args.batch is None:
        raise InputError(
            "the speed is missing: give --mfu, such as 0.4, or --batch (and --seq) for that of the best plan"
        )
    tokens, tolerance = parse_batch(args.batch, args.seq)
    training = Training(tokens, args.seq, batch_tolerance=tolerance, compute_dtype=args.dtype)
    plan = recommend(model, cluster, training, efficiency=args.efficiency)
    layout = plan.layout
    degrees = ", ".join(
        f"{name}={getattr(layout, name)}"
        for name in ("dp", "cp", "tp", "pp", "ep")
        if getattr(layout, name) > 1
    )
    return Speed(tokens_per_s=plan.estimate.tokens_per_s, source=f"best plan: {degrees or 'one device'}")
