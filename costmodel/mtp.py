"""Multi-token-prediction modules: what they add to the last stage, where all of them run before the loss.

A module is priced from the parts of the model: its layer as a layer of the kind (`Shapes.mtp_layer` says under which
policy), its way in (look-up of shifted tokens, norms, the product 2 D -> D) and its pass of the head as the ends of the
model. Of the head one gather and one scatter of gradients serve all passes; a last stage that holds no token table gets
a copy, whose gradients both ends add up as those of a tied one. With tensor parallelism the product is cut by columns as
Megatron-Core does it: its input is gathered, its output gathered and cut by tokens again. Like the ends, modules hide no
reduction of gradients.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.comm import Comm
from meshwright.costmodel.flops import BF16
from meshwright.costmodel.hostlink import state_bytes, wait_s
from meshwright.costmodel.layer import (
    GATHERS,
    HEAD_CROSSINGS,
    TABLE_CROSSINGS,
    Seconds,
    exposed,
    layer_seconds,
)
from meshwright.costmodel.operators import NORM_WIDTHS, Shape, product_s
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import Shapes

Array = NDArray[Any]

# Passes of the residual over tp around the product: forward two to gather its input and one its output, backward the
# same, and two to gather its input again.
_JOIN_CROSSINGS = 8
_JOIN_NORMS = 3  # of hidden states, of embeddings, and before the head
# Tensors as wide as the residual that a module saves beside those of its layer: inputs and outputs of the two norms, and
# what the last one reads.
_SAVED_WIDTHS = 5


def mtp_seconds(setting: Setting, shapes: Shapes, comm: Comm) -> Seconds:
    """All modules and their passes of the head for one micro-batch; some must be trained."""
    rows, modules, nothing = shapes.rows, setting.training.mtp, np.zeros(len(shapes.rows))
    layer = layer_seconds(setting.mtp_layer, 0, shapes.mtp_layer, comm)
    forward = shapes.embedding_s + join_s(setting, shapes.shape) + shapes.head_s
    compute = modules * 3.0 * forward
    loads = {}
    if (rows.tp > 1).any():
        crossings = modules * (TABLE_CROSSINGS + _JOIN_CROSSINGS + HEAD_CROSSINGS)
        full = np.where(rows.tp > 1, BF16 * shapes.shape.tokens * setting.model.hidden, 0.0)
        loads["tp"] = crossings * comm.gather("tp", full)
    if (rows.zero >= 2).any():
        loads["fsdp"] = _weight_loads(setting, shapes, comm)
    share = {c: np.full(len(rows), setting.rates.hideable[c]) for c in loads}
    parts = {"compute": compute} | exposed(setting, compute, loads, share)
    join, copy = (modules * shapes.mtp_join[0], nothing), (shapes.table_copy, nothing)
    streamed = state_bytes(setting, rows, join, join, GATHERS) + state_bytes(setting, rows, copy, copy, 1)
    if (wait := wait_s(setting, streamed, nothing, sum(parts.values(), nothing))) is not None:
        parts["offload"] = wait
    return added(layer.times(modules), Seconds(parts, 2.0 * modules * forward, nothing, {}, streamed))


def _weight_loads(setting: Setting, shapes: Shapes, comm: Comm) -> Array:
    """What `layer.fsdp_loads` is for a layer, of the joins of all modules and of the copy of the token table.

    As collectives of all at once and of their mean size: the sum of best cases of different sizes is no bound.
    """
    rows, fw = shapes.rows, setting.framework
    join, copy = setting.training.mtp * shapes.mtp_join[0], shapes.table_copy
    whole, times = rows.zero == 3, np.where(rows.reshard > 0, GATHERS, 1)
    gathered = np.where(whole, BF16 * (times * join + fw.embedding_gathers * copy), 0.0)
    reduced = np.where(rows.zero >= 2, fw.reduce_bytes * (join + copy), 0.0)
    count = whole * times + (rows.zero >= 2)
    loads: Array = count[:, None] * comm.gather("shard", (gathered + reduced) / np.maximum(count, 1))
    return loads


def added(one: Seconds, other: Seconds) -> Seconds:
    """Two pieces one after the other."""
    nothing = np.zeros_like(one.backward_s)
    names = dict.fromkeys((*one.parts, *other.parts))
    parts = {p: one.parts.get(p, nothing) + other.parts.get(p, nothing) for p in names}
    return Seconds(
        parts,
        one.backward_s + other.backward_s,
        one.spare_s + other.spare_s,
        {},
        one.streamed + other.streamed,
    )


def join_s(setting: Setting, shape: Shape) -> Array:
    """Forward seconds of a module's product and norms."""
    width = setting.model.hidden
    moved = _JOIN_NORMS * NORM_WIDTHS * BF16 * shape.tokens / shape.spread * width
    return join_product_s(setting, shape) + setting.rates.elementwise * moved / setting.rates.hbm_bytes_per_s


def join_product_s(setting: Setting, shape: Shape) -> Array:
    """Forward seconds of a module's product; of its weight gradient as well."""
    rates, width = setting.rates, setting.model.hidden
    return product_s(rates, shape.tokens, 2.0 * width, width / shape.tp, rates.matmul_flop_per_s)


def hideable_s(setting: Setting, shapes: Shapes) -> tuple[Array, Array]:
    """(forward seconds, seconds of weight gradients) of all modules with their passes of the head, [R] each."""
    modules, layer = setting.training.mtp, shapes.mtp_layer
    forward = layer.kinds[0].forward[layer.of_row] + join_s(setting, shapes.shape) + shapes.head_s
    apart = layer.weight_grad_s[0] + join_product_s(setting, shapes.shape) + shapes.weight_grad_s[-1]
    return modules * forward, modules * apart


def saved_beside_layer(setting: Setting, shapes: Shapes) -> Array:
    """Bytes that one module saves per micro-batch beside its layer, [R]."""
    shape = shapes.shape
    saved: Array = _SAVED_WIDTHS * BF16 * shape.tokens / shape.spread * setting.model.hidden
    return saved
