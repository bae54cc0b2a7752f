"""From a solved candidate to a layout, priced again by the cost model."""

from meshwright.costmodel.estimate import StepEstimate, estimate
from meshwright.costmodel.layout import CP_KINDS, OFFLOADS, Layout
from meshwright.costmodel.policies import tensor_bits
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.tensors import words_of
from meshwright.optimizer.plan import ModelDriftError
from meshwright.optimizer.solve import Found


def decode(setting: Setting, found: Found) -> tuple[Layout, StepEstimate]:
    """The layout and its estimate.

    Raises:
        ModelDriftError: the estimate and the solver's value differ by more than the slack.
    """
    layout = layout_of(setting, found)
    priced = estimate(setting, layout)
    value = priced.step_s * setting.training.sequences / priced.sequences
    # The last term is what sums of floats in another order can differ by.
    if abs(value - found.value_s) > found.slack_s + 1e-9 * value:
        raise ModelDriftError(
            f"solver says {found.value_s:.9g} s, cost model says {value:.9g} s, slack is {found.slack_s:.3g} s: {layout}"
        )
    return layout, priced


def layout_of(setting: Setting, found: Found) -> Layout:
    row = found.row
    number = {
        name: int(getattr(row, name)[0])
        for name in ("dp_replicate", "dp_shard", "zero", "cp", "tp", "pp", "vpp", "ep", "etp", "micro_batch")
    }
    present = [tensor_bits(setting.framework, kind) for kind in setting.model.kinds]
    sequences = int(row.sequences[0])
    return Layout(
        **number,
        cp_kind=CP_KINDS[int(row.cp_kind[0])],
        sp=bool(row.sp[0]),
        schedule="interleaved" if number["vpp"] > 1 else "gpipe" if row.gpipe[0] else "1f1b",
        sequences=None if sequences == setting.training.sequences else sequences,
        layers_per_stage=found.lengths,
        policies=words_of(row.policies[0].tolist(), present),
        offload=OFFLOADS[int(row.offload[0])],
        placement=found.placement,
    )
