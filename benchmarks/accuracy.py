"""How true the cost model is to measurements: `python benchmarks/accuracy.py edge|operators|training FILE [--json]`.

edge    token rates of one sequence on edge devices and cards, prefill and decode, against the rates of
        hardware/data/inference/edge.yaml. A row whose device is among the shipped rows (benchmarks/data/edge_tokens.yaml)
        is predicted by a fit without that device; any other row by the shipped rates, which know nothing of it.
operators   single kernels and collectives, a CSV table or a folder of them, against hardware/data/kernels. A row whose
        shape is among the shipped rows (benchmarks/data/operators) is predicted by the fit without it, any other by the
        shipped numbers. Beside it each chip by its family's numbers, without the kernel's name, and at a flat efficiency.
training    step times of published runs, YAML, against hardware/data/calibration/default.yaml: each by the fit that did not
        see its model family, by the one that did not see its source, and by that after three of the source's runs are
        given to `calibrate`. A run is assigned by the texts `source` and `software` of its row, not by its id: an unknown source is a
            group of its own, and an unknown program is refused. A run of no family or source that was fitted is predicted by
            the shipped numbers.

Prints errors by class and what was refused and why, then one JSON summary line.
"""

import argparse
import json
import sys
from pathlib import Path

from edge_accuracy.page import edge, lines, rows_of
from operator_accuracy.cases import cases_of
from operator_accuracy.page import lines as operator_lines
from operator_accuracy.page import with_table
from operator_accuracy.score import Scored as OperatorsScored
from operator_accuracy.tables import read_tables
from training_accuracy import docs
from training_accuracy.judge import judge, rows_json, summary
from training_accuracy.page import lines as training_lines
from training_accuracy.page import scatter

from meshwright.hardware.errors import MeshwrightError


def edge_page(path: Path, as_json: bool) -> int:
    """Prints the judge's page, or every row, and the summary."""
    done = edge(path)
    found = done.summary()
    if as_json:
        found |= {"cases": rows_of(done), "refusals": [vars(r) for r in done.refused]}
    else:
        print("\n".join(lines(done)))
    print(json.dumps(found, sort_keys=True))
    return 0


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


def training_page(args: argparse.Namespace) -> int:
    """Prints the judge's page, or every row, and the summary; writes what else is asked for."""
    done = judge(args.file)
    found = summary(done)
    if args.plot is not None:
        scatter(done, args.plot)
    if args.page is not None:
        args.page.write_text(docs.page(found), encoding="utf-8")
    if args.json:
        found |= {"cases": rows_json(done), "refusals": [vars(r) for r in (*done.bad, *done.refused)]}
    else:
        print("\n".join(training_lines(done, found)))
    print(json.dumps(found, sort_keys=True))
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
    one = judges.add_parser("training", help="step times of training runs")
    one.add_argument("file", type=Path, help="runs, .yaml or .yaml.gz")
    one.add_argument("--json", action="store_true", help="one JSON object with every row, and no page")
    one.add_argument("--page", type=Path, help="a Markdown page to write, such as docs/accuracy.md")
    one.add_argument("--plot", type=Path, help="a picture of predicted against measured to write")
    args = parser.parse_args()
    try:
        if args.judge == "operators":
            return operators_page(args.file, args.page)
        return training_page(args) if args.judge == "training" else edge_page(args.file, args.json)
    except MeshwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
