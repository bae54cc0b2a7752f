"""How layouts are made: what no list of candidates breaks, so that a clash with it is told by its words alone.

Each speaks of a few decisions. Constraints on these that leave no combination of values clash with it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.layout import CP_KINDS
from meshwright.costmodel.schedules import DUALPIPEV, INTERLEAVED, ONE_F_ONE_B
from meshwright.costmodel.setting import Setting
from meshwright.optimizer.constraints import WORDS, Constraint
from meshwright.optimizer.wishes import values_of

Ints = NDArray[np.int64]
_MOST = 1 << 22  # combinations looked at


@dataclass(frozen=True)
class Making:
    """`holds` of columns of values of `names`, in their order; words are their places among WORDS."""

    says: str
    names: tuple[str, ...]
    holds: Callable[..., Any]


def _ring(cp_kind: Ints, cp: Ints) -> Any:
    return (cp > 1) | (cp_kind == CP_KINDS.index("ring"))


def _chunks(schedule: Ints, vpp: Ints) -> Any:
    one, two = vpp == 1, vpp == 2
    return np.where(schedule == INTERLEAVED, ~one, np.where(schedule == DUALPIPEV, two, one))


def _rounds(schedule: Ints, vpp: Ints, micro_batches: Ints, pp: Ints) -> Any:
    return (vpp == 1) | (schedule == DUALPIPEV) | (micro_batches % pp == 0)


MAKINGS = (
    Making(
        "weights stay gathered (reshard=false) only under zero=3, the lower levels gather none",
        ("reshard", "zero"), lambda reshard, zero: (reshard == 1) | (zero == 3),
    ),
    Making("zero=0 shards nothing, so it goes with dp_shard=1", ("zero", "dp_shard"), lambda z, s: (z > 0) | (s == 1)),
    Making(
        "zero above 0 needs dp_shard*cp above 1 to shard over",
        ("zero", "dp_shard", "cp"), lambda z, s, cp: (z == 0) | (s * cp > 1),
    ),
    Making("zero above 0 needs dp*cp above 1 to shard over", ("zero", "dp", "cp"), lambda z, s, cp: (z == 0) | (s * cp > 1)),
    Making("dp is dp_replicate*dp_shard", ("dp", "dp_replicate", "dp_shard"), lambda dp, r, s: dp == r * s),
    Making(
        "interleaved has vpp above 1, dualpipev vpp=2, any other schedule vpp=1", ("schedule", "vpp"), _chunks
    ),
    Making("without a pipeline (pp=1) the schedule is 1f1b", ("schedule", "pp"), lambda s, pp: (pp > 1) | (s == ONE_F_ONE_B)),
    Making(
        "interleaving runs whole rounds of pp micro-batches", ("schedule", "vpp", "micro_batches", "pp"), _rounds
    ),
    Making("etp is 1 or tp", ("etp", "tp"), lambda etp, tp: (etp == 1) | (etp == tp)),
    Making("without cp there is no other cp_kind than ring", ("cp_kind", "cp"), _ring),
    Making("sp=false is about norms that tp above 1 cuts", ("sp", "tp"), lambda sp, tp: (sp == 1) | (tp > 1)),
)  # fmt: skip
_DEGREES = (
    "dp",
    "dp_replicate",
    "dp_shard",
    "cp",
    "tp",
    "pp",
    "vpp",
    "ep",
    "etp",
    "micro_batch",
    "micro_batches",
)
_PRODUCTS = (
    ("devices", ("dp", "cp", "tp", "pp")),
    ("sequences", ("dp", "micro_batch", "micro_batches")),
)


def contradicted(setting: Setting, wishes: Sequence[Constraint]) -> str | None:
    """What of how layouts are made some constraints contradict, in words; None where it is nothing of these."""
    asked = {wish.name for wish in wishes}
    for making in MAKINGS:
        columns = _combinations(setting, wishes, making.names) if asked & {*making.names} else None
        if columns is not None and not making.holds(*columns).any():
            return making.says
    if (says := _chunks_left(setting, wishes) or _more_than_there_is(setting, wishes)) is not None:
        return says
    for whole, factors in _PRODUCTS:
        if {whole, *factors} & asked and not _multiplies(setting, wishes, whole, factors):
            return f"{whole} is {'*'.join(factors)}"
    return None


def _chunks_left(setting: Setting, wishes: Sequence[Constraint]) -> str | None:
    """Whether chunks have a pipeline, and a layer each."""
    vpp, pp = (min(_values(setting, wishes, name), default=1) for name in ("vpp", "pp"))
    most, layers = max(_values(setting, wishes, "pp"), default=1), setting.model.layers
    if vpp == 1 or (most > 1 and max(pp, 2) * vpp <= layers):
        return None
    return f"vpp above 1 needs pp above 1, and pp*vpp at most the {layers} layers"


def _more_than_there_is(setting: Setting, wishes: Sequence[Constraint]) -> str | None:
    """Devices or sequences that constraints need at least, with what they bring along, where there are fewer."""
    least = {name: min(_values(setting, wishes, name), default=1) for name in _DEGREES}
    brought = []

    def raises(name: str, value: int, why: str) -> None:
        if value > least[name]:
            least[name] = value
            brought.append(why)

    def word(name: str, *others: str) -> bool:
        """Whether constraints leave none of some words."""
        return not {WORDS[name].index(w) for w in others} & {*_values(setting, wishes, name)}

    if least["vpp"] > 1:
        raises("pp", 2, "vpp above 1 needs pp above 1")
    if word("schedule", "1f1b"):
        raises("pp", 2, "a schedule other than 1f1b needs pp above 1")
    if word("cp_kind", "ring"):
        raises("cp", 2, "another cp_kind than ring needs cp above 1")
    if word("sp", "true"):
        raises("tp", 2, "sp=false needs tp above 1")
    raises("tp", least["etp"], "etp is 1 or tp")
    dp = max(least["dp"], least["dp_replicate"] * least["dp_shard"])
    stage = dp * least["cp"] * least["tp"]
    shards = max(least["dp_shard"] * least["cp"], 1)
    if shards == 1 and (min(_values(setting, wishes, "zero"), default=0) > 0 or word("reshard", "true")):
        sharded = max(2 * least["dp_replicate"], dp) * least["tp"]
        if sharded > stage:
            stage = sharded
            brought.append("ZeRO shards over dp_shard*cp above 1")
    room = max(_values(setting, wishes, "devices"), default=0)
    devices = stage * least["pp"]
    if devices > room > 0:
        there = f"{setting.cluster.name} has" if room == setting.cluster.devices else "the constraints allow"
        return f"at least {devices} devices are needed{_aside(brought)}, {there} {room}"
    sizes = _products(setting, wishes, ("dp_replicate", "dp_shard", "cp", "tp"), room // least["pp"], least)
    inside = _products(setting, wishes, ("ep", "etp"), room, least)
    if sizes is not None and inside is not None and not (sizes[:, None] % inside == 0).any():
        return f"ep*etp divides the dp*cp*tp devices of a stage, at most {room // least['pp']} here{_aside(brought)}"
    schedules = {*_values(setting, wishes, "schedule")}
    interleaved = schedules == {INTERLEAVED} or (least["vpp"] > 1 and DUALPIPEV not in schedules)
    why = "interleaving runs whole rounds of pp micro-batches"
    if interleaved and max(_values(setting, wishes, "micro_batches"), default=1) < least["pp"]:
        return why
    rounds = max(least["micro_batches"], least["pp"] if interleaved else 1)
    sequences, batch = (
        dp * least["micro_batch"] * rounds,
        max(_values(setting, wishes, "sequences"), default=0),
    )
    if sequences > batch > 0:
        return f"at least {sequences} sequences a step are needed{_aside([why] * interleaved)}, the batch has {batch}"
    return None


def _aside(words: Sequence[str]) -> str:
    return f" ({', '.join(words)})" if words else ""


def _values(setting: Setting, wishes: Sequence[Constraint], name: str) -> list[int]:
    """What constraints leave of a name; words by their places."""
    mine = [wish for wish in wishes if wish.name == name]
    if name == "schedule" and not mine:
        return [ONE_F_ONE_B, INTERLEAVED]  # the others are listed on request
    if name in WORDS:
        return [i for i, word in enumerate(WORDS[name]) if all(wish.allowed(word) for wish in mine)]
    return [v for v in values_of(setting, name) if all(wish.allows(v) for wish in mine)]


def _combinations(
    setting: Setting, wishes: Sequence[Constraint], names: tuple[str, ...]
) -> list[Ints] | None:
    """Columns of all combinations; None where there are none or too many."""
    values = [np.array(_values(setting, wishes, name), np.int64) for name in names]
    if not 0 < np.prod([float(len(v)) for v in values]) <= _MOST:
        return None
    return [column.ravel() for column in np.meshgrid(*values, indexing="ij")]


def _multiplies(setting: Setting, wishes: Sequence[Constraint], whole: str, factors: tuple[str, ...]) -> bool:
    """Whether some product of what is left of the factors is left of the whole."""
    wanted = np.array(_values(setting, wishes, whole), np.int64)
    products = _products(setting, wishes, factors, int(wanted.max(initial=0)))
    return products is None or bool(np.isin(wanted, products).any())


def _products(
    setting: Setting,
    wishes: Sequence[Constraint],
    names: tuple[str, ...],
    most: int,
    least: Mapping[str, int] | None = None,
) -> Ints | None:
    """Products, up to `most`, of what is left of some names, each at least its `least`; None where they are too many or
    there is nothing to multiply."""
    products = np.ones(1, np.int64)
    for name in names:
        left = np.array(_values(setting, wishes, name), np.int64)
        left = left if least is None else left[left >= least[name]]
        if not len(left) or not len(products) or len(left) * len(products) > _MOST:
            return None
        products = np.unique(np.multiply.outer(products, left))
        products = products[products <= most]
    return products if len(products) else None
