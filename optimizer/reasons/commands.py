"""Commands that say why: `explain` and `balance`, and the options of `recommend` that do. Heavy modules are imported where they are used."""

import argparse
import json
from typing import Any

from meshwright.hardware.errors import InputError
from meshwright.optimizer import arguments


def add(subparsers: Any) -> None:
    """Their parsers."""
    _add_explain(subparsers)
    _add_balance(subparsers)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `recommend` can say beside its plan."""
    add = parser.add_argument
    add(
        "--why-not",
        type=_layout,
        metavar="LAYOUT",
        help="such as 'tp=4,pp=1': the best plan with it, or why there is none",
    )
    add(
        "--shadow", action="store_true", help="what 10%% more memory, bandwidth, FLOP/s and links would bring"
    )
    add(
        "--in-band",
        nargs="?",
        const=0.0,
        type=arguments.share("--in-band"),
        metavar="SHARE",
        help="all plans nearer to the best than the model errs, or than a share such as 5%%",
    )
    add("--robust", action="store_true", help="of those, the plan whose worst case over lower rates is least")
    add(
        "--no-ways-out",
        action="store_true",
        help="where nothing fits, do not look for what clashes and the ways out",
    )
    arguments.progress(parser)


def _layout(text: str) -> str:
    """Read before any search. Errors: LayoutError, UnknownNameError."""
    from meshwright.optimizer.reasons.why_not import pinned

    pinned(text)
    return text


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
    parser.add_argument(
        "--shadow", action="store_true", help="what 10%% more of each thing would bring, by solving"
    )
    arguments.launcher(parser, "also: whether this launcher can run the plan, and which of its rules say no")
    arguments.progress(parser)
    arguments.as_json(parser)


def explain(args: argparse.Namespace) -> int:
    """A plan file, explained."""
    from meshwright.optimizer.files import load_priced
    from meshwright.optimizer.plan import Plan
    from meshwright.optimizer.progress import interrupt, watching
    from meshwright.optimizer.reasons.effort import Effort
    from meshwright.optimizer.reasons.explain import explained
    from meshwright.optimizer.reasons.launcher import plan_runs_on
    from meshwright.optimizer.reasons.question import Question, reopen
    from meshwright.optimizer.reasons.shadow import prices_of
    from meshwright.optimizer.report.explanation import explanation
    from meshwright.optimizer.report.launcher import runs
    from meshwright.optimizer.report.page import show, title
    from meshwright.optimizer.report.reasons import shadow
    from meshwright.optimizer.solve import SolveOptions

    plan = load_priced(args.plan)
    given = reopen(plan, model=args.model, efficiency=args.efficiency)
    made, prices, able, stopped = explained(given, plan), None, None, False
    if args.launcher is not None:  # before anything is solved
        able = plan_runs_on(plan, args.launcher, model=args.model, efficiency=args.efficiency)
    if args.shadow:
        if not isinstance(plan, Plan):
            raise InputError(
                f"--shadow: {args.plan} is an estimate, and solves nothing; give a file of recommend -o"
            )
        if plan.certificate.goal != "step":
            raise InputError(
                f"--shadow compares step times, the goal of {args.plan} is {plan.certificate.goal}; leave --shadow out"
            )
        asked = Question(given, plan.inputs["constraints"] or None, plan)
        with watching(args.progress) as watch:
            prices = prices_of(asked, plan, SolveOptions(), Effort.endless(watch))
        stopped = watch.stopped
    if args.json:
        more = {"shadow_prices": prices.to_dict()} if prices else {}
        print_json(made.to_dict() | more | ({"launcher": able.to_dict()} if able else {}))
    else:
        launcher = [title("Launcher", able.launcher), *runs(able, "this plan")] if able else []
        show([*explanation(made), *(shadow(prices) if prices else ()), *launcher])
    if stopped:
        interrupt()
    return 0


def _add_balance(subparsers: Any) -> None:
    parser = arguments.command(
        subparsers,
        "balance",
        balance,
        "how far a machine is from where compute, memory and network bind together",
    )
    parser.epilog = "Of the best plan; see docs/reasons.md for the definition."
    arguments.question(parser)
    arguments.constraint(parser)
    arguments.effort(parser)
    arguments.progress(parser)
    arguments.as_json(parser)


def balance(args: argparse.Namespace) -> int:
    """The best plan of a question, and the balance of its machine."""
    from meshwright.optimizer import commands
    from meshwright.optimizer.progress import watching
    from meshwright.optimizer.reasons.balance import balance as balanced
    from meshwright.optimizer.report import reasons
    from meshwright.optimizer.report.page import show

    with watching(args.progress) as watch:
        made = balanced(
            commands.setting(args),
            constraints=arguments.constraints_of(args),
            options=arguments.options_of(args),
            watch=watch,
        )
    if args.json:
        print_json(made.to_dict())
    else:
        show(reasons.balance(made))
    return 0


def print_json(data: dict[str, Any]) -> None:
    from meshwright.optimizer.report.page import emit

    emit(json.dumps(data, sort_keys=True, indent=2) + "\n")
