"""Best plans in Calculon's vocabulary: `python benchmarks/calculon_export.py FOLDER [--only TEXT] [--plans N]`.

Solves each case of `benchmarks/data/calculon.yaml` under the launcher `calculon`, with that system's constants as
calibration, and writes the best N plans (20) as execution files that Calculon prices: FOLDER/<model>-<procs>-<rank>.json.
Prints our seconds of the plans beside Calculon's of its own best, then one JSON summary line. What Calculon says of our
plans is for Calculon to say; what the two models count differently is at `setting_of`.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

import meshwright as mw
from meshwright.costmodel.framework import Framework
from meshwright.costmodel.model import ModelSpec, Shard, Weight
from meshwright.costmodel.setting import Setting
from meshwright.hardware.calibration import COMM_CLASSES, Efficiency
from meshwright.hardware.network import SwitchTier
from meshwright.optimizer.decode import layout_of
from meshwright.optimizer.question import price
from meshwright.optimizer.settle import Found, SolveOptions
from meshwright.optimizer.solve import Search
from meshwright.optimizer.space import Space

DATA = Path(__file__).parent / "data" / "calculon.yaml"
RECOMPUTE = {"none": "none", "attention": "attn_only", "full": "full"}

# Weights and gradients of two bytes, master copy and both moments of four: what it counts, and nothing besides.
FRAMEWORK = Framework(
    software="calculon",
    dispatches_once=False,
    gathers_ahead=False,
    name="calculon", grad_bytes=2, accum_bytes=0, reduce_bytes=2, shards_vectors=True, embedding_gathers=0,
    head_gathers=0, gather_depth=1, logits_bytes=2, logits_tp_bytes=0, loss_width_bytes=0, unfused_factor=1.0,
    recomputes_last_product=True, chooses=frozenset(), offloads=frozenset(), reserve_bytes=0, reserve_share=0.0,
    uneven_chunks=False,
)  # fmt: skip


def model_of(name: str, facts: dict[str, Any]) -> ModelSpec:
    """Its blocks alone: it prices no embedding and no head, so both are eight words small here."""
    spec = mw.load_model(
        {
            "model_type": "gpt2", "n_embd": facts["hidden"], "n_layer": facts["num_blocks"],
            "n_head": facts["attn_heads"], "n_positions": facts["seq_size"], "vocab_size": 8,
            "n_inner": facts["feedforward"], "activation_function": "gelu",
        }
    )  # fmt: skip
    table = Weight("embed", 8, facts["hidden"], Shard.VOCAB, matmul=False)
    assert spec.kinds[0].attention.qk_head_dim == facts["attn_size"]
    return replace(spec, name=name, embedding=(table,), head=())


def efficiency_of(system: dict[str, Any], head_dim: int, hides_tp: bool) -> Efficiency:
    """Its constants in the form of ours.

    A product there takes its FLOPs at `matrix_share` and then its bytes at `memory_share`: of m x k by k x n that is
    1 + r (1/m + 1/k + 1/n) times the first, r FLOP per byte over two bytes a number, which m0 = n0 = r comes near. The
    scores of attention pass through the memory: 13 bytes and 6 vector operations each, beside 4 FLOP per head element;
    our count has half of these FLOPs, since the other half is masked.
    """
    flop_per_s = system["matrix_flop_per_s"] * system["matrix_share"]
    bytes_per_s = system["memory_bytes_per_s"] * system["memory_share"]
    vector_per_s = system["vector_flop_per_s"] * system["vector_share"]
    score_s = 4 * head_dim / flop_per_s + 13 / bytes_per_s + 6 / vector_per_s
    near, far = system["networks"]
    return Efficiency(
        name="calculon", provenance=system["source"], matmul=system["matrix_share"],
        attention=2 * head_dim / score_s / system["matrix_flop_per_s"], hbm=system["memory_share"],
        scale_up=near["share"] / near["halves"], scale_out=far["share"] / far["halves"], host_link=1.0,
        matmul_m0=flop_per_s / bytes_per_s, matmul_n0=flop_per_s / bytes_per_s, expert_matmul=1.0, elementwise=1.0,
        permute=1.0, sum_bytes=0.0, narrow_heads=0.0, score_bytes=0.0, misaligned=0.0, misaligned_heads=0.0, launch_s=0.0,
        moe_launch_s=0.0, straggler=0.0, step_s=0.0, low_precision={}, overlap={c: float(hides_tp and c == "tp") for c in COMM_CLASSES},
    )  # fmt: skip


def setting_of(data: dict[str, Any], case: dict[str, Any]) -> Setting:
    """The question of a case. Unlike ours, its forward pass stores the scores of attention and its dropout masks."""
    system, facts = data["system"], data["models"][case["model"]]
    cluster = mw.parse_cluster(f"a100:8x{max(1, case['procs'] // 8)}")
    memory = cluster.chip.memory.model_copy(
        update={
            "usable_per_device": cluster.chip.memory.capacity.model_copy(
                update={"text": f"{system['memory_bytes']} B", "source": system["source"]}
            ),
            "bandwidth": cluster.chip.memory.bandwidth.model_copy(
                update={"text": f"{system['memory_bytes_per_s'] / 1e9:g} GB/s", "source": system["source"]}
            ),
        }
    )
    levels = tuple(
        SwitchTier(level, n["size"], n["bytes_per_s"], n["latency_s"])
        for level, n in zip(("nvlink", "scale-out"), system["networks"], strict=True)
    )
    # Each degree names a network and fills as much of it as it likes: the tiers are as large as the file says.
    levels = (levels[0], replace(levels[1], size=case["procs"]))
    chip = cluster.chip.model_copy(update={"memory": memory})
    seq_len = facts["seq_size"]
    return Setting(
        model_of(case["model"], facts),
        replace(cluster, chip=chip, levels=levels),
        mw.Training(case["batch"] * seq_len, seq_len),
        efficiency_of(system, facts["attn_size"], case["overlap"] != "none"),
        FRAMEWORK,
        launcher="calculon",
    )


def execution(given: Setting, found: Found, overlap: str) -> dict[str, Any]:
    """A plan as its execution file says it."""
    layout = layout_of(given, found)
    net = {
        name: level
        for level, members in enumerate(layout.placement)
        for name, factor in members
        if factor > 1
    }
    return {
        "num_procs": layout.devices,
        "tensor_par": layout.tp,
        "pipeline_par": layout.pp,
        "data_par": layout.dp,
        "tensor_par_net": net.get("tp", 0),
        "pipeline_par_net": net.get("pp", 0),
        "data_par_net": net.get("dp_shard", net.get("dp_replicate", 0)),
        "batch_size": layout.sequences or given.training.sequences,
        "microbatch_size": layout.micro_batch,
        "datatype": "float16",
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": RECOMPUTE[layout.policies[0]],
        "pipeline_interleaving": layout.vpp,
        "optimizer_sharding": layout.zero == 1,
        "tensor_par_comm_type": "rs_ag" if layout.sp else "ar",
        "tensor_par_overlap": overlap if layout.tp > 1 else "none",
        "seq_par_ag_redo": False,
        "data_par_overlap": False,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the execution files go")
    parser.add_argument("--only", default="", help="cases whose model contains this")
    parser.add_argument("--plans", type=int, default=20, help="how many of the best (20)")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    data = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    summary = []
    for case in data["cases"]:
        if asked.only not in case["model"]:
            continue
        given, start = setting_of(data, case), time.process_time()
        search = Search(Space(given, ()), SolveOptions(runner_ups=asked.plans - 1))
        proven = search.run() and not search.undecided
        seconds, best = time.process_time() - start, search.ranked[: asked.plans]
        for rank, found in enumerate(best):
            name = f"{case['model']}-{case['procs']}-{rank:02}.json"
            (asked.folder / name).write_text(
                json.dumps(execution(given, found, case["overlap"]), indent=2) + "\n"
            )
        theirs = price(given, mw.parse_layout(case["theirs"])).estimate
        row = {
            "case": f"{case['model']}/{case['procs']}", "plans": len(best), "proven": proven,
            "best_s": round(best[0].value_s, 4), "last_s": round(best[-1].value_s, 4),
            "theirs_here_s": round(theirs.step_s, 4), "theirs_there_s": case["theirs_s"], "cpu_s": round(seconds, 2),
        }  # fmt: skip
        summary.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    print(json.dumps({"calculon": summary}))


if __name__ == "__main__":
    main()
