"""Least seconds of a layer that may save so many bytes, with its policy open: a bound that needs no list of policies.

Tensors are independent of each other but for `unfused`: where that is saved the feed-forward part is saved with it,
where it is not, elementwise work runs again. So the least time within some bytes is, but for the last tensor, that of
dropping tensors in order of seconds per byte; taking that one in part is faster than any policy can be.

With the host in play a layer takes max(busy, transfers), which is at least (1 - w) busy + w transfers for every w.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.layer import Seconds, least_seconds
from meshwright.costmodel.policies import UNFUSED_OPERATORS, Chosen
from meshwright.costmodel.policy_front import crossings
from meshwright.costmodel.shapes import Shapes
from meshwright.costmodel.tensors import CODES, DROPPED, TENSORS, away, bits

Array = NDArray[Any]
_WEIGHTS = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)


def bytes_of_all(shapes: Shapes, kind: int) -> Array:
    """Bytes of every tensor of a layer, [R]: no policy saves more."""
    out: Array = shapes.kinds[kind].policies.tensor_bytes.sum(axis=1)[shapes.of_row]
    return out


def least_seconds_within(shapes: Shapes, kind: int, at: Array, none: Seconds, device: Array) -> Array:
    """Seconds of a layer, at least, if it saves at most `device` bytes on the device; inf where that is below 0.

    Args:
        at: the rows that are asked for, [N].
        none: the layer where it repeats nothing and keeps nothing on the host, [N].
    """
    costs, setting = shapes.kinds[kind].policies, shapes.setting
    size, again = costs.tensor_bytes[shapes.of_row[at]], costs.operator_s[shapes.of_row[at]]
    crossed = sum(each[:, None] * crossings(c) for c, each in none.again_s.items())
    stays = _where(set(TENSORS) - setting.framework.chooses)
    plain = none.total + np.maximum(
        _knapsack(size, again, again + crossed, stays, device) - none.spare_s, 0.0
    )
    hosts, link = shapes.rows.offloads_activations[at], setting.rates.host_bytes_per_s
    if link is not None and hosts.any():
        share, fixed = setting.rates.hideable["offload"], _where(set(TENSORS) - setting.framework.offloads)
        hosted = none.total
        for w in _WEIGHTS:
            moved = np.where(fixed, np.inf, (w * share + 1.0 - share) * 2.0 * size / link)
            forced = (1.0 - w) * again
            each = np.minimum(np.where(stays, np.inf, forced + crossed), moved)
            least = (1.0 - w) * (none.total - none.spare_s)
            hosted = np.maximum(hosted, least + _knapsack(size, forced, each, stays & fixed, device))
        plain = np.where(hosts, hosted, plain)
    return np.where(device >= 0, np.minimum(plain, _named(shapes, kind, at, none, device)), np.inf)


def _named(shapes: Shapes, kind: int, at: Array, none: Seconds, device: Array) -> Array:
    """Seconds of the fastest named policy within some bytes, at least, [N]."""
    costs, rows = shapes.kinds[kind].policies, np.arange(len(none.spare_s))
    codes = np.array([[code, away(code)] for code in CODES.values()])
    codes = codes[:, shapes.rows.offloads_activations[at] * 1].T.ravel()
    count = len(CODES)
    priced = costs.priced(codes, np.repeat(shapes.of_row[at], count))
    chosen = Chosen(**{f.name: getattr(priced, f.name).reshape(len(rows), count) for f in fields(priced)})
    seconds = least_seconds(shapes.setting, none, chosen)
    out: Array = np.where(chosen.device <= device[:, None] * (1 + 1e-9), seconds, np.inf).min(axis=1)
    return out


def _where(names: Iterable[str]) -> Array:
    """Whether each tensor is among them, [tensors]."""
    among: Array = bits(names) >> np.arange(len(TENSORS)) & 1 > 0
    return among


def _knapsack(size: Array, forced_s: Array, cost: Array, stays: Array, device: Array) -> Array:
    """Least cost, at least, of leaving at most `device` bytes, [N].

    Args:
        forced_s: seconds of operators that run again whatever becomes of their tensors.
        cost: of not having a tensor on the device. stays: tensors that always are.
    """
    forced, unfused = _where(UNFUSED_OPERATORS), _where({"unfused"})
    over = size.sum(axis=1) - device
    with_it = _fill(size, cost, ~(stays | _where(DROPPED["mlp"])), over)
    left = over - np.where(forced | unfused, size, 0.0).sum(axis=1)
    without = np.where(forced, forced_s, 0.0).sum(axis=1) + _fill(
        size, cost, ~(stays | forced | unfused), left
    )
    least: Array = np.minimum(with_it, without)
    return least


def _fill(size: Array, cost: Array, may: Array, over: Array) -> Array:
    """Least cost of dropping `over` bytes of the tensors that may go, the last one in part; inf where they are too few."""
    room, price = size[:, may], cost[:, may]
    each = np.divide(price, room, out=np.zeros_like(price), where=room > 0)
    order = np.argsort(each, axis=1)
    room, each = np.take_along_axis(room, order, axis=1), np.take_along_axis(each, order, axis=1)
    before = np.cumsum(room, axis=1) - room
    taken = np.clip(over[:, None] - before, 0.0, room)
    enough = over <= room.sum(axis=1) * (1 + 1e-9)
    return np.where(enough, (taken * each).sum(axis=1), np.inf)
