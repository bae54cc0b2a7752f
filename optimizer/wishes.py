"""Constraints that no layout of the question can obey, told before any search.

Each name has values it can take on a machine of so many devices, for this model and batch, whatever the other names
say. A constraint (or two on one name) that leaves none of them, or degrees that together need more than there is,
is a slip of the pen: it is refused with both numbers. What only the search can tell stays a proven no.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.legal import listed, tp_choices
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.tensors import POLICIES
from meshwright.hardware.errors import LayoutError
from meshwright.optimizer.constraints import NUMBERS, WORDS, Constraint
from meshwright.optimizer.launchers.catalogue import launcher_of

Ints = NDArray[np.int64]

_MOST = 1 << 22  # values looked at; beyond them nothing is told early
_LISTED = 12  # values that a message lists


@dataclass(frozen=True)
class _Values:
    """What a name can be, ascending, and why; None where that is too much to list."""

    values: Ints | None
    why: str

    def __str__(self) -> str:
        assert self.values is not None
        least, most, count = int(self.values[0]), int(self.values[-1]), len(self.values)
        if count == 1:
            return f"{least} ({self.why})"
        if most - least + 1 == count:
            return f"{least} to {most} ({self.why})"
        if count <= _LISTED:
            return f"{listed(self.values)} ({self.why})"
        return f"{', '.join(map(str, self.values[:4]))} ... {most} ({self.why})"


def refuse_impossible(setting: Setting, wishes: Sequence[Constraint]) -> None:
    """Raises LayoutError where constraints leave a name no value, or ask for more devices or sequences than exist."""
    possible: dict[str, _Values] = {}
    for name in dict.fromkeys(w.name for w in wishes):
        mine = [w for w in wishes if w.name == name]
        if name in WORDS:
            _check_words(setting, name, mine)
            continue
        found = _POSSIBLE[name](setting)
        if found.values is None:
            continue
        if culprits := _emptying(mine, partial(_none_left, found.values)):
            raise LayoutError(
                f"{_quoted(culprits)} no value of {name}: here it is {found}; "
                f"{_way_out(culprits)}"
            )  # fmt: skip
        possible[name] = _Values(_left(mine, found.values), found.why)
    _check_products(setting, wishes, possible)


def values_of(setting: Setting, name: str) -> list[int]:
    """What a name can be on this machine, for this model and batch; empty where that is too much to list."""
    found = _POSSIBLE[name](setting).values
    return [] if found is None else [int(v) for v in found]


def _check_words(setting: Setting, name: str, wishes: list[Constraint]) -> None:
    words, why = WORDS[name], ""
    if name == "recompute" and not setting.framework.chooses:
        words, why = POLICIES, f" ({setting.framework.name} takes no policy by tensor)"
    if culprits := _emptying(wishes, lambda group: not any(all(w.allowed(x) for w in group) for x in words)):
        raise LayoutError(
            f"{_quoted(culprits)} no value of {name}: it is {listed(words)}{why}; {_way_out(culprits)}"
        )
    _check_launcher_words(setting, name, wishes)


def _check_launcher_words(setting: Setting, name: str, wishes: list[Constraint]) -> None:
    launcher = launcher_of(setting)
    taken = launcher.words(name)
    if taken is None:
        return
    # Without a pipeline every schedule is 1f1b.
    words = {*taken, "1f1b"} if name == "schedule" else taken
    if culprits := _emptying(wishes, lambda group: not any(all(w.allowed(x) for w in group) for x in words)):
        raise LayoutError(
            f"{_quoted(culprits)} no {name} that {launcher.name} has: it takes {listed(taken)}; {_way_out(culprits)}, or "
            "use --launcher any"
        )


def _check_products(setting: Setting, wishes: Sequence[Constraint], possible: dict[str, _Values]) -> None:
    """Degrees multiply: their least values must not need more devices, nor more sequences, than there are."""

    def least(name: str) -> int:
        return 1 if (found := possible.get(name)) is None or found.values is None else int(found.values[0])

    def most(name: str, otherwise: int) -> int:
        return otherwise if (found := possible.get(name)) is None else int(found.values[-1])  # type: ignore[index]

    dp = max(least("dp"), least("dp_replicate") * least("dp_shard"))
    devices, there = dp * least("cp") * least("tp") * least("pp"), setting.cluster.devices
    room = most("devices", there)
    if devices > room:
        names = {"dp", "dp_replicate", "dp_shard", "cp", "tp", "pp", "devices"}
        raise LayoutError(
            f"{_quoted([w for w in wishes if w.name in names])} no layout: they need at least {devices} devices, "
            f"{f'and allow {room}' if room < there else f'{setting.cluster.name} has {there}'}; lower a degree"
        )
    sequences = dp * least("micro_batch") * least("micro_batches")
    batch = most("sequences", setting.training.sequence_range[-1])
    if sequences > batch:
        names = {"dp", "dp_replicate", "dp_shard", "micro_batch", "micro_batches", "sequences"}
        raise LayoutError(
            f"{_quoted([w for w in wishes if w.name in names])} no layout: they need at least {sequences} sequences "
            f"a step (dp * micro_batch * micro_batches), the batch has {batch}; lower one"
        )


def _emptying(
    wishes: list[Constraint], empty: Callable[[Sequence[Constraint]], bool]
) -> Sequence[Constraint]:
    """The fewest of some constraints that leave nothing: one, two, or all; () where something is left."""
    if not empty(wishes):
        return ()
    groups = (group for size in (1, 2) for group in combinations(wishes, size))
    return next((group for group in groups if empty(group)), tuple(wishes))


def _none_left(values: Ints, wishes: Sequence[Constraint]) -> bool:
    return _left(wishes, values).size == 0


def _left(wishes: Sequence[Constraint], values: Ints) -> Ints:
    for wish in wishes:
        values = values[wish.allows(values)]
    return values


def _quoted(wishes: Sequence[Constraint]) -> str:
    """`constraint 'tp<=0' leaves`, `constraints 'tp<=8' and 'tp>=9' leave`."""
    texts = [repr(w.text) for w in wishes]
    if len(texts) == 1:
        return f"constraint {texts[0]} leaves"
    return f"constraints {', '.join(texts[:-1])} and {texts[-1]} leave"


def _way_out(wishes: Sequence[Constraint]) -> str:
    return "drop or widen it" if len(wishes) == 1 else "drop or widen one"


def _devices(setting: Setting, most: int = _MOST) -> int:
    return min(setting.cluster.devices, most)


def _ways(setting: Setting) -> _Values:
    """Data-parallel degrees: they divide a batch that may be chosen."""
    batches = setting.training.sequence_range
    ways = np.arange(1, _devices(setting, batches[-1]) + 1)
    divide = ways[batches[-1] // ways * ways >= batches[0]]
    return _Values(divide, f"it divides {_batch(setting)} and {_machine(setting)}")


def _micro_batches(setting: Setting) -> _Values:
    batches = setting.training.sequence_range
    if batches[-1] > _MOST:
        return _Values(None, "")
    counts = np.arange(1, batches[-1] + 1)
    return _Values(counts[batches[-1] // counts * counts >= batches[0]], f"it divides {_batch(setting)}")


def _sequences(setting: Setting) -> _Values:
    batches = setting.training.sequence_range
    if len(batches) > _MOST:
        return _Values(None, "")
    widens = "the batch asked for; a tolerance like 4Mi~5% widens it"
    return _Values(np.array(batches), widens if len(batches) == 1 else "the batch with its tolerance")


def _tp(setting: Setting) -> _Values:
    choices = tp_choices(setting)
    heads = " and ".join(sorted({f"{k.attention.heads} heads" for k in setting.model.kinds}))
    return _Values(choices, f"tp cuts {heads} evenly, and {_machine(setting)}")


def _cp(setting: Setting) -> _Values:
    length = setting.training.seq_len
    ways = np.arange(1, _devices(setting, length) + 1)
    ways = ways[(ways == 1) | (length % (2 * ways) == 0)]
    return _Values(ways, f"2*cp divides the sequence of {length}, and {_machine(setting)}")


def _pp(setting: Setting) -> _Values:
    layers = setting.model.layers
    return _Values(np.arange(1, _devices(setting, layers) + 1), f"{layers} layers, and {_machine(setting)}")


def _vpp(setting: Setting) -> _Values:
    layers = setting.model.layers
    counts = np.arange(1, layers + 1)
    return _Values(counts[layers % counts == 0], f"it divides the {layers} layers")


def _experts(setting: Setting) -> int:
    return int(np.gcd.reduce([k.ffn.experts for k in setting.model.kinds if k.ffn.experts] or [0]))


def _ep(setting: Setting) -> _Values:
    experts = _experts(setting)
    if not experts:
        return _Values(np.ones(1, np.int64), f"{setting.model.name} has no experts")
    ways = np.arange(1, experts + 1)
    return _Values(ways[experts % ways == 0], f"it divides the {experts} experts")


def _etp(setting: Setting) -> _Values:
    if not _experts(setting):
        return _Values(np.ones(1, np.int64), f"{setting.model.name} has no experts")
    return _Values(_tp(setting).values, "1 or tp")


def _used(setting: Setting) -> _Values:
    there = setting.cluster.devices
    if there > _MOST:
        return _Values(None, "")
    return _Values(np.arange(1, there + 1), f"{setting.cluster.name} has {there}")


def _machine(setting: Setting) -> str:
    return f"{setting.cluster.name} has {setting.cluster.devices} devices"


def _batch(setting: Setting) -> str:
    batches = setting.training.sequence_range
    span = f"{batches[0]}" if len(batches) == 1 else f"{batches[0]} to {batches[-1]}"
    return f"the batch of {span} sequences"


_POSSIBLE: dict[str, Callable[[Setting], Any]] = {
    "dp": _ways, "dp_replicate": _ways, "dp_shard": _ways, "cp": _cp, "tp": _tp, "pp": _pp, "vpp": _vpp,
    "ep": _ep, "etp": _etp, "micro_batch": _micro_batches, "micro_batches": _micro_batches,
    "sequences": _sequences, "devices": _used,
    "zero": lambda setting: _Values(np.arange(4), "0 none, 1 optimizer, 2 and gradients, 3 and weights"),
}  # fmt: skip
assert set(_POSSIBLE) == set(NUMBERS)
