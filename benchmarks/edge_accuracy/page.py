"""The page of the judge of edge devices: errors by phase and class, refusals, rows that are furthest off."""

from pathlib import Path
from typing import Any

from edge_accuracy.cases import PHASES, read_cases
from edge_accuracy.classes import SHIPPED
from edge_accuracy.predict import Columns
from edge_accuracy.score import Scored
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
