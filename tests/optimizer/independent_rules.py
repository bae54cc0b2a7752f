"""The rules of a layout stated a second time, one plain predicate each, for one candidate at a time.

Written from the words of the design, not from `costmodel.legal`, so that a rule lost or bent there shows. Keys
are the names that `legal.RULES` uses; a test holds the two lists and their verdicts together.
"""

from collections.abc import Callable
from typing import NamedTuple

from meshwright.costmodel.layout import CP_KINDS
from meshwright.costmodel.setting import Setting


class Candidate(NamedTuple):
    """Every decision of a layout but stages, policies, offload and placement."""

    dp_replicate: int
    dp_shard: int
    zero: int
    cp: int
    cp_kind: str
    tp: int
    sp: bool
    pp: int
    vpp: int
    schedule: str
    ep: int
    etp: int
    micro_batch: int
    sequences: int
    reshard: bool = True

    @property
    def dp(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def stage_devices(self) -> int:
        return self.dp_replicate * self.dp_shard * self.cp * self.tp

    @property
    def devices(self) -> int:
        return self.stage_devices * self.pp

    @property
    def micro_batches(self) -> int:
        return self.sequences // (self.dp * self.micro_batch)


def shortest_period(pattern: tuple[int, ...]) -> int:
    """Least shift that maps the pattern onto itself, of those that divide its length."""
    length = len(pattern)
    for shift in range(1, length):
        if length % shift == 0 and all(pattern[i] == pattern[(i + shift) % length] for i in range(length)):
            return shift
    return length


def stage_sizes(setting: Setting, pp: int, vpp: int, schedule: str) -> list[int]:
    """Layers that a stage may hold: any positive number, or whole rounds of chunks, or as `uneven_sizes` says."""
    layers, period = setting.model.layers, shortest_period(setting.model.pattern) if vpp > 1 else 1
    sizes = set(range(vpp * period, layers + 1, vpp * period))
    if setting.framework.uneven_chunks and schedule == "interleaved":
        sizes |= uneven_sizes(layers, period, pp, vpp)
    return sorted(sizes)


def uneven_sizes(layers: int, period: int, pp: int, vpp: int) -> set[int]:
    """Layers of stages whose last chunk alone differs: where all chunks could be alike, one period more or any fewer."""
    each, left = divmod(layers, pp * vpp * period)
    if left or each < 2:
        return set()
    return {period * ((vpp - 1) * each + last) for last in range(1, each + 2)}


def _heads(setting: Setting, x: Candidate) -> bool:
    """Each rank has whole query heads, and whole kv heads or one shared by whole groups of ranks."""
    for kind in setting.model.kinds:
        kv = kind.attention.kv_heads
        if kind.attention.heads % x.tp:
            return False
        if kv % x.tp and x.tp % kv:
            return False
    return True


def _tower(setting: Setting, x: Candidate) -> bool:
    if not setting.training.images:
        return True
    kind = setting.model.tower.kind  # type: ignore[union-attr]
    return {kind.attention.heads % x.tp, kind.ffn.width % x.tp} == {0}


def _widths(setting: Setting, x: Candidate) -> bool:
    for kind in setting.model.kinds:
        if kind.ffn.width % x.tp:
            return False
        if kind.ffn.experts and kind.ffn.expert_width % x.etp:
            return False
    return True


def _experts(setting: Setting, x: Candidate) -> bool:
    mixtures = [k.ffn.experts for k in setting.model.kinds if k.ffn.experts]
    if not mixtures:
        return x.ep == x.etp == 1
    return all(e % x.ep == 0 for e in mixtures) and x.stage_devices % (x.ep * x.etp) == 0


def _sequence(setting: Setting, x: Candidate) -> bool:
    """With cp each rank takes an early and a late piece; with sp each piece is cut over tp."""
    pieces = 1
    if x.cp > 1:
        pieces *= 2 * x.cp
    if x.sp:
        pieces *= x.tp
    return setting.training.seq_len % pieces == 0


def _all_to_all(setting: Setting, x: Candidate) -> bool:
    if x.cp == 1 or x.cp_kind != "all_to_all":
        return True
    ways = x.cp * x.tp
    return all(
        k.attention.heads % ways == 0 and k.attention.kv_heads % ways == 0 for k in setting.model.kinds
    )


def _equal_chunks(setting: Setting, x: Candidate) -> bool:
    if x.vpp == 1:
        return True
    groups, left = divmod(setting.model.layers, x.vpp * shortest_period(setting.model.pattern))
    return left == 0 and groups >= x.pp


def _filled(setting: Setting, x: Candidate) -> bool:
    """As many as are in flight on the first stage, and for both chunks of one that turns."""
    needed = {"zb_h1": x.pp, "zb_h2": 2 * x.pp - 1, "dualpipev": 2 * x.pp}
    return x.micro_batches >= needed.get(x.schedule, 0)


PREDICATES: dict[str, Callable[[Setting, Candidate], bool]] = {
    "uses at most the devices there are": lambda s, x: x.devices <= s.cluster.devices,
    "tp divides the heads": _heads,
    "tp divides the feed-forward width": _widths,
    "tp divides the vision tower": _tower,
    "ep divides the experts and the stage": _experts,
    "cp and tp divide the sequence": _sequence,
    "all_to_all cuts the heads over cp too": _all_to_all,
    "the batch is whole micro-batches": lambda s, x: x.sequences % (x.dp * x.micro_batch) == 0,
    "every chunk has a layer": lambda s, x: x.pp * x.vpp <= s.model.layers,
    "interleaved chunks are equal within a stage": _equal_chunks,
    "interleaving runs whole rounds of pp micro-batches": lambda s, x: (
        x.schedule != "interleaved" or x.micro_batches % x.pp == 0
    ),
    "a schedule that splits backward has micro-batches to fill it": _filled,
}


def _weights_away(setting: Setting, x: Candidate, offload: str) -> bool:
    """Only ZeRO-3 has shards of weights to stream."""
    return "parameters" not in offload or x.zero == 3


def _gradients_away(setting: Setting, x: Candidate, offload: str) -> bool:
    """What leaves with a micro-batch must not wait for a reduction at the end of the step."""
    if "gradients" not in offload:
        return True
    if x.zero >= 2:
        return x.dp_replicate == 1
    data_ranks = x.dp * x.cp
    same_experts = x.stage_devices // (x.ep * x.etp) if any(k.ffn.experts for k in setting.model.kinds) else 1
    return data_ranks == same_experts == 1


# Rules that read the offload class too.
OFFLOAD_PREDICATES: dict[str, Callable[[Setting, Candidate, str], bool]] = {
    "offloaded weights are sharded by ZeRO-3": _weights_away,
    "offloaded gradients leave fully reduced": _gradients_away,
}


def must_host(setting: Setting, offload: str, offloads: list[str]) -> bool:
    """Whether some layer of a plan keeps something on its host: it may not be told from a class that is not asked for."""
    parts = offload.split("+")
    rest = "+".join(p for p in parts if p != "activations") or "none"
    return "activations" in parts and bool(setting.framework.chooses) and rest not in offloads


def may_offload(setting: Setting, x: Candidate, offload: str) -> bool:
    return all(holds(setting, x, offload) for holds in OFFLOAD_PREDICATES.values())


def well_formed(x: Candidate) -> bool:
    """What the words themselves demand, of any model: see `Layout`."""
    ranks = x.dp_shard * x.cp
    if x.zero == 0 and x.dp_shard > 1:
        return False
    if x.zero > 0 and ranks == 1:
        return False
    if not x.reshard and x.zero < 3:
        return False
    if (x.vpp > 1) != (x.schedule in ("interleaved", "dualpipev")) or (
        x.schedule == "dualpipev" and x.vpp > 2
    ):
        return False
    if x.pp == 1 and x.schedule != "1f1b":
        return False
    return x.cp_kind in CP_KINDS and x.etp in (1, x.tp)


def legal(setting: Setting, x: Candidate) -> bool:
    return well_formed(x) and all(holds(setting, x) for holds in PREDICATES.values())


def broken(setting: Setting, x: Candidate) -> list[str]:
    """Names of the rules that the candidate breaks."""
    names = [name for name, holds in PREDICATES.items() if not holds(setting, x)]
    return names if well_formed(x) else [*names, "well formed"]
