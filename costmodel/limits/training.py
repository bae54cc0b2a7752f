"""The limits of training a model on a cluster, as an answer: which scheme stays compute bound, and up to how many chips.

Rules are told for the book's layer (two matrices D x F, no attention), so that they can be recognised, and where the
name says so for the model's own layers and the exact (X-1)/X. Tokens are per chip and step.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.costmodel.collectives import Network, duration
from meshwright.costmodel.counting.activations import checkpoint_bytes, saved_by
from meshwright.costmodel.counting.counts import BOOK_STATE, most_params
from meshwright.costmodel.exchange.operations import in_switches
from meshwright.costmodel.limits import thresholds as rules
from meshwright.costmodel.limits.groups import Groups, groups_of, slice_level
from meshwright.costmodel.limits.thresholds import Array, Work
from meshwright.costmodel.limits.tilings import slice_of
from meshwright.costmodel.memory import bytes_per_param
from meshwright.costmodel.model import LayerKind
from meshwright.costmodel.placement import Group
from meshwright.costmodel.policies import policies_of
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.working import Step

BOOK_CHECKPOINTS = 4  # D-wide tensors per layer in the book's worked case


@dataclass(frozen=True)
class Limits:
    """Thresholds of one question. `setting` is of one slice; `slices` of them do data parallelism over the network
    between them."""

    setting: Setting
    whole: Setting

    @staticmethod
    def of(setting: Setting) -> "Limits":
        """Raises ClusterError for a single device, WorkloadError where the batch does not split over the slices."""
        return Limits(slice_of(setting), setting)

    @property
    def network(self) -> Network:
        return self.setting.network

    @cached_property
    def groups(self) -> Groups:
        return groups_of(self.network)

    @property
    def per_chip(self) -> int:
        """Devices of a chip: thresholds per device times this are per chip."""
        return self.setting.cluster.chip.devices_per_chip

    @cached_property
    def kind(self) -> LayerKind:
        """The kind with most layers, of which the book's layer is told."""
        model = self.setting.model
        return model.kinds[int(np.argmax(model.layers_by_kind))]

    @property
    def ffn(self) -> int:
        """F; of one expert in a mixture."""
        return self.kind.ffn.expert_width or self.kind.ffn.width

    @property
    def copies(self) -> tuple[int, int]:
        """(E, k); 1 and 1 for a dense layer."""
        ffn = self.kind.ffn
        return (ffn.experts, ffn.top_k) if ffn.experts else (1, 1)

    @cached_property
    def dense(self) -> Work:
        """The book's layer of width F."""
        return rules.block_work(self.setting.rates.matmul_flop_per_s, self.setting.model.hidden, self.ffn)

    @cached_property
    def book(self) -> Work:
        """The same with the weights of all E experts and the products of the k that a token meets."""
        experts, met = self.copies
        return Work(self.dense.math_s * met, self.dense.weight_bytes * experts, self.dense.crossing_bytes)

    @cached_property
    def own(self) -> Work:
        """All layers of the model."""
        return rules.layers_work(self.setting)

    def gather(self, factors: Array, exact: bool = False) -> float:
        """Seconds per byte of a gather over a group."""
        return float(duration(rules.gather_s_per_byte(self.network, factors, exact=exact)))

    def data(self, work: Work, factors: Array, exact: bool = False, cut: float = 1.0) -> float:
        """Tokens per chip that FSDP or DP needs over a group."""
        return self.per_chip * float(rules.data_tokens(work, self.gather(factors, exact), cut))

    def beyond(self, work: Work) -> float:
        """Tokens per chip that FSDP over all domains needs for the network beyond them alone."""
        whole = list(self.groups.data.values())[-1]
        loads = rules.gather_s_per_byte(self.network, whole, exact=False)
        return self.per_chip * float(rules.data_tokens(work, loads[1:].max()))

    def reduced(self, work: Work, factors: Array) -> float:
        """Tokens per chip that DP needs where switches reduce, as theory has it."""
        group = Group(factors, np.ones_like(factors))
        network = in_switches(self.network, group, theory=True)
        both = float(duration(rules.reduce_s_per_byte(network, factors, exact=True)))
        return self.per_chip * float(rules.data_tokens(work, both / 2.0))  # backward has twice the products

    def mixed(self, work: Work, streams: str, exact: bool = False) -> float | None:
        """Tokens per chip that FSDP x TP needs at its best split; None on a network of one level."""
        shared = self.groups.mixed
        if shared is None:
            return None
        g = self.gather(shared.data, exact), self.gather(shared.tensor, exact)
        return self.per_chip * float(
            rules.mixed_tokens(work, *g, "shared" if streams == "shared" else "independent")
        )

    def best_tensor(self, work: Work) -> float | None:
        """Y of the best split at the batch, at least 1."""
        shared = self.groups.mixed
        if shared is None:
            return None
        tokens = self.setting.training.global_batch_tokens / self.setting.cluster.devices
        ways = rules.best_tensor_ways(work, self.gather(shared.data), self.gather(shared.tensor), tokens)
        return max(1.0, float(ways))

    @cached_property
    def slice_tokens(self) -> float | None:
        """Tokens per slice above which gradients cross the network between slices unseen; None without its rate."""
        found = slice_level(self.whole.cluster, self.whole.network)
        if found is None:
            return None
        network, factors, level = found
        beyond = float(rules.gather_s_per_byte(network, factors, exact=False)[level])
        return self.setting.cluster.devices * float(rules.data_tokens(self.book, beyond))

    @property
    def tokens_per_chip(self) -> float:
        return self.setting.training.global_batch_tokens / self.setting.cluster.chips


