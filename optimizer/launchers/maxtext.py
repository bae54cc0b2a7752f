"""MaxText: what its configuration takes.

Degrees are given per slice and across slices, and JAX places them inside a slice, so no rank order bounds a placement.
Left out: `remat_policy: custom`, which says of each named tensor where it goes.
"""

from meshwright.costmodel.layout import Layout
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.optimizer.launchers.launcher import Bools, Launcher, even_stages, rule
from meshwright.optimizer.launchers.words import (
    activations_under,
    gathers_again,
    offloads_among,
    one_policy,
    policies_among,
    policies_by_kind,
    schedules_among,
)

_POLICIES = ("none", "elementwise", "mlp", "full")
_OFFLOADS = ("none", "activations")
_SCHEDULES = ("gpipe",)
_REMAT = "src/maxtext/configs/base.yml:353-385, src/maxtext/layers/decoders.py:346"
_MESH = "src/maxtext/configs/base.yml:528-684 (logical_axis_rules)"
_PIPELINE = "src/maxtext/layers/pipeline.py, one scan over all micro-batches that autodiff reverses"


def _zero(setting: Setting, rows: Rows) -> Bools:
    good: Bools = (rows.zero == 0) | (rows.zero == 3) | ((rows.zero == 1) & (rows.dp_replicate == 1))
    return good


def _experts(setting: Setting, rows: Rows) -> Bools:
    """Experts are split over `expert` and `tensor`, and the expert axis shards what is dense too."""
    mixture = any(kind.ffn.experts for kind in setting.model.kinds)
    inside = (rows.etp == rows.tp) | (not mixture)
    good: Bools = inside & ((rows.ep == 1) | ((rows.zero == 3) & (rows.dp_shard % rows.ep == 0)))
    return good


def _experts_told(setting: Setting, layout: Layout) -> str:
    return (
        "experts are split over the axes expert and tensor, and expert counts as FSDP outside of them; "
        f"ep={layout.ep}, etp={layout.etp} with tp={layout.tp}, zero={layout.zero}, dp_shard={layout.dp_shard}: use "
        "etp=tp, and with ep above 1 zero=3 and a dp_shard that ep divides"
    )


MAXTEXT = Launcher(
    "maxtext",
    "jax",
    snapshot="AI-Hypercomputer/maxtext e591f30 (2026-08-22)",
    policies=_POLICIES,
    offloads=_OFFLOADS,
    schedules=_SCHEDULES,
    opens=frozenset({"schedule"}),
    even_stages=True,
    rules=(
        policies_among("maxtext", _POLICIES, "remat policies save named products: none, minimal, "
                       "save_dot_with_context_except_mlp and full are its own", _REMAT),
        policies_by_kind("maxtext", "remat_policy is one for all layers, of the presets", _REMAT),
        one_policy("maxtext", "remat_policy is one for all layers", _REMAT),
        offloads_among(
            "maxtext", _OFFLOADS,
            "optimizer_memory_host_offload keeps the state on the host and updates it on the device, which this space "
            "does not price", "src/maxtext/configs/base.yml:353-385",
        ),
        gathers_again("maxtext", "the compiler gathers weights where they are used, and no setting keeps them", _MESH),
        activations_under(
            "maxtext", _POLICIES[1:], "a remat policy offloads named tensors", _REMAT
        ),
        even_stages("maxtext", "stages * repeats * layers per stage must be the layers",
                    "src/maxtext/configs/types.py:3572-3640"),
        schedules_among(
            "maxtext", _SCHEDULES,
            "all micro-batches run forward before any runs back, which of one chunk a stage is GPipe, and with "
            "num_pipeline_repeats a schedule that this space does not price", _PIPELINE,
        ),
        rule(
            "maxtext: micro-batches are a multiple of the stages", "pp dp micro_batch sequences",
            lambda s, rows: (rows.pp == 1) | (rows.micro_batches % rows.pp == 0),
            lambda s, x: (
                f"num_pipeline_microbatches must be a multiple of the stages; with dp={x.dp}, "
                f"micro_batch={x.micro_batch} it is not one of pp={x.pp}: use another micro_batch or pp"
            ),
            "src/maxtext/configs/types.py:3572-3640",
        ),
        rule(
            "maxtext: ZeRO 0, 1 over all of dp, or 3", "zero dp_replicate dp_shard", _zero,
            lambda s, x: (
                f"fsdp is ZeRO 3 and shard_optimizer_over_data is ZeRO 1 over the whole data axis; zero={x.zero} with "
                f"dp_replicate={x.dp_replicate} is neither: use zero=3, or zero=1 with dp_replicate=1"
            ),
            _MESH,
        ),
        rule(
            "maxtext: cp shards the weights", "cp zero",
            lambda s, rows: (rows.cp == 1) | (rows.zero == 3),
            lambda s, x: f"weights are sharded over the axis context too; cp={x.cp} with zero={x.zero}: use zero=3",
            _MESH,
        ),
        rule("maxtext: axes of experts", "ep etp tp zero dp_shard", _experts, _experts_told, _MESH),
    ),
)  # fmt: skip
