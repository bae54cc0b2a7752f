"""Pages of reasons: why none, why not, what more would bring, the balance of a machine, plans inside the band."""

from collections.abc import Iterator

from meshwright.hardware.units import human_bytes
from meshwright.optimizer.reasons.balance import Balance
from meshwright.optimizer.reasons.band import Band
from meshwright.optimizer.reasons.infeasible import WhyNone
from meshwright.optimizer.reasons.limits import Clash
from meshwright.optimizer.reasons.shadow import MORE, ShadowPrices
from meshwright.optimizer.reasons.short import Short
from meshwright.optimizer.reasons.why_not import FASTER, NONE, SAME, TIE, WhyNot
from meshwright.optimizer.report import words
from meshwright.optimizer.report.comparison import terms
from meshwright.optimizer.report.page import Block, alarm, bullet, faint, headline, line, table, title
from meshwright.optimizer.report.working import shown, thinned


def why_none(made: WhyNone) -> Iterator[Block]:
    """Beneath the page of a proven no."""
    yield from _clash(made.clash)
    if made.short is not None:
        yield from _short(made.short)
    if made.cut:
        yield faint(f"{made.cut}: what clashes may be fewer, and other ways out may exist")
    if not made.ways:
        yield title("Ways out", "none was found among those tried")
        return
    yield title(
        "Ways out",
        "each was solved; step: of the best plan found, for its own batch (<: a faster one may exist)",
    )
    rows = [(w.text, ("" if w.best else "<") + words.seconds(w.step_s), w.option) for w in made.ways]
    yield table(rows, "lrl", header=("change", "step", "say"))


def _clash(clash: Clash) -> Iterator[Block]:
    how = "each can be spared for a plan, together they leave none"
    yield title("What clashes", how if clash.proven else "as far as the effort settled it")
    for limit in clash.limits:
        yield bullet(str(limit))


def _short(short: Short) -> Iterator[Block]:
    parts = sorted(short.parts.items(), key=lambda item: -item[1])
    yield title(
        "Memory missing",
        f"{human_bytes(short.short_bytes)} on stage {short.stage}; with so much more there is a plan",
    )
    yield line(", ".join(f"{part} {words.gib(size)}" for part, size in parts) + " GiB")


def why_not(made: WhyNot) -> Iterator[Block]:
    """One screen."""
    yield headline(f"Why not {made.asked}?")
    if made.verdict == NONE:
        yield alarm(
            f"No plan has it: {made.refusal}" if made.refusal else f"No plan has it (proven): {made.reason}"
        )
        if made.clash is not None:
            yield from _clash(made.clash)
        if made.short is not None:
            yield from _short(made.short)
        return
    assert made.other is not None and made.comparison is not None
    if made.verdict == SAME:
        yield line("The plan is that layout already: pinning it changes nothing.")
        return
    steps = (words.seconds(p.certificate.value_s) for p in (made.plan, made.other))
    told = "the plan {} a step, the best with it {}".format(*steps)
    verdict = {TIE: "A tie", FASTER: "It is faster; the plan was not proven to be the best"}
    yield line(f"{verdict.get(made.verdict, f'{made.slower_by:.2%} slower')}: {told}.")
    yield from terms(made.comparison)


def shadow(made: ShadowPrices) -> Iterator[Block]:
    """A few lines."""
    yield title(
        f"What {MORE - 1:.0%} more would bring",
        f"solved again on each changed machine; now {words.seconds(made.step_s)}",
    )
    rows = [
        (
            p.name,
            ("" if p.proven else "<") + words.seconds(p.step_s),
            words.less(p.gain),
            "another plan is best" if p.moved else "the plan stays",
        )
        for p in made.prices
    ]
    yield table(rows, "lrrl", header=("of", "step", "", ""))


def balance(made: Balance) -> Iterator[Block]:
    """One screen."""
    inputs = made.plan.inputs
    yield headline(
        f"Balance of {inputs['cluster']['name']} for {inputs['model']['name']}: the best plan at peak rates"
    )
    cells = {
        k: v
        for k, v in words.visible(made.plan.layout, inputs["model"]["kinds"]).items()
        if v not in ("1", "-")
    }
    yield line(", ".join(f"{name} {value}" for name, value in cells.items()))
    yield line(
        f"compute {words.seconds(made.compute_s)} a step: {shown(made.flops, 'FLOP')} on each device at "
        f"{shown(made.flop_per_s, 'FLOP/s')}"
    )
    yield title("Against compute", "FLOP per byte at which both bind together, and what the machine has")
    rows = [
        (r.name, words.seconds(r.busy_s), f"{r.needs:,.0f}", f"{r.has:,.0f}", _off(r.load), _rates(r.bytes_per_s, r.balanced_bytes_per_s))
        for r in made.resources
    ]  # fmt: skip
    yield table(
        rows, "lrrrll", header=("resource", "busy", "plan", "machine", "", "rate now, and in balance")
    )
    yield faint("busy: seconds a step on the slowest stage, alone at peak; plan and machine: FLOP/B.")


def _off(load: float) -> str:
    return f"short {load:.2f} times" if load > 1 else f"spare {1 / load:.2f} times"


def _rates(now: float, balanced: float) -> str:
    return f"{shown(now, 'B/s')}, {shown(balanced, 'B/s')}"


def band(made: Band, robust: bool) -> Iterator[Block]:
    """The list, and with `robust` the plan whose worst case is least."""
    count = len(made.plans)
    some = "" if made.whole else "; more exist: narrow the band, or raise --refinements"
    yield title(
        "Inside the error band", f"{words.plural(count, 'plan')} within {made.band:.0%} of the best{some}"
    )
    shown_cells = [words.visible(p.layout, ()) for p in made.plans]
    columns = words.apart([p.layout for p in made.plans], shown_cells)
    best_s = made.plans[0].value_s
    decimals = words.decimals_for(best_s)
    kept = sorted({*thinned(count), made.robust})
    rows = []
    for i in kept:
        p = made.plans[i]
        behind = "best" if i == 0 else "a tie" if p.tie else f"+{p.value_s / best_s - 1:.2%}"
        numbers = (str(i + 1), words.fixed(p.value_s, decimals), behind, words.fixed(p.worst_s, decimals))
        rows.append((*numbers, *(shown_cells[i][c] for c in columns)))
    header = ("", "step, s", "", "worst, s", *columns)
    yield table(
        rows, "rrrr" + "l" * len(columns), header=header, bold=[kept.index(made.robust)] if robust else ()
    )
    if left_out := count - len(kept):
        yield line(f"{left_out} of {count} are left out; --json has all")
    if robust:
        chosen = made.plans[made.robust]
        same = (
            "the best plan itself"
            if made.robust == 0
            else f"number {made.robust + 1}, not the best at the stated rates"
        )
        yield title("Robust", same)
        best = f"; of the best plan {words.seconds(made.plans[0].worst_s)}" if made.robust else ""
        yield line(
            f"its worst case ({chosen.worst}) is {words.seconds(chosen.worst_s)} a step, the least of those listed{best}. "
            f"Cases: {', '.join(made.cases)}."
        )
    yield faint(f"band: {made.band_source}")
