"""Calculon: what an execution file of that planner can say, so that plans can be priced there too.

It is no launcher, but its vocabulary bounds a layout in the same way; `benchmarks/calculon_export.py` writes it.
"""

import numpy as np

from meshwright.costmodel.layout import Layout
from meshwright.costmodel.setting import Setting
from meshwright.optimizer.launchers.launcher import (
    Launcher,
    LauncherRule,
    even_stages,
    factors_of,
    rule,
)
from meshwright.optimizer.launchers.words import (
    offloads_among,
    one_policy,
    policies_among,
    policies_by_kind,
    schedules_among,
)

_POLICIES = ("none", "attention", "full")
_SCHEDULES = ("1f1b", "interleaved")
_FILE = "calculon/llm/llm.py (Llm.Execution)"


def _one_network(setting: Setting, layout: Layout) -> bool:
    return not layout.placement or bool(((factors_of(layout.placement) > 1).sum(axis=2) <= 1).all())


CALCULON = Launcher(
    "calculon",
    "megatron",
    snapshot="calculon-ai/calculon caa4b11 (2024-02)",
    policies=_POLICIES,
    offloads=("none",),
    schedules=_SCHEDULES,
    opens=frozenset({"sp"}),
    even_stages=True,
    one_level=True,
    rules=(
        policies_among("calculon", _POLICIES, "activation_recompute is none, attn_only or full", _FILE),
        policies_by_kind("calculon", "activation_recompute is one for all blocks", _FILE),
        one_policy("calculon", "activation_recompute is one for all blocks", _FILE),
        offloads_among("calculon", ("none",), "offload there streams through a second memory at its own rates", _FILE),
        schedules_among("calculon", _SCHEDULES, "the schedule is 1F1B, interleaved or not", _FILE),
        even_stages("calculon", "blocks are split evenly over pipeline_par and pipeline_interleaving", _FILE),
        rule(
            "calculon: no cp, no experts", "cp ep etp",
            lambda s, rows: (rows.cp == 1) & (rows.ep == 1) & (rows.etp == 1),
            lambda s, x: f"degrees are tensor, pipeline and data; cp={x.cp}, ep={x.ep}: use cp=1, ep=1",
            _FILE,
        ),
        rule(
            "calculon: optimizer sharding at most", "zero dp_replicate",
            lambda s, rows: (rows.zero == 0) | ((rows.zero == 1) & (rows.dp_replicate == 1)),
            lambda s, x: (
                f"optimizer_sharding is ZeRO 1 over all data ranks; zero={x.zero} with dp_replicate={x.dp_replicate}: "
                "use zero=1 and dp_replicate=1, or zero=0"
            ),
            _FILE,
        ),
        rule(
            "calculon: every processor", "devices",
            lambda s, rows: rows.devices == s.cluster.devices,
            lambda s, x: f"num_procs is the product of the degrees; {x.devices} of {s.cluster.devices} devices are used: use all",
            _FILE,
        ),
        LauncherRule(
            "calculon: a degree on one network", lambda s, rows: np.ones(len(rows), bool),
            lambda s, x: "each degree names one network; this placement spreads one over two: leave the placement out",
            reads=frozenset(), source=_FILE, layout_holds=_one_network,
        ),
    ),
)  # fmt: skip
