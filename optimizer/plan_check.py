"""Whether the parts of an answer that was read from a file follow from each other.

A file keeps ten digits of a figure; what differs by more was changed after the file was written.
"""

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from meshwright.costmodel.estimate import PARTS
from meshwright.costmodel.goals import GOALS
from meshwright.costmodel.layout import DIMENSIONS
from meshwright.hardware.errors import shown
from meshwright.optimizer.plan_proof import check_bounds, check_counts, check_order, check_signs

if TYPE_CHECKING:
    from meshwright.optimizer.plan import Certificate, Plan, Priced

_SAME = 1e-8
_SUM = 2e-9  # share of a sum by which the ten digits of it and of its terms may move it
_STATUSES = ("OPTIMAL", "FEASIBLE")


def check_parts(made: "Priced", data: Mapping[str, Any]) -> None:
    """Raises ValueError where parts of an answer contradict each other; `data` is what it was made from."""
    priced, layout = made.estimate, made.layout
    if set(priced.parts) != set(PARTS):
        raise ValueError(f"parts are {', '.join(sorted(priced.parts)) or 'none'}")
    if not 0 < priced.step_s < float("inf"):
        raise ValueError(f"step_s is {priced.step_s}")
    _agree(
        "estimate.step_s",
        priced.step_s,
        sum(priced.parts.values()),
        "estimate.parts sum to",
        _SUM * priced.step_s,
    )
    if not priced.lower_s <= priced.step_s <= priced.upper_s:
        told = f"{priced.lower_s:.10g}, {priced.step_s:.10g} and {priced.upper_s:.10g}"
        raise ValueError(f"estimate.lower_s, step_s and upper_s are {told}, and must not fall")
    for name, found in (("memory", priced.memory), ("estimate.host_bytes", priced.host_bytes)):
        if len(found) != layout.pp:
            raise ValueError(f"{name} of {len(found)} stages for pp={layout.pp}")
    if len(layout.placement) != len(made.idle.levels):
        raise ValueError(f"placement on {len(layout.placement)} levels of {len(made.idle.levels)}")
    for name in DIMENSIONS:
        placed = prod(factor for level in layout.placement for d, factor in level if d == name)
        if placed != getattr(layout, name):
            raise ValueError(f"{name}={getattr(layout, name)} is placed as {placed}")
    _check_room(made, data)


def _check_room(made: "Priced", data: Mapping[str, Any]) -> None:
    """The verdict on memory against the figures that it is made of."""
    priced = made.estimate
    held = max(priced.stage_bytes) + priced.capacity_bytes
    _agree(
        "short_bytes",
        data["short_bytes"],
        priced.short_bytes,
        "memory and estimate.capacity_bytes make it",
        _SUM * held,
    )
    held = priced.fullest_host_bytes + (priced.host_capacity_bytes or 0)
    _agree(
        "host_short_bytes",
        data["host_short_bytes"],
        priced.host_short_bytes,
        "the figures of the hosts make it",
        _SUM * held,
    )
    if data["fits"] != (data["short_bytes"] == 0 and data["host_short_bytes"] == 0):
        short = f"short_bytes {data['short_bytes']:.10g} and host_short_bytes {data['host_short_bytes']:.10g}"
        raise ValueError(f"fits is {str(data['fits']).lower()} with {short}")


def check_proof(plan: "Plan") -> None:
    """Raises ValueError where a certificate contradicts the plan or itself."""
    proof, training = plan.certificate, plan.inputs["training"]
    for name, known in (("status", _STATUSES), ("goal", GOALS)):
        if getattr(proof, name) not in known:
            raise ValueError(
                f"certificate.{name} is {shown(getattr(proof, name))}, not one of {', '.join(known)}"
            )
    check_signs(proof)
    asked = training["global_batch_tokens"] // training["seq_len"]
    value_s = plan.estimate.step_s * asked / plan.estimate.sequences
    value_s *= plan.layout.devices if proof.goal == "cost" else 1
    rounding = proof.slack_s + _SAME * value_s
    _agree("certificate.value_s", proof.value_s, value_s, "estimate.step_s makes it", rounding)
    if proof.goal == "step":
        _agree("certificate.value", proof.value, proof.value_s, "certificate.value_s is", _SUM * value_s)
    if proof.bound_s > proof.value_s * (1 + _SUM) or proof.bound > proof.value * (1 + _SUM):
        raise ValueError(
            f"certificate.bound_s and bound are {proof.bound_s:.10g} and {proof.bound:.10g}, above the value_s and value "
            f"{proof.value_s:.10g} and {proof.value:.10g}"
        )
    if (proof.status == "OPTIMAL") != _closed(proof):
        raise ValueError(
            f"certificate.status is {proof.status}, but value_s {proof.value_s:.10g} and bound_s {proof.bound_s:.10g} with "
            f"slack_s {proof.slack_s:.3g}, value {proof.value:.10g} and bound {proof.bound:.10g}, make it "
            f"{_STATUSES[proof.status == _STATUSES[0]]}"
        )
    check_bounds(proof)
    check_counts(plan)
    check_order(plan)
    for number, other in enumerate(plan.runner_ups):
        if other.in_band != (other.value_s <= proof.value_s * (1 + proof.error_band)):
            raise ValueError(
                f"runner_ups[{number}].in_band is {str(other.in_band).lower()} at {other.value_s:.10g} s, the plan has "
                f"{proof.value_s:.10g} s and the error band is {proof.error_band:.10g}"
            )


def _closed(proof: "Certificate") -> bool:
    """Whether what is left below the value is rounding."""
    left = proof.value_s - proof.bound_s <= proof.slack_s + _SUM * proof.value_s
    return left and (proof.goal != "chips" or proof.bound >= proof.value)


def _agree(name: str, theirs: float, ours: float, why: str, within: float) -> None:
    if not abs(theirs - ours) <= within:  # a nan agrees with nothing
        raise ValueError(f"{name} is {theirs:.10g}, and {why} {ours:.10g}")
