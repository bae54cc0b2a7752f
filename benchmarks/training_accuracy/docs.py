"""docs/accuracy.md from the judge's summary."""

from collections.abc import Mapping
from typing import Any

from training_accuracy.score import Number, told

NAMES = {"family": "model family left out", "source": "whole source left out"}
HEAD = """\
# How true step times are to published runs

Written by `python benchmarks/accuracy.py training benchmarks/data/training_runs.yaml.gz --page docs/accuracy.md`; numbers here are its output.

The default calibration (`hardware/data/calibration/default.yaml`) is fitted to step times of published training runs by
`benchmarks/fit.py`. Every error below is of runs that the fit did not see: their model family left out (the program and
cluster are known from other models), or their whole source (new cluster, new program). *Flat* is the geometric mean share of
peak of the other runs by chip and dtype.

A run is assigned by what its row says, not by its id: its source by the start of `source`, its program by the start of
`software` (tables in `benchmarks/training_accuracy/software.py`). A source that is not listed is a group of its own, and its
runs are predicted by the shipped numbers in the table of sources left out; a program that is not listed is refused. So is a row
with a value of a wrong type or that cannot be; the judge prints the field and goes on. `measured` may give `step_time_s`, or
`tokens_per_s_per_chip` alone.
"""


def page(found: Mapping[str, Any]) -> str:
    """The page's text."""
    refused = found["refused"]
    why = ", ".join(f"{n} {reason}" for reason, n in sorted(refused.items()))
    rows, priced, bad = (found[name] for name in ("rows", "priced", "bad_rows"))
    count = f"{rows} published runs: {priced} priced, {bad} known to be bad, {sum(refused.values())} refused ({why})."
    out = [HEAD, count, ""]
    out += [
        "| runs | rows | MAPE | bias | 90% are within | within 10% | within 20% |",
        "|---|---|---|---|---|---|---|",
    ]
    for split, name in NAMES.items():
        of = found[split]
        out += [_row(f"**{name}**", of["all"]), _row("flat", of["flat"])]
        for label in ("kind", "machine", "parallelism", "stated"):
            out += [_row(f"{label}: {k}", e) for k, e in of["classes"][label].items()]
    if "calibrated" in found:
        out.append(_row("**source left out, three of its runs given to `calibrate`**", found["calibrated"]))
        before, drawn = found["calibrated"]["same_rows_before"], found["drawn_three_mape"]
        out += [
            "",
            f"The same rows before: {told(before, '.1%')}; mean over seeded draws of three runs: {told(drawn, '.1%')}.",
        ]
    out += [
        "",
        "## By source and chip",
        "",
        "| | rows | family left out | source left out |",
        "|---|---|---|---|",
    ]
    for label in ("source", "chip"):
        family, source = (found[s]["classes"][label] for s in NAMES)
        out += [
            f"| {k} | {e['rows']} | {told(e['mape'], '.1%')} | {told(source[k]['mape'], '.1%')} |"
            for k, e in family.items()
        ]
    out += [
        "",
        "## Ranking",
        "",
        "Groups of runs that differ in layout alone, three layouts or more, repeats averaged. Regret is the time of the layout",
        "predicted fastest over the fastest measured, less 1. Odd rows are those of benchmarks/data/training_bad_rows.yaml that",
        "are far from their repeats.",
        "",
        "| | groups | regret | worst | best of the first three | first right | Kendall's tau | flat regret |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for split, name in NAMES.items():
        for label, key in (("", "ranking"), (", without odd rows", "ranking_without_odd")):
            rank, plain = found[split][key], found[split]["flat_ranking"]
            if not rank["groups"]:
                continue
            out.append(
                f"| {name}{label} | {rank['groups']} | {rank['regret']:.1%} | {rank['worst_regret']:.1%} | "
                f"{rank['best_of_three']:.1%} | {rank['top_1']:.0%} | {rank['kendall_tau']:.2f} | {told(plain.get('regret'), '.1%')} |"
            )
    out += [
        "",
        "## Error bands",
        "",
        "Measured over predicted, between which 80% of the runs of a kind lie; an estimate prints its own as seconds.",
        "Each group is held against the band that the others make.",
        "",
    ]
    for split, name in NAMES.items():
        bands = ", ".join(f"{k} {low:.2f} to {high:.2f}" for k, (low, high) in found[split]["band"].items())
        inside = told(found[split]["band_holds"], ".0%")
        out.append(f"- {name}: {bands or 'no runs'}; {inside} of runs lie inside")
    return "\n".join(out) + "\n"


def _row(name: str, e: Mapping[str, Number]) -> str:
    return (
        f"| {name} | {e['rows']} | {told(e['mape'], '.1%')} | {told(e['bias'], '+.1%')} | {told(e['p90'], '.0%')} | "
        f"{told(e['within_10'], '.0%')} | {told(e['within_20'], '.0%')} |"
    )
