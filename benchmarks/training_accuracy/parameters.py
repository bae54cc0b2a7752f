"""What is fitted on published runs: names, priors, and the calibration file that values make."""

from dataclasses import dataclass
from math import exp, inf, log
from typing import Any

import numpy as np

from meshwright.hardware.calibration import EfficiencyFile


@dataclass(frozen=True)
class Parameter:
    """One number of the calibration, fitted in its logarithm.

    Attributes:
        path: where it stands in the file, dots between. prior: value without data. sd: of the logarithm, before data.
        of: path of the number that this one is a factor of. exposed: the file holds one minus it.
        most: largest value.
    """

    path: str
    prior: float
    sd: float
    of: str | None = None
    exposed: bool = False
    most: float | None = None

    def value(self, x: float) -> float:
        return self.prior * exp(x)

    def room(self, x: float) -> float:
        """How far above `x` the logarithm may go; a factor's own largest value is that of the product."""
        return inf if self.most is None or self.of is not None else log(self.most / self.prior) - x


def _matmul(architecture: str, prior: float, sd: float = 0.2) -> Parameter:
    return Parameter(f"architectures.{architecture}.matmul", prior, sd, most=1.0)


# Priors of attention: what its kernels reach forward and backward together (benchmarks/data/operators; FlashAttention-2 on
# Hopper about a third of peak forward, arXiv 2407.08608). Of h100-96gb: a power limit puts its peak between those of
# H100 NVL and SXM, 835 and 989 TFLOP/s. Of TPU products: 0.90 of peak for cubes of 8,192 on v6e, 0.77 to 0.83 on TPU7x. Of narrow heads: kernels of
# heads of 64 reach 0.47 to 0.91 of the rate of 128 on the chips measured.
PARAMETERS: tuple[Parameter, ...] = (
    _matmul("ampere", 0.78), _matmul("hopper", 0.72), _matmul("blackwell", 0.62),
    _matmul("tpu_v4", 0.8, 0.12), _matmul("tpu_v5e", 0.8, 0.12), _matmul("tpu_v5p", 0.8, 0.12),
    _matmul("tpu_7x", 0.7, 0.12),
    Parameter("chips.b200.matmul", 1.0, 0.15, of="architectures.blackwell.matmul", most=1.0),
    Parameter("chips.gb200.matmul", 1.0, 0.15, of="architectures.blackwell.matmul", most=1.0),
    Parameter("chips.b300.matmul", 1.0, 0.15, of="architectures.blackwell.matmul", most=1.0),
    Parameter("chips.gb300.matmul", 1.0, 0.15, of="architectures.blackwell.matmul", most=1.0),
    Parameter("chips.h100-96gb.matmul", 0.92, 0.08, of="architectures.hopper.matmul", most=1.0),
    Parameter("common.matmul_m0", 168.0, 0.5), Parameter("common.matmul_n0", 120.0, 0.7),
    Parameter("architectures.hopper.low_precision.fp8", 0.90, 0.1, most=1.0),
    Parameter("architectures.blackwell.low_precision.fp8", 0.90, 0.1, most=1.0),
    Parameter("architectures.blackwell.low_precision.fp4", 0.69, 0.2, most=1.0),
    Parameter("common.misaligned", 0.28, 0.5), Parameter("software.megatron-2021.common.misaligned_heads", 2.0, 1.0),
    Parameter("families.tpu.attention", 0.42, 0.2, most=1.0),
    Parameter("architectures.ampere.attention", 0.45, 0.2, most=1.0),
    Parameter("architectures.hopper.attention", 0.48, 0.15, most=1.0),
    Parameter("architectures.blackwell.attention", 0.45, 0.15, most=1.0),
    Parameter("software.torch-fsdp.common.attention", 1.0, 0.2, of="attention"),
    Parameter("software.torch-fsdp.architectures.hopper.attention", 0.27, 0.15, most=1.0),
    Parameter("common.narrow_heads", 0.7, 0.25, most=1.1),
    Parameter("software.llm-foundry.common.narrow_heads", 0.1, 1.0),
    Parameter("software.llm-foundry.common.attention", 0.75, 0.2, of="attention"),
    Parameter("software.llm-foundry.architectures.hopper.attention", 0.25, 0.4, most=1.0),
    Parameter("software.megatron-2021.common.score_bytes", 20.0, 0.4),
    Parameter("software.megatron-core.common.elementwise", 1.5, 0.4),
    Parameter("software.torch-fsdp.common.elementwise", 1.8, 0.25),
    Parameter("software.llm-foundry.common.elementwise", 1.8, 0.4),
    Parameter("software.jax.families.nvidia.elementwise", 2.0, 0.3),
    Parameter("software.megatron-2021.common.elementwise", 1.2, 0.4),
    Parameter("software.megatron-2021.common.sum_bytes", 8.0, 0.4),
    Parameter("software.megatron-core.common.sum_bytes", 4.0, 0.5),
    Parameter("families.tpu.elementwise", 1.0, 0.3),
    Parameter("architectures.ampere.scale_up", 0.66, 0.2, most=0.9),
    Parameter("architectures.hopper.scale_up", 0.65, 0.2, most=0.9),
    Parameter("architectures.blackwell.scale_up", 0.65, 0.2, most=0.9),
    Parameter("architectures.ampere.scale_out", 0.8, 0.2, most=0.95),
    Parameter("architectures.hopper.scale_out", 0.7, 0.2, most=0.95),
    Parameter("architectures.blackwell.scale_out", 0.7, 0.2, most=0.95),
    Parameter("common.overlap.tp", 0.40, 0.3, exposed=True, most=1.0),
    Parameter("software.megatron-2021.common.overlap.tp", 0.9, 0.1, exposed=True, most=1.0),
    Parameter("common.overlap.ep", 0.5, 0.4, exposed=True, most=1.0),
    Parameter("common.overlap.dp", 0.25, 0.5, exposed=True, most=1.0),
    Parameter("software.megatron-2021.common.overlap.dp", 0.8, 0.2, exposed=True, most=1.0),
    Parameter("software.megatron-2021.common.overlap.fsdp", 1.0, 0.1, exposed=True, most=1.0),
    Parameter("software.torch-fsdp.common.overlap.fsdp", 0.5, 0.4, exposed=True, most=1.0),
    Parameter("software.llm-foundry.common.overlap.fsdp", 0.5, 0.4, exposed=True, most=1.0),
    Parameter("software.jax.families.nvidia.overlap.fsdp", 0.3, 0.4, exposed=True, most=1.0),
    Parameter("families.tpu.overlap.fsdp", 0.2, 0.4, exposed=True, most=1.0),
    Parameter("common.overlap.pp", 0.4, 0.4, exposed=True, most=1.0),
    Parameter("common.overlap.cp", 0.6, 0.3, exposed=True, most=1.0),
    Parameter("common.expert_matmul", 0.57, 0.3, most=1.0),
    Parameter("software.megatron-core/graphs.common.expert_matmul", 0.7, 0.3, most=1.0),
    Parameter("software.megatron-core/graphs.common.overlap.ep", 0.4, 0.4, exposed=True, most=1.0),
    Parameter("software.megatron-core/all-to-all.common.overlap.ep", 0.8, 0.2, exposed=True, most=1.0),
    Parameter("families.tpu.expert_matmul", 0.6, 0.3, most=1.0),
    Parameter("software.megatron-core.common.moe_launch_s", 6e-3, 0.5),
    Parameter("software.megatron-core/layer-graphs.common.moe_launch_s", 5e-3, 0.5),
    Parameter("software.megatron-core/graphs.common.moe_launch_s", 1e-3, 0.7),
    Parameter("software.megatron-core/static.common.moe_launch_s", 1e-3, 0.7),
    Parameter("software.megatron-core/all-to-all.common.moe_launch_s", 10e-3, 0.5),
    Parameter("software.megatron-core.common.permute", 2.0, 0.4),
    Parameter("software.megatron-core/all-to-all.common.permute", 5.0, 0.7),
    Parameter("software.deepspeed-2021.common.scale_out", 0.2, 0.4, most=0.95),
    Parameter("common.straggler", 0.004, 0.7),
    Parameter("software.megatron-core.common.launch_s", 0.7e-3, 0.7),
    Parameter("software.megatron-2021.common.launch_s", 3e-3, 0.5),
    Parameter("software.torch-fsdp.common.launch_s", 0.8e-3, 0.7),
    Parameter("software.llm-foundry.common.launch_s", 0.8e-3, 0.7),
    Parameter("software.megatron-core.common.step_s", 30e-3, 0.7),
    Parameter("software.torch-fsdp.common.step_s", 28e-3, 0.7),
    Parameter("software.llm-foundry.common.step_s", 28e-3, 0.7),
)  # fmt: skip
EXTENDS = {
    "megatron-core/layer-graphs": "megatron-core",
    "megatron-core/graphs": "megatron-core",
    "megatron-core/static": "megatron-core",
    "megatron-core/all-to-all": "megatron-core",
    "deepspeed-2021": "megatron-2021",
}


