"""balance(): the machine on which a plan's compute, memory traffic and network would take equally long.

Of the slowest stage over one step, per device, everything at peak rates and nothing hidden:

    T_F     seconds of products and attention, repeated ones included
    F       T_F P FLOPs, with P the peak FLOP/s of the compute dtype
    T_r     seconds that resource r (HBM, a kind of link, the host link) is busy at its peak W_r bytes/s
    B_r     T_r W_r bytes

    the plan needs     F / B_r  FLOP per byte: on a machine of that ratio compute and r bind together
    the machine has    P / W_r
    load of r          T_r / T_F: above 1 it binds before compute; it would do with W_r T_r / T_F
"""

from dataclasses import dataclass
from typing import Any

from meshwright.costmodel.estimate import digits
from meshwright.costmodel.setting import Setting
from meshwright.optimizer.plan import SCHEMA_VERSION, Plan
from meshwright.optimizer.reasons.explain import Explanation, explained
from meshwright.optimizer.reasons.question import question_of
from meshwright.optimizer.recommend import recommend_in
from meshwright.optimizer.solve import SolveOptions, Watch


@dataclass(frozen=True)
class Resource:
    """One thing that moves bytes.

    Attributes:
        bytes_per_s: peak, of one device (of one link one way on a torus). busy_s: at that peak, over a step.
        needs, has: FLOP per byte at which it binds together with compute, and of the machine.
        load: busy seconds over compute's. balanced_bytes_per_s: the rate at which it binds together with compute.
    """

    name: str
    bytes_per_s: float
    busy_s: float
    needs: float
    has: float
    load: float
    balanced_bytes_per_s: float


@dataclass(frozen=True)
class Balance:
    """A plan's resources, the most loaded first.

    Attributes:
        flops: of one device over a step. flop_per_s: peak. compute_s: flops at that peak.
    """

    plan: Plan
    flops: float
    flop_per_s: float
    compute_s: float
    resources: tuple[Resource, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        numbers = ("bytes_per_s", "busy_s", "needs", "has", "load", "balanced_bytes_per_s")
        return {
            "schema_version": SCHEMA_VERSION,
            "layout": self.plan.layout.to_dict(),
            "flops": digits(self.flops),
            "flop_per_s": digits(self.flop_per_s),
            "compute_s": digits(self.compute_s),
            "resources": [
                {"name": r.name} | {name: digits(getattr(r, name)) for name in numbers}
                for r in self.resources
            ],
        }


def balance(
    question: Plan | Setting,
    *,
    constraints: str | None = None,
    options: SolveOptions | None = None,
    setting: Setting | None = None,
    watch: Watch | None = None,
) -> Balance:
    """How far the machine is from the ratio at which everything binds together in its best plan; see the module.

    Args:
        question: a plan, or what `resolve` returns with `constraints`.
        setting: the question of a plan, where the names in it do not say it all.
        watch: looks on between refinements and may end the search.

    Errors: as `recommend`, and InputError where a plan's question is not found again.
    """
    asked = question_of(question, constraints, setting)
    plan = asked.plan or recommend_in(asked.setting, asked.constraints, options, watch)
    return balance_of(asked.setting, plan, explained(asked.setting, plan))


def balance_of(given: Setting, plan: Plan, why: Explanation) -> Balance:
    """The same for an explained plan."""
    chip = given.cluster.chip
    peak = chip.peak_flop_per_s(given.training.compute_dtype)
    compute_s = sum(o.flop_s for o in why.operators)
    hbm_s = sum(o.hbm_s for o in why.operators)
    if "optimizer" not in plan.layout.offload:  # its bytes, at peak
        moving_s = plan.estimate.parts["optimizer"] - given.rates.step_s  # the rest moves nothing
        hbm_s += moving_s * given.rates.hbm_bytes_per_s / chip.hbm_bytes_per_s
    busy = [("HBM", chip.hbm_bytes_per_s, hbm_s)]
    busy += [(link.name, link.bytes_per_s, link.floor_s) for link in why.links]
    resources = [_resource(name, rate, seconds, compute_s, peak) for name, rate, seconds in busy]
    resources.sort(key=lambda r: -r.load)
    return Balance(plan, compute_s * peak, peak, compute_s, tuple(resources))


def _resource(name: str, bytes_per_s: float, busy_s: float, compute_s: float, peak: float) -> Resource:
    load, has = busy_s / compute_s, peak / bytes_per_s
    return Resource(name, bytes_per_s, busy_s, has / load, has, load, bytes_per_s * load)
