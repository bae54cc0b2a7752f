"""Everything that is given before a layout is chosen: model, cluster, workload and how they are priced."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import log2
from typing import Literal, get_args

from meshwright.costmodel.collectives import Network
from meshwright.costmodel.doors import ClusterSource, cluster_of
from meshwright.costmodel.framework import Framework, load_framework
from meshwright.costmodel.goals import STEP, Goal
from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.trainable import with_trained
from meshwright.costmodel.workload import ComputeDtype, Training
from meshwright.hardware.calibration import Efficiency, load_efficiency
from meshwright.hardware.chip import Chip
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.errors import MissingFigureError, UnknownNameError, WorkloadError
from meshwright.hardware.network import SCALE_UP_TIERS, Level, TorusAxis

Overlap = Literal["full", "none", "calibrated"]
Streams = Literal["shared", "independent"]

# Communication by what it carries; `offload` is the host link.
COMM_CLASSES = ("tp", "cp", "ep", "fsdp", "pp", "dp", "offload")


@dataclass(frozen=True)
class Setting:
    """One question to the cost model.

    Attributes:
        model: what of it is not trained is marked, adapters are among its weights (`costmodel.trainable`).
        overlap: what may hide behind compute: everything, nothing, or the calibrated share of each class.
        streams: whether communication classes that overlap also queue behind each other (`shared`) or only
            where they load the same network level (`independent`).
        goal: what plans are compared by; prices nothing.
        memory_limit_bytes: what a plan may fill of a device, where that is less than there is.
        launcher: whose limits bound the layouts to choose from; prices do not depend on it.
    """

    model: ModelSpec
    cluster: Cluster
    training: Training
    efficiency: Efficiency
    framework: Framework
    overlap: Overlap = "calibrated"
    streams: Streams = "shared"
    goal: Goal = STEP
    memory_limit_bytes: int | None = None
    launcher: str = "any"

    @cached_property
    def floor(self) -> "Setting":
        """The same question at ideal rates with everything hidden: the roofline floor."""
        ideal = load_efficiency("ideal", self.cluster.chip)
        return replace(self, efficiency=ideal, overlap="full", streams="independent")

    @cached_property
    def serial(self) -> "Setting":
        """The same question at the same rates with nothing hidden."""
        return replace(self, overlap="none")

    @cached_property
    def mtp_layer(self) -> "Setting":
        """The same question about one layer alone: that of a multi-token-prediction module."""
        assert self.model.mtp is not None
        kind = self.model.kinds[self.model.mtp.kind]
        alone = replace(self.model, kinds=(kind,), pattern=(0,), mtp=None)
        return replace(self, model=alone, training=replace(self.training, mtp=0))

    @cached_property
    def tower_layer(self) -> "Setting":
        """The same question about one layer of the vision tower alone, whose sequences are single images."""
        tower = self.model.tower
        assert tower is not None
        alone = replace(
            self.model, hidden=tower.hidden, kinds=(tower.kind,), pattern=(0,), mtp=None, tower=None
        )
        image = replace(
            self.training, global_batch_tokens=tower.patches, seq_len=tower.patches, mtp=0, images=0
        )
        return replace(self, model=alone, training=image)

    @cached_property
    def rates(self) -> "Rates":
        return Rates.of(self)

    @cached_property
    def network(self) -> Network:
        return network_of(self.cluster.levels, self.efficiency)

    @property
    def capacity_bytes(self) -> int:
        """Bytes of a device that tensors may fill."""
        there = self.framework.capacity_bytes(self.cluster.chip.memory_bytes)
        return there if self.memory_limit_bytes is None else min(there, self.memory_limit_bytes)


def network_of(levels: tuple[Level, ...], efficiency: Efficiency) -> Network:
    """The levels of a cluster at the rates that an efficiency file says are reached."""
    achieved = tuple(
        efficiency.scale_up
        if isinstance(level, TorusAxis) or level.name in SCALE_UP_TIERS
        else efficiency.scale_out
        for level in levels
    )
    return Network(levels, achieved)


def ideal_network(cluster: ClusterSource) -> Network:
    """The network of a cluster at peak rates: what `collective` and its kin take.

    Errors: InputError for a cluster that is none.
    """
    cluster = cluster_of(cluster)
    return network_of(cluster.levels, load_efficiency("ideal", cluster.chip))


@dataclass(frozen=True)
class Rates:
    """Rates a program reaches on one device, of many the slowest (`straggler`).

    Attributes:
        matmul_flop_per_s: for the compute dtype. head_flop_per_s, attention_flop_per_s: for bf16, or fp16 if it is that.
        m0, n0: tokens and width at which a product reaches half of its rate.
        misaligned, misaligned_heads: share by which a product and attention take longer at widths that fit no tile.
        narrow_heads: exponent by which heads narrower than 128 slow attention.
        score_bytes: bytes per score and pass of attention that writes its scores; 0 where it is fused.
        expert_share: rate of grouped expert products over that of plain ones.
        elementwise: bytes that elementwise work moves over those of a textbook layer.
        permute: the same of putting tokens in the order of their experts and back.
        sum_bytes: bytes moved per weight and micro-batch to add its gradient to the sum of the step's.
        launch_s, moe_launch_s: least seconds of a layer and micro-batch, and of one with routed experts.
        step_s: seconds of every step whatever it does.
        hideable: share of each communication class that can run under compute.
    """

    matmul_flop_per_s: float
    head_flop_per_s: float
    attention_flop_per_s: float
    m0: float
    n0: float
    expert_share: float
    hbm_bytes_per_s: float
    host_bytes_per_s: float | None
    elementwise: float
    permute: float
    sum_bytes: float
    launch_s: float
    moe_launch_s: float
    step_s: float
    misaligned: float
    misaligned_heads: float
    narrow_heads: float
    score_bytes: float
    hideable: dict[str, float]

    @staticmethod
    def of(setting: Setting) -> "Rates":
        chip, eff = setting.cluster.chip, setting.efficiency
        wide = chip.peak_flop_per_s("fp16" if setting.training.compute_dtype == "fp16" else "bf16")
        if setting.overlap == "calibrated":
            hideable = {str(c): share for c, share in eff.overlap.items()}
        else:
            hideable = dict.fromkeys(COMM_CLASSES, 1.0 if setting.overlap == "full" else 0.0)
        late = 1.0 + eff.straggler * log2(setting.cluster.devices)
        return Rates(
            matmul_flop_per_s=product_flop_per_s(chip, eff, setting.training.compute_dtype) / late,
            head_flop_per_s=wide * (eff.pinned_mfu or eff.matmul) / late,
            attention_flop_per_s=wide * (eff.pinned_mfu or eff.attention) / late,
            m0=eff.matmul_m0 * max(1.0, chip.peak_flop_per_s(setting.training.compute_dtype) / wide),
            n0=eff.matmul_n0,
            expert_share=eff.expert_matmul,
            hbm_bytes_per_s=hbm_bytes_per_s(chip, eff) / late,
            host_bytes_per_s=host_bytes_per_s(eff, chip.host_link_bytes_per_s),
            elementwise=eff.elementwise,
            permute=eff.permute,
            sum_bytes=eff.sum_bytes,
            launch_s=eff.launch_s,
            moe_launch_s=eff.moe_launch_s,
            step_s=eff.step_s,
            misaligned=eff.misaligned,
            misaligned_heads=eff.misaligned_heads,
            narrow_heads=eff.narrow_heads,
            score_bytes=eff.score_bytes,
            hideable=hideable,
        )


def product_flop_per_s(chip: Chip, efficiency: Efficiency, dtype: str) -> float:
    """FLOP/s that large products of a dtype reach on one device; a pinned MFU stands for all that keeps them from it.

    Errors: MissingFigureError where the chip has no peak for the dtype.
    """
    share = efficiency.pinned_mfu or efficiency.matmul * efficiency.low_precision_kept(dtype)
    return chip.peak_flop_per_s(dtype) * share


def hbm_bytes_per_s(chip: Chip, efficiency: Efficiency) -> float:
    """Bytes/s that one device reaches from its memory."""
    return chip.hbm_bytes_per_s * efficiency.hbm


def host_bytes_per_s(efficiency: Efficiency, link_bytes_per_s: float | None) -> float | None:
    """Bytes/s that one device reaches over a host link of that rate; None where the rate is not known."""
    return None if link_bytes_per_s is None else link_bytes_per_s * efficiency.host_link


def setting(
    model: ModelSpec,
    cluster: Cluster,
    training: Training,
    *,
    efficiency: str = "default",
    overlap: Overlap = "calibrated",
    streams: Streams = "shared",
    framework: str = "jax",
) -> Setting:
    """Resolve names into a Setting.

    Raises:
        UnknownNameError: no such efficiency file, framework, overlap or streams.
        MissingFigureError: the chip has no peak for the compute dtype.
        WorkloadError: sequences longer than the positions the model has learned, more multi-token-prediction modules
            than it carries, more images than fit a sequence or than a model without a vision tower takes, and what is
            trained where it does not fit the model.
    """
    for what, word, known in (
        ("overlap", overlap, get_args(Overlap)),
        ("comm_streams", streams, get_args(Streams)),
    ):
        if word not in known:
            raise UnknownNameError(what, word, known)
    chip = cluster.chip
    if training.compute_dtype not in chip.peak:
        takes = [dtype for dtype in get_args(ComputeDtype) if dtype in chip.peak]
        raise MissingFigureError(
            f"no source lists a peak in {training.compute_dtype} for {chip.name}; "
            + (
                f"of what training takes it has {', '.join(takes)}: use --dtype {takes[0]}"
                if takes
                else "use another chip"
            )
        )
    learned = [w.rows for w in model.embedding if w.name == "positions"]
    if learned and training.seq_len > (longest := model.max_seq_len or learned[0]):
        raise WorkloadError(
            f"seq_len {training.seq_len} is more than the {longest} positions {model.name} has learned; "
            f"use seq_len <= {longest}"
        )
    carried = model.mtp.modules if model.mtp else 0
    if training.mtp > carried:
        raise WorkloadError(
            f"mtp {training.mtp} is more than the {carried} multi-token-prediction modules {model.name} carries; "
            f"use mtp <= {carried}"
        )
    _check_images(model, training)
    habits = load_framework(framework)
    return Setting(
        with_trained(model, training.trainable, training.mtp, training.images),
        cluster,
        training,
        load_efficiency(efficiency, chip, habits.software),
        habits,
        overlap,
        streams,
    )


def _check_images(model: ModelSpec, training: Training) -> None:
    if not training.images:
        return
    if model.tower is None:
        raise WorkloadError(
            f"images is {training.images} and no vision tower of {model.name} was read, which takes a gemma3 configuration "
            "with all sizes of its vision_config; use images=0"
        )
    if (taken := training.images * model.tower.tokens) > training.seq_len:
        most = training.seq_len // model.tower.tokens
        raise WorkloadError(
            f"{training.images} images of {model.tower.tokens} tokens are {taken} tokens, a sequence has {training.seq_len}; "
            f"use images <= {most}, or longer sequences"
        )
