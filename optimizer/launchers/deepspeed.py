"""DeepSpeed: what its JSON configuration and its pipeline engine take.

Its memory habits are not measured; those of `megatron`, a PyTorch program too, stand in, which every plan says.
"""

from meshwright.costmodel.layout import CP_KINDS, Layout
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.optimizer.launchers.launcher import Bools, Launcher, even_stages, ranks_in_order, rule
from meshwright.optimizer.launchers.words import (
    activations_under,
    gathers_again,
    one_policy,
    policies_among,
    policies_by_kind,
    schedules_among,
)

_POLICIES = ("none", "full")
_SCHEDULES = ("1f1b",)
_ORDERS = (("tp", "cp", "dp_shard", "dp_replicate", "pp"),)
_AC = "deepspeed/runtime/activation_checkpointing/config.py"
_ZERO = "deepspeed/runtime/zero/config.py"
_PIPE = "deepspeed/runtime/pipe/engine.py"
_EP = "deepspeed/module_inject/auto_ep_config.py"


def _experts(setting: Setting, rows: Rows) -> Bools:
    """AutoEP splits the data ranks; at stage 3 it goes with no other split."""
    alone = (rows.tp == 1) & (rows.cp == 1) & (rows.dp_replicate == 1)
    carved = (rows.dp % rows.ep == 0) & (rows.tp == 1) & (rows.cp == 1)
    good: Bools = (rows.ep == 1) | (carved & ((rows.zero < 3) | alone))
    return good


def _experts_told(setting: Setting, layout: Layout) -> str:
    return (
        f"AutoEP carves ep from the data ranks, at stage 3 without replicas; ep={layout.ep} with dp={layout.dp}, "
        f"tp={layout.tp}, cp={layout.cp}, dp_replicate={layout.dp_replicate}, zero={layout.zero}: use an ep that divides dp "
        "with tp=1 and cp=1"
    )


DEEPSPEED = Launcher(
    "deepspeed",
    "megatron",
    snapshot="deepspeedai/DeepSpeed edaa722 (2026-08-22)",
    policies=_POLICIES,
    schedules=_SCHEDULES,
    opens=frozenset({"sp"}),
    even_stages=True,
    rank_orders=_ORDERS,
    chips=("NVIDIA", "AMD"),
    note="no memory habits of deepspeed are measured: memory is priced as megatron holds it, a PyTorch program too",
    rules=(
        policies_among("deepspeed", _POLICIES, "activation checkpointing repeats whole layers", _AC),
        policies_by_kind("deepspeed", "activation checkpointing is on or off for all layers", _AC),
        one_policy("deepspeed", "activation checkpointing is on or off for all layers", _AC),
        activations_under("deepspeed", ("full",), "cpu_checkpointing offloads the checkpoints of full recompute", _AC),
        rule(
            "deepspeed: optimizer offload needs ZeRO", "offload zero",
            lambda s, rows: ~rows.offloads("optimizer") | (rows.zero >= 1),
            lambda s, x: f"offload_optimizer is part of ZeRO; offload={x.offload} with zero={x.zero}: use zero=1 or more",
            "deepspeed/runtime/zero/offload_config.py",
        ),
        gathers_again("deepspeed", "stage 3 fetches weights again for backward", _ZERO),
        rule(
            "deepspeed: replicas of shards only at ZeRO 3", "zero dp_replicate",
            lambda s, rows: (rows.dp_replicate == 1) | (rows.zero == 0) | (rows.zero == 3),
            lambda s, x: (
                f"ZeRO 1 and 2 shard over all data ranks, only stage 3 takes mics_shard_size; zero={x.zero} with "
                f"dp_replicate={x.dp_replicate}: use dp_replicate=1, or zero=3"
            ),
            _ZERO,
        ),
        rule(
            "deepspeed: ZeRO 0 or 1 in a pipeline", "zero pp",
            lambda s, rows: (rows.pp == 1) | (rows.zero <= 1),
            lambda s, x: f"a pipeline works with ZeRO 0 and 1; zero={x.zero} with pp={x.pp}: use zero=1, or pp=1",
            _PIPE,
        ),
        rule(
            "deepspeed: no cp in a pipeline", "cp pp",
            lambda s, rows: (rows.pp == 1) | (rows.cp == 1),
            lambda s, x: f"a pipeline's ranks are pipe, data and model; cp={x.cp} with pp={x.pp}: use cp=1, or pp=1",
            "deepspeed/runtime/pipe/topology.py",
        ),
        schedules_among(
            "deepspeed", _SCHEDULES, "the schedule of a pipeline is 1F1B, one chunk a stage",
            "deepspeed/runtime/pipe/schedule.py",
        ),
        even_stages("deepspeed", "pipeline.partition balances the layers, and only an even cut is sure",
                    "deepspeed/runtime/pipe/module.py"),
        rule(
            "deepspeed: AutoTP keeps norms whole", "tp sp",
            lambda s, rows: (rows.tp == 1) | (rows.sp == 0),
            lambda s, x: f"AutoTP splits products and repeats norms; tp={x.tp} with sp=true: use sp=false",
            "deepspeed/runtime/tensor_parallel/config.py",
        ),
        rule(
            "deepspeed: cp is Ulysses", "cp cp_kind",
            lambda s, rows: (rows.cp == 1) | (rows.cp_kind == CP_KINDS.index("all_to_all")),
            lambda s, x: f"sequence parallelism is Ulysses; use cp_kind=all_to_all, not {x.cp_kind}",
            "deepspeed/runtime/sequence_parallel/ulysses_sp.py:140",
        ),
        rule("deepspeed: ep from the data ranks", "ep tp cp dp dp_replicate zero", _experts, _experts_told, _EP),
        ranks_in_order("deepspeed", _ORDERS, "ranks are numbered model, sequence, data, pipe, the first innermost",
                       "deepspeed/runtime/pipe/topology.py"),
    ),
)  # fmt: skip
