"""`meshwright count`: what a model is made of and what it costs, before any layout."""

import argparse
from typing import TYPE_CHECKING, Any

from meshwright.hardware.errors import InputError
from meshwright.optimizer import arguments
from meshwright.optimizer.asks.answer import give

if TYPE_CHECKING:
    from meshwright.costmodel.model import ModelSpec
    from meshwright.costmodel.working import Working
    from meshwright.hardware.chip import Chip

# Options that each question reads; any other is refused, so that none is passed in vain.
READS = {
    "parts": ("seq", "tokens"),
    "kv": ("seq", "batch", "dtype"),
    "activations": ("seq", "batch", "framework"),
    "state": ("framework", "optimizer", "shards", "chip", "profile"),
    "critical_batch": ("chip", "profile", "weights", "dtype"),
    "mfu": ("seq", "tokens", "chip_hours", "peak", "chip", "profile", "dtype"),
}
SEQ = 4096


def add(subparsers: Any) -> None:
    """The parser of the command."""
    parser = arguments.command(
        subparsers, "count", run,
        "Parameters and FLOPs by part; or cache, activations, state bytes, critical batch, MFU.",
    )  # fmt: skip
    add_model(parser)
    asked = parser.add_mutually_exclusive_group()
    for question, text in (
        ("--kv", "key-value cache by dtype"),
        ("--activations", "activations saved and FLOPs repeated by recompute policy"),
        ("--state", "bytes of parameters, optimizer and gradients; what fits on a chip"),
        ("--critical-batch", "tokens from which on a chip is compute bound, dense and mixture"),
        ("--mfu", "model FLOPs utilisation of a run"),
    ):
        name = question[2:].replace("-", "_")
        asked.add_argument(question, dest="asked", action="store_const", const=name, help=text)
    parser.set_defaults(asked="parts")
    add = parser.add_argument
    add("--seq", type=arguments.count("--seq"), metavar="N", help=f"tokens per sequence ({SEQ})")
    add("--batch", metavar="N", help="such as 4Mi tokens or 240seq sequences (one sequence)")
    add("--tokens", type=arguments.count("--tokens"), metavar="N", help="of a whole run, such as 15T")
    add("--dtype", metavar="NAME", help="of the cache, or of the products (bf16)")
    add("--weights", metavar="NAME", help="dtype of weights in memory (bf16)")
    add("--chip", metavar="NAME", help="such as v5p or h100")
    add("--profile", metavar="NAME", help="whose figures of the chip: catalogue or book (catalogue)")
    add("--framework", metavar="NAME", help="whose memory habits apply: jax or megatron (jax)")
    add("--optimizer", metavar="NAME", help="adamw, adamw8bit or sgd (adamw)")
    add(
        "--shards",
        type=arguments.whole("--shards", 1, 10**9),
        metavar="N",
        help="devices that ZeRO shards over",
    )
    add("--chip-hours", type=arguments.count("--chip-hours"), metavar="N", help="of a run, such as 2788K")
    peak = arguments.units("--peak", lambda parsers, text: parsers.parse_flop_per_s(text), keep_text=False)
    add("--peak", type=peak, metavar="RATE", help="of one chip, such as '989 TFLOP/s', instead of --chip")
    arguments.as_json(parser)


