"""How well loss laws tell public trainings: `python benchmarks/laws.py`.

For each data set under benchmarks/data/laws that is there (its README says where they come from): R2 and RMSE of each
law that can read it, as shipped and as fitted here with part of the models held back; then one JSON summary line.
Of a law of another paper only the rank correlation says anything: tokenizers, data and floors differ.
"""

import json
from pathlib import Path

from meshwright.search.fit.fit import fit_law
from meshwright.search.fit.runs import Runs, load_runs
from meshwright.search.fit.scores import Scores, scores
from meshwright.search.law import law_names, load_law
from meshwright.search.law_columns import MissingVariableError

DATA = Path(__file__).parent / "data" / "laws"
# Data set, and the law that was fitted on it with the figures stated for it: R2 and RMSE.
SETS = {
    "gemstones": ("gemstones-wdpt", 0.9945, 0.0216),
    "chinchilla": ("besiroglu", 0.9924, 0.025),
    "morph": (None, None, None),
}


def shipped(runs: Runs) -> dict[str, tuple[Scores, float]]:
    """Scores and mean error of every law that reads what the file gives."""
    found = {}
    for name in law_names():
        law = load_law(name)
        try:
            loss = law.loss(runs.read(law.granularity)).loss
        except MissingVariableError:
            continue
        if loss.shape == runs.loss.shape:
            found[name] = (scores(runs.loss, loss), float((loss - runs.loss).mean()))
    return found


def main() -> None:
    summary: dict[str, object] = {}
    for name, (own, stated_r2, stated_rmse) in SETS.items():
        path = DATA / f"{name}.csv"
        if not path.exists():
            print(f"{name}: not here; see {DATA.name}/README.md")
            summary[name] = None
            continue
        runs = load_runs(path)
        print(f"{name}, {len(runs)} rows")
        figures: dict[str, object] = {"rows": len(runs)}
        for law, (s, bias) in shipped(runs).items():
            told = f", stated R2 {stated_r2} RMSE {stated_rmse}" if law == own else ""
            print(
                f"  {law:15} R2 {s.r2:8.4f}  RMSE {s.rmse:.4f}  bias {bias:+.4f}  Spearman {s.spearman:.4f}{told}"
            )
            figures[law] = {"r2": round(s.r2, 4), "rmse": round(s.rmse, 4), "bias": round(bias, 4)}
        fit = fit_law(runs, bootstrap=50)
        for told, by_part in (
            (f"fit {fit.law.form}", fit.scores),
            ("fit size", fit.sizes),
            ("neighbours", fit.neighbours),
        ):
            parts = {part: s for part, s in by_part.items() if s.rows}
            if not parts:
                continue
            print(
                f"  {told:15} " + "  ".join(f"{p} R2 {s.r2:.4f} RMSE {s.rmse:.4f}" for p, s in parts.items())
            )
            figures[told] = {p: {"r2": round(s.r2, 4), "rmse": round(s.rmse, 4)} for p, s in parts.items()}
        print(f"  not identified: {', '.join(fit.identified.unknown) or 'none'}")
        figures["not_identified"] = list(fit.identified.unknown)
        summary[name] = figures
    print(json.dumps(summary, sort_keys=True))


if __name__ == "__main__":
    main()
