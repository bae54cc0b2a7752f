"""`meshwright search --train-tokens --deadline`: options of the mode, and its answer.

Beside its own options it reads --cluster, --law and --grid, which every mode of the command has.
"""

import argparse
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from meshwright.hardware.errors import InputError
from meshwright.optimizer import arguments

if TYPE_CHECKING:
    from meshwright.costmodel.working import Working
    from meshwright.search.trained.train import Trained

FREE = "free"
_SEQ, _BATCH = 4096, "4Mi"
_LAW, _GRID = "besiroglu", "pretraining"  # a law that reads tokens, and sizes of clusters
_SPAN = re.compile(r"(?P<low>[^.]*(?:\.\d[^.]*)?)\.\.(?P<high>.*)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the mode; one that the command has already is left as it is."""
    _add(parser, "--train-tokens", type=_tokens, metavar="N",
         help="train on so many tokens, such as 1T; 'free' takes as many as the deadline allows")  # fmt: skip
    _add(
        parser,
        "--deadline",
        type=arguments.seconds("--deadline"),
        metavar="TIME",
        help="of the training run, such as 30d",
    )
    _add(
        parser, "--batch", metavar="N", help=f"training: tokens per step ({_BATCH}), or sequences as 1024seq"
    )
    _add(parser, "--seq-len", type=arguments.count("--seq-len"), metavar="N", help=f"training: tokens per sequence ({_SEQ})")  # fmt: skip
    _add(
        parser,
        "--dtype",
        metavar="NAME",
        help="training: of the large products: bf16, fp16, fp8 or fp4 (bf16)",
    )
    _add(parser, "--optimizer", metavar="NAME", help="training: adamw, adamw8bit or sgd (adamw)")
    _add(
        parser,
        "--constraints",
        metavar="TEXT",
        help="training: on the layout, such as 'tp<=8, pp in {1,2,4}'",
    )
    _add(parser, "--efficiency", metavar="NAME", help="default, ideal, mfu=0.4 or a YAML file (default)")
    _add(
        parser,
        "--framework",
        metavar="NAME",
        help="training: whose memory habits apply, jax or megatron (jax)",
    )
    _add(parser, "--host-memory", type=arguments.size("--host-memory"), metavar="SIZE",
         help="training: of one host, such as 2TB; allows offload")  # fmt: skip
    _add(parser, "--cpu-update", type=arguments.rate("--cpu-update"), metavar="RATE",
         help="training: of one host, such as '1 Gparam/s'; allows optimizer offload")  # fmt: skip
    _add(parser, "--params", type=_params, metavar="LOW..HIGH", help="training: only shapes of so many parameters, such as 1B..10B")  # fmt: skip
    _add(parser, "--runner-ups", type=arguments.whole("--runner-ups", 0, 50), metavar="N", help="training: further shapes (2)")  # fmt: skip
    with suppress(argparse.ArgumentError):
        parser.add_argument("--extrapolate", action="store_true", help="training: keep kinds of models that the law was not fitted on")  # fmt: skip


def wanted(args: argparse.Namespace) -> bool:
    return args.train_tokens is not None or args.deadline is not None


def answer(args: argparse.Namespace) -> "Working":
    """The page of `found`."""
    from meshwright.search.trained.answer import working

    return working(found(args))


def found(args: argparse.Namespace) -> "Trained":
    """The answer itself, with its plan and its model."""
    from meshwright.costmodel.workload import Training, parse_batch
    from meshwright.hardware.cluster import parse_cluster
    from meshwright.search.grid import load_grid
    from meshwright.search.law import load_law
    from meshwright.search.trained.train import train

    if args.train_tokens is None or args.deadline is None:
        here, lacks = (
            ("--train-tokens", "--deadline 30d")
            if args.deadline is None
            else ("--deadline", "--train-tokens 1T")
        )
        raise InputError(f"{here} asks for a model to train, and needs {lacks} beside it")
    seq_len = args.seq_len or _SEQ
    batch, tolerance = parse_batch(args.batch or _BATCH, seq_len)
    training = Training(
        batch, seq_len, tolerance,
        compute_dtype=args.dtype or "bf16",
        optimizer=args.optimizer or "adamw",
        total_tokens=None if args.train_tokens == FREE else args.train_tokens,
    )  # fmt: skip
    cluster = parse_cluster(args.cluster, host_memory=args.host_memory, cpu_update=args.cpu_update)
    return train(
        load_law(args.law or _LAW), load_grid(args.grid or _GRID), cluster, training, args.deadline,
        constraints=args.constraints,
        efficiency=args.efficiency or "default",
        framework=args.framework or "jax",
        params=args.params or (0.0, float("inf")),
        extrapolate=args.extrapolate,
        runner_ups=2 if args.runner_ups is None else args.runner_ups,
    )  # fmt: skip


def _add(parser: argparse.ArgumentParser, name: str, **words: Any) -> None:
    with suppress(argparse.ArgumentError):  # another mode has it
        parser.add_argument(name, **words)


def _tokens(text: str) -> int | str:
    return FREE if text.strip().lower() == FREE else int(arguments.count("--train-tokens")(text))


def _params(text: str) -> tuple[float, float]:
    match = _SPAN.fullmatch(text.strip())
    if match is None or not (match["low"] or match["high"]):
        raise InputError(f"--params: cannot read {text[:40]!r}; write 1B..10B, 1B.. or ..10B")
    read = arguments.count("--params")
    return (
        float(read(match["low"])) if match["low"] else 0.0,
        float(read(match["high"])) if match["high"] else float("inf"),
    )
