"""What each launcher runs, stated a second time in plain Python over one finished layout.

Written from the launchers' own words, not from `optimizer.launchers`. A layout is legal already; `refused` names, in
a word each, what the launcher cannot run of it.
"""

from collections.abc import Iterator

from meshwright.costmodel.layout import DIMENSIONS, Layout
from meshwright.costmodel.policies import tensor_bits
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.tensors import CODES, HOST

EVEN = ("maxtext", "deepspeed", "calculon")
RUNS = {
    "megatron": ("1f1b", "interleaved"),
    "maxtext": ("gpipe",),
    "torchtitan": ("gpipe", "1f1b", "interleaved", "dualpipev"),
    "deepspeed": ("1f1b",),
    "calculon": ("1f1b", "interleaved"),
}
NAMES = {
    "megatron": {"none", "attention", "mlp", "full"},
    "maxtext": {"none", "elementwise", "mlp", "full"},
    "torchtitan": {"none", "elementwise", "full"},
    "deepspeed": {"none", "full"},
    "calculon": {"none", "attention", "full"},
}
# What an exhaustive search must list for a launcher beside what it lists for everybody.
GPIPE, NO_SP = ("maxtext",), ("deepspeed", "calculon")


def refused(launcher: str, setting: Setting, layout: Layout) -> list[str]:
    """What it cannot run of a complete layout."""
    ways = [_ways(setting, layout, k) for k in range(len(setting.model.kinds))]
    if any(len(some) > 1 for some in ways):
        return ["mixed"]
    policies = [name for some in ways for name, _ in some]
    said = {"megatron": _megatron, "maxtext": _maxtext, "torchtitan": _torchtitan, "deepspeed": _deepspeed}
    out = list(said.get(launcher, _calculon)(setting, layout, policies))
    if not set(policies) <= NAMES[launcher]:
        out.append("recompute")
    if {place for some in ways for _, place in some} != {
        "host" if "activations" in layout.offload else "device"
    }:
        out.append("not all of it offloaded")
    if layout.pp > 1 and layout.schedule not in RUNS[launcher]:
        out.append("schedule")
    if launcher in ("megatron", "maxtext", "deepspeed") and not layout.reshard:
        out.append("reshard")
    if launcher in ("megatron", "maxtext") and (
        "gradients" in layout.offload or "parameters" in layout.offload
    ):
        out.append("state offload")
    if launcher in EVEN and len(set(layout.layers_per_stage)) > 1:
        out.append("uneven")
    if launcher in ("megatron", "torchtitan", "deepspeed"):
        orders = [["tp", "cp", "dp_shard", "dp_replicate", "pp"]]
        if launcher == "megatron":
            orders.append(["tp", "cp", "pp", "dp_shard", "dp_replicate"])
        if not any(_fills(layout, order) for order in orders):
            out.append("rank order")
    return out


def _ways(setting: Setting, layout: Layout, kind: int) -> set[tuple[str, str]]:
    """What layers of a kind do, by name of the policy and by where they save what they do."""
    has = tensor_bits(setting.framework, setting.model.kinds[kind])
    ways = set()
    for stage in range(layout.pp):
        for code, _ in layout.mix(stage, kind):
            exactly = [name for name, c in CODES.items() if (code ^ c) & has == 0]
            saved, away = has & ~code, code >> HOST & has
            place = "device" if not away else "host" if away == saved else "some of it"
            ways.add((exactly[0] if exactly else f"tensors {code}", place))
    return ways


def _fills(layout: Layout, order: list[str]) -> bool:
    """Dealing the degrees in this order from the innermost level outwards, each level as full as the placement says,
    gives the placement."""
    left = {name: getattr(layout, name) for name in DIMENSIONS}
    waiting = list(order)
    for members in layout.placement:
        here = dict(members)
        for name in list(waiting):
            if here.get(name, 1) > 1 and any(left[before] > 1 for before in waiting[: waiting.index(name)]):
                return False  # something further in is not dealt out yet
            left[name] //= here.get(name, 1)
            if left[name] == 1:
                waiting.remove(name)
    return True


