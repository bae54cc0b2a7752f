"""From a solved candidate to a layout, priced again by the cost model."""

import numpy as np

from meshwright.costmodel.estimate import StepEstimate, estimate
from meshwright.costmodel.layout import CP_KINDS, Layout
from meshwright.costmodel.offloads import OFFLOADS, without_activations
from meshwright.costmodel.policies import tensor_bits
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.schedules import SCHEDULES
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.tensors import HOST, words_of
from meshwright.optimizer.bounds import per_batch
from meshwright.optimizer.plan import ModelDriftError
from meshwright.optimizer.solve import Found


def decode(setting: Setting, found: Found) -> tuple[Layout, StepEstimate]:
    """The layout and its estimate.

    Raises:
        ModelDriftError: the estimate and the solver's value differ by more than the slack.
    """
    layout = layout_of(setting, found)
    priced = estimate(setting, layout)
    value = value_of(setting, found.row, priced.step_s)
    # The last term is what sums of floats in another order can differ by.
    if abs(value - found.value_s) > found.slack_s + 1e-9 * value:
        raise ModelDriftError(
            f"solver says {found.value_s:.9g} s, cost model says {value:.9g} s, slack is {found.slack_s:.3g} s: {layout}"
        )
    return layout, priced


def value_of(setting: Setting, row: Rows, step_s: float) -> float:
    """Step seconds of the cost model on the scale of the goal."""
    return float(per_batch(setting, row, np.array([step_s]))[0])


def layout_of(setting: Setting, found: Found) -> Layout:
    row = found.row
    number = {
        name: int(getattr(row, name)[0])
        for name in ("dp_replicate", "dp_shard", "zero", "cp", "tp", "pp", "vpp", "ep", "etp", "micro_batch")
    }
    sequences = int(row.sequences[0])
    hosts = any(code >> HOST for stage in found.mixes for mix in stage for code, _ in mix)
    offload = OFFLOADS[int(row.offload[0])]
    plain, by_stage = _policies(setting, found)
    return Layout(
        **number,
        policies=plain,
        stage_policies=by_stage,
        cp_kind=CP_KINDS[int(row.cp_kind[0])],
        reshard=bool(row.reshard[0]),
        sp=bool(row.sp[0]),
        schedule=SCHEDULES[int(row.schedule[0])],
        sequences=None if sequences == setting.training.sequences else sequences,
        layers_per_stage=found.lengths,
        offload=offload if hosts else without_activations(offload),
        placement=found.placement,
    )


def _policies(setting: Setting, found: Found) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Policies for all stages where they agree, else stage by stage."""
    present = [tensor_bits(setting.framework, kind) for kind in setting.model.kinds]
    met = [{stage[k] for stage in found.mixes if stage[k]} for k in range(len(present))]
    codes = [{code for mix in mixes for code, _ in mix} for mixes in met]
    if all(len(some) <= 1 for some in codes):
        (words,) = words_of([[[(code, 1) for code in some] for some in codes]], present)
        return _short(words), ()
    stages = tuple(map(_short, words_of(found.mixes, present)))
    return ("none",), stages[:1] if len(set(stages)) == 1 else stages


def _short(words: tuple[str, ...]) -> tuple[str, ...]:
    """One word where all layer kinds have the same."""
    return words[:1] if len(set(words)) == 1 else words
