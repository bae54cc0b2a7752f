"""A vision tower with its projector: what they add to the first stage, where they run before its first layer.

As Megatron-Core runs them where the encoder has no pipeline of its own (`add_encoder` on the first stage alone,
megatron/core/models/multimodal/llava_model.py and examples/multimodal/model.py). The layers of the tower are priced as a
layer of its kind on the patches of all images of a micro-batch (`Shapes.tower_layer` says how they are cut), what stands
before and after them from their weights. These weights are small and alike on all tp ranks. Not priced: adding
positions, averaging patches, and putting image tokens in their places among those of the sequence. Like the ends of the
model, a tower hides no reduction of gradients. One that is not trained runs forward alone, nothing is trained before it;
launches of its kernels are not charged, and schedules hide none of it.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.backward import trains_tower
from meshwright.costmodel.comm import Comm
from meshwright.costmodel.flops import BF16, TRAIN
from meshwright.costmodel.hostlink import state_bytes, wait_s
from meshwright.costmodel.layer import (
    FORWARD_CROSSINGS,
    GATHERS,
    Seconds,
    exposed,
    fsdp_loads,
    layer_seconds,
    tp_blocks,
)
from meshwright.costmodel.model import Weight
from meshwright.costmodel.mtp import added
from meshwright.costmodel.operators import NORM_WIDTHS, product_s
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import Shapes

Array = NDArray[Any]


def tower_seconds(setting: Setting, shapes: Shapes, comm: Comm) -> Seconds:
    """Tower and projector for one micro-batch; there must be images."""
    tower, rows = setting.model.tower, shapes.tower_layer.rows
    assert tower is not None
    if not trains_tower(setting.model):
        return _looked_through(setting, shapes, comm)
    layer = layer_seconds(setting.tower_layer, 0, shapes.tower_layer, comm)
    forward, nothing = ends_s(setting, shapes), np.zeros(len(rows))
    weights, compute = (shapes.tower_ends[0], nothing), TRAIN * forward
    loads = {}
    if (found := fsdp_loads(setting, weights, weights, GATHERS, rows, comm)) is not None:
        loads["fsdp"] = found
    share = {c: np.full(len(rows), setting.rates.hideable[c]) for c in loads}
    parts = {"compute": compute} | exposed(setting, compute, loads, share)
    streamed = state_bytes(setting, rows, weights, weights, GATHERS)
    if (wait := wait_s(setting, streamed, nothing, sum(parts.values(), nothing))) is not None:
        parts["offload"] = wait
    return added(layer.times(tower.layers), Seconds(parts, 2.0 * forward, nothing, {}, streamed))


def _looked_through(setting: Setting, shapes: Shapes, comm: Comm) -> Seconds:
    """The same of a tower that is not trained."""
    tower, layer = setting.model.tower, shapes.tower_layer
    assert tower is not None
    rows, nothing = layer.rows, np.zeros(len(layer.rows))
    compute = tower.layers * layer.kinds[0].forward[layer.of_row] + ends_s(setting, shapes)
    loads = {}
    if (rows.tp > 1).any():
        crossings = tower.layers * FORWARD_CROSSINGS * tp_blocks(tower.kind)
        full = np.where(rows.tp > 1, BF16 * layer.shape.tokens * tower.hidden, 0.0)
        loads["tp"] = crossings * comm.gather("tp", full)
    none, (own,) = (nothing, nothing), layer.params
    found = fsdp_loads(setting, own, none, 1, rows, comm)
    ends = fsdp_loads(setting, (shapes.tower_ends[0], nothing), none, 1, rows, comm)
    if found is not None and ends is not None:
        loads["fsdp"] = tower.layers * found + ends
    share = {c: np.full(len(rows), setting.rates.hideable[c]) for c in loads}
    parts = {"compute": compute} | exposed(setting, compute, loads, share)
    streamed = state_bytes(setting, rows, (shapes.tower_params[0], nothing), none, 1)
    if (wait := wait_s(setting, streamed, nothing, sum(parts.values(), nothing))) is not None:
        parts["offload"] = wait
    return Seconds(parts, nothing, nothing, {}, streamed)


def ends_s(setting: Setting, shapes: Shapes) -> Array:
    """Forward seconds of what stands before and after the tower's layers, [R]."""
    rates, norms = setting.rates, np.zeros(len(shapes.rows))
    for weight, tokens in _met(setting, shapes):
        if not weight.matmul:
            norms = norms + NORM_WIDTHS * BF16 * tokens * weight.cols
    return products_s(setting, shapes) + rates.elementwise * norms / rates.hbm_bytes_per_s


def products_s(setting: Setting, shapes: Shapes) -> Array:
    """Forward seconds of the products among them; of their weight gradients as well, [R]."""
    rates = setting.rates
    each = (
        product_s(rates, tokens, weight.rows, weight.cols, rates.matmul_flop_per_s)
        for weight, tokens in _met(setting, shapes)
        if weight.matmul
    )
    return sum(each, np.zeros(len(shapes.rows)))


def hideable_s(setting: Setting, shapes: Shapes) -> tuple[Array, Array]:
    """(forward seconds, seconds of weight gradients) of tower and projector, [R] each."""
    tower, one = setting.model.tower, shapes.tower_layer
    assert tower is not None
    if not trains_tower(setting.model):
        return (np.zeros(len(shapes.rows)),) * 2
    forward = tower.layers * one.kinds[0].forward[one.of_row] + ends_s(setting, shapes)
    return forward, tower.layers * one.weight_grad_s[0] + products_s(setting, shapes)


def saved_beside_layers(setting: Setting, shapes: Shapes) -> Array:
    """Bytes that a micro-batch saves for what stands before and after the tower's layers: the inputs of products and norms,
    [R]."""
    widths = ((w.rows if w.matmul else w.cols, tokens) for w, tokens in _met(setting, shapes))
    return sum((BF16 * tokens * width for width, tokens in widths), np.zeros(len(shapes.rows)))


def _met(setting: Setting, shapes: Shapes) -> Iterable[tuple[Weight, Array]]:
    """Products and norms beside the layers, each with its tokens of a micro-batch."""
    tower, images = setting.model.tower, setting.training.images * shapes.rows.micro_batch
    assert tower is not None
    for weights, tokens in ((tower.of_patches, tower.patches), (tower.projector, tower.tokens)):
        for weight in weights:
            if weight.matmul or (weight.rows == 1 and not weight.name.endswith(".bias")):
                yield weight, images * float(tokens)
