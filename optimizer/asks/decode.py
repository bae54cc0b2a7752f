"""`meshwright decode`: one token of every sequence, what fits, which batch, which slice, how to cut it."""

import argparse
from typing import TYPE_CHECKING, Any

from meshwright.hardware.errors import InputError
from meshwright.optimizer import arguments
from meshwright.optimizer.asks.answer import give
from meshwright.optimizer.asks.count import add_model, read_model

if TYPE_CHECKING:
    from meshwright.costmodel.serving.server import Served, Server
    from meshwright.costmodel.serving.service import Service
    from meshwright.costmodel.working import Working
    from meshwright.hardware.cluster import Cluster

# Options that only some questions read; any other is refused, so that none is passed in vain.
READS = {
    "step": ("batch", "decode_tokens", "prompt_tokens"),
    "sweep": ("batch", "limit"),
    "slices": ("decode_tokens", "limit"),
    "sharding": ("batch",),
}


def add(subparsers: Any) -> None:
    """The parser of the command."""
    parser = arguments.command(
        subparsers, "decode", run,
        "Time of a decode step, throughput, what fits and what it costs; or batches, slices, ways to cut it.",
    )  # fmt: skip
    add_model(parser)
    add_numbers(parser)
    add_machine(parser)
    add_dtypes(parser)
    option = parser.add_argument
    option(
        "--context", type=arguments.count("--context"), metavar="N", help="tokens of a sequence in the cache"
    )
    option("--batch", type=arguments.count("--batch"), metavar="N", help="sequences decoded together (1)")
    option(
        "--decode-tokens",
        type=arguments.count("--decode-tokens"),
        metavar="N",
        help="made per query, for QPS",
    )
    option(
        "--prompt-tokens",
        type=arguments.count("--prompt-tokens"),
        metavar="N",
        help="of a query, for evictions",
    )
    option(
        "--limit",
        type=arguments.seconds("--limit"),
        metavar="TIME",
        help="longest step allowed, such as 15ms",
    )
    asked = parser.add_mutually_exclusive_group()
    for name, text in (
        ("sweep", "batches against each other: latency, throughput, money"),
        ("slices", "slices of the chip against each other, each filled with caches"),
        (
            "sharding",
            "ways of tensor parallelism, where the cache goes, 1D against 2D weights, latency bound",
        ),
    ):
        asked.add_argument(f"--{name}", dest="asked", action="store_const", const=name, help=text)
    parser.set_defaults(asked="step")
    arguments.as_json(parser)


def add_numbers(parser: argparse.ArgumentParser) -> None:
    """A model of which only numbers are known."""
    add_params(parser)
    option = parser.add_argument
    per_token = arguments.units("--kv-per-token", lambda p, text: p.parse_bytes(text), keep_text=False)
    option("--kv-per-token", type=per_token, metavar="SIZE", help="with --params: cache of a token, as 100kB")


def add_params(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--params", type=arguments.count("--params"), metavar="N", help="instead of MODEL: parameters, as 30B"
    )


def add_machine(parser: argparse.ArgumentParser) -> None:
    """The cluster, and whose figures count."""
    option = parser.add_argument
    option("--cluster", required=True, metavar="TEXT", help="such as v5e:4x4 or h100:8x1")
    option("--fabric", metavar="NAME", help="the network beyond a domain; a name or a YAML file")
    option(
        "--profile", default="catalogue", metavar="NAME",
        help="whose figures: catalogue (vendors'), or book (the scaling book's)",
    )  # fmt: skip


def add_dtypes(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "--weights", default="bf16", metavar="DTYPE", help="of the weights: bf16, int8, int4, fp8 ... (bf16)"
    )
    option("--kv", metavar="DTYPE", help="of the cache (as --weights)")
    option("--compute", default="bf16", metavar="DTYPE", help="of the products (bf16)")


