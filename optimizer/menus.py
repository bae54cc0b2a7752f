"""Recompute policies that rows may choose from: named ones, and choices by tensor that no other beats."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.offloads import OFFLOADS, without_activations
from meshwright.costmodel.policies import Chosen, Costs
from meshwright.costmodel.policy_front import Crossed, codes_of
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import SHAPE_COLUMNS, Shapes, distinct
from meshwright.costmodel.tensors import CODES, OPEN, OTHER, away, named

Array = NDArray[Any]
# Bytes and seconds of a policy that is not there; finite, so that no product of them is undefined.
_BEYOND = 1e30
_Listed = tuple[Array, Chosen]
DEVICE, HOST, BOTH = range(3)  # where a menu's policies may save tensors


@dataclass(frozen=True)
class Menu:
    """The policies of one layer kind that each of R rows may choose from.

    Attributes:
        codes: of each distinct shape and place, [U, P], OPEN where there are fewer than P.
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

    @property
    def any_policy(self) -> Array:
        """Whether there is one for each row, [R]."""
        some: Array = np.any(self.exist, axis=1)
        each: Array = some[self.of_row]
        return each

    def of_rows(self) -> Chosen:
        """What each policy of each row costs, [R, P]."""
        return Chosen(**{f.name: getattr(self.chosen, f.name)[self.of_row] for f in fields(Chosen)})

    def chosen_rows(self, rows: Rows, kind: int, wanted: Array) -> Rows:
        """Rows with one of the wanted policies each; `wanted` is [R, P]."""
        row, place = np.nonzero(wanted & self.exist[self.of_row])
        out = rows[row]
        policies = out.policies.copy()
        policies[:, kind] = self.codes[self.of_row[row], place]
        return out.with_columns(policies=policies)

    def leanest(self) -> Array:
        """Whether each policy is the one that saves least on the device, [R, P]."""
        device = self.chosen.device[self.of_row]
        lean: Array = np.arange(device.shape[1]) == device.argmin(axis=1)[:, None]
        return lean


class Menus:
    """Menus of one question; remembers those of shapes."""

    def __init__(
        self, setting: Setting, allowed: Callable[[str], bool], offloads: tuple[int, ...], mixes: bool = True
    ) -> None:
        """`allowed` says of a policy's name, or of OTHER for all that have none, whether the user lets it in;
        `offloads` are the offload classes that are considered; without `mixes` layers of one kind do not differ."""
        self._setting, self._allowed, self._mixes = setting, allowed, mixes
        self._known: dict[tuple[int, ...], _Listed] = {}
        self._offloads = offloads
        self._place = np.array([self._place_of(offload) for offload in OFFLOADS])

    @property
    def mixes(self) -> bool:
        """Whether layers of one kind may differ in policy."""
        return self._mixes and bool(self._setting.framework.chooses)

    @property
    def any_tensor(self) -> bool:
        """Whether policies may be chosen tensor by tensor."""
        return self.mixes and self._allowed(OTHER)

    def _place_of(self, offload: str) -> int:
        """Where policies of a class may save: with mixes some layers of a class that offloads activations need not."""
        if "activations" not in offload.split("+"):
            return DEVICE
        return BOTH if self.mixes else HOST

    def must_host(self, offload: int) -> bool:
        """Whether some layer must keep something on its host: layers may differ, and the class in which none does is not
        considered."""
        if self._place[offload] != BOTH:
            return False
        return OFFLOADS.index(without_activations(OFFLOADS[offload])) not in self._offloads

    def of(self, rows: Rows, kind: int, named_only: bool = False) -> Menu:
        """Of one layer kind for some rows; `named_only` without choices by tensor."""
        kind_key = kind, named_only
        place = self._place[rows.offload]
        first, of_row = distinct(rows.with_columns(offload=place), (*SHAPE_COLUMNS, "offload"))
        columns = [getattr(rows, n)[first].tolist() for n in SHAPE_COLUMNS]
        keys = list(zip(*columns, place[first].tolist(), strict=True))
        new = [i for i, key in enumerate(keys) if (*kind_key, *key) not in self._known]
        if new:
            costs = Shapes.of(self._setting, rows[first[new]])
            for i, at in zip(new, costs.of_row.tolist(), strict=True):
                row = rows[first[i]]
                cut = tuple(bool(degree > 1) for degree in (row.tp, row.cp, row.ep, row.etp))
                of_kind = costs.kinds[kind].policies
                self._known[*kind_key, *keys[i]] = self._list(of_kind, at, cut, keys[i][-1], named_only)
        listed = [self._known[*kind_key, *key] for key in keys]
        most = max(1, *(len(codes) for codes, _ in listed))
        chosen = {
            f.name: np.stack([_padded(getattr(c, f.name), most) for _, c in listed]) for f in fields(Chosen)
        }
        codes = np.stack([np.append(codes, np.full(most - len(codes), OPEN)) for codes, _ in listed])
        return Menu(codes, Chosen(**chosen), of_row)

    def _list(self, costs: Costs, at: int, cut: Crossed, place: int, named_only: bool) -> _Listed:
        codes = [code for code in CODES.values() if place != HOST]
        codes += [away(code) for code in CODES.values() if place != DEVICE]
        # Where the host may have some, a policy with a name may save part of the rest there.
        if (self.any_tensor or (self.mixes and place != DEVICE)) and not named_only:
            plain, hosted = codes_of(self._setting.framework, costs, at, cut, place != DEVICE)
            codes += plain.tolist() if place != HOST else []
            codes += hosted.tolist() if place != DEVICE else []
        kept = np.unique([c for c in codes if self._allowed(named(c))]).astype(np.int64)
        return kept, costs.priced(kept, np.full(len(kept), at))


def _padded(values: Array, length: int) -> Array:
    return np.append(values.astype(float), np.full(length - len(values), _BEYOND))
