"""What was proved and over what: certificate, funnel, next best plans, and a proven no."""

from collections.abc import Iterator, Sequence

from meshwright.costmodel.limits.run_time import DAY_S
from meshwright.hardware.units import human_bytes
from meshwright.optimizer.plan import Certificate, Infeasible, Plan, RunnerUp
from meshwright.optimizer.report import words
from meshwright.optimizer.report.page import Block, alarm, faint, line, table, title

# Refinements of the search in order, as the funnel names them.
_LEVELS = ("degrees", "frames", "shapes", "choices", "rows", "splits", "plans", "solved")
# Shown as +0.00%: no machine would tell the two apart.
_TIE = 5e-5


def next_best(plan: Plan) -> Iterator[Block]:
    """The plan and its runners-up, column by column; columns on which all agree are left out."""
    if not plan.runner_ups:
        return
    kinds = plan.inputs["model"].get("kinds", ())
    layouts = [plan.layout, *(r.layout for r in plan.runner_ups)]
    shown = [words.visible(layout, kinds) for layout in layouts]
    columns = words.apart(layouts, shown)
    proof = plan.certificate
    nominal, unit = proof.value_s, "step, s"
    values = [nominal, *(r.value_s for r in plan.runner_ups)]
    near = ["", *("yes" if r.in_band else "no" for r in plan.runner_ups)]
    if proof.goal == "cost":
        values, unit = [v / nominal * proof.value for v in values], proof.unit
        nominal = proof.value
    decimals = words.decimals_for(nominal)
    devices = len({layout.devices for layout in layouts}) > 1
    rows = []
    for number, (layout, cells, value) in enumerate(zip(layouts, shown, values, strict=True)):
        behind = "best" if number == 0 else _behind(value / nominal - 1)
        first = (str(number + 1), words.fixed(value, decimals), behind, near[number])
        rows.append((*first, *([str(layout.devices)] if devices else []), *(cells[c] for c in columns)))
    header = ("", unit, "", "in band", *(["devices"] if devices else []), *columns)
    yield title("Next best plans", "what differs from the best; in band: nearer than the model errs")
    yield table(rows, "rrr" + "l" * (len(header) - 3), header=header, bold=[0])


def _behind(share: float) -> str:
    return "a tie" if share < _TIE else f"+{share:.2%}"


def certificate(proof: Certificate, runner_ups: Sequence[RunnerUp]) -> Iterator[Block]:
    """What the proof says, and how little that may mean on the machine."""
    yield title("Certificate", f"{proof.status} over the stated space {proof.space_hash}")
    decimals = words.decimals_for(proof.value_s) + 3
    value, bound = (words.fixed(s, decimals) for s in (proof.value_s, proof.bound_s))
    gap = f"gap {proof.gap:.1e}, of it rounding {min(proof.gap, proof.slack_s / proof.value_s):.1e}"
    if proof.goal == "step":
        yield line(f"value {value} s; no plan of the space is modelled below {bound} s ({gap})")
    elif proof.goal == "cost":
        cost, least = (f"{v:.7g}" for v in (proof.value, proof.bound))
        yield line(
            f"goal cost: {cost} {proof.unit} of the chips used; no plan of the space is modelled below {least} ({gap})"
        )
    else:
        proved = (
            "no plan on fewer is within it"
            if proof.bound >= proof.value
            else f"fewer were left open from {proof.bound:g} on"
        )
        yield line(f"goal chips: {proof.value:g} chips keep the limit of {_limit(proof)}; {proved}")
        yield line(f"step {value} s; no plan on as many chips is modelled below {bound} s ({gap})")
    inside = sum(r.in_band for r in runner_ups)
    shown = words.plural(len(runner_ups), "next plan")
    near = f"{inside} of the {shown} shown {'is' if inside == 1 else 'are'} closer than that"
    end = (
        f", and {near}, so a measurement may rank them first."
        if inside
        else f"; {near}."
        if runner_ups
        else "."
    )
    yield line(
        "The proof is about the model, not the machine: of 80% of runs of this kind the model misses the step time by up to "
        f"{proof.error_band:.0%}{end}"
    )
    yield faint(f"error band: {proof.band_source}")


def _limit(proof: Certificate) -> str:
    """`9.5 s a step`, `30 days for the run (9.5 s a step)`."""
    step = f"{proof.limit_s:.4g} s a step"
    return step if proof.deadline_s is None else f"{proof.deadline_s / DAY_S:.4g} days for the run ({step})"


def funnel(entered: dict[str, int], removed: dict[str, int], solved: int | None = None) -> Iterator[Block]:
    """How many candidates each named rule removed."""
    entered = {level: count for level, count in entered.items() if level != "solved" or solved is None}
    known = [level for level in _LEVELS if level in entered] + sorted(set(entered) - set(_LEVELS))
    counts = [f"{entered[level]:,} {level}" for level in known]
    counts += [f"{solved:,} solved exactly"] if solved is not None else []
    yield title("Search", " -> ".join(counts))
    order = sorted(removed.items(), key=lambda item: (-item[1], item[0]))
    yield table([(f"{count:,}", rule) for rule, count in order], "rl", header=("removed", "by rule"))


def infeasible(error: Infeasible) -> Iterator[Block]:
    """A proven no: why, by how much, the closest miss, and what fell to which rule."""
    yield alarm(f"INFEASIBLE (proven): {error.reason}")
    if error.layout is not None:
        cells = words.visible(error.layout, ())
        short = f"{human_bytes(error.short_bytes or 0)} short on each device of the heaviest stage"
        yield title("Closest miss", f"{words.plural(error.layout.devices, 'device')}; {short}")
        yield table([tuple(cells.values())], "l" * len(cells), header=tuple(cells))
        yield line(words.stages(error.layout))
    if error.removed:
        yield from funnel({}, error.removed)
