"""Latency and memory of a shape in the aggregated forms of PLAS (arXiv 2602.10377, sections E.4 to E.8).

What one layer costs is linear in r and in 1/gqa, so every form is one `LayerCost` times the layers over a rate:

    prefill, FLOP       B S d^2 (2 a + 6 r)                            (29)
    decode, bytes       d^2 b_w (a + 3 r) + 2 (S + t) d b_kv / gqa     (33), summed over t (36, 37)
    stored, bytes       d^2 b_w (a + 3 r / rho)                        (42)        with a = 2 + 2/gqa

The paper leaves out: embedding and output head, the S^2 term of attention, the router, reading all experts in
prefill, launches of kernels, and the KV cache in memory. These forms compare with the paper; they are no estimate.
"""

from typing import NamedTuple

import numpy as np

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.hardware.errors import InputError, WorkloadError
from meshwright.search.shape import Array, Floats, Shapes

Column = Array | float  # of candidates, or a number


class LayerCost(NamedTuple):
    """FLOP or bytes of one layer: queries_output + (keys_values + cache) / gqa + feed_forward * r."""

    queries_output: Column
    keys_values: Column
    cache: Column
    feed_forward: Column

    def terms(self, ffn_ratio: Column, gqa: Column) -> dict[str, Floats]:
        """The addends, by name."""
        return {
            "queries_output": np.asarray(self.queries_output, float),
            "keys_values": np.asarray(self.keys_values / gqa, float),
            "cache": np.asarray(self.cache / gqa, float),
            "feed_forward": np.asarray(self.feed_forward * ffn_ratio, float),
        }

    def total(self, ffn_ratio: Column, gqa: Column) -> Floats:
        return np.asarray(sum(self.terms(ffn_ratio, gqa).values()), float)


def prefill_flop(width: Column, tokens: Column) -> LayerCost:
    """FLOP of one layer over the prompts: xi_F d^2 per token, xi_F = 2 a + 6 r."""
    square = np.square(width, dtype=np.float64) * tokens
    return LayerCost(4 * square, 4 * square, np.zeros_like(square), 6 * square)


def decode_bytes(width: Column, context: Column, weight_bytes: float, kv_bytes: float) -> LayerCost:
    """Bytes that one layer reads for a token of batch 1 over a context: weights met and keys and values."""
    square = np.square(width, dtype=np.float64) * weight_bytes
    return LayerCost(2 * square, 2 * square, 2.0 * context * width * kv_bytes, 3 * square)


def stored_bytes(width: Column, activation: Column, weight_bytes: float) -> LayerCost:
    """Bytes of the weights of one layer, all experts: xi_all d^2 b_w, xi_all = a + 3 r / rho."""
    square = np.square(width, dtype=np.float64) * weight_bytes
    return LayerCost(2 * square, 2 * square, np.zeros_like(square), 3 * square / activation)


def prefill_s(shapes: Shapes, device: Device, asked: Request) -> Floats:
    """(29): seconds from the prompts to the first token, bound by compute."""
    cost = prefill_flop(shapes.width, asked.batch * asked.prompt)
    return np.asarray(_over_layers(cost, shapes) / device.prefill.flop_per_s)


def decode_step_s(shapes: Shapes, device: Device, asked: Request, step: int) -> Floats:
    """(33): seconds of output token `step` (the first is 1), bound by reading weights and cache."""
    if not 1 <= step <= asked.output:
        raise WorkloadError(f"step {step} is not one of the {asked.output} output tokens; count from 1")
    return _decode_s(shapes, device, asked, asked.prompt + step)


def decode_s(shapes: Shapes, device: Device, asked: Request) -> Floats:
    """(36, 37): seconds of all output tokens, the sum of (33) over them."""
    return asked.output * _decode_s(shapes, device, asked, asked.mean_context)  # Sbar of (36, 37)


def memory_bytes(shapes: Shapes, asked: Request) -> Floats:
    """(42): bytes of the weights of all layers."""
    return _over_layers(stored_bytes(shapes.width, shapes.activation, asked.weight_bytes), shapes)


def _decode_s(shapes: Shapes, device: Device, asked: Request, context: float) -> Floats:
    if asked.batch != 1:
        raise WorkloadError(
            f"the paper's decode form (33) is written for batch 1, not {asked.batch}: more sequences read "
            "more caches and more experts; take batch 1 or the full model"
        )
    cost = decode_bytes(shapes.width, context, asked.weight_bytes, asked.kv_bytes)
    return np.asarray(_over_layers(cost, shapes) / device.decode.bytes_per_s)


def _over_layers(cost: LayerCost, shapes: Shapes) -> Floats:
    odd = np.flatnonzero(shapes.heads * shapes.head_dim != shapes.width)
    if len(odd):
        row = shapes[odd[:1]]
        raise InputError(
            f"the paper's forms hold where heads * head_dim is the width; shape {odd[0]} has {row.heads[0]} * "
            f"{row.head_dim[0]} and width {row.width[0]}; take a grid with the rule heads_fill_width"
        )
    return shapes.layers * cost.total(shapes.ffn_ratio, shapes.gqa)