def add_model(parser: argparse.ArgumentParser) -> None:
    """A model by name, file or letters."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a built-in name, a config.json or its folder"
    )
    parser.add_argument(
        "--shape", metavar="LETTERS",
        help="instead of MODEL: D=8192,F=28672,L=80,N=64,K=8,H=128,V=128256[,E=16,k=2][,mlp=plain][,tied=yes]",
    )  # fmt: skip


def read_model(args: argparse.Namespace) -> "ModelSpec":
    """The model of `add_model`. Errors: InputError where both or neither are given."""
    from meshwright.costmodel.readers import load_model
    from meshwright.costmodel.textbook import parse_shape

    if args.model is not None and args.shape is not None:
        raise InputError(f"a model by name ({args.model[:40]}) and --shape are two models; keep one")
    if args.model is None and args.shape is None:
        raise InputError("give a model: either its name or file, or --shape with its letters")
    return load_model(args.model) if args.shape is None else parse_shape(args.shape)


def run(args: argparse.Namespace) -> int:
    """Answer and print."""
    _refuse_what_is_not_read(args)
    return give(args, _ANSWERS[args.asked](args, read_model(args)))


def _refuse_what_is_not_read(args: argparse.Namespace) -> None:
    if args.profile is not None and args.chip is None:
        raise InputError("--profile chooses the figures of --chip; give --chip, or leave it out")
    for option in dict.fromkeys(name for names in READS.values() for name in names):
        if getattr(args, option) is not None and option not in READS[args.asked]:
            takers = [q for q, names in READS.items() if option in names and q != "parts"]
            which = " or ".join(f"--{q.replace('_', '-')}" for q in takers)
            raise InputError(
                f"--{option.replace('_', '-')} changes nothing in this count; leave it out, or ask with {which}"
            )


def _parts(args: argparse.Namespace, model: "ModelSpec") -> "Working":
    from meshwright.costmodel.counting.parts import count_parts

    return count_parts(model, args.seq or SEQ, args.tokens)


def _kv(args: argparse.Namespace, model: "ModelSpec") -> "Working":
    from meshwright.costmodel.counting.parts import count_cache

    seq = args.seq or SEQ
    return count_cache(model, seq, _tokens(args, seq) // seq, args.dtype or "bf16")


def _activations(args: argparse.Namespace, model: "ModelSpec") -> "Working":
    from meshwright.costmodel.counting.parts import count_activations
    from meshwright.costmodel.framework import load_framework

    seq = args.seq or SEQ
    return count_activations(model, load_framework(args.framework or "jax"), seq, _tokens(args, seq))


def _state(args: argparse.Namespace, model: "ModelSpec") -> "Working":
    from meshwright.costmodel.counting.on_chip import count_state
    from meshwright.costmodel.framework import load_framework

    framework = load_framework(args.framework or "jax")
    chip = None if args.chip is None else _chip(args)
    return count_state(model, framework, args.optimizer or "adamw", chip, args.shards or 1)


def _critical_batch(args: argparse.Namespace, model: "ModelSpec") -> "Working":
    from meshwright.costmodel.counting.on_chip import count_batch

    return count_batch(model, _chip(args), args.weights or "bf16", args.dtype or "bf16")


def _mfu(args: argparse.Namespace, model: "ModelSpec") -> "Working":
    from meshwright.costmodel.counting.on_chip import count_utilisation

    if args.tokens is None or args.chip_hours is None:
        raise InputError(
            "--mfu needs --tokens and --chip-hours of the run, such as --tokens 15T --chip-hours 6.4M"
        )
    if args.peak is not None and args.chip is not None:
        raise InputError("--peak and --chip both say the peak of one chip; keep one")
    if args.peak is None and args.chip is None:
        raise InputError(
            "--mfu needs the peak of one chip: either --peak '989 TFLOP/s' or --chip with --dtype"
        )
    if args.peak is not None and args.dtype is not None:
        raise InputError("--dtype chooses among the peaks of --chip; with --peak leave it out")
    peak = args.peak
    if peak is None:
        chip = _chip(args)
        peak = chip.peak_flop_per_s(args.dtype or "bf16") * chip.devices_per_chip
    return count_utilisation(model, args.seq or SEQ, args.tokens, args.chip_hours * 3600.0, peak)


_ANSWERS = {
    "parts": _parts,
    "kv": _kv,
    "activations": _activations,
    "state": _state,
    "critical_batch": _critical_batch,
    "mfu": _mfu,
}


def _tokens(args: argparse.Namespace, seq: int) -> int:
    """Tokens of --batch; one sequence where it is not given."""
    from meshwright.costmodel.workload import Training, parse_batch

    if args.batch is None:
        return seq
    tokens, tolerance = parse_batch(args.batch, seq)
    if tolerance:
        raise InputError(f"--batch {args.batch[:40]}: a tolerance means nothing in a count; leave out ~")
    return Training(tokens, seq).global_batch_tokens


def _chip(args: argparse.Namespace) -> "Chip":
    from meshwright.hardware.profile import profile_chip

    if args.chip is None:
        raise InputError("this count needs --chip, such as --chip v5p")
    return profile_chip(args.chip, args.profile or "catalogue")