def memory_given(limits: Limits) -> dict[str, Step]:
    """Memory of one chip."""
    size = limits.whole.cluster.chip.memory_bytes * limits.per_chip
    return {"HBM": Step(size, "B", note=f"of one chip, {_usable(limits):.4g} of it usable")}


def _usable(limits: Limits) -> float:
    """The share of memory that the planner uses."""
    return float(limits.whole.capacity_bytes / limits.whole.cluster.chip.memory_bytes)


def memory_steps(limits: Limits) -> dict[str, Step]:
    """Least chips for state and activations, as the book counts and as the planner does, and the most pure DP holds."""
    setting = limits.whole
    model, chip, fw = setting.model, setting.cluster.chip, setting.framework
    tokens = setting.training.global_batch_tokens
    size = chip.memory_bytes * chip.devices_per_chip
    state = sum(BOOK_STATE.values()) * model.params
    saved = checkpoint_bytes(tokens, model.layers, model.hidden, BOOK_CHECKPOINTS)
    policy = next(p for p in policies_of(fw) if p.name == "full")
    each = bytes_per_param(fw, setting.training.optimizer, False)
    kept = saved_by(policy, model, fw, setting.training.seq_len).saved_bytes * tokens
    planned = (float(sum(each.values())) * model.params + kept) / (
        setting.capacity_bytes * chip.devices_per_chip
    )
    return {
        "least_chips_book": Step(
            int(np.ceil((state + saved) / size)),
            "chips",
            "ceil((10 P + 8 D L B) / HBM)",
            f"Adam, {BOOK_CHECKPOINTS} checkpoints",
        ),
        "least_chips": Step(
            int(np.ceil(planned)),
            "chips",
            f"ceil(({float(sum(each.values())):g} P + {kept / tokens:.10g} B) / ({_usable(limits):.4g} HBM))",
            "fp32 master, recomputed",
        ),
        "most_params_pure_dp": Step(
            most_params(chip.memory_bytes, BOOK_STATE),
            "params",
            "HBM / 10" if limits.per_chip == 1 else "HBM / (10 d)",
            "Adam; no activations",
        ),
    }
