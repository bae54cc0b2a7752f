"""Seconds of prefill and decode on one device, and the memory they need.

    operator = max(FLOPs / rate, bytes / rate), summed; a layer is launched in `layer_s` on top.

The roofline of arXiv 2602.10377 (eq. 3, 4) with what its aggregated forms leave out: embedding and head, the square
term of attention, the router, every expert's weights in prefill, the experts that a batch meets in decode, launches,
the cache in memory. A routed product reaches `expert_share` of the rates of others.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.costmodel.counting.kvcache import layer_cache_bytes
from meshwright.costmodel.flops import BF16
from meshwright.costmodel.inference.request import Pass, Request
from meshwright.costmodel.inference.stack import Size, Stack
from meshwright.costmodel.inference.work import ENDS, Work, ends_work, layer_work
from meshwright.costmodel.model import LayerKind
from meshwright.costmodel.setting import hbm_bytes_per_s, product_flop_per_s
from meshwright.hardware.calibration import Efficiency, load_efficiency
from meshwright.hardware.chip import ELEMENT_BYTES, Chip
from meshwright.hardware.errors import InputError, shown
from meshwright.hardware.inference_rates import InferenceRates, PhaseRates

ROUTED = ("expert_up", "expert_down")
LAUNCH = "launch"


@dataclass(frozen=True)
class Machine:
    """Rates that a device reaches in one phase; numbers, or columns of devices.

    Attributes:
        elementwise: share of the elementwise traffic that shows; 0 where a compiler hides it all.
        expert_share: rates of routed products over those of others.
        layer_s: seconds per layer whatever it does: launches of kernels.
    """

    flop_per_s: Size
    attention_flop_per_s: Size
    bytes_per_s: Size
    expert_share: Size = 1.0
    elementwise: Size = 0.0
    layer_s: Size = 0.0

    @staticmethod
    def reached(
        phase: PhaseRates, flop_per_s: Size, attention_flop_per_s: Size, bytes_per_s: Size
    ) -> "Machine":
        """What an engine reaches of peaks in one phase, no more. Elementwise work is in the seconds per layer."""
        return Machine(
            np.minimum(phase.flop_per_s(flop_per_s), flop_per_s),
            np.minimum(phase.flop_per_s(attention_flop_per_s), attention_flop_per_s),
            bytes_per_s * np.minimum(phase.hbm_share, 1.0),
            phase.expert_share,
            0.0,
            phase.layer_s,
        )


@dataclass(frozen=True)
class Device:
    """A device by phase, and what it holds."""

    prefill: Machine
    decode: Machine
    memory_bytes: Size

    @staticmethod
    def of(chip: Chip, compute: str, efficiency: Efficiency | InferenceRates | None = None) -> "Device":
        """A chip at the rates of an efficiency file, ideal ones where none is given. Those of inference differ by phase.

        Errors: MissingFigureError where the chip has no peak for the dtype of the products.
        """
        if isinstance(efficiency, InferenceRates):
            flop_per_s = chip.peak_flop_per_s(compute)
            attention = chip.peak_flop_per_s(_attention_dtype(chip, compute))
            prefill, decode = (
                Machine.reached(phase, flop_per_s, attention, chip.hbm_bytes_per_s)
                for phase in (efficiency.prefill, efficiency.decode)
            )
            return Device(prefill, decode, chip.memory_bytes)
        eff = load_efficiency("ideal", chip) if efficiency is None else efficiency
        machine = Machine(
            product_flop_per_s(chip, eff, compute),
            chip.peak_flop_per_s(_attention_dtype(chip, compute)) * (eff.pinned_mfu or eff.attention),
            hbm_bytes_per_s(chip, eff),
            eff.expert_matmul,
            eff.elementwise,
            eff.launch_s,
        )
        return Device(machine, machine, chip.memory_bytes)

    @staticmethod
    def ideal(flop_per_s: Size, bytes_per_s: Size, memory_bytes: Size) -> "Device":
        """From three figures, every rate reached.

        Errors: InputError for a figure that is not finite and above 0.
        """
        for what, value in (
            ("flop_per_s", flop_per_s),
            ("bytes_per_s", bytes_per_s),
            ("memory_bytes", memory_bytes),
        ):
            if not np.all((np.asarray(value) > 0) & (np.asarray(value) < np.inf)):
                raise InputError(f"{what} of a device is {shown(value)}; it must be finite and above 0")
        machine = Machine(flop_per_s, flop_per_s, bytes_per_s)
        return Device(machine, machine, memory_bytes)

    def holding(self, memory_bytes: Size) -> "Device":
        return replace(self, memory_bytes=memory_bytes)


def _attention_dtype(chip: Chip, compute: str) -> str:
    """Scores stay in 16 bits where products take fewer; of the 16-bit peaks the one that is sourced."""
    if ELEMENT_BYTES[compute] >= BF16:
        return compute
    return next((dtype for dtype in ("bf16", "fp16") if dtype in chip.peak), compute)


def operator_s(name: str, work: Work, machine: Machine) -> Size:
    """Seconds of one operator."""
    share = machine.expert_share if name in ROUTED else 1.0
    peak = machine.attention_flop_per_s if name == "core" else machine.flop_per_s
    moved = (work.weight_bytes + work.moved_bytes) / (machine.bytes_per_s * share)
    beside = machine.elementwise * work.elementwise_bytes / machine.bytes_per_s
    return np.maximum(work.flops / (peak * share), moved) + beside


def layer_s(kind: LayerKind, p: Pass, machine: Machine) -> dict[str, Size]:
    """Seconds of one layer, by operator and `launch`."""
    seconds = {name: operator_s(name, work, machine) for name, work in layer_work(kind, p).items()}
    return seconds | {LAUNCH: machine.layer_s}


def ends_s(stack: Stack, p: Pass, machine: Machine) -> dict[str, Size]:
    return {name: operator_s(name, work, machine) for name, work in ends_work(stack, p).items()}


def pass_s(stack: Stack, p: Pass, machine: Machine) -> dict[str, Size]:
    """Seconds of a pass through the whole model, by operator; their sum is the pass."""
    out: dict[str, Any] = ends_s(stack, p, machine)
    for layers, kind in stack.parts:
        for name, seconds in layer_s(kind, p, machine).items():
            out[name] = out.get(name, 0.0) + layers * seconds
    return {name: out[name] for name in sorted(out, key=lambda n: (n in ENDS, n))}


def prefill_s(stack: Stack, device: Device, request: Request) -> Size:
    """Seconds from the prompts to the first token of each."""
    return sum(pass_s(stack, request.prefill, device.prefill).values())


def token_s(stack: Stack, device: Device, request: Request) -> Size:
    """Seconds of a decode step, averaged over the output."""
    return sum(pass_s(stack, request.decode, device.decode).values())


def memory_bytes(stack: Stack, request: Request) -> dict[str, Size]:
    """Bytes held at the end of the output: weights, every expert and both ends; the cache; activations of a prefill.

    Of activations the residual and the widest product's input and output are alive at once.
    """
    p = request.prefill
    cached = sum(layers * cache_of(kind, request) for layers, kind in stack.parts)
    widest: Size = 0.0
    for layers, kind in stack.parts:
        for weight in kind.weights:
            if weight.matmul:
                copies = kind.ffn.top_k if weight.routed else 1
                widest = np.maximum(widest, np.where(layers, copies * (weight.rows + weight.cols), 0))
    return {
        "weights": stack.layer_params * p.weight_bytes + stack.end_params * p.head_bytes,
        "cache": cached,
        "activations": BF16 * p.tokens * (widest + stack.hidden),
    }


def cache_of(kind: LayerKind, request: Request) -> Size:
    """Bytes of all sequences' keys and values in one layer when the last token is made."""
    return request.batch * layer_cache_bytes(kind, request.prompt + request.output, request.kv_bytes)
