"""What memory is worth to a layer while its policy is open: the least of seconds + price * saved bytes, for some prices.

With stages free to mix policies the least seconds of n layers that may save S bytes are, but for whole numbers, a convex
function of S/n; each price gives a line below it. Lines at all slopes of that function are the function itself; any
choice of prices gives a bound. Tensors are independent of each other but for `unfused`: where that is saved the
feed-forward part is saved with it, where it is not, elementwise work runs again. So the least over all policies takes
of every tensor the cheapest of saving, repeating and keeping it on the host, and no list of policies is needed.

A layer that keeps tensors on the host takes max(busy, transfers), which is at least (1 - w) busy + w transfers for every
w between 0 and 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.layer import least_seconds
from meshwright.costmodel.policies import UNFUSED_OPERATORS, Costs
from meshwright.costmodel.policy_front import crossings
from meshwright.costmodel.stages import StageCosts, StageTable
from meshwright.costmodel.tensors import DROPPED, OPEN, TENSORS, bits
from meshwright.optimizer.menus import Menu, Menus

Array = NDArray[Any]
# With so many prices rows are near a plan, and few: policies are looked at one by one, if tensors do not tell all.
_CLOSE = 8


@dataclass(frozen=True)
class Lines:
    """Lines of R rows.

    Attributes:
        price: seconds per saved byte, [R, G]; the first is 0.
        least: least of seconds + price * saved bytes of a layer, [R, K, G].
        saved: fewest bytes a layer saves, [R, K].
        working: bytes that a layer running backward needs and those that it saved on the device, together at least,
            [R, K]; None where what it needs is known, or counts at its least.
        most: bytes that a layer saves where nothing is repeated, [R, K]; None where policies are chosen.
    """

    price: Array
    least: Array
    saved: Array
    working: Array | None = None
    most: Array | None = None

    def __getitem__(self, index: Any) -> "Lines":
        working, most = (None if x is None else x[index] for x in (self.working, self.most))
        return Lines(self.price[index], self.least[index], self.saved[index], working, most)

    @staticmethod
    def least_of(costs: StageCosts, most: Array | None = None) -> "Lines":
        """Of rows whose policies are chosen, or of open ones with seconds and bytes each at their least."""
        return Lines(np.zeros((len(costs.rows), 1)), costs.layer_s[:, :, None], costs.saved, None, most)


def lines_of(
    menus: Menus, table: StageTable, costs: StageCosts, at: Array, prices: int, hosted: bool = False
) -> Lines:
    """Lines of some rows with so many prices beside 0, if their policies are open.

    Args:
        costs: of the table, with the state that counts. at: the rows that are asked for.
        hosted: what is saved on the host counts as saved, too.
    """
    costs = costs[at]
    if not (costs.rows.policies & OPEN).any():
        return Lines.least_of(costs)
    shapes, of_row = table.shapes, table.shapes.of_row[at]
    if not prices:
        kinds = [
            shapes.of_lane(k).policies.tensor_bytes.sum(axis=1)[of_row] for k in range(len(table.layers))
        ]
        return Lines.least_of(costs, np.stack(kinds, axis=1))
    price = np.concatenate([np.zeros((len(at), 1)), _prices(table, at, prices, hosted)], axis=1)
    every = table.setting.framework.chooses >= set(TENSORS) - {"input"}
    ways = _least_listed if prices >= _CLOSE or not menus.any_tensor else _least_of_both
    if menus.any_tensor and every and not costs.rows.offloads("activations").any():
        ways = _least
    least, saved, whole = [], [], []
    for k in range(len(table.layers)):
        open_ = costs.rows.policies[:, k] & OPEN > 0
        device, fused = costs.saved[:, k], shapes.of_lane(k).fused[of_row]
        known = costs.layer_s[:, [k]] + price * device[:, None]
        found, fewest = ways(menus, table, k, at, price, hosted) if open_.any() else (known, device)
        least.append(np.where(open_[:, None], found, known))
        saved.append(np.where(open_, fewest, device))
        # A layer running backward needs what it did not save of its activations, and their gradients.
        whole.append(costs.working[:, k] + np.where(open_, fused, device))
    return Lines(price, np.stack(least, axis=1), np.stack(saved, axis=1), np.stack(whole, axis=1))


def _prices(table: StageTable, at: Array, count: int, hosted: bool) -> Array:
    """Prices at which a tensor of the commonest layers goes or stays, [R, at most count]: all, or spread over bytes."""
    shapes, setting = table.shapes, table.setting
    common = int(np.argmax(setting.model.layers_by_kind))
    size, again = _joined(shapes.of_lane(common).policies)
    each = np.divide(again, size, out=np.zeros_like(size), where=size > 0)
    order = np.argsort(each, axis=1)
    if count < len(TENSORS):
        share = np.cumsum(np.take_along_axis(size, order, axis=1), axis=1) / size.sum(axis=1, keepdims=True)
        wanted = (np.arange(count) + 0.5) / count
        place = np.minimum((share[:, None, :] < wanted[:, None]).sum(axis=2), size.shape[1] - 1)
        order = np.take_along_axis(order, place, axis=1)
    found = np.take_along_axis(each, order, axis=1)[shapes.of_row[at]]
    link, hosts = setting.rates.host_bytes_per_s, table.rows.offloads("activations")[at]
    if link is None or hosted or not hosts.any():
        return found
    # With the host link full, seconds of compute buy transfers.
    carry = 2.0 / link
    return np.where(hosts[:, None], found * carry / (found + carry), found)


def _joined(costs: Costs) -> tuple[Array, Array]:
    """(bytes, seconds to repeat) of every tensor, [U, tensors]; `unfused` with what goes with it."""
    size, again = costs.tensor_bytes.copy(), costs.operator_s.copy()
    forced, unfused = _where(UNFUSED_OPERATORS), TENSORS.index("unfused")
    some = size[:, unfused] > 0
    size[some, unfused] += size[some][:, forced].sum(axis=1)
    again[some, unfused] += again[some][:, forced].sum(axis=1)
    size[np.ix_(some, forced)] = 0.0
    return size, again


def _least(
    menus: Menus, table: StageTable, kind: int, at: Array, price: Array, hosted: bool
) -> tuple[Array, Array]:
    """(least of seconds + price * saved bytes [R, G], fewest bytes saved [R]) of one kind, over all choices by tensor."""
    none, of_row = table.layers[kind][at], table.shapes.of_row[at]
    costs, framework, rates = (
        table.shapes.of_lane(kind).policies,
        table.setting.framework,
        table.setting.rates,
    )
    size, cost = costs.tensor_bytes[of_row], costs.operator_s[of_row]
    stays, fixed = (_where(set(TENSORS) - names) for names in (framework.chooses, framework.offloads))
    forced_s = np.where(_where(UNFUSED_OPERATORS), cost, 0.0)
    # Exposed seconds of the collectives that making a tensor again repeats.
    cost = cost + sum(each[:, None] * crossings(c) for c, each in none.again_s.items())
    hosts, link, share = (
        table.rows.offloads("activations")[at],
        rates.host_bytes_per_s,
        rates.hideable["offload"],
    )
    leaves = hosts[:, None] & ~fixed
    saved: Array = np.where(stays if hosted else stays & ~leaves, size, 0.0).sum(axis=1)
    # State on the host link takes its time there beside the activations.
    streamed_s = np.zeros(len(at)) if link is None else none.streamed / link
    base, least = none.busy_s - none.spare_s, []
    for mu in price.T:
        keep = mu[:, None] * size
        # More compute first fills what waits: no policy is faster than one that repeats nothing.
        found = none.total + mu * saved
        plain = np.maximum(found, base + (1.0 - share) * streamed_s + _cheapest(keep, cost, forced_s, stays))
        if link is not None and hosts.any():
            for w in (np.zeros_like(mu), np.minimum(mu * link / 2.0, 1.0)):
                waits = (1.0 - share) + w * share
                moved = np.where(
                    fixed, np.inf, waits[:, None] * 2.0 * size / link + (keep if hosted else 0.0)
                )
                busy = (1.0 - w)[:, None]
                total = _cheapest(np.minimum(keep, moved), busy * cost, busy * forced_s, stays)
                found = np.maximum(found, (1.0 - w) * base + waits * streamed_s + total)
            plain = np.where(hosts, found, plain)
        least.append(plain)
    return np.stack(least, axis=1), saved


def _cheapest(keep: Array, again: Array, forced_s: Array, stays: Array) -> Array:
    """Least cost of having every tensor in backward, [R]: kept at `keep`, or made again at `again`; [R, tensors]."""
    forced, unfused, part = _where(UNFUSED_OPERATORS), _where({"unfused"}), _where(DROPPED["mlp"])
    either = np.where(stays, keep, np.minimum(keep, again))
    with_it = np.where(part, keep, either).sum(axis=1)
    without = np.where(forced, forced_s, np.where(unfused, again, either)).sum(axis=1)
    least: Array = np.minimum(with_it, without)
    return least


def _least_listed(
    menus: Menus, table: StageTable, kind: int, at: Array, price: Array, hosted: bool
) -> tuple[Array, Array]:
    """The same policy by policy."""
    return _least_of(menus.of(table.rows[at], kind), table, kind, at, price, hosted)


def _least_of(
    menu: Menu, table: StageTable, kind: int, at: Array, price: Array, hosted: bool
) -> tuple[Array, Array]:
    chosen = menu.of_rows()
    saved = chosen.device + chosen.host if hosted else chosen.device
    seconds = least_seconds(table.setting, table.layers[kind][at], chosen)
    seconds = np.where(menu.exist[menu.of_row], seconds, np.inf)
    least = np.stack([(seconds + mu[:, None] * saved).min(axis=1) for mu in price.T], axis=1)
    return least, saved.min(axis=1)


def _least_of_both(
    menus: Menus, table: StageTable, kind: int, at: Array, price: Array, hosted: bool
) -> tuple[Array, Array]:
    """The same by tensor, and of policies that have a name: they need not be choices by tensor."""
    least, saved = _least(menus, table, kind, at, price, hosted)
    listed = menus.of(table.rows[at], kind, named_only=True)
    named, fewest = _least_of(listed, table, kind, at, price, hosted)
    return np.minimum(least, named), np.minimum(saved, fewest)


def _where(names: Iterable[str]) -> Array:
    """Whether each tensor is among them, [tensors]."""
    among: Array = bits(names) >> np.arange(len(TENSORS)) & 1 > 0
    return among