def _mixture(setting: Setting) -> bool:
    return any(kind.ffn.experts for kind in setting.model.kinds)


def _megatron(setting: Setting, x: Layout, policies: list[str]) -> Iterator[str]:
    dense = {p for p, k in zip(policies, setting.model.kinds, strict=True) if not k.ffn.experts}
    sparse = {p for p, k in zip(policies, setting.model.kinds, strict=True) if k.ffn.experts}
    if len(set(policies)) > 1 and (
        len(dense) > 1 or len(sparse) > 1 or not dense | sparse <= {"none", "mlp"}
    ):
        yield "modules"
    if "activations" in x.offload and set(policies) != {"mlp"}:
        yield "activations"
    if "optimizer" in x.offload and x.zero > 1:
        yield "optimizer offload"
    if x.ep > 1 and x.tp > 1 and not x.sp:
        yield "sp"


def _maxtext(setting: Setting, x: Layout, policies: list[str]) -> Iterator[str]:
    if len(set(policies)) > 1:
        yield "kinds"
    if "optimizer" in x.offload:
        yield "optimizer offload"
    if "activations" in x.offload and "none" in policies:
        yield "activations"
    sequences = x.sequences or setting.training.sequences
    if x.pp > 1 and (sequences // (x.dp * x.micro_batch)) % x.pp:
        yield "micro-batches"
    if x.zero == 2 or (x.zero == 1 and x.dp_replicate > 1):
        yield "zero"
    if x.cp > 1 and x.zero != 3:
        yield "cp"
    if _mixture(setting) and x.etp != x.tp:
        yield "etp"
    if x.ep > 1 and (x.zero != 3 or x.dp_shard % x.ep):
        yield "ep"


def _torchtitan(setting: Setting, x: Layout, policies: list[str]) -> Iterator[str]:
    if any(kind.attention.kv_heads % x.tp for kind in setting.model.kinds):
        yield "kv heads"
    if len(set(policies)) > 1:
        yield "kinds"
    if x.offload != "none":
        yield "offload"
    if x.cp > 1 and x.cp_kind != "all_gather":
        yield "cp kind"
    if x.zero in (1, 2) or (x.zero == 0 and (x.cp > 1 or (x.dp_replicate > 1 and x.tp * x.pp > 1))):
        yield "fsdp"
    if _mixture(setting) and (
        (x.dp_shard * x.cp * x.tp) % x.ep or (x.ep > 1 and x.etp > 1) or (x.ep == 1 and x.etp != x.tp)
    ):
        yield "experts"


def _deepspeed(setting: Setting, x: Layout, policies: list[str]) -> Iterator[str]:
    if len(set(policies)) > 1:
        yield "kinds"
    if "activations" in x.offload and set(policies) != {"full"}:
        yield "activations"
    if "optimizer" in x.offload and x.zero == 0:
        yield "optimizer offload"
    if x.zero in (1, 2) and x.dp_replicate > 1:
        yield "replicas"
    if x.pp > 1 and (x.zero > 1 or x.cp > 1):
        yield "pipeline"
    if x.tp > 1 and x.sp:
        yield "sp"
    if x.cp > 1 and x.cp_kind != "all_to_all":
        yield "cp kind"
    if x.ep > 1 and (x.dp % x.ep or x.tp > 1 or x.cp > 1 or (x.zero == 3 and x.dp_replicate > 1)):
        yield "ep"


def _calculon(setting: Setting, x: Layout, policies: list[str]) -> Iterator[str]:
    if len(set(policies)) > 1:
        yield "kinds"
    if x.offload != "none":
        yield "offload"
    if x.cp * x.ep * x.etp > 1:
        yield "degrees"
    if x.zero > 1 or (x.zero == 1 and x.dp_replicate > 1):
        yield "zero"
    if x.devices != setting.cluster.devices:
        yield "idle"
    for name in DIMENSIONS:
        if sum(dict(level).get(name, 1) > 1 for level in x.placement) > 1:
            yield "networks"
