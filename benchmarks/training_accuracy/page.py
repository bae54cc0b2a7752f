"""The judge's page: errors by split and class, ranking, what was left out and why, what is furthest off."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.hardware.errors import InputError
from training_accuracy.judge import SPLITS, Judged
from training_accuracy.score import Number, told

HEAD = "{:34} {:>5} {:>7} {:>7} {:>7} {:>7} {:>7}"
COLUMNS = ("rows", "MAPE", "bias", "p90", "<= 10%", "<= 20%")
NAMES = {
    "family": "model family left out",
    "source": "source left out",
    "calibrated": "with three runs given",
}


def lines(done: Judged, found: Mapping[str, Any]) -> list[str]:
    out = [
        f"{found['rows']} rows: {found['priced']} priced, {len(done.refused)} refused, {len(done.bad)} bad",
        "",
    ]
    for split in SPLITS:
        of = found[split]
        out.append(HEAD.format(NAMES[split], *COLUMNS))
        out += [_line("all", of["all"]), _line("one share of peak (flat)", of["flat"])]
        out.append(
            f"mean over sources of their MAPE: {told(of['macro_mape'], '.1%')}; the 80% band holds {told(of['band_holds'], '.0%')}"
        )
        for name, labels in of["classes"].items():
            out += [_line(f"{name}: {label}", errors) for label, errors in labels.items()]
        rank, plain = of["ranking"], of["flat_ranking"]
        if rank["groups"]:
            out.append(
                f"ranking of {rank['groups']} groups: regret {rank['regret']:.1%} (worst {rank['worst_regret']:.1%}), best of "
                f"the first three {rank['best_of_three']:.1%}, first right {rank['top_1']:.0%}, Kendall's tau "
                f"{rank['kendall_tau']:.2f}; flat: regret {told(plain.get('regret'), '.1%')}"
            )
            even = of["ranking_without_odd"]
            out.append(
                f"without odd rows: regret {told(even.get('regret'), '.1%')}, "
                f"best of three {told(even.get('best_of_three'), '.1%')}"
            )
            out += [
                f"    {s}: {r['groups']} groups, regret {r['regret']:.1%}, best of three {r['best_of_three']:.1%}"
                for s, r in of["ranking_by_source"].items()
            ]
        out.append("")
    if "calibrated" in found:
        out.append(HEAD.format(NAMES["calibrated"], *COLUMNS))
        out.append(_line("by rule", found["calibrated"]))
        out.append(
            f"the same rows before: {found['calibrated']['same_rows_before']:.1%}; mean over seeded draws of three: "
            f"{told(found['drawn_three_mape'], '.1%')}"
        )
        out.append("")
    off = np.log(done.seconds["family"] / done.measured)
    if done.cases:
        out.append("furthest off: predicted over measured - 1, its family left out")
    for i in np.argsort(-np.abs(off), kind="stable")[:15]:
        case = done.cases[i]
        assumed = f" (assumed {', '.join(case.assumed)})" if case.assumed else ""
        out.append(f"{np.exp(off[i]) - 1:+8.0%}  {case.id}{assumed}")
    out += [f"bad row  {r.id}: {r.text}" for r in done.bad]
    out += [f"refused  {r.id}: {r.text}" for r in done.refused]
    return out


def _line(name: str, of: Mapping[str, Number]) -> str:
    return HEAD.format(
        name[:34], of["rows"], told(of["mape"], ".1%"), told(of["bias"], "+.1%"), told(of["p90"], ".0%"),
        told(of["within_10"], ".0%"), told(of["within_20"], ".0%"),
    )  # fmt: skip


def scatter(done: Judged, path: Path) -> None:
    """Predicted against measured, source left out; needs the extra `plot`. Errors: InputError where no run is priced."""
    if not done.cases:
        raise InputError("no run is priced, so there is nothing to plot; leave --plot out to read why")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 6))
    kinds = np.array([c.kind for c in done.cases])
    for kind in sorted(set(kinds)):
        axes.loglog(done.measured[kinds == kind], done.seconds["source"][kinds == kind], ".", label=kind)
    span = [done.measured.min(), done.measured.max()]
    axes.loglog(span, span, "k-", linewidth=0.5)
    axes.set_xlabel("measured step, s")
    axes.set_ylabel("predicted step with the source left out, s")
    axes.legend()
    figure.savefig(path, dpi=120)
