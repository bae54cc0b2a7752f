"""Recompute policies that rows may choose from, and the least layer time that the device memory leaves them.

Policies stay open until data sharding is decided: a row with a thousand policies is then still one candidate. Of a
layer kind every policy faster than the first that fits is impossible; its time is a bound for all that are left.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.layer import Seconds, least_seconds
from meshwright.costmodel.policies import Chosen, Costs
from meshwright.costmodel.policy_front import Crossed, codes_of
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import SHAPE_COLUMNS, Shapes, distinct
from meshwright.costmodel.stages import StageCosts, StageTable
from meshwright.costmodel.tensors import CODES, OPEN, away, named
from meshwright.optimizer.relaxed import bytes_of_all, least_seconds_within

Array = NDArray[Any]
# Bytes and seconds of a policy that is not there; finite, so that no product of them is undefined.
_BEYOND = 1e30
# Halvings of the bytes that a layer may save: a hundredth of them is a small part of a layer's time.
_HALVINGS = 7
_Listed = tuple[Array, Chosen]


@dataclass(frozen=True)
class Menu:
    """The policies of one layer kind that each of R rows may choose from.

    Attributes:
        codes: of each distinct shape and offload class, [U, P], OPEN where there are fewer than P.
        chosen: what each costs, [U, P]; no time and no bytes reach that of a missing one.
        of_row: shape of each row, [R].
    """

    codes: Array
    chosen: Chosen
    of_row: Array

    @property
    def exist(self) -> Array:
        """Whether there is such a policy, [U, P]."""
        exist: Array = self.codes != OPEN
        return exist

    def of_rows(self) -> Chosen:
        """What each policy of each row costs, [R, P]."""
        return Chosen(**{f.name: getattr(self.chosen, f.name)[self.of_row] for f in fields(Chosen)})

    def chosen_rows(self, rows: Rows, kind: int, wanted: Array) -> tuple[Array, Rows]:
        """(row of each, rows with one of the wanted policies each); `wanted` is [R, P]."""
        row, place = np.nonzero(wanted & self.exist[self.of_row])
        out = rows[row]
        policies = out.policies.copy()
        policies[:, kind] = self.codes[self.of_row[row], place]
        return row, out.with_columns(policies=policies)


class Menus:
    """Menus of one question; remembers those of shapes."""

    def __init__(self, setting: Setting, allowed: Callable[[str], bool]) -> None:
        """`allowed` says of a policy's name, or of OTHER for all that have none, whether the user lets it in."""
        self._setting, self._allowed = setting, allowed
        self._known: dict[tuple[int, ...], _Listed] = {}

    @property
    def by_tensor(self) -> bool:
        """Whether policies may be chosen tensor by tensor."""
        return bool(self._setting.framework.chooses)

    def of(self, rows: Rows, kind: int) -> Menu:
        """Of one layer kind for some rows: named policies, and choices by tensor that no other beats."""
        columns = rows.with_columns(offload=rows.offloads_activations * 1)
        first, of_row = distinct(columns, (*SHAPE_COLUMNS, "offload"))
        keys = list(
            zip(*(getattr(columns, n)[first].tolist() for n in (*SHAPE_COLUMNS, "offload")), strict=True)
        )
        new = [i for i, key in enumerate(keys) if (kind, *key) not in self._known]
        if new:
            costs = Shapes.of(self._setting, rows[first[new]])
            for i, at in zip(new, costs.of_row.tolist(), strict=True):
                row = rows[first[i]]
                cut = tuple(bool(degree > 1) for degree in (row.tp, row.cp, row.ep, row.etp))
                self._known[kind, *keys[i]] = self._list(
                    costs.kinds[kind].policies, at, cut, bool(keys[i][-1])
                )
        listed = [self._known[kind, *key] for key in keys]
        most = max(1, *(len(codes) for codes, _ in listed))
        chosen = {
            f.name: np.stack([_padded(getattr(c, f.name), most) for _, c in listed]) for f in fields(Chosen)
        }
        codes = np.stack([np.append(codes, np.full(most - len(codes), OPEN)) for codes, _ in listed])
        return Menu(codes, Chosen(**chosen), of_row)

    def _list(self, costs: Costs, at: int, cut: Crossed, host: bool) -> _Listed:
        codes = np.array([away(code) if host else code for code in CODES.values()], np.int64)
        if self.by_tensor:
            codes = np.append(codes, codes_of(self._setting.framework, costs, at, cut, host)[host])
        codes = np.unique([c for c in codes.tolist() if self._allowed(named(c))]).astype(np.int64)
        return codes, costs.priced(codes, np.full(len(codes), at))


