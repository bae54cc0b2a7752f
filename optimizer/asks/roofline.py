"""`meshwright roofline`: how long a product, an attention kernel or any operation takes on one chip, and what binds."""

import argparse
from typing import TYPE_CHECKING, Any

from meshwright.hardware.errors import InputError
from meshwright.optimizer import arguments
from meshwright.optimizer.asks.answer import give

if TYPE_CHECKING:
    from meshwright.costmodel.working import Working
    from meshwright.hardware.chip import Chip

SOURCES = "hbm, vmem (TPU), l2 (GPU), host, network or dcn (hbm)"


def add(subparsers: Any) -> None:
    """The parser of the command and of its three questions."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "roofline", help="time, bound and critical batch of one operation", allow_abbrev=False,
        description="How long one operation takes on one chip, what binds and by how much.",
    )  # fmt: skip
    asked = parser.add_subparsers(dest="operation", metavar="OPERATION", required=True)
    _add_matmul(asked)
    _add_attention(asked)
    _add_op(asked)


def _add_matmul(asked: Any) -> None:
    parser = arguments.command(asked, "matmul", run_matmul, "a matrix product")
    add = parser.add_argument
    add(
        "product", metavar="PRODUCT",
        help="such as 'bf16[4096,8192] x bf16[8192,28672]'; open rows like bf16[B,8192] give a table",
    )  # fmt: skip
    _machine(parser)
    add("--weights", metavar="DTYPE", help="dtype of the second array in memory")
    add("--compute", metavar="DTYPE", help="dtype of the multiplication (the wider of the two arrays)")
    add("--sizes", metavar="TEXT", help="of named dimensions, such as B=240,D=8192")
    add(
        "--tile", metavar="RxC", help="output tile, to tell the intensity of a tiled product, such as 256x256"
    )
    add(
        "--split", type=arguments.whole("--split", 2, 10**6), metavar="N",
        help="share the contraction among N chips, which sum their outputs; --rate is then of one link",
    )  # fmt: skip
    _ends(parser)


def _add_attention(asked: Any) -> None:
    parser = arguments.command(
        asked, "attention", run_attention, "an attention kernel, scores kept on the chip"
    )
    add = parser.add_argument
    for name, text in (
        ("queries", "tokens that ask, per sequence; 1 in decode"),
        ("keys", "tokens that are looked at, per sequence"),
        ("heads", "query heads"),
        ("kv-heads", "key-value heads"),
        ("head-dim", "width of a head"),
    ):
        add(f"--{name}", type=arguments.count(f"--{name}"), required=True, metavar="N", help=text)
    add("--sequences", type=arguments.count("--sequences"), default=1, metavar="N", help="(1)")
    add("--causal", action="store_true", help="the kernel skips what the causal mask hides")
    _machine(parser)
    add("--dtype", default="bf16", metavar="DTYPE", help="of queries, output and compute (bf16)")
    add("--kv-dtype", metavar="DTYPE", help="of keys and values, if it differs")
    _ends(parser)


def _add_op(asked: Any) -> None:
    parser = arguments.command(
        asked, "op", run_op, "any operation: FLOPs and bytes, or a dot product or addition"
    )
    add = parser.add_argument
    flops = arguments.units("--flops", lambda parsers, text: parsers.parse_flop(text), keep_text=False)
    moved = arguments.units("--bytes", lambda parsers, text: parsers.parse_bytes(text), keep_text=False)
    add("--flops", type=flops, metavar="N", help="such as '1 TFLOP'")
    add("--bytes", type=moved, metavar="SIZE", help="read and written, such as '4 GiB'")
    add("--dot", type=arguments.count("--dot"), metavar="N", help="instead: the dot product of two vectors")
    add(
        "--add",
        type=arguments.count("--add"),
        metavar="N",
        help="instead: the sum of two arrays, elementwise",
    )
    _machine(parser)
    add("--dtype", default="bf16", metavar="DTYPE", help="whose peak and element size count (bf16)")
    add("--vector", action="store_true", help="on the vector units, as elementwise work is")
    _ends(parser)


def _machine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--chip", required=True, metavar="NAME", help="such as v5p or h100")
    add("--profile", default="catalogue", metavar="NAME", help="whose figures: catalogue or book (catalogue)")
    add("--from", dest="source", default="hbm", metavar="PLACE", help=f"where operands come from: {SOURCES}")
    peak = arguments.units("--peak", lambda parsers, text: parsers.parse_flop_per_s(text), keep_text=False)
    rate = arguments.units("--rate", lambda parsers, text: parsers.parse_bytes_per_s(text), keep_text=False)
    add("--peak", type=peak, metavar="RATE", help="instead of the chip's, such as '989 TFLOP/s'")
    add("--rate", type=rate, metavar="RATE", help="of that place, instead of the chip's, such as '16 GB/s'")


def _ends(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plot", metavar="FILE", help="draw the roofline too, as .png or .svg")
    arguments.as_json(parser)


def run_matmul(args: argparse.Namespace) -> int:
    """A product."""
    from meshwright.costmodel.roofline.matmul import ROWS, matmul
    from meshwright.costmodel.roofline.operands import parse_sizes

    sizes = None if args.sizes is None else parse_sizes(args.sizes)
    if args.split is not None:
        return _split(args, sizes)

    def ask(rows: tuple[int, ...]) -> "Working":
        return matmul(
            args.product, _chip(args), weights=args.weights, compute=args.compute, source=args.source,
            sizes=sizes, rows=rows, tile=_tile(args.tile),
            flop_per_s=args.peak, bytes_per_s=args.rate,
        )  # fmt: skip

    working = ask(ROWS)
    if args.plot is not None:
        _draw(args.plot, ask(tuple(sorted({round(2 ** (i / 8)) for i in range(105)}))))
    return give(args, working)


def _split(args: argparse.Namespace, sizes: dict[str, int] | None) -> int:
    from meshwright.costmodel.roofline.split_matmul import split_matmul

    unread = {
        "--weights": args.weights, "--compute": args.compute, "--tile": args.tile, "--plot": args.plot,
        "--from": None if args.source == "hbm" else args.source,
    }  # fmt: skip
    for option, value in unread.items():
        if value is not None:
            raise InputError(f"--split does not take {option}; leave one of them out")
    working = split_matmul(
        args.product, _chip(args), args.split, sizes=sizes, flop_per_s=args.peak, link_bytes_per_s=args.rate
    )
    return give(args, working)


def run_attention(args: argparse.Namespace) -> int:
    """An attention kernel."""
    from meshwright.costmodel.roofline.attention import attention

    working = attention(
        _chip(args), queries=args.queries, keys=args.keys, heads=args.heads, kv_heads=args.kv_heads,
        head_dim=args.head_dim, sequences=args.sequences, dtype=args.dtype, kv_dtype=args.kv_dtype,
        causal=args.causal, source=args.source, flop_per_s=args.peak, bytes_per_s=args.rate,
    )  # fmt: skip
    if args.plot is not None:
        _draw(args.plot, working)
    return give(args, working)


def run_op(args: argparse.Namespace) -> int:
    """Any operation."""
    from meshwright.costmodel.roofline.intensity import dot_product, elementwise, operator
    from meshwright.costmodel.roofline.operands import Work

    by_count = args.flops is not None and args.bytes is not None
    if [by_count or None, args.dot, args.add].count(None) != 2 or (args.flops is None) != (
        args.bytes is None
    ):
        raise InputError("give one operation: --flops with --bytes, or --dot N, or --add N")
    if args.dot is not None:
        name, work = f"dot product of {args.dot:,}", dot_product(args.dot, args.dtype)
    elif args.add is not None:
        name, work = f"sum of {args.add:,} elements", elementwise(args.add, args.dtype)
    else:
        name, work = "operation", Work(args.flops, float(args.bytes))
    working = operator(
        work, _chip(args), dtype=args.dtype, vector=args.vector, source=args.source, name=name,
        flop_per_s=args.peak, bytes_per_s=args.rate,
    )  # fmt: skip
    if args.plot is not None:
        _draw(args.plot, working)
    return give(args, working)


def _chip(args: argparse.Namespace) -> "Chip":
    from meshwright.hardware.profile import profile_chip

    return profile_chip(args.chip, args.profile)


def _tile(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(
        side.isascii() and side.isdigit() and 0 < int(side) < 10**6 for side in sides
    ):
        raise InputError(f"--tile: {text[:40]!r} is not two sizes; write rows x columns, like 256x256")
    return int(sides[0]), int(sides[1])


def _draw(text: str, working: "Working") -> None:
    """FLOP/s over intensity with the operation on it; of a product with open rows, over rows."""
    from meshwright.costmodel.roofline.intensity import attainable
    from meshwright.optimizer.report.plot import Curve, draw, plot_path

    path = plot_path(text)
    peak, rate = working.number("C"), working.number("W")
    if working.table:
        rows = [float(row["m"]) for row in working.table]
        speed = [float(row["TFLOP/s"]) * 1e12 for row in working.table]
        curves = [Curve("reached", rows, speed), Curve("peak", [rows[0], rows[-1]], [peak, peak])]
        draw(path, working.question, ("rows", "FLOP/s"), curves)
        return
    if "intensity" not in working.steps:
        raise InputError("--plot needs the sizes of all dimensions but the rows; give them with --sizes")
    at, turn = working.number("intensity"), peak / rate
    least, most = min(at, turn) / 10, max(at, turn) * 10
    line = [least, turn, most]
    reached = working.number("share_of_peak") * peak
    curves = [
        Curve("roofline", line, [attainable(x, peak, rate) for x in line]),
        Curve("this", [at], [reached]),
    ]
    draw(path, working.question, ("FLOPs per byte", "FLOP/s"), curves)
