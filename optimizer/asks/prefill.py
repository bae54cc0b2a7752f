"""`meshwright prefill`: time to first token, how far to cut it, and prefill servers for a generate server."""

import argparse
from typing import TYPE_CHECKING, Any

from meshwright.hardware.errors import InputError
from meshwright.optimizer import arguments
from meshwright.optimizer.asks.answer import give
from meshwright.optimizer.asks.count import add_model
from meshwright.optimizer.asks.decode import add_dtypes, add_machine, add_params, read_numbers, read_service

if TYPE_CHECKING:
    from meshwright.costmodel.working import Working


def add(subparsers: Any) -> None:
    """The parser of the command."""
    parser = arguments.command(
        subparsers, "prefill", run,
        "Time to first token, and with --decode-tokens how many prefill servers feed a generate server.",
    )  # fmt: skip
    add_model(parser)
    add_params(parser)
    add_machine(parser)
    add_dtypes(parser)
    option = parser.add_argument
    option("--tokens", type=arguments.count("--tokens"), required=True, metavar="N", help="of the prompt")
    option(
        "--mfu", type=arguments.positive("--mfu"), default=1.0, metavar="X", help="share of peak reached (1)"
    )
    option(
        "--cached",
        type=arguments.count("--cached"),
        metavar="N",
        help="tokens of it in a prefix cache already",
    )
    option("--decode-tokens", type=arguments.count("--decode-tokens"), metavar="N", help="made per query")
    option("--batch", type=arguments.count("--batch"), metavar="N", help="sequences of a generate server")
    option("--context", type=arguments.count("--context"), metavar="N",
           help="tokens each of them has in the cache (prompt and answer)")  # fmt: skip
    option("--decode-cluster", metavar="TEXT", help="the generate server, if it is not --cluster")
    arguments.as_json(parser)


def run(args: argparse.Namespace) -> int:
    """Answer and print."""
    from dataclasses import replace

    from meshwright.costmodel.serving.prefill import prefill_model
    from meshwright.hardware.cluster import parse_cluster

    if (args.batch is None) != (args.decode_tokens is None):
        raise InputError("a generate server needs both --batch and --decode-tokens; give both, or neither")
    if args.batch is None and (args.context is not None or args.decode_cluster is not None):
        raise InputError(
            "--context and --decode-cluster are of a generate server; give --batch and --decode-tokens"
        )
    if args.params is not None:
        return give(args, _numbers(args))
    service = read_service(args, args.tokens)
    generate = None
    if args.batch is not None:
        generate = replace(service, context=args.context or args.tokens + args.decode_tokens)
        if args.decode_cluster is not None:
            cluster = parse_cluster(args.decode_cluster, fabric=args.fabric, profile=args.profile)
            generate = replace(generate, cluster=cluster)
    working = prefill_model(
        service,
        mfu=args.mfu,
        cached=args.cached or 0,
        batch=args.batch,
        decode_tokens=args.decode_tokens,
        generate=generate,
    )
    return give(args, working)


def _numbers(args: argparse.Namespace) -> "Working":
    from dataclasses import replace

    from meshwright.costmodel.serving.prefill import prefill

    if args.batch is not None or args.kv is not None:
        raise InputError("--params answers how long a prompt takes; for more give a MODEL or --shape")
    served, server, title, cluster = read_numbers(args)
    found = prefill(served, server, args.tokens, mfu=args.mfu, cached=args.cached or 0, title=title)
    return replace(found, notes=(*found.notes, *cluster.warnings))
