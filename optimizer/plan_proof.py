"""Whether the certificate of a plan, and the plans that it ranks, follow from each other: bounds, slack, counts, order."""

from typing import TYPE_CHECKING

from meshwright.costmodel.layout import Layout

if TYPE_CHECKING:
    from meshwright.optimizer.plan import Certificate, Plan

_DIGITS = 1.1e-9  # share of a value by which the ten digits of it and of its bound may move their difference
_TICK = 1e-8  # of a step: what one rounding in the solver hides
_DEVICES, _PLACED = "uses at most the devices there are", "placements that load the network as another does"


def check_signs(proof: "Certificate") -> None:
    """Raises ValueError for what cannot lie below zero."""
    for name in ("slack_s", "bound_s", "bound", "error_band"):
        if getattr(proof, name) < 0:
            raise ValueError(f"certificate.{name} is {getattr(proof, name):.10g}, below zero")


def check_bounds(proof: "Certificate") -> None:
    """Raises ValueError where slack or limits contradict value and bound."""
    left = proof.value_s - proof.bound_s
    if proof.status == "OPTIMAL" and abs(proof.slack_s - left) > _DIGITS * proof.value_s:
        raise ValueError(
            f"certificate.slack_s is {proof.slack_s:.10g}, and value_s {proof.value_s:.10g} less bound_s {proof.bound_s:.10g} "
            f"is {left:.10g}"
        )
    if (proof.goal == "chips") != (proof.limit_s is not None):
        told = "null" if proof.limit_s is None else f"{proof.limit_s:.10g}"
        raise ValueError(f"certificate.limit_s is {told} with goal {proof.goal}; chips alone has one")
    if proof.limit_s is not None and proof.value_s - proof.slack_s > proof.limit_s * (1 + _DIGITS):
        raise ValueError(f"certificate.value_s is {proof.value_s:.10g}, above limit_s {proof.limit_s:.10g}")
    if proof.deadline_s is not None and proof.limit_s is None:
        raise ValueError(f"certificate.deadline_s is {proof.deadline_s:.10g} without a limit_s")


def check_counts(plan: "Plan") -> None:
    """Raises ValueError where more was removed or solved than there was."""
    proof = plan.certificate
    if proof.solved != proof.entered.get("solved", 0):
        raise ValueError(
            f"certificate.solved is {proof.solved}, and certificate.entered.solved {proof.entered.get('solved', 0)}"
        )
    if proof.solved < len(plan.runner_ups) or proof.solved < 1:
        raise ValueError(
            f"certificate.solved is {proof.solved}, and the plan and its {len(plan.runner_ups)} runner_ups were solved"
        )
    for rule, level in ((_DEVICES, "degrees"), (_PLACED, "plans")):
        removed, entered = proof.removed.get(rule, 0), proof.entered.get(level, 0)
        if removed > entered:
            raise ValueError(
                f"certificate.removed has {removed} for {rule!r}, of certificate.entered.{level} {entered}"
            )


def check_order(plan: "Plan") -> None:
    """Raises ValueError where a runner-up is better than what is ranked before it, or is there twice."""
    proof = plan.certificate
    before, name = proof.value_s, "certificate.value_s"
    met = [plan.layout]
    for number, other in enumerate(plan.runner_ups):
        here = f"runner_ups[{number}]"
        hidden = proof.slack_s + _rounding_s(plan, other.layout, other.value_s)
        if other.value_s < before - hidden:
            raise ValueError(f"{here}.value_s is {other.value_s:.10g}, below {name} {before:.10g} before it")
        if other.value_s < proof.bound_s - hidden:
            raise ValueError(
                f"{here}.value_s is {other.value_s:.10g}, below certificate.bound_s {proof.bound_s:.10g}"
            )
        if other.layout in met:
            raise ValueError(f"{here}.layout is listed twice")
        met.append(other.layout)
        before, name = max(before, other.value_s), f"{here}.value_s"


def _rounding_s(plan: "Plan", layout: Layout, value_s: float) -> float:
    """Seconds that rounding in the solver can hide of a plan, at the most: of every micro-batch and stage."""
    sequences = layout.sequences or plan.estimate.sequences
    rounds = sequences / (layout.micro_batch * layout.dp) + layout.pp + 1
    return rounds * _TICK * value_s
