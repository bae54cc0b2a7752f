"""Recompute policies by brute force: every choice of every tensor, each priced, those that another beats left out.

What may become of a tensor is stated here again: saved, made again, kept on the host; a layer whose intermediate
results are saved saves its feed-forward part, and one whose elementwise work runs again anyway saves none of its
results. Knows nothing of labels; only the price of a policy is the cost model's.
"""

from collections.abc import Callable, Iterator
from itertools import product
from random import Random

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.policies import Costs
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import Shapes
from meshwright.costmodel.tensors import CODES, HOST, TENSORS, away

FEED_FORWARD = ("norm2", "router", "up", "act", "expert_up", "expert_act", "expert_down")
ELEMENTWISE = ("norm2", "act", "expert_act")
SHAPE = ("micro_batch", "cp", "tp", "sp", "ep", "etp")
SAVED, AGAIN, HOSTED = range(3)


def choices(setting: Setting, costs: Costs, host: bool) -> Iterator[int]:
    """The code of every choice of a layer kind's tensors."""
    here, options = _options(setting, costs, host)
    for taken in product(*options):
        fate = dict(zip(here, taken, strict=True))
        if fate == _mended(fate, setting):
            yield _code(fate)


def drawn_choice(random: Random, setting: Setting, costs: Costs, host: bool) -> int:
    """One of `choices`."""
    here, options = _options(setting, costs, host)
    return _code(_mended({n: random.choice(o) for n, o in zip(here, options, strict=True)}, setting))


def _options(setting: Setting, costs: Costs, host: bool) -> tuple[list[str], list[list[int]]]:
    """The tensors of a layer kind, and what may become of each by itself."""
    here = [name for i, name in enumerate(TENSORS) if costs.present >> i & 1]
    framework = setting.framework
    return here, [
        [
            SAVED,
            *([AGAIN] if n in framework.chooses else []),
            *([HOSTED] if host and n in framework.offloads else []),
        ]
        for n in here
    ]


def _mended(fate: dict[str, int], setting: Setting) -> dict[str, int]:
    """The same with what `unfused` brings with it."""
    if fate.get("unfused") == SAVED:
        return fate | {n: SAVED for n in FEED_FORWARD if n in fate}
    if fate.get("unfused") == AGAIN:
        return fate | {n: AGAIN for n in ELEMENTWISE if n in fate and n in setting.framework.chooses}
    return fate


def _code(fate: dict[str, int]) -> int:
    again = sum(1 << TENSORS.index(n) for n in fate if fate[n] == AGAIN)
    absent = sum(1 << i for i, n in enumerate(TENSORS) if n not in fate)
    hosted = sum(1 << HOST + TENSORS.index(n) for n in fate if fate[n] == HOSTED)
    return again | absent | hosted


def worth_considering(setting: Setting, row: Rows, kind: int, host: bool) -> dict[tuple[float, ...], int]:
    """Codes of the choices that no other beats on the shape of one row, by what they cost.

    With `host` those that keep something there, else those that do not.
    """
    costs = Shapes.of(setting, row).kinds[kind].policies
    codes = np.array([c for c in choices(setting, costs, host) if (c >> HOST > 0) == host], np.int64)
    if not len(codes):
        return {}
    price = costs.priced(codes, np.zeros(len(codes), np.int64))
    tp, cp, ep, etp = (bool(getattr(row, n)[0] > 1) for n in ("tp", "cp", "ep", "etp"))
    points = np.stack(
        [price.device, price.host, price.repeated_s, price.scatters * tp, price.passes * cp, price.exchanges * ep,
         price.expert_scatters * etp], axis=1,
    )  # fmt: skip
    out: dict[tuple[float, ...], int] = {}
    for i, point in enumerate(points):
        no_more = (points <= point * (1 + 1e-12)).all(axis=1)
        less = (points < point * (1 - 1e-12)).any(axis=1)
        if not (no_more & less).any():
            out.setdefault(tuple(float(f"{x:.9g}") for x in point), int(codes[i]))
    return out


class Listed:
    """Policies of the stated space by layer kind and shape of a row."""

    def __init__(self, setting: Setting, allowed: Callable[[str], bool], by_tensor: bool = True) -> None:
        self._setting, self._allowed = setting, allowed
        self._by_tensor = by_tensor and bool(setting.framework.chooses)
        self._known: dict[tuple[int, ...], NDArray[np.int64]] = {}

    def of(self, row: Rows, kind: int, host: bool) -> NDArray[np.int64]:
        """Codes: the named policies, and what else is worth considering."""
        key = (kind, int(host), *(int(getattr(row, n)[0]) for n in SHAPE))
        if key not in self._known:
            codes = {away(c) if host else c for c in CODES.values()}
            present = Shapes.of(self._setting, row).kinds[kind].policies.present
            if self._by_tensor:
                others = worth_considering(self._setting, row, kind, host).values()
                codes |= {code for code in others if not any(_same(code, c, present) for c in codes)}
            self._known[key] = np.array(
                sorted(c for c in codes if self._allowed(name_of(c, present))), np.int64
            )
        return self._known[key]


def name_of(code: int, present: int) -> str:
    """What a constraint calls a policy: by what it makes again, wherever it saves the rest."""
    return next((name for name, c in CODES.items() if (c ^ code) & present == 0), "tensors")


def _same(a: int, b: int, present: int) -> bool:
    """Whether two codes do the same with every tensor that there is."""
    return (a ^ b) & (present | present << HOST) == 0
