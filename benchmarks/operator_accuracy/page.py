"""The page that `accuracy.py operators` prints, and its table in docs/operators.md."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright.hardware.errors import InputError
from meshwright.hardware.files import read_text
from operator_accuracy.score import BARS, FEW_ROWS, Scored, ScoredLaw

HEAD = "{:46} {:>7} {:>8} {:>8} {:>8} {:>8} {:>10} {:>8}"
COLUMNS = ("rows", "mean abs", "median", "bias", "family", "no kernel", "flat")
WORST = 8
START, END = "<!-- numbers of benchmarks/accuracy.py operators: start -->", "<!-- end -->"
TITLES = {
    "matmul": "matrix products", "prefill": "attention, prefill", "decode": "attention, decode",
    "experts": "routed experts", "collective": "collectives, fitted per operation and ranks",
    "custom": "all-reduce of serving engines", "domain": "collectives, one law per chip",
    "dispatch": "tokens to experts and back", "memory": "memory-bound work",
}  # fmt: skip


def lines(done: Scored) -> Iterator[str]:
    """Per law by chip and by engine, where it fails, then what was refused."""
    for law, one in done.laws.items():
        yield HEAD.format(law, *COLUMNS)
        yield from (_line(name, errors) for name, errors in one.by_chip.items())
        yield from (_line(f"engine {name}", errors) for name, errors in one.by_engine.items())
        yield from _medians(law, one)
        worst = sorted(
            (case for case in one.by_case.items() if case[1]["rows"] >= FEW_ROWS), key=lambda c: -c[1]["mape"]
        )
        yield f"furthest off, of at least {FEW_ROWS} rows:"
        yield from (_line(name, errors) for name, errors in worst[:WORST])
        yield ""
    yield f"{done.rows} rows, {done.rows - sum(done.refused.values())} priced"
    yield from (f"refused {count:7}  {reason}" for reason, count in sorted(done.refused.items()))


def _medians(law: str, one: ScoredLaw) -> Iterator[str]:
    summary = one.summary()
    for name, words in (("all_chips", "all chips"), ("data_centre", "data-centre chips")):
        medians = summary[name]
        if "mape" not in medians:
            continue
        shown = [f"{way} {medians[way]:.1%}" for way in ("family", "no_kernel", "flat") if way in medians]
        verdict = f", bar {BARS[law]:.0%}" if law in BARS else ""
        yield f"median over {medians['chips']} {words}: {medians['mape']:.1%}{verdict}; {', '.join(shown)}"


def _line(name: str, errors: dict[str, Any]) -> str:
    shown = [
        "" if key not in errors else (f"{errors[key]:+.1%}" if key == "bias" else f"{errors[key]:.1%}")
        for key in ("mape", "median", "bias", "family", "no_kernel", "flat")
    ]
    return HEAD.format(name[:46], errors["rows"], *shown)


def table(done: Scored) -> str:
    """Medians over chips as Markdown, and by chip."""
    head = "law | rows | bar | data centre | all chips | family's numbers | no kernel name | flat efficiency"
    out = [f"| {head} |", "|" + " --- |" * (head.count("|") + 1)]
    for law, one in done.laws.items():
        summary = one.summary()
        centre, every = summary["data_centre"], summary["all_chips"]
        bar = f"{BARS[law]:.0%}" if law in BARS else ""
        cells = [TITLES[law], f"{summary['priced']:,}", bar, _share(centre), _share(every)]
        cells += [_share(centre, way) for way in ("family", "no_kernel", "flat")]
        out.append(f"| {' | '.join(cells)} |")
    chips = sorted(
        {chip for one in done.laws.values() for chip in one.by_chip if one.by_chip[chip]["rows"] >= FEW_ROWS}
    )
    out += ["", f"| chip | {' | '.join(done.laws)} |", "|" + " --- |" * (len(done.laws) + 1)]
    for chip in chips:
        errors = [one.by_chip.get(chip, {"rows": 0}) for one in done.laws.values()]
        shown = [f"{e['mape']:.1%} ({e['bias']:+.0%})" if e["rows"] >= FEW_ROWS else "" for e in errors]
        out.append(f"| {chip} | {' | '.join(shown)} |")
    return "\n".join(out)


def _share(medians: dict[str, Any], way: str = "mape") -> str:
    return f"{medians[way]:.1%}" if way in medians else ""


def with_table(path: Path, done: Scored) -> str:
    """The text of a page with its table between the two marks replaced. Errors: InputError without the marks."""
    text = read_text(path, "a page with the marks of the table")
    if START not in text or END not in text.split(START, 1)[1]:
        raise InputError(
            f"{path} has no line {START!r} with {END!r} after it; add both where the table belongs"
        )
    before, rest = text.split(START, 1)
    return f"{before}{START}\n{table(done)}\n{END}{rest.split(END, 1)[1]}"
