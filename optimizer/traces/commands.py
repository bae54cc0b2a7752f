"""`meshwright profile` and `calibrate`. Heavy modules are imported where they are used."""

import argparse
from typing import TYPE_CHECKING, Any

from meshwright.hardware.errors import InputError
from meshwright.optimizer import arguments

if TYPE_CHECKING:
    from meshwright.optimizer.plan import Priced


def add(subparsers: Any) -> None:
    """Their parsers."""
    parser = arguments.command(
        subparsers,
        "profile",
        profile,
        "a profiler trace beside the roofline and a plan: op by op, class by class",
    )
    _trace(parser)
    arguments.as_json(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the answer too (YAML, or JSON for *.json)"
    )
    parser = arguments.command(
        subparsers, "calibrate", calibrate, "an efficiency file from a profiler trace, or from step times"
    )
    _trace(parser)
    arguments.as_json(parser)
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="the efficiency file to write, such as mine.yaml",
    )


def _trace(parser: argparse.ArgumentParser) -> None:
    add_ = parser.add_argument
    add_(
        "trace",
        metavar="FILE",
        help="of torch.profiler or jax.profiler: .json, .json.gz, .xplane.pb (with JAX) or the folder of one trace; for calibrate "
        "also step times, .csv",
    )
    add_(
        "--plan", metavar="PLAN", help="a file of `recommend -o` or `estimate -o` that the trace is a run of"
    )
    add_("--chip", metavar="NAME", help="instead of a plan: what the trace was made on, such as h100")
    add_(
        "--steps",
        type=arguments.whole("--steps", 1, 1_000_000),
        metavar="N",
        help="steps in the trace, where it does not mark them",
    )
    add_("--model", metavar="PATH", help="the model's config.json, where the plan names a file")
    add_("--efficiency", metavar="FILE", help="the rates' YAML file, where the plan was made with one")


def profile(args: argparse.Namespace) -> int:
    """Measure, write, print."""
    from meshwright.optimizer.files import check_output, save_plan
    from meshwright.optimizer.reasons.commands import print_json
    from meshwright.optimizer.report.page import faint, show
    from meshwright.optimizer.report.profile import page
    from meshwright.optimizer.traces import profile as measuring

    if args.output is not None:
        check_output(args.output)
    made = measuring.profile(args.trace, plan=_plan(args), **_rest(args))
    if args.output is not None:
        save_plan(made, args.output)
    if args.json:
        print_json(made.to_dict())
    else:
        show([*page(made), *([faint(f"\nwritten to {args.output}")] if args.output is not None else [])])
    return 0


def calibrate(args: argparse.Namespace) -> int:
    """Measure, write the efficiency file, print what it holds."""
    from meshwright.optimizer.reasons.commands import print_json
    from meshwright.optimizer.report.page import show
    from meshwright.optimizer.report.profile import calibrated
    from meshwright.optimizer.traces import calibrate as measuring

    measuring.check_place(args.output)
    if kind_of_file(args.trace) == "runs":
        return _calibrate_runs(args)
    made = measuring.calibrate(args.trace, plan=_plan(args), **_rest(args))
    measuring.save_calibration(made, args.output)
    if args.json:
        print_json(made.to_dict())
    else:
        show(calibrated(made, args.output))
    return 0


def _calibrate_runs(args: argparse.Namespace) -> int:
    """The same from a table of step times."""
    from meshwright.optimizer.reasons.commands import print_json
    from meshwright.optimizer.report.page import show
    from meshwright.optimizer.report.profile import calibrated_runs
    from meshwright.optimizer.runs_file import calibrate_runs, save_runs_calibration

    for name in ("plan", "chip", "steps"):
        if getattr(args, name) is not None:
            raise InputError(
                f"--{name} is for a trace; a table of step times names clusters and layouts itself"
            )
    made = calibrate_runs(args.trace, model=args.model, efficiency=args.efficiency or "default")
    save_runs_calibration(made, args.output)
    if args.json:
        print_json(made.to_dict())
    else:
        show(calibrated_runs(made, args.output))
    return 0


def kind_of_file(path: str) -> str:
    """`runs` for a table of step times, else `trace`."""
    return "runs" if path.lower().endswith(".csv") else "trace"


def _plan(args: argparse.Namespace) -> "Priced | None":
    from meshwright.optimizer.files import load_priced

    return None if args.plan is None else load_priced(args.plan)


def _rest(args: argparse.Namespace) -> dict[str, Any]:
    return {"chip": args.chip, "steps": args.steps, "model": args.model, "efficiency": args.efficiency}
