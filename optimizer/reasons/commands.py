"""Commands that say why: `explain`. Heavy modules are imported where they are used."""

import argparse
import json
from typing import Any

from meshwright.optimizer import arguments


def add(subparsers: Any) -> None:
    """Their parsers."""
    _add_explain(subparsers)


def _add_explain(subparsers: Any) -> None:
    parser = arguments.command(
        subparsers, "explain", explain, "what binds in a plan: by operator, class and stage"
    )
    parser.add_argument("plan", metavar="PLAN", help="a file of `recommend -o` or `estimate -o`")
    parser.add_argument(
        "--model", metavar="PATH", help="the model's config.json, where the plan names a file"
    )
    parser.add_argument(
        "--efficiency", metavar="FILE", help="the rates' YAML file, where the plan was made with one"
    )
    arguments.as_json(parser)


def explain(args: argparse.Namespace) -> int:
    """A plan file, explained."""
    from meshwright.optimizer.files import load_priced
    from meshwright.optimizer.reasons.explain import explained
    from meshwright.optimizer.reasons.question import reopen
    from meshwright.optimizer.report.explanation import explanation
    from meshwright.optimizer.report.page import show

    plan = load_priced(args.plan)
    made = explained(reopen(plan, model=args.model, efficiency=args.efficiency), plan)
    if args.json:
        print_json(made.to_dict())
    else:
        show(explanation(made))
    return 0


def print_json(data: dict[str, Any]) -> None:
    from meshwright.optimizer.report.page import emit

    emit(json.dumps(data, sort_keys=True, indent=2) + "\n")
