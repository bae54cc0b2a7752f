"""Rules about words that several launchers share: recompute policies, offload classes, schedules."""

import numpy as np

from meshwright.costmodel.layout import Layout
from meshwright.costmodel.legal import listed
from meshwright.costmodel.offloads import OFFLOADS
from meshwright.costmodel.policies import tensor_bits
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.schedules import SCHEDULES
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.tensors import CODES, HOST, POLICIES, TENSORS, bits
from meshwright.optimizer.launchers.launcher import Bools, Ints, LauncherRule, rule

_TOLD_STAGES = 2  # of a layout whose policies differ by stage


def told_policies(layout: Layout) -> str:
    """`none/full`, or stage by stage as a layout's text says it."""
    words = ["/".join(stage) for stage in layout.policy_words]
    return ";".join(words[:_TOLD_STAGES]) + (";..." if len(words) > _TOLD_STAGES else "")


def present_bits(setting: Setting, rows: Rows) -> Ints:
    """Bits of the tensors that the layers of each lane have; of all tensors where kinds take several lanes."""
    kinds = setting.model.kinds
    lanes = rows.policies.shape[1]
    return np.array(
        [tensor_bits(setting.framework, k) for k in kinds] if lanes == len(kinds) else [bits(TENSORS)] * lanes
    )


def named_policies(setting: Setting, rows: Rows) -> Ints:
    """Index into POLICIES of each lane's policy, by what it repeats; one more where it has no name. [R, lanes]."""
    out = np.full(rows.policies.shape, len(POLICIES))
    for index, name in enumerate(POLICIES):
        out[(rows.policies ^ CODES[name]) & present_bits(setting, rows) == 0] = index
    return out


def one_per_kind(setting: Setting, rows: Rows) -> Bools:
    """Whether all layers of a kind have one policy, and what they save is all on the device or all on the host."""
    if rows.policies.shape[1] != len(setting.model.kinds):  # a kind with two policies has two lanes
        return np.zeros(len(rows), bool)
    present = present_bits(setting, rows)
    saved, on_host = present & ~rows.policies, rows.policies >> HOST & present
    good: Bools = (on_host == np.where(rows.offloads("activations")[:, None], saved, 0)).all(axis=1)
    return good


def policies_by_kind(launcher: str, how: str, source: str) -> LauncherRule:
    """The same policy on all layers of a kind, and everything that it saves in one place."""
    return rule(
        f"{launcher}: one recompute policy per layer kind", "recompute offload", one_per_kind,
        lambda s, x: (
            f"{how}; recompute={told_policies(x)} tells layers of one kind or saved tensors apart: use one policy per layer "
            "kind, with all that it saves on the device or on the host"
        ),
        source,
    )  # fmt: skip


def policies_among(launcher: str, policies: tuple[str, ...], how: str, source: str) -> LauncherRule:
    """The recompute policies that it has a setting for."""
    codes = [POLICIES.index(p) for p in policies]
    return rule(
        f"{launcher}: recompute it has a setting for", "recompute",
        lambda s, rows: np.isin(named_policies(s, rows), codes).all(axis=1),
        lambda s, x: f"{how}; recompute={told_policies(x)} is none of them: use recompute={listed(policies)}",
        source,
    )  # fmt: skip


def one_policy(launcher: str, how: str, source: str) -> LauncherRule:
    """One recompute policy for all layer kinds."""
    return rule(
        f"{launcher}: one recompute policy for all layers", "recompute",
        lambda s, rows: (np.ptp(named_policies(s, rows), axis=1) == 0),
        lambda s, x: f"{how}; recompute={told_policies(x)} differs by layer: use one",
        source,
    )  # fmt: skip


def offloads_among(launcher: str, offloads: tuple[str, ...], how: str, source: str) -> LauncherRule:
    """The offload classes that it has a setting for."""
    codes = [OFFLOADS.index(o) for o in offloads]
    return rule(
        f"{launcher}: offload it has a setting for", "offload",
        lambda s, rows: np.isin(rows.offload, codes),
        lambda s, x: f"{how}; offload={x.offload} is none of them: use offload={listed(offloads)}",
        source,
    )  # fmt: skip


def activations_under(launcher: str, policies: tuple[str, ...], how: str, source: str) -> LauncherRule:
    """Recompute policies under which it can offload what is saved."""
    codes = [POLICIES.index(p) for p in policies]
    return rule(
        f"{launcher}: activations that it can offload", "recompute offload",
        lambda s, rows: ~rows.offloads("activations") | np.isin(named_policies(s, rows), codes).all(axis=1),
        lambda s, x: (
            f"{how}; offload={x.offload} with recompute={told_policies(x)} is more: use "
            f"recompute={listed(policies)}, or offload=none"
        ),
        source,
    )  # fmt: skip


def gathers_again(launcher: str, how: str, source: str) -> LauncherRule:
    """Under ZeRO-3 weights are freed after forward."""
    return rule(
        f"{launcher}: gathered weights are freed after forward", "reshard",
        lambda s, rows: rows.reshard == 1,
        lambda s, x: f"{how}; reshard=false keeps gathered weights for backward: use reshard=true",
        source,
    )  # fmt: skip


def schedules_among(launcher: str, schedules: tuple[str, ...], how: str, source: str) -> LauncherRule:
    """The schedules that its pipeline runs."""
    codes = [SCHEDULES.index(s) for s in schedules]
    return rule(
        f"{launcher}: schedule it runs", "schedule pp",
        lambda s, rows: (rows.pp == 1) | np.isin(rows.schedule, codes),
        lambda s, x: f"{how}; schedule={x.schedule} is none of them: use schedule={listed(schedules)}",
        source,
    )  # fmt: skip
