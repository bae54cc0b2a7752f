"""What a trace is held against: a chip's peak rates, and a plan where there is one."""

from dataclasses import dataclass

from meshwright.costmodel.doors import ChipSource, ModelSource, chip_of
from meshwright.hardware.chip import Chip
from meshwright.hardware.errors import InputError, check_type
from meshwright.optimizer.plan import Priced
from meshwright.optimizer.reasons.explain import explained
from meshwright.optimizer.reasons.question import reopen
from meshwright.optimizer.traces.events import Event, Label, Trace
from meshwright.optimizer.traces.planned import Planned, link_of, named


@dataclass(frozen=True)
class Against:
    """What a trace is held against: a chip, and a plan where there is one."""

    chip: Chip
    planned: Planned | None = None

    @property
    def label(self) -> Label:
        return named if self.planned is None else self.planned.label

    def link_floor(self, event: Event) -> tuple[str, float] | None:
        """(link, seconds at its peak) of communication or a copy; None where bytes or link are not known."""
        if event.moved_bytes is None:
            return None
        if self.planned is not None:
            return self.planned.floor(event)
        found = link_of(event, self.chip)
        return None if found is None else (found[0], event.moved_bytes / found[1])

    def flop_floor(self, event: Event) -> float | None:
        """Seconds at peak FLOP/s; None without FLOPs or dtype, or without a peak for it."""
        if not event.flops or event.dtype not in self.chip.peak:
            return None
        return event.flops / self.chip.peak_flop_per_s(event.dtype)

    def strange(self, trace: Trace, device: str) -> str | None:
        """What makes the trace none of this chip, or may; None where nothing does."""
        if self.foreign(device):
            return f"the operations are those of {device}, the peaks those of {self.chip.name}"
        return (
            f"the trace is of {trace.hardware}, the peaks are those of {self.chip.name}"
            if trace.hardware
            else None
        )

    def foreign(self, device: str) -> bool:
        """Whether the device is of another family than the chip: the host's CPU, or a GPU where the chip is a TPU."""
        return not device.startswith("TPU" if self.chip.family == "tpu" else "GPU")

    def hbm_floor(self, event: Event) -> float | None:
        """Seconds at peak HBM rate."""
        return event.moved_bytes / self.chip.hbm_bytes_per_s if event.moved_bytes else None


def against(
    chip: ChipSource | None,
    plan: Priced | None,
    *,
    model: ModelSource | None = None,
    efficiency: str | None = None,
) -> Against:
    """Errors: InputError for neither or both, and as `reopen`."""
    check_type("plan", plan, (Priced, type(None)), "what recommend, estimate or load_priced returns, or None")
    if (chip is None) == (plan is None):
        raise InputError(
            "a trace is held against a plan (--plan plan.yaml) or a chip alone (--chip h100); give one of them"
        )
    if plan is None:
        assert chip is not None
        for option, value in (("model", model), ("efficiency", efficiency)):
            if value is not None:
                raise InputError(
                    f"{option} says where a plan's file is, and no plan is given; leave --{option} out"
                )
        return Against(chip_of(chip))
    given = reopen(plan, model=model, efficiency=efficiency)
    return Against(given.cluster.chip, Planned(given, explained(given, plan)))
