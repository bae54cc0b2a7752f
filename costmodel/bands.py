"""How far an estimate may be off, by what kind of run it is of: measured by leaving published runs out of the fit."""

from meshwright.costmodel.setting import Setting
from meshwright.hardware.calibration import Band, RunKind


def run_kind(setting: Setting) -> RunKind:
    """The kind by which bands are told apart; a mixture that is fine-tuned is fine-tuning."""
    if setting.training.trainable != "all":
        return "fine-tuning"
    return "MoE" if any(kind.ffn.experts for kind in setting.model.kinds) else "dense"


def band_of(setting: Setting) -> Band | None:
    """Measured over predicted step seconds, least and most of 80% of runs of the kind; None where nothing was measured."""
    bands = setting.efficiency.bands
    if bands is None or setting.overlap != "calibrated":
        return None
    return bands.get(run_kind(setting))
