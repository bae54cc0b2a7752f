"""Megatron-LM: what its argument parser and transformer config take.

Stages may hold any layers: `--pipeline-model-parallel-layout` spells out each stage and chunk. ZeRO 1 is the distributed
optimizer (`--num-distributed-optimizer-instances` gives dp_replicate), ZeRO 2 and 3 are Megatron FSDP with the sharding
strategies optim_grads and optim_grads_params.

Left out: full recompute of some layers of each stage and none of the rest (`--recompute-method block --recompute-num-layers`).
"""

import numpy as np

from meshwright.costmodel.layout import Layout
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.tensors import POLICIES
from meshwright.optimizer.launchers.launcher import Bools, Launcher, ranks_in_order, rule
from meshwright.optimizer.launchers.words import (
    activations_under,
    gathers_again,
    named_policies,
    offloads_among,
    policies_among,
    policies_by_kind,
    schedules_among,
    told_policies,
)

_POLICIES = ("none", "attention", "mlp", "full")
_OFFLOADS = ("none", "activations", "optimizer", "optimizer+activations")
_SCHEDULES = ("1f1b", "interleaved")
_ORDERS = (
    ("tp", "cp", "dp_shard", "dp_replicate", "pp"),
    ("tp", "cp", "pp", "dp_shard", "dp_replicate"),
)
_RECOMPUTE = "megatron/core/transformer/transformer_config.py:1884-2010"


def _by_module(setting: Setting, rows: Rows) -> Bools:
    """The same modules in all layers: `mlp` acts on dense layers and `moe` on the others, all else on both."""
    none, mlp = POLICIES.index("none"), POLICIES.index("mlp")
    names, kinds = named_policies(setting, rows), setting.model.kinds
    same = (names == names[:, :1]).all(axis=1)
    if names.shape[1] != len(kinds):  # layers of one kind differ
        return np.asarray(same)
    mixture = np.array([bool(kind.ffn.experts) for kind in kinds])
    groups = np.ones(len(rows), bool)
    for group in (names[:, mixture], names[:, ~mixture]):
        if group.shape[1]:
            groups &= (group == group[:, :1]).all(axis=1)
    good: Bools = same | (groups & np.isin(names, (none, mlp)).all(axis=1))
    return good


def _by_module_told(setting: Setting, layout: Layout) -> str:
    return (
        "recompute modules act on every layer, only mlp (dense layers) and moe (layers with experts) tell kinds apart; "
        f"recompute={told_policies(layout)} asks for more: use one policy, or none and mlp"
    )


MEGATRON = Launcher(
    "megatron",
    "megatron",
    snapshot="NVIDIA/Megatron-LM d98e8a6 (2026-08-22)",
    policies=_POLICIES,
    offloads=_OFFLOADS,
    schedules=_SCHEDULES,
    rank_orders=_ORDERS,
    chips=("NVIDIA", "AMD"),
    mtp=True,  # all on the last (virtual) stage: megatron/core/transformer/pipeline_parallel_layer_layout.py
    rules=(
        policies_among(
            "megatron", _POLICIES,
            "recompute is full, or selective by module (core_attn, mlp, moe, ...)", _RECOMPUTE,
        ),
        policies_by_kind("megatron", "recompute and offload name modules, for all layers that have them", _RECOMPUTE),
        rule(
            "megatron: recompute modules act on all layers", "recompute", _by_module, _by_module_told, _RECOMPUTE
        ),
        offloads_among(
            "megatron", _OFFLOADS, "--optimizer-cpu-offload moves master weights and moments, nothing moves gradients and weights",
            "megatron/training/arguments.py:389-1990 (validate_args)",
        ),
        activations_under(
            "megatron", ("mlp",),
            "fine-grained offload names the modules of attention and of experts but not a dense feed-forward part, and "
            "offload of whole layers excludes a pipeline and recompute",
            "megatron/core/transformer/transformer_config.py:2127",
        ),
        rule(
            "megatron: optimizer offload without FSDP", "offload zero",
            lambda s, rows: ~rows.offloads("optimizer") | (rows.zero <= 1),
            lambda s, x: (
                f"--optimizer-cpu-offload goes with the distributed optimizer, Megatron FSDP 2 refuses it; "
                f"offload={x.offload} with zero={x.zero}: use zero=1, or offload=none"
            ),
            "megatron/bridge/training/config.py:1077-1190 of Megatron-Bridge 067f987",
        ),
        gathers_again(
            "megatron", "Megatron FSDP frees what it gathers (--torch-fsdp2-no-reshard-after-forward is of --use-torch-fsdp2, "
            "whose habits are not these)", "megatron/training/arguments.py:389-1990 (validate_args)",
        ),
        schedules_among(
            "megatron", _SCHEDULES, "schedules are 1F1B and interleaved 1F1B (ZB-H1 and ZB-H2 are of forks)",
            "megatron/core/pipeline_parallel/schedules.py",
        ),
        rule(
            "megatron: ep with tp needs sp", "ep tp sp",
            lambda s, rows: (rows.ep == 1) | (rows.tp == 1) | (rows.sp == 1),
            lambda s, x: f"ep={x.ep} with tp={x.tp} needs --sequence-parallel; use sp=true",
            "megatron/training/arguments.py:389-1990 (validate_args)",
        ),
        ranks_in_order(
            "megatron", _ORDERS, "ranks are numbered tp-cp-ep-dp-pp, or with --use-tp-pp-dp-mapping tp-cp-ep-pp-dp",
            "megatron/core/parallel_state.py:815-905",
        ),
    ),
)  # fmt: skip