def _padded(values: Array, length: int) -> Array:
    return np.append(values.astype(float), np.full(length - len(values), _BEYOND))


def least_layer_s(
    menus: Menus,
    table: StageTable,
    costs: StageCosts,
    near: Array,
    holds: Callable[[StageCosts], Array],
    coarse: bool,
) -> Array:
    """Seconds of a layer of each kind that no policy which memory leaves it undercuts, [N, K]; inf where none fits.

    Args:
        table: of rows some of whose policies are open. costs: its costs, with the state that counts.
        near: the rows that are asked for, [N].
        holds: whether some cut fits the memory, however slow.
        coarse: by what a layer may save rather than policy by policy.

    The other kinds count with what they need at least.
    """
    rows, costs = table.rows[near], costs[near]
    seconds = costs.layer_s.copy()
    for kind in range(seconds.shape[1]):
        if not (rows.policies[:, kind] & OPEN).any():
            continue

        def fits(part: Array, device: Array, kind: int = kind) -> Array:
            saved = costs.saved[part].copy()
            saved[:, kind] = device
            return holds(replace(costs[part], saved=saved))

        none = table.layers[kind][near]
        if coarse:
            most = _most_bytes(costs.saved[:, kind], bytes_of_all(table.shapes, kind)[near], fits)
            seconds[:, kind] = least_seconds_within(table.shapes, kind, near, none, most)
        else:
            seconds[:, kind] = _first_that_fits(menus.of(rows, kind), table.setting, none, fits)
    return seconds


def _first_that_fits(
    menu: Menu, setting: Setting, none: Seconds, fits: Callable[[Array, Array], Array]
) -> Array:
    """Seconds of the fastest policy that fits, [R]. In order of time only the least bytes so far matter, so it is
    found by halving."""
    chosen = menu.of_rows()
    each = np.where(menu.exist[menu.of_row], least_seconds(setting, none, chosen), np.inf)
    order = np.argsort(each, axis=1, kind="stable")
    least = np.minimum.accumulate(np.take_along_axis(chosen.device, order, axis=1), axis=1)
    rows, columns = least.shape
    low, high = np.full(rows, -1), np.full(rows, columns)  # low does not fit, high does, or is beyond
    probe = np.zeros(rows, np.int64)  # most fit at once
    left = np.arange(rows)
    while len(left):
        good = fits(left, least[left, probe[left]])
        high[left[good]], low[left[~good]] = probe[left[good]], probe[left[~good]]
        left = left[high[left] - low[left] > 1]
        probe[left] = (high[left] + low[left]) // 2
    ends = np.append(np.take_along_axis(each, order, axis=1), np.full((rows, 1), np.inf), axis=1)
    out: Array = ends[np.arange(rows), high]
    return out


def _most_bytes(least: Array, most: Array, fits: Callable[[Array, Array], Array]) -> Array:
    """Bytes that a layer may save where memory holds it, at least, [R]; -inf where not even `least` fits."""
    every = np.arange(len(least))
    low, high = least.copy(), most.copy()
    left = every[~fits(every, most)]
    low[left], some = least[left], fits(left, least[left]) if len(left) else np.zeros(0, bool)
    high[left[~some]] = -np.inf
    left = left[some]
    for _ in range(_HALVINGS):
        if len(left):
            middle = 0.5 * (low[left] + high[left])
            good = fits(left, middle)
            low[left[good]], high[left[~good]] = middle[good], middle[~good]
    return high
