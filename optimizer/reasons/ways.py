"""Ways out of a proven no, the cheapest first; each was solved, and the best plan that was found is told."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.costmodel.estimate import digits, estimate
from meshwright.costmodel.layout import Layout
from meshwright.costmodel.offloads import OFFLOADS
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.workload import Training
from meshwright.hardware.units import human_bytes
from meshwright.optimizer.constraints import NUMBERS, Constraint, parse_constraints
from meshwright.optimizer.decode import layout_of
from meshwright.optimizer.reasons.effort import Effort
from meshwright.optimizer.reasons.limits import CONSTRAINT, ENDLESS, HOST_MEMORY, LAUNCHER, MEMORY, Clash
from meshwright.optimizer.reasons.machine import with_host_memory
from meshwright.optimizer.reasons.machines import larger, roomier
from meshwright.optimizer.reasons.short import Short, with_usable
from meshwright.optimizer.reasons.solving import Case, solve
from meshwright.optimizer.solve import SolveOptions
from meshwright.optimizer.wishes import values_of

# A bound on the effort: solves, refinements of each, batch sizes of a tolerance. What is not reached is not told.
_MOST_SOLVES, _REFINEMENTS, _SIZES = 48, 300, 4
_TOLERANCES = (0.05, 0.1, 0.25, 0.5)
_SMALLEST = 16  # of the batch, at most so many times smaller
_STEPS = 8  # values, sizes or chips tried of one kind


@dataclass(frozen=True)
class WayOut:
    """A change with which a plan fits.

    Attributes:
        kind: constraint, launcher, offload, host memory, batch, device memory, more chips, other chip.
        text: what to change. option: how the command line says it, where it can.
        step_s: of the best plan found then, for the batch of that way; best: it is proven to be the best.
        layout: that plan.
    """

    kind: str
    text: str
    option: str
    step_s: float
    best: bool
    layout: Layout

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "kind": self.kind,
            "text": self.text,
            "option": self.option,
            "step_s": digits(self.step_s),
            "best": self.best,
            "layout": self.layout.to_dict(),
        }


@dataclass
class _Solver:
    """Solves cases, counting; says no once the effort is spent."""

    options: SolveOptions
    effort: Effort
    left: int = _MOST_SOLVES
    ways: list[WayOut] = field(default_factory=list)

    def fits(self, case: Case) -> bool:
        self.left -= 1
        return self.left >= 0 and solve(case, self.options, first=True, effort=self.effort).feasible is True

    def add(self, kind: str, text: str, option: str, case: Case) -> bool:
        """List the way if the case has a plan."""
        with self.effort.on(f"ways out, {text}"):
            if not self.fits(case):
                return False
            outcome = solve(case, self.options, effort=self.effort)
        if outcome.found is None:
            return False
        layout = layout_of(case.setting, outcome.found)
        self.ways.append(WayOut(kind, text, option, outcome.found.value_s, outcome.settled, layout))
        return True

    def first(self, tries: Iterable[tuple[str, str, str, Case]]) -> None:
        """List the first that has a plan, of a few."""
        for number, (kind, text, option, case) in enumerate(tries):
            if self.add(kind, text, option, case) or number + 1 == _STEPS:
                return


def ways_out(
    case: Case, clash: Clash, short: Short | None, options: SolveOptions, effort: Effort | None = None
) -> tuple[WayOut, ...]:
    """Ways out of an infeasible case, as far as the effort goes. Only members of the clash can help, so nothing else is
    tried."""
    few = replace(
        options,
        refinements=min(options.refinements, _REFINEMENTS),
        batch_sizes=min(options.batch_sizes, _SIZES),
    )
    solver, memory = _Solver(few, effort or Effort()), clash.kinds & {MEMORY, HOST_MEMORY}
    wishes = [w for w in case.wishes if any(x.kind == CONSTRAINT and x.text == w.text for x in clash.limits)]
    for wish in wishes:
        _widen(solver, case, wish)
    if len(wishes) > 1 and not solver.ways:
        left = tuple(w for w in case.wishes if w not in wishes)
        freed = replace(case, wishes=left)
        solver.add("constraint", f"drop {', '.join(w.text for w in wishes)}", _option(freed), freed)
    if LAUNCHER in clash.kinds:
        free = replace(case, setting=replace(case.setting, launcher="any"))
        solver.add("launcher", f"a launcher without {case.setting.launcher}'s limits", "--launcher any", free)
    if MEMORY in clash.kinds:
        _offload(solver, case)
    if HOST_MEMORY in clash.kinds:
        solver.first(_more_host(case))
    if memory:
        _smaller_batch(solver, case)
    else:
        solver.first(_batches(case))
    if short is not None:
        _more_memory(solver, case, short)
    if memory:
        solver.first(
            ("more chips", *_named(s, f"{s.cluster.chips:,} chips"), replace(case, setting=s))
            for s in larger(case.setting)
        )
        need = short.need_bytes if short is not None and memory == {MEMORY} else 0.0
        solver.first(
            (
                "other chip",
                *_named(s, f"{human_bytes(s.cluster.chip.memory_bytes)} each"),
                replace(case, setting=s),
            )
            for s in roomier(case.setting)
            if s.capacity_bytes >= need
        )
    return tuple(solver.ways)


def _named(setting: Setting, aside: str) -> tuple[str, str]:
    name = setting.cluster.name
    return f"{name}, {aside}", f"--cluster {name}"


def _more_memory(solver: _Solver, case: Case, short: Short) -> None:
    """The elastic answer: its own layout fits, a search may find a faster one."""
    text = f"devices with {human_bytes(short.need_bytes)} usable, {human_bytes(short.short_bytes)} more"
    grown = with_usable(case, short.need_bytes * (1 + 1e-6))
    if not solver.add("device memory", text, "", grown):
        solver.ways.append(WayOut("device memory", text, "", short.step_s, False, short.layout))


def _option(case: Case) -> str:
    """All constraints of a case for the command line; nothing where there are none: then the option goes."""
    return f"--constraint '{', '.join(w.text for w in case.wishes)}'" if case.wishes else ""


def _widen(solver: _Solver, case: Case, wish: Constraint) -> None:
    """The nearest value of a bound that leaves a plan; else the constraint dropped."""
    others = tuple(w for w in case.wishes if w is not wish)
    dropped = replace(case, wishes=others)
    if not solver.fits(dropped):
        return
    for text in _wider(case, wish):
        widened = replace(case, wishes=(*others, *parse_constraints(text)))
        if solver.add("constraint", f"{text} in place of {wish.text}", _option(widened), widened):
            return
    solver.add("constraint", f"drop {wish.text}", _option(dropped), dropped)


def _wider(case: Case, wish: Constraint) -> Iterator[str]:
    """A constraint with its bound moved out, nearest first."""
    if wish.name not in NUMBERS or wish.compare not in ("<", "<=", ">", ">="):
        return
    values = values_of(case.setting, wish.name)
    beyond = [v for v in values if not wish.allows(v)]
    up = wish.compare.startswith("<")
    for value in sorted(beyond, reverse=not up)[:-1][:_STEPS]:  # the last is no bound any more
        yield f"{wish.name}{'<=' if up else '>='}{value}"


def _offload(solver: _Solver, case: Case) -> None:
    """Hosts that nobody has described: what they would have to hold."""
    cluster = case.setting.cluster
    allowed = [o for o in OFFLOADS[1:] if all(w.allowed(o) for w in case.wishes if w.name == "offload")]
    link = case.setting.rates.host_bytes_per_s
    if cluster.host_memory_bytes is not None or not allowed or link is None:
        return
    endless = replace(case, setting=with_host_memory(case.setting, ENDLESS))
    solver.left -= 1
    with solver.effort.on("ways out, hosts without end"):
        outcome = solve(endless, solver.options, effort=solver.effort)
    if outcome.found is None:
        return
    held = max(estimate(endless.setting, layout_of(endless.setting, outcome.found)).host_bytes)
    whole = -(-int(held * (cluster.devices_per_host or 1)) // 10**9)
    solver.add(
        "offload",
        f"offload to hosts of {whole:,} GB",
        f"--host-memory {whole}GB",
        replace(case, setting=with_host_memory(case.setting, whole * 10**9)),
    )


def _more_host(case: Case) -> Iterator[tuple[str, str, str, Case]]:
    memory = case.setting.cluster.host_memory_bytes or 1
    for doublings in range(1, 40):
        larger_ = memory << doublings
        setting = with_host_memory(case.setting, larger_)
        yield (
            "host memory",
            f"hosts of {human_bytes(larger_)}",
            f"--host-memory {f'{larger_ // 10**9}G' if larger_ % 10**9 == 0 else larger_}B",
            replace(case, setting=setting),
        )


def _smaller_batch(solver: _Solver, case: Case) -> None:
    """The largest power-of-two share of the batch that fits, if the smallest tried does."""
    training = case.setting.training
    shares: list[Training] = []
    while training.sequences % 2 == 0 and len(shares) < _SMALLEST.bit_length() - 1:
        training = replace(training, global_batch_tokens=training.global_batch_tokens // 2)
        shares.append(training)
    cases = [replace(case, setting=replace(case.setting, training=t)) for t in shares]
    if not cases or not solver.fits(cases[-1]):
        return
    solver.first(
        (
            "batch",
            f"a batch of {t.sequences:,} sequences, 1/{2 ** (i + 1)} of it",
            f"--batch {t.sequences}seq",
            c,
        )
        for i, (t, c) in enumerate(zip(shares, cases, strict=True))
    )


def _batches(case: Case) -> Iterator[tuple[str, str, str, Case]]:
    training = case.setting.training
    for tolerance in _TOLERANCES:
        wider = replace(training, batch_tolerance=tolerance)
        if tolerance > training.batch_tolerance and len(wider.sequence_range) > len(training.sequence_range):
            option = f"--batch {training.global_batch_tokens}~{tolerance:.0%}"
            setting = replace(case.setting, training=wider)
            yield "batch", f"let the batch move by {tolerance:.0%}", option, replace(case, setting=setting)
