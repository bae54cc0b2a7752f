"""What a plan says of a traced step: the class of a collective, the operator of a product, links and parts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.costmodel.layout import Layout
from meshwright.costmodel.model import LayerKind, Shard, operator_of
from meshwright.costmodel.operators import tp_ways
from meshwright.costmodel.setting import Setting
from meshwright.hardware.chip import Chip, Switch
from meshwright.hardware.network import SCALE_UP_TIERS, TorusAxis
from meshwright.optimizer.reasons.explain import Explanation
from meshwright.optimizer.reasons.machine import links
from meshwright.optimizer.reasons.traffic import Traffic
from meshwright.optimizer.traces.events import COPIES, Event
from meshwright.optimizer.traces.kinds import carries

# Classes that send a collective of a kind, as `costmodel.layer` counts them.
_SENDS = {
    "all_gather": ("fsdp", "tp", "cp", "dp"),
    "reduce_scatter": ("fsdp", "tp", "cp", "dp"),
    "all_reduce": ("tp", "dp"),
    "all_to_all": ("ep", "cp"),
    "send_recv": ("pp", "cp"),
}
_CP_SENDS = {
    "ring": ("send_recv",),
    "all_to_all": ("all_to_all",),
    "all_gather": ("all_gather", "reduce_scatter"),
}
KINDS = {
    "core": "attention", "norm1": "elementwise", "norm2": "elementwise", "act": "elementwise",
    "expert_act": "elementwise", "embedding": "elementwise",
}  # fmt: skip
_APART = ("recompute", "tower", "mtp")  # of all kinds
SCALE_UP, SCALE_OUT, HOST_LINK = "scale_up", "scale_out", "host_link"


def named(event: Event) -> str:
    """Without a plan: the class that the process group's name tells, else the collective's own name."""
    found = carries(event.group.label) if event.group else None
    if found == "data":
        return "dp" if event.kind == "all_reduce" else "fsdp"
    return found or event.kind


def link_of(event: Event, chip: Chip) -> tuple[str, float] | None:
    """(link, bytes/s of one device) that an event loads, as far as the chip alone tells it.

    A group inside one switched domain is on scale_up, one with a single rank in each domain on scale_out; of others, and
    on a torus, the rate depends on the placement.
    """
    if event.kind in COPIES:
        rate = chip.host_link_bytes_per_s
        return None if rate is None else (HOST_LINK, rate)
    ranks, up = event.group.ranks if event.group else (), chip.scale_up
    if len(ranks) < 2 or not isinstance(up, Switch):
        return None
    domains = {rank // (up.domain.count * chip.devices_per_chip) for rank in ranks}
    if len(domains) == 1:
        return SCALE_UP, up.per_chip_one_way.si / chip.devices_per_chip
    out = chip.scale_out_bytes_per_s
    return (SCALE_OUT, out) if len(domains) == len(ranks) and out is not None else None


@dataclass(frozen=True)
class Planned:
    """A plan's question, layout and explanation, asked about traced events."""

    setting: Setting
    made: Explanation

    @property
    def layout(self) -> Layout:
        return self.made.plan.layout

    def label(self, event: Event) -> str:
        """Class of the plan that an event belongs to; its own name where several could have sent it, or none."""
        if event.kind in COPIES:
            return event.kind if self.layout.offload == "none" else "offload"
        told = carries(event.group.label) if event.group else None
        sends = self._senders(event)
        if told == "data":
            sends = [name for name in sends if name in ("fsdp", "dp")]
        elif told is not None:
            return told
        return sends[0] if len(sends) == 1 else event.kind

    def _senders(self, event: Event) -> list[str]:
        sizes = {
            "tp": self.layout.tp, "cp": self.layout.cp, "ep": self.layout.ep, "pp": 2,
            "fsdp": self.layout.dp_shard * self.layout.cp,
        }  # fmt: skip
        found = [name for name in _SENDS.get(event.kind, ()) if name in self._traffic]
        if event.kind not in _CP_SENDS[self.layout.cp_kind]:
            found = [name for name in found if name != "cp"]
        members = event.group.size if event.group else None
        if members is not None and event.kind != "send_recv":
            found = [name for name in found if sizes.get(name, members) == members]
        return found

    def floor(self, event: Event) -> tuple[str, float] | None:
        """(link, seconds at its peak rate) of what an event sends, at the rate of its class in the plan."""
        traffic = self._traffic.get(self.label(event))
        if event.moved_bytes is None:
            return None
        if traffic is None or traffic.sent_bytes <= 0 or traffic.link not in self._links:
            found = link_of(event, self.setting.cluster.chip)
            return None if found is None else (found[0], event.moved_bytes / found[1])
        return self._links[traffic.link], event.moved_bytes / traffic.sent_bytes * traffic.floor_s

    @cached_property
    def _traffic(self) -> Mapping[str, Traffic]:
        return {each.name: each for each in self.made.traffic}

    @cached_property
    def _links(self) -> Mapping[str, str]:
        levels = self.setting.cluster.levels
        found = {
            name: SCALE_UP
            if isinstance(levels[on[0]], TorusAxis) or levels[on[0]].name in SCALE_UP_TIERS
            else SCALE_OUT
            for name, on in links(self.setting)
        }
        return found

    def operators(self, events: Iterable[Event]) -> dict[tuple[int, ...], str]:
        """The plan's operator by the sizes of traced products, in any of its three passes: `qkv`, or `down/up` of several.

        Several operators may have products of equal sizes; one that was seen under sizes of its own is not among them.
        """
        shapes = {event.shape for event in events if event.kind == "matmul" and len(event.shape) == 3}
        found = {shape: self._products.get(tuple(sorted(shape)), ()) for shape in shapes}
        sure = {names[0] for names in found.values() if len(names) == 1}
        return {
            shape: "/".join([name for name in names if name not in sure] or names) if len(names) > 1 else "".join(names)
            for shape, names in found.items()
        }  # fmt: skip

    def seconds(self) -> dict[str, float]:
        """The plan's seconds of a step by operator, of all layers on its slowest stage."""
        found: dict[str, float] = {}
        for operator in self.made.operators:
            found[operator.name] = found.get(operator.name, 0.0) + operator.seconds
        return found

    @cached_property
    def _products(self) -> Mapping[tuple[int, ...], tuple[str, ...]]:
        """Operators by the sizes (m, k, n), sorted, of their products on one device: forward and both of backward."""
        layout, model = self.layout, self.setting.model
        tokens = layout.micro_batch * self.setting.training.seq_len // layout.cp
        found: dict[tuple[int, ...], set[str]] = {}
        for kind in model.kinds:
            for name, whole, k, n in _sizes(kind, layout.tp):
                m = tokens if whole or not layout.sp else tokens // layout.tp
                found.setdefault(tuple(sorted((m, k, n))), set()).add(name)
        head = model.head_matrix.params // model.hidden // layout.tp
        found.setdefault(tuple(sorted((tokens, model.hidden, head))), set()).add("head")
        return {size: tuple(sorted(names)) for size, names in found.items()}

    def kinds(self) -> dict[str, float]:
        """The same by kind of operation; repeated work apart."""
        found: dict[str, float] = {}
        for name, seconds in self.seconds().items():
            kind = "recompute" if name in _APART else KINDS.get(name, "matmul")
            found[kind] = found.get(kind, 0.0) + seconds
        return found


def _sizes(kind: LayerKind, tp: int) -> list[tuple[str, bool, int, int]]:
    """(operator, whether it sees all tokens of a tp group, k, n) of the products of a layer on one device.

    Products of one operator with one input also as one product.
    """
    joined: dict[tuple[str, bool, int], int] = {}
    found = []
    for weight in kind.weights:
        if not weight.matmul or weight.routed:
            continue
        name, ways = operator_of(weight), int(tp_ways(weight, kind, np.array(tp)))
        rows = weight.shard is Shard.ROW
        k, n = (weight.rows // ways, weight.cols) if rows else (weight.rows, weight.cols // ways)
        whole = weight.shard is not Shard.REPLICATED
        found.append((name, whole, k, n))
        joined[name, whole, k] = joined.get((name, whole, k), 0) + n
    return found + [(*key, n) for key, n in joined.items()]
