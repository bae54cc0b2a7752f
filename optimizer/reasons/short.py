"""How much memory is missing, on which stage and by which part; confirmed by solving with that much more."""

from dataclasses import dataclass
from math import ceil
from typing import Any

from meshwright.costmodel.estimate import digits, estimate
from meshwright.costmodel.layout import Layout
from meshwright.hardware.units import human_bytes
from meshwright.optimizer.decode import layout_of
from meshwright.optimizer.reasons.effort import Effort
from meshwright.optimizer.reasons.machine import with_memory
from meshwright.optimizer.reasons.solving import Case, solve
from meshwright.optimizer.settle import Found, SolveOptions
from meshwright.optimizer.shortfall import closest_miss
from meshwright.optimizer.validate import violations

# A cut is chosen with this much room for the rounding of sums.
_ROUNDING = 1e-6
_CLOSE = 1e-4  # of the memory needed, where only solving tells it
_MOST = 2.0**50


@dataclass(frozen=True)
class Short:
    """The least memory that answers a question, all else as it is.

    Attributes:
        need_bytes: usable bytes of a device. short_bytes: beyond those that it has.
        layout: one that fits then. stage: its heaviest; parts: bytes on it. step_s: what it takes.
    """

    need_bytes: float
    short_bytes: float
    layout: Layout
    stage: int
    parts: dict[str, float]
    step_s: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "need_bytes": ceil(self.need_bytes),  # whole bytes, exact: ten digits would be a few too low
            "short_bytes": digits(self.short_bytes),
            "layout": self.layout.to_dict(),
            "stage": self.stage,
            "parts": {part: digits(size) for part, size in self.parts.items()},
            "step_s": digits(self.step_s),
        }


def short_of(
    case: Case,
    options: SolveOptions,
    known: tuple[Layout, float] | None = None,
    effort: Effort | None = None,
) -> Short | None:
    """None where no memory helps, or where the effort ends before any is found that does.

    The closest miss (`known`: its layout and bytes short) bounds the need from below, and is the need where its plan
    breaks no other rule. If hosts cannot hold what it offloads, the memory is grown and halved in at the solver.
    """
    effort, have = effort or Effort(), case.setting.capacity_bytes
    if known is None:
        found, short = closest_miss(case.space, options.batch_sizes, effort.tick)
        if found is None:
            return None
        known = layout_of(case.setting, found), short
    layout, least = known[0], max(have + known[1], 1.0)
    if (told := _short(case, layout, least)) is not None:
        return told
    low, high = least, 2.0 * least
    while (plan := _at(case, high, options, effort)) is None:
        low, high = high, 2.0 * high
        if high > _MOST or effort.over:
            return None
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        better = _at(case, middle, options, effort)
        low, high, plan = (low, middle, better) if better is not None else (middle, high, plan)
    return _short(case, layout_of(case.setting, plan), high)


def _at(case: Case, usable_bytes: float, options: SolveOptions, effort: Effort) -> Found | None:
    """A plan where a device has so many usable bytes."""
    with effort.on(f"memory missing, {human_bytes(usable_bytes)} a device"):
        return solve(with_usable(case, usable_bytes), options, first=True, effort=effort).found


def with_usable(case: Case, usable_bytes: float) -> Case:
    """The case on devices whose tensors may fill so many bytes."""
    framework, setting = case.setting.framework, case.setting
    whole = int((usable_bytes + framework.reserve_bytes) / (1 - framework.reserve_share)) + 1
    return Case(with_memory(setting, whole), case.wishes, case.rules)


def _short(case: Case, layout: Layout, need: float) -> Short | None:
    """What a layout that fits in so many bytes says; None where it breaks a rule also with them."""
    grown = with_usable(case, need * (1 + _ROUNDING)).setting
    priced = estimate(grown, layout)
    if any(True for _ in violations(grown, priced=priced, layout=layout)):
        return None
    stage = priced.heaviest_stage
    held = {part: size for part, size in priced.memory[stage].items() if size > 0}
    step_s = priced.step_s * case.setting.training.sequences / priced.sequences
    need = priced.stage_bytes[stage]  # what `estimate` says of it
    return Short(need, need - case.setting.capacity_bytes, layout, stage, held, step_s)