def run(args: argparse.Namespace) -> int:
    """Answer and print."""
    _refuse_what_is_not_read(args)
    batch = 1 if args.batch is None else args.batch
    if args.params is not None:
        return give(args, _numbers(args, batch))
    if args.kv_per_token is not None:
        raise InputError("--kv-per-token goes with --params; a model's cache follows from its layers")
    return give(args, _model(args, read_service(args, args.context), batch))


def _refuse_what_is_not_read(args: argparse.Namespace) -> None:
    for option in dict.fromkeys(name for names in READS.values() for name in names):
        if getattr(args, option) is not None and option not in READS[args.asked]:
            takers = [f"with --{q}" for q, names in READS.items() if option in names and q != "step"]
            takers += [f"without --{args.asked}"] if option in READS["step"] else []
            where = "one step" if args.asked == "step" else f"--{args.asked}"
            raise InputError(
                f"--{option.replace('_', '-')} changes nothing in {where}; leave it out, or ask {' or '.join(takers)}"
            )


def read_service(args: argparse.Namespace, context: int | None) -> "Service":
    """The model, the cluster and the dtypes that the options name."""
    from meshwright.costmodel.serving.service import Service
    from meshwright.hardware.cluster import parse_cluster

    if context is None:
        raise InputError("say how long sequences are: --context 8192")
    cluster = parse_cluster(args.cluster, fabric=args.fabric, profile=args.profile)
    return Service(read_model(args), cluster, context, args.weights, args.kv or args.weights, args.compute)


def read_numbers(
    args: argparse.Namespace, kv_bytes: float = 0.0
) -> tuple["Served", "Server", str, "Cluster"]:
    """What --params stands for: the model, all devices of the cluster, and how a page calls them."""
    from meshwright.costmodel.roofline.operands import parse_dtype
    from meshwright.costmodel.serving.server import Served, Server
    from meshwright.hardware.chip import ELEMENT_BYTES
    from meshwright.hardware.cluster import parse_cluster
    from meshwright.hardware.units import human_count

    _refuse_a_model(args)
    cluster = parse_cluster(args.cluster, fabric=args.fabric, profile=args.profile)
    weights = parse_dtype(args.weights)
    served = Served(args.params, args.params, ELEMENT_BYTES[weights], kv_bytes)
    title = f"{human_count(args.params)} parameters in {weights} on {cluster.name}"
    return served, Server.of(cluster, parse_dtype(args.compute)), title, cluster


def _refuse_a_model(args: argparse.Namespace) -> None:
    if args.model is not None or args.shape is not None:
        raise InputError("--params stands for a model; leave out MODEL and --shape, or --params")


def _model(args: argparse.Namespace, service: "Service", batch: int) -> "Working":
    if args.asked == "sweep":
        from meshwright.costmodel.serving.tables import sweep

        return sweep(service, batch, args.limit)
    if args.asked == "slices":
        from meshwright.costmodel.serving.tables import slices

        return slices(service, args.decode_tokens, args.limit)
    if args.asked == "sharding":
        from meshwright.costmodel.serving.layout_answer import sharding

        return sharding(service, batch)
    from meshwright.costmodel.serving.decode import decode_model

    return decode_model(service, batch, decode_tokens=args.decode_tokens, prompt_tokens=args.prompt_tokens)


def _numbers(args: argparse.Namespace, batch: int) -> "Working":
    from dataclasses import replace

    from meshwright.costmodel.serving.decode import decode

    _refuse_a_model(args)
    if args.asked != "step" or args.decode_tokens is not None or args.kv is not None:
        raise InputError("--params answers what one step takes; for more give a MODEL or --shape")
    if (args.context is None) != (args.kv_per_token is None):
        raise InputError(
            "the cache of a sequence needs both --context and --kv-per-token; give both, or neither"
        )
    cache = (args.context or 0) * (args.kv_per_token or 0)
    served, server, title, cluster = read_numbers(args, cache)
    working = decode(served, server, batch, chip=cluster.chip, title=title)
    missing = () if cache else ("without --kv-per-token no cache is read: weights alone",)
    return replace(working, notes=(*working.notes, *missing, *cluster.warnings))
