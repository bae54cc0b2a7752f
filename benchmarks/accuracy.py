"""How true the cost model is to measurements: `python benchmarks/accuracy.py edge|operators FILE [--json]`.

edge    token rates of one sequence on edge devices and cards, prefill and decode, against the rates of
        hardware/data/inference/edge.yaml. A row whose device is among the shipped rows (benchmarks/data/edge_tokens.yaml)
        is predicted by a fit without that device; any other row by the shipped rates, which know nothing of it.
operators   single kernels and collectives, a CSV table or a folder of them, against hardware/data/kernels. A row whose
        shape is among the shipped rows (benchmarks/data/operators) is predicted by the fit without it, any other by the
        shipped numbers. Beside it each chip by its family's numbers, without the kernel's name, and at a flat efficiency.

Prints errors by class and what was refused and why, then one JSON summary line.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from edge_accuracy.cases import PHASES, read_cases
from edge_accuracy.classes import SHIPPED
from edge_accuracy.predict import Columns
from edge_accuracy.score import Scored
from operator_accuracy.cases import cases_of
from operator_accuracy.page import lines as operator_lines
from operator_accuracy.page import with_table
from operator_accuracy.score import Scored as OperatorsScored
from operator_accuracy.tables import read_tables

from meshwright.hardware.errors import MeshwrightError
from meshwright.hardware.inference_rates import load_rates_file

HEAD = "{:24} {:>5} {:>9} {:>7} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9}"
COLUMNS = ("rows", "left out", "bias", "<= 10%", "<= 20%", "engine", "fitted", "roofline", "classes")


def edge(path: Path) -> Scored:
    """A file of token rates beside the shipped rows. Errors: InputError where it is none."""
    rates = load_rates_file("edge")
    known, _ = read_cases(SHIPPED, rates)
    cases, refused = read_cases(path, rates)
    return Scored(Columns.of(cases), tuple(refused), Columns.of(known), rates)


def lines(done: Scored) -> list[str]:
    """The page: per phase all rows, then by class; refusals; rows that are furthest off."""
    out = []
    for phase in PHASES:
        out.append(HEAD.format(phase, *COLUMNS))
        out.append(_line("all", done.errors(done.rows(phase))))
        for name, labels in done.by_class(phase).items():
            out += [_line(f"{name}: {label}", errors) for label, errors in labels.items()]
        out.append("")
    off = done.left_out / done.columns.rate - 1
    out.append("furthest off: predicted over measured - 1, its device left out")
    for i in sorted(range(len(off)), key=lambda i: -abs(off[i]))[:12]:
        case = done.cases[i]
        out.append(
            f"{off[i]:+8.0%}  {case.id:8} {case.machine.name:24} {case.model.name:20} {case.engine} {case.phase}"
        )
    out += [f"refused  {r.id:8} {r.reason}: {r.text}" for r in done.refused]
    return out


def _line(name: str, errors: dict[str, Any]) -> str:
    if not errors["rows"]:
        return HEAD.format(name, 0, *[""] * 8)
    shown = [errors["left_out"][key] for key in ("mean_abs", "bias", "within_10", "within_20")]
    shown += [errors[key]["mean_abs"] for key in ("engine_left_out", "fitted", "roofline", "class_means")]
    signs = ("{:.1%}", "{:+.1%}", "{:.0%}", "{:.0%}", "{:.1%}", "{:.1%}", "{:.1%}", "{:.1%}")
    return HEAD.format(name[:24], errors["rows"], *(s.format(v) for s, v in zip(signs, shown, strict=True)))


def rows_of(done: Scored) -> list[dict[str, Any]]:
    """Every case with its predictions, tokens/s."""
    return [
        {"id": case.id, "phase": case.phase, "device": case.machine.name, "measured": case.rate}
        | {name: float(f"{rates[i]:.6g}") for name, rates in done.predictions.items()}
        for i, case in enumerate(done.cases)
    ]


def operators(path: Path) -> OperatorsScored:
    """A table of kernels or collectives, or a folder of them. Errors: InputError where it is none."""
    return OperatorsScored.of(cases_of(read_tables(path)))


def operators_page(path: Path, page: Path | None) -> int:
    """Prints the judge's page and summary; `page` is one whose table is replaced."""
    done = operators(path)
    if page is not None:
        page.write_text(with_table(page, done), encoding="utf-8")
    print("\n".join(operator_lines(done)))
    print(json.dumps(done.summary(), sort_keys=True))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    judges = parser.add_subparsers(dest="judge", required=True)
    one = judges.add_parser("edge", help="token rates of edge devices")
    one.add_argument("file", type=Path)
    one.add_argument("--json", action="store_true", help="one JSON object with every row, and no page")
    one = judges.add_parser("operators", help="seconds of kernels and collectives")
    one.add_argument("file", type=Path, help="a table, .csv or .csv.gz, or a folder of them")
    one.add_argument("--page", type=Path, help="a Markdown page whose table is written anew")
    args = parser.parse_args()
    try:
        if args.judge == "operators":
            return operators_page(args.file, args.page)
        done = edge(args.file)
        summary = done.summary()
    except MeshwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if args.json:
        summary |= {"cases": rows_of(done), "refusals": [vars(r) for r in done.refused]}
    else:
        print("\n".join(lines(done)))
    print(json.dumps(summary, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
