"""torchtitan: what its configuration and `ParallelDims` take.

Stages may hold any layers (`module_fqns_per_model_part`). Its DualPipeV is `dualpipev`; its InterleavedZeroBubble and
ZBVZeroBubble split the backward pass over two and more chunks a stage, which is neither `zb_h1` nor `zb_h2`. Its
memory habits are not measured; those of `megatron`, a PyTorch program too, stand in, which every plan says.
"""

import numpy as np

from meshwright.costmodel.layout import CP_KINDS
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.optimizer.launchers.launcher import Bools, Launcher, ranks_in_order, rule
from meshwright.optimizer.launchers.words import (
    offloads_among,
    one_policy,
    policies_among,
    policies_by_kind,
    schedules_among,
)

_POLICIES = ("none", "elementwise", "full")
_SCHEDULES = ("gpipe", "1f1b", "interleaved", "dualpipev")
_ORDERS = (("tp", "cp", "dp_shard", "dp_replicate", "pp"),)
_AC = "torchtitan/distributed/activation_checkpoint.py"
_DIMS = "torchtitan/distributed/parallel_dims.py:160-195"


def _kv_heads(setting: Setting, rows: Rows) -> Bools:
    good = np.ones(len(rows), bool)
    for kind in setting.model.kinds:
        good &= kind.attention.kv_heads % rows.tp == 0
    return good


def _sharded(setting: Setting, rows: Rows) -> Bools:
    """FSDP keeps or drops the gathered weights; without it data is replicated, and nothing else is cut."""
    alone = (rows.cp == 1) & ((rows.dp_replicate == 1) | ((rows.tp == 1) & (rows.pp == 1)))
    good: Bools = (rows.zero == 3) | ((rows.zero == 0) & alone)
    return good


def _experts(setting: Setting, rows: Rows) -> Bools:
    if not any(kind.ffn.experts for kind in setting.model.kinds):
        return np.ones(len(rows), bool)
    inside = rows.dp_shard * rows.cp * rows.tp
    good: Bools = (inside % rows.ep == 0) & (rows.etp == np.where(rows.ep == 1, rows.tp, 1))
    return good


TORCHTITAN = Launcher(
    "torchtitan",
    "megatron",
    snapshot="pytorch/torchtitan b5bcd76 (2026-08-21)",
    policies=_POLICIES,
    offloads=("none",),
    schedules=_SCHEDULES,
    rank_orders=_ORDERS,
    chips=("NVIDIA", "AMD"),
    note="no memory habits of torchtitan are measured: memory is priced as megatron holds it, a PyTorch program too",
    rules=(
        rule(
            "torchtitan: tp divides the kv heads", "tp", _kv_heads,
            lambda s, x: (
                f"kv heads are never replicated; tp={x.tp} does not divide "
                f"{min(k.attention.kv_heads for k in s.model.kinds)}: use a divisor"
            ),
            "torchtitan/models/common/decoder.py:175-210",
        ),
        policies_among("torchtitan", _POLICIES, "activation checkpointing is none, selective (products and attention "
                       "are saved: elementwise) or full", _AC),
        policies_by_kind("torchtitan", "activation checkpointing is one mode for all layers", _AC),
        one_policy("torchtitan", "activation checkpointing is one mode for all layers", _AC),
        offloads_among(
            "torchtitan", ("none",),
            "training.enable_cpu_offload moves weights, gradients and optimizer together, which this space does not "
            "price", "torchtitan/config/configs.py",
        ),
        schedules_among(
            "torchtitan", _SCHEDULES,
            "schedules are GPipe, 1F1B, Interleaved1F1B and DualPipeV (LoopedBFS, InterleavedZeroBubble and ZBVZeroBubble are "
            "not priced here)", "torchtitan/distributed/pipeline_parallel.py:185-260",
        ),
        rule(
            "torchtitan: all_gather for cp", "cp cp_kind",
            lambda s, rows: (rows.cp == 1) | (rows.cp_kind == CP_KINDS.index("all_gather")),
            lambda s, x: f"cp runs on FlexAttention, which gathers keys and values; use cp_kind=all_gather, not {x.cp_kind}",
            "torchtitan/config/configs.py, torchtitan/models/common/decoder.py:175-210",
        ),
        rule(
            "torchtitan: FSDP wherever something is cut", "zero dp_replicate tp cp pp", _sharded,
            lambda s, x: (
                f"FSDP is ZeRO 3 (fsdp_reshard_after_forward always, or never: reshard=false), and replicas without it go "
                f"with nothing else; zero={x.zero} with dp_replicate={x.dp_replicate}, cp={x.cp}, tp={x.tp}, pp={x.pp}: "
                "use zero=3"
            ),
            "torchtitan/models/llama3/parallelize.py (DDP has not supported > 1D parallelism), " + _DIMS,
        ),
        rule(
            "torchtitan: ep out of dp_shard*cp*tp, no etp", "ep etp tp cp dp_shard", _experts,
            lambda s, x: (
                f"ep is carved from dp_shard*cp*tp = {x.dp_shard * x.cp * x.tp} and experts are whole, or with ep=1 cut "
                f"by tp; ep={x.ep}, etp={x.etp} with tp={x.tp}: use an ep that divides it with etp=1, or ep=1 with etp=tp"
            ),
            _DIMS,
        ),
        ranks_in_order("torchtitan", _ORDERS, "the mesh is pp, dp_replicate, dp_shard, cp, tp, the last innermost", _DIMS),
    ),
)  # fmt: skip
