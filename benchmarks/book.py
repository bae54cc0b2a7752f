"""Worked problems of the scaling book, answered by public functions: `python benchmarks/book.py FILE [--all]`.

FILE is a list of cases: topic, inputs, expected quantities with unit and tolerance. Prints what is not right (with
--all everything), then one JSON summary line. Of every quantity:

    right       within the case's tolerance of `recomputed`, else of `book`; `exact`: within 5e-4 of it
    wrong       not so
    asserted    only measured: nothing to compute, told as a ratio where an adapter predicts it
    unanswered  a topic, key, quantity or unit that no adapter knows

A case is as good as its worst quantity.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from book_answers import UnansweredError, Value, answer

WORST_FIRST = ("wrong", "unanswered", "right", "asserted")
EXACT = 5e-4
OVER = "_over_measured"


@dataclass(frozen=True)
class Verdict:
    """One quantity of one case. `wanted` is what the case expects, `got` what was answered."""

    case: str
    quantity: str
    verdict: str
    wanted: Value | None
    got: Value | None
    exact: bool = False
    reason: str = ""


def judge(case: Mapping[str, Any]) -> Iterator[Verdict]:
    """Every quantity of a case."""
    for quantity, expected in case["expected"].items():
        wanted = expected.get("recomputed", expected.get("book"))
        measured = expected.get("measured")
        try:
            got: Value | None = _answer(case, quantity, expected.get("unit", ""))
            reason = ""
        except UnansweredError as why:
            got, reason = None, str(why)
        if wanted is None:
            ratio = f"{got / measured:.3f} of measured" if _numeric(got) and _numeric(measured) else ""
            yield Verdict(case["id"], quantity, "asserted", measured, got, reason=ratio)
        elif got is None:
            yield Verdict(case["id"], quantity, "unanswered", wanted, None, reason=reason)
        else:
            right = _close(got, wanted, float(case.get("tolerance", 0.01)))
            exact = right and _close(got, wanted, EXACT)
            yield Verdict(case["id"], quantity, "right" if right else "wrong", wanted, got, exact)


def _answer(case: Mapping[str, Any], quantity: str, unit: str) -> Value:
    """What the adapters answer; `X_over_measured` is their time of X over the one time that the case has measured.

    Errors: UnansweredError.
    """
    name = quantity.removesuffix(OVER)
    if name == quantity:
        return answer(case["topic"], quantity, unit, case["inputs"])
    expected = case["expected"]
    times = [e["measured"] for e in expected.values() if e.get("unit") == "s" and _numeric(e.get("measured"))]
    if len(times) != 1 or not times[0] > 0:
        raise UnansweredError(f"{quantity} needs one measured time, the case has {len(times)}")
    reasons = []
    for of in (f"t_{name}", name):
        try:
            got = answer(case["topic"], of, "s", case["inputs"])
        except UnansweredError as why:
            reasons.append(str(why))
        else:
            if _numeric(got):
                return float(got) / float(times[0])
            reasons.append(f"{of} is no number")
    raise UnansweredError(reasons[0])


def _numeric(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _close(got: Value, wanted: Value, tolerance: float) -> bool:
    if not (_numeric(got) and _numeric(wanted)):
        return got == wanted and isinstance(got, bool) == isinstance(wanted, bool)
    return math.isclose(float(got), float(wanted), rel_tol=max(tolerance, 1e-9), abs_tol=1e-12)


def run(path: Path) -> tuple[list[Verdict], dict[str, Any]]:
    """Every verdict, and the summary."""
    cases = yaml.safe_load(path.read_text())
    verdicts = [v for case in cases for v in judge(case)]
    by_case: dict[str, str] = {}
    for v in verdicts:
        worst = by_case.get(v.case, "asserted")
        by_case[v.case] = min(worst, v.verdict, key=WORST_FIRST.index)
    names = ("right", "wrong", "asserted", "unanswered")
    of_cases, of_quantities = Counter(by_case.values()), Counter(v.verdict for v in verdicts)
    return verdicts, {
        "cases": len(cases),
        **{n: of_cases[n] for n in names},
        "quantities": {"all": len(verdicts)} | {n: of_quantities[n] for n in names},
        "exact": sum(v.exact for v in verdicts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--all", action="store_true", help="print every quantity, not only what is not right")
    parser.add_argument("--topic", help="only cases of this topic")
    args = parser.parse_args()
    verdicts, summary = run(args.file)
    topics = {case["id"]: case["topic"] for case in yaml.safe_load(args.file.read_text())}
    for v in verdicts:
        if (args.all or v.verdict in ("wrong", "unanswered")) and args.topic in (None, topics[v.case]):
            print(
                f"{v.verdict:10} {topics[v.case]:18} {v.case:44} {v.quantity:30} {v.wanted!s:>14} {v.got!s:>22} {v.reason}"
            )
    print(json.dumps(summary, sort_keys=True))


if __name__ == "__main__":
    main()
