"""Decode of a served model: seconds of one step, what fits, and where one resource gives way to another.

A decode step makes one token of each of B sequences. Attention reads every sequence's keys and values and does few
FLOPs per byte of them, so it is never compute bound; all other products multiply B rows with weights, read once:

    t_step = B kv / (n W) + max(2 B active / (n C), weights / (n W))

over n devices of C FLOP/s and W bytes/s, everything cut n ways. Source: jax-ml/scaling-book, chapters 7 and 8. Left
out as there: what products move beside weights and the FLOPs of attention, which `step_by_operator_s` has, and the
network, which layout.py has. Functions take one batch or an array of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from meshwright.costmodel.counting.kvcache import cache_bytes
from meshwright.costmodel.flops import core_flops, product_bytes, product_flops
from meshwright.costmodel.inference.request import Pass
from meshwright.costmodel.inference.seconds import Machine, pass_s
from meshwright.costmodel.inference.stack import Stack
from meshwright.costmodel.inference.work import decode_attention
from meshwright.costmodel.model import LayerKind, ModelSpec
from meshwright.costmodel.roofline import intensity as roofline
from meshwright.hardware.chip import Chip, Switch
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.numbers import check_fields
from meshwright.hardware.slices import slice_table

# A number or an array of them: what goes in comes out.
Batch = Any


@dataclass(frozen=True)
class Server:
    """Devices that serve one copy of a model together, at rates of one device.

    Attributes:
        flop_per_s: in the dtype of the products.
        usd_per_chip_hour: None where nobody states it.
    """

    devices: int
    flop_per_s: float
    hbm_bytes_per_s: float
    memory_bytes: float
    devices_per_chip: int = 1
    usd_per_chip_hour: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @staticmethod
    def of(cluster: Cluster, compute: str = "bf16") -> "Server":
        """All devices of a cluster at peak rates.

        Errors: MissingFigureError where the chip has no peak for the dtype.
        """
        return Server.of_chip(cluster.chip, cluster.chips, compute)

    @staticmethod
    def of_chip(chip: Chip, chips: int, compute: str = "bf16") -> "Server":
        """So many chips at peak rates; errors as above."""
        return Server(
            chips * chip.devices_per_chip,
            chip.peak_flop_per_s(compute),
            chip.hbm_bytes_per_s,
            chip.memory_bytes,
            chip.devices_per_chip,
            chip.price_usd_per_hour,
        )

    @property
    def chips(self) -> float:
        return self.devices / self.devices_per_chip

    @property
    def all_flop_per_s(self) -> float:
        return self.devices * self.flop_per_s

    @property
    def all_hbm_bytes_per_s(self) -> float:
        return self.devices * self.hbm_bytes_per_s

    @property
    def all_memory_bytes(self) -> float:
        return self.devices * self.memory_bytes


@dataclass(frozen=True)
class Served:
    """A model as a server sees it.

    Attributes:
        params, active_params: held, and met by one token.
        weight_bytes: per parameter.
        kv_bytes: of one sequence at its length.
    """

    params: float
    active_params: float
    weight_bytes: float
    kv_bytes: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)

    @staticmethod
    def of(model: ModelSpec, context: float, weight_bytes: float, kv_dtype_bytes: float) -> "Served":
        """A model with sequences of `context` tokens in the cache; bytes per element, 0.5 for int4."""
        kv_bytes = cache_bytes(model, context, kv_dtype_bytes)
        return Served(model.params, model.active_params, weight_bytes, kv_bytes)

    @property
    def param_bytes(self) -> float:
        return self.params * self.weight_bytes


def kv_s(served: Served, server: Server, batch: Batch) -> Batch:
    """Seconds to read the caches of all sequences."""
    return batch * served.kv_bytes / server.all_hbm_bytes_per_s


def load_s(served: Served, server: Server) -> float:
    """Seconds to read all weights once: the floor of a step whatever the batch and the context."""
    return float(product_bytes(0, 1, served.params, w=served.weight_bytes) / server.all_hbm_bytes_per_s)


def math_s(served: Served, server: Server, batch: Batch) -> Batch:
    """Seconds of the FLOPs of products with weights, of those that a token meets."""
    return product_flops(batch, 1, served.active_params) / server.all_flop_per_s


def weights_s(served: Served, server: Server, batch: Batch) -> Batch:
    """Seconds of all products with weights; of a mixture all experts are read."""
    return np.maximum(math_s(served, server, batch), load_s(served, server))


def step_s(served: Served, server: Server, batch: Batch) -> Batch:
    """Seconds of one decode step."""
    return kv_s(served, server, batch) + weights_s(served, server, batch)


def throughput(served: Served, server: Server, batch: Batch) -> Batch:
    """Tokens per second of the whole server."""
    return batch / step_s(served, server, batch)


def prefill_s(served: Served, server: Server, tokens: Batch, mfu: float = 1.0) -> Batch:
    """Seconds to make the cache of `tokens` at a share of peak: 2 FLOPs per parameter and token, or weights read."""
    return np.maximum(math_s(served, server, tokens) / mfu, load_s(served, server))


def critical_batch(served: Served, server: Server) -> float:
    """Sequences from which on the products with weights are compute bound; a mixture needs about E / k times more."""
    dense = roofline.critical_batch(served.weight_bytes, server.flop_per_s, server.hbm_bytes_per_s)
    return dense * served.params / served.active_params


def full_memory_s(server: Server) -> float:
    """Seconds to read all of the memory once: the step of a server that is filled with caches."""
    return server.memory_bytes / server.hbm_bytes_per_s


def free_bytes(served: Served, server: Server) -> float:
    """Memory beside the weights, over all devices; below zero where they do not fit."""
    return server.all_memory_bytes - served.param_bytes


def most_sequences(served: Served, server: Server) -> int:
    """Caches that fit beside the weights."""
    return max(0, int(free_bytes(served, server) // served.kv_bytes))


def chips_for(total_bytes: float, server: Server) -> float:
    """Chips that hold so many bytes, not rounded."""
    return total_bytes / (server.memory_bytes * server.devices_per_chip)


def largest(holds: Callable[[int], bool], most: int = 1 << 40) -> int:
    """The largest whole number up to `most` for which a rule holds that holds for all below it; 0 if for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def most_within(served: Served, server: Server, limit_s: float) -> int:
    """Sequences at most for a step within a limit."""
    return largest(lambda batch: bool(step_s(served, server, batch) <= limit_s))