def start() -> np.ndarray:
    return np.zeros(len(PARAMETERS))


def file_of(x: np.ndarray, fixed: dict[str, Any]) -> EfficiencyFile:
    """The calibration at parameters `x` (logarithm over the prior), the other numbers as in `fixed`, a file's fields."""
    data: dict[str, Any] = _copy(fixed)
    values: dict[str, float] = {}
    for parameter, at in zip(PARAMETERS, x, strict=True):
        value = parameter.value(float(at))
        if parameter.of == "attention":
            _scale_attention(data, parameter.path, value)
            continue
        if parameter.of is not None:
            value *= values[parameter.of]
        if parameter.most is not None:
            value = min(value, parameter.most)
        values[parameter.path] = value
        _put(data, parameter.path, 1.0 - value if parameter.exposed else value)
    for name, base in EXTENDS.items():
        data["software"].setdefault(name, {})["extends"] = base
    return EfficiencyFile.model_validate(data)


def _scale_attention(data: dict[str, Any], path: str, factor: float) -> None:
    """A program's attention by architecture, as a factor of the architecture's own."""
    name = path.split(".")[1]
    for architecture, part in list(data["architectures"].items()):
        if "attention" in part:
            _put(
                data,
                f"software.{name}.architectures.{architecture}.attention",
                min(1.0, part["attention"] * factor),
            )


def _copy(data: Any) -> Any:
    return {k: _copy(v) for k, v in data.items()} if isinstance(data, dict) else data


def _put(data: dict[str, Any], path: str, value: float) -> None:
    *into, last = path.split(".")
    for key in into:
        data = data.setdefault(key, {})
    data[last] = value


def plain(file: EfficiencyFile) -> dict[str, Any]:
    """The fields of a calibration that are set, numbers at four digits."""
    data: dict[str, Any] = _rounded(file.model_dump(exclude_none=True, exclude_unset=True))
    first = ("name", "provenance")
    return {k: data[k] for k in first} | {k: v for k, v in data.items() if k not in first}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
