"""What optima share between devices: how depth and activation fall with width. Their sizes differ, their exponents hardly.

PLAS (arXiv 2602.10377, theorems 5.1 to 5.3) gives both for its aggregated forms: at a fixed budget and a fixed kind of
layer depth falls as width^-2, and where memory binds at fixed stored experts rho* falls as width^((b1-b2)/arho), with
its fit width^-1.193, whatever the device. Here the same is found by search over whole layers and whole experts under
the cost model's own times and bytes, beside the closed forms, with the exponent fitted through all widths.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.costmodel.doors import check_positive
from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.hardware.errors import InputError, check_type
from meshwright.search import closed_forms
from meshwright.search.architecture import Ends
from meshwright.search.front import best
from meshwright.search.law import Law
from meshwright.search.plas import decode_bytes, prefill_flop
from meshwright.search.price import Latency, Pricer
from meshwright.search.shape import Array, Floats, Shapes

WIDTHS = (768, 1024, 1280, 1536, 1792, 2048, 2304, 2560, 3072)  # table 5 of the paper
HEAD_DIM = 128
FFN_RATIO, GQA = 2.0, 2  # of the fixed kind of layer, dense
LAYERS = (4, 8, 12, 16, 20, 24, 28, 32)  # table 5, where memory binds
EXPERTS = 256  # stored, of which 1 to all are chosen: rho in steps of 1/256
STORED = (1, 2, 4, 8, 16, 32, 64, 128)  # r / rho, so that every expert has whole channels


@dataclass(frozen=True)
class ByWidth:
    """A decision at the optimum of every width."""

    widths: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """Slope of the least-squares line through the logarithms."""
        return float(np.polyfit(np.log(self.widths), np.log(self.values), 1)[0])


@dataclass(frozen=True)
class Structure:
    """Of one device.

    Attributes:
        prefill_depth, decode_depth: most whole layers of the fixed kind within the time. *_form: layers of the closed
            form, real numbers.
        free_depth: layers of the closed form where r and gqa are free too: they, not depth, take up the budget.
        activation: rho of the best shape within the device's memory. activation_form: rho* of theorem 5.2.
    """

    prefill_depth: ByWidth
    prefill_form: ByWidth
    decode_depth: ByWidth
    decode_form: ByWidth
    free_depth: ByWidth
    activation: ByWidth
    activation_form: ByWidth


def structure(
    devices: Mapping[str, Device],
    law: Law,
    request: Request,
    ends: Ends,
    *,
    ttft_s: float,
    tpot_s: float,
    widths: tuple[int, ...] = WIDTHS,
    latency: Latency = "full",
) -> dict[str, Structure]:
    """Optima of every device by width at the same times, each within its own memory.

    law: of PLAS' form; its loss is taken where it was not fitted too, since only the place of the optimum is asked.
    Errors: InputError for widths that are no two multiples of two heads, another form of law, or too little time.
    """
    check_type("devices", devices, Mapping, "a mapping of names to Devices")
    check_type("law", law, Law, "a Law")
    check_positive(ttft_s=ttft_s, tpot_s=tpot_s)
    if len(widths) < 2 or any(width % (GQA * HEAD_DIM) for width in widths):
        raise InputError(f"widths are {widths}; give two or more multiples of {GQA * HEAD_DIM}")
    at = _At(law, request, ends, widths, latency)
    return {name: at.structure(device, ttft_s, tpot_s) for name, device in devices.items()}


@dataclass(frozen=True)
class _At:
    """A question without its device."""

    law: Law
    request: Request
    ends: Ends
    widths: tuple[int, ...]
    latency: Latency

    def structure(self, device: Device, ttft_s: float, tpot_s: float) -> Structure:
        of, r = closed_forms.Coefficients.of(self.law.coefficients), self.request
        wide = np.array(self.widths)
        flop, moved = ttft_s * device.prefill.flop_per_s, tpot_s * device.decode.bytes_per_s
        prefill = prefill_flop(wide, r.batch * r.prompt)
        decode = decode_bytes(wide, r.mean_context, r.weight_bytes, r.kv_bytes)
        forms = [
            self._by(closed_forms.depth(*budget, FFN_RATIO, GQA))
            for budget in ((flop, prefill), (moved, decode))
        ]
        free = closed_forms.shape_star(of, wide, 1 / 16, flop, prefill)
        return Structure(
            self._depth(device, forms[0], "prefill_s", ttft_s),
            forms[0],
            self._depth(device, forms[1], "token_s", tpot_s),
            forms[1],
            self._by(free.layers),
            self._activation(device),
            self._by(closed_forms.memory_activation(of, wide)),
        )

    def _by(self, values: Floats | list[float]) -> ByWidth:
        return ByWidth(self.widths, tuple(float(value) for value in values))

    def _depth(self, device: Device, form: ByWidth, cost: str, limit_s: float) -> ByWidth:
        """The form leaves work out, so it bounds the layers that are tried."""
        found: list[float] = []
        for width, most in zip(self.widths, form.values, strict=True):
            layers = np.arange(1, math.ceil(most) + 1)
            shapes = _shapes(layers, width, width // HEAD_DIM // GQA, FFN_RATIO, 1, 1)
            found.append(self._best(device, shapes, cost, limit_s, "layers"))
        return self._by(found)

    def _activation(self, device: Device) -> ByWidth:
        """Layers, stored experts r / rho and chosen ones are free; heads share nothing, as in the theorem."""
        layers, stored, chosen = np.meshgrid(LAYERS, STORED, np.arange(1, EXPERTS + 1), indexing="ij")
        found: list[float] = []
        for width in self.widths:
            heads = width // HEAD_DIM
            shapes = _shapes(layers, width, heads, stored * chosen / EXPERTS, EXPERTS, chosen)
            found.append(self._best(device, shapes, "memory_bytes", float(device.memory_bytes), "activation"))
        return self._by(found)

    def _best(self, device: Device, shapes: Shapes, cost: str, limit: float, what: str) -> float:
        costs = Pricer(self.ends, device, self.request, self.latency).costs(shapes)
        row = best(np.asarray(self.law.loss(shapes).loss), getattr(costs, cost), limit)
        if row is None:
            raise InputError(
                f"no shape of width {shapes.width[0]:,} keeps {cost} {limit:.4g}, the least is "
                f"{getattr(costs, cost).min():.4g}; allow more, or take smaller widths"
            )
        return float(getattr(shapes, what)[row])


def _shapes(
    layers: Array, width: int, kv_heads: int, ratio: Array | float, experts: int, top_k: Array | int
) -> Shapes:
    rows = np.broadcast_arrays(layers, width, width // HEAD_DIM, kv_heads, HEAD_DIM, ratio, experts, top_k, 0)
    columns = [np.ravel(row) for row in rows]
    columns[5] = columns[5].astype(np.float64)
    return Shapes(*columns)
