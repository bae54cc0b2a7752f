"""The page for two answers side by side."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from meshwright.optimizer.compare import Comparison, Pair, Value
from meshwright.optimizer.report import words
from meshwright.optimizer.report.page import Block, alarm, headline, table, title
from meshwright.optimizer.report.recompute import summed

_HEADER = ("", "a", "b", "b / a")
_WIDE = 44  # characters of policies up to which their tensors are listed


def comparison(made: Comparison, names: tuple[str, str]) -> Iterator[Block]:
    """Every term; in the layout only what differs."""
    yield headline(f"a: {names[0]}")
    yield headline(f"b: {names[1]}")
    if made.question:
        yield alarm("\nThe two answer different questions:")
        yield table([(p.name, _word(p.a), _word(p.b)) for p in made.question], "lll", header=_HEADER[:3])
    yield from terms(made)


def terms(made: Comparison) -> Iterator[Block]:
    """The terms of the two, a and b."""
    differs = [p for p in _decisions(made.layout) if p.differs]
    yield title("Layout", "what differs" if differs else "the same")
    if differs:
        yield table([(p.name, _word(p.a), _word(p.b)) for p in differs], "lll", header=_HEADER[:3])
    totals = {p.name: p for p in made.totals}
    yield title("Totals", _verdict(totals["tokens_per_s"]))
    yield table([_row(p) for p in made.totals if (p.a, p.b) != (None, None)], "lrrr", header=_HEADER)
    yield title("Step time", "exposed seconds")
    yield table([_row(p) for p in _present(made.parts)], "lrrr", header=_HEADER)
    yield title("Memory of a device", "GiB on each one's heaviest stage")
    yield table([_row(p, words.gib) for p in _present(made.memory)], "lrrr", header=_HEADER)


def _decisions(fields: Sequence[Pair]) -> Iterator[Pair]:
    """Fields of the layouts, policies as one decision and summed where they are long, stages by runs."""
    by_name = {p.name: p for p in fields}
    for pair in fields:
        if pair.name == "policies":
            yield _recompute(by_name)
        elif pair.name == "layers_per_stage":
            yield Pair("layers of stages", *(_runs(str(side)) for side in (pair.a, pair.b)))
        elif pair.name != "stage_policies":
            yield pair


def _recompute(by_name: Mapping[str, Pair]) -> Pair:
    policies, stages, layers = (by_name[n] for n in ("policies", "stage_policies", "layers_per_stage"))
    told = []
    for side in ("a", "b"):
        text = str(getattr(stages, side))
        words = str(getattr(policies, side)) if text == "-" else text
        held = [int(n) for n in str(getattr(layers, side)).split("/") if n]
        by_stage = [stage.split("/") for stage in words.split(";")]
        whole = summed(by_stage, held, (), brief=False)
        told.append(whole if len(whole) <= _WIDE else summed(by_stage, held, ()))
    if told[0] == told[1] and (policies.differs or stages.differs):
        told[1] += ", on other stages"
    return Pair("recompute", *told)


def _runs(layers: str) -> str:
    """`11, 10 on each of 3` of 11/10/10/10."""
    found = [(layers, len(list(run))) for layers, run in groupby(layers.split("/"))]
    return ", ".join(number if count == 1 else f"{number} on each of {count}" for number, count in found)


def _present(pairs: Sequence[Pair]) -> list[Pair]:
    """Terms that are more than rounding noise in one of the two."""
    return [p for p in pairs if max(abs(float(p.a or 0)), abs(float(p.b or 0))) > 1e-9]


def _verdict(tokens_per_s: Pair) -> str:
    ratio = tokens_per_s.ratio or 1.0
    if round(ratio, 4) == 1:
        return "equally fast"
    return f"b trains {ratio:.3f} times as many tokens a second as a"


def _row(pair: Pair, write: object = None) -> tuple[str, str, str, str]:
    ratio = "" if pair.ratio is None else f"{pair.ratio:.3f}"
    if write is words.gib:
        return pair.name, words.gib(float(pair.a or 0)), words.gib(float(pair.b or 0)), ratio
    return pair.name, _word(pair.a), _word(pair.b), ratio


def _word(value: Value) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{0.0 if abs(value) < 1e-9 else value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
    return str(value) or "-"