def slices_of(chip: Chip) -> tuple[str, ...]:
    """Shapes of a chip that can be had, smallest first, each of a different size: slices of a torus, parts of a
    switched domain and whole domains up to 64. Empty where nobody lists them.
    """
    if isinstance(chip.scale_up, Switch):
        whole = chip.scale_up.domain.count
        parts = [d for d in range(1, whole + 1) if whole % d == 0]
        return tuple(f"{d}x1" for d in parts) + tuple(f"{whole}x{2**n}" for n in range(1, 7))
    listed = slice_table().generations.get(chip.name)
    return () if listed is None else tuple(listed.shapes.values())


def chips_of(shape: str) -> int:
    """Chips of a shape such as 4x8."""
    return prod(int(side) for side in shape.split("x"))


def smallest_slice(chip: Chip, chips: float) -> str | None:
    """The least shape with at least so many chips; None where none is listed."""
    return next((shape for shape in slices_of(chip) if chips_of(shape) >= chips), None)


def step_by_operator_s(
    model: ModelSpec, server: Server, batch: Batch, context: float, weight_bytes: float, kv_dtype_bytes: float
) -> Batch:
    """Seconds of a step with what `step_s` leaves out: each product takes the larger of its FLOPs and all its bytes,
    attention too, of the token table only rows are read, of experts those that any token of the batch meets.

    No traffic between chips and everything cut over all devices, as there.
    """
    step = Pass(batch, 1, context - 1, weight_bytes, kv_dtype_bytes, weight_bytes)
    machine = Machine(server.all_flop_per_s, server.all_flop_per_s, server.all_hbm_bytes_per_s)
    seconds = pass_s(Stack.of(model), step, machine)
    return sum(s for name, s in seconds.items() if name != "embedding")


def prompt_by_operator_s(
    model: ModelSpec,
    server: Server,
    new: int,
    cached: int,
    mfu: float,
    weight_bytes: float,
    kv_dtype_bytes: float,
) -> float:
    """Seconds to make the cache of `new` tokens after `cached` ones, and logits of the last, at a share of peak FLOP/s:
    each product takes the larger of its FLOPs and all its bytes; of experts those that any token meets are read."""
    prompt = Pass(1, new, cached, weight_bytes, kv_dtype_bytes, weight_bytes)
    peak = server.all_flop_per_s * mfu
    return float(
        sum(pass_s(Stack.of(model), prompt, Machine(peak, peak, server.all_hbm_bytes_per_s)).values())
    )


def attention_math_s(model: ModelSpec, server: Server, batch: Batch, context: float) -> Batch:
    """Seconds of the FLOPs of all attention kernels, to be held against reading the cache."""
    kinds = zip(model.layers_by_kind, model.kinds, strict=True)
    return sum(layers * _attention_math_s(server, batch, kind, context) for layers, kind in kinds)


def span(kind: LayerKind, context: float) -> float:
    """Positions that a new token's query meets."""
    window = kind.attention.window
    return context if window is None else min(context, window)


def _attention_math_s(server: Server, batch: Batch, kind: LayerKind, context: float) -> Batch:
    return batch * core_flops(decode_attention(kind), span(kind, context)) / server.all_flop_per_s
