"""How long shape and layout take in one proof: `python benchmarks/joint.py [--only TEXT]`.

Question: which model of a grid of 10,340 dense shapes (0.4B to 133B parameters) has the least loss that 512 H100 train
in 30 days, on 1T tokens and on as many as the time allows, and how is it laid out. Every shape has about two million
legal layouts. Law besiroglu (arXiv 2404.10102), 4Mi tokens a step of 4,096 each, rates `default`; the run is far
outside the law's box, which changes nothing of the work. Then the grid `pretraining` with mixtures by law abnar, and
a decode latency on a slice of v5e over a grid of two million shapes.

CPU seconds (`time.process_time`) of one call each; one JSON summary line at the end.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.workload import Training
from meshwright.search.grid import Grid, load_grid
from meshwright.search.law import load_law
from meshwright.search.served.serve import Serving, serve
from meshwright.search.trained.train import Trained, train

CLUSTER, DEADLINE_S = "h100:8x64", 30 * 86_400.0
JOB = Training(4 * 2**20, 4096)
FIXED = replace(JOB, total_tokens=10**12)
RULES = ("heads_fill_width", "kv_heads_divide_heads", "top_k_within_experts", "whole_expert_width")


def dense_grid() -> Grid:
    """10,340 legal shapes."""
    return Grid(
        source="benchmarks/joint.py", vocab=128_256, tied=False,
        layers=tuple(range(12, 100, 4)), width=tuple(range(1024, 9217, 512)), head_dim=(64, 128),
        kv_heads=(4, 8, "heads"), ffn_ratio=(2.0, 2.5, 3.0, 3.5, 4.0), experts=((1, 1),), rules=RULES,
    )  # fmt: skip


def large_grid() -> Grid:
    """Two million rows before its rules."""
    return load_grid("plas").model_copy(
        update={
            "layers": tuple(range(4, 44)), "width": tuple(range(512, 5633, 128)),
            "ffn_ratio": tuple(0.25 * n for n in range(1, 21)), "kv_heads": (1, 2, 4, 8, 16, "heads"),
            "experts": ((1, 1), (8, 1), (8, 2), (16, 1), (16, 2), (32, 1), (32, 2), (32, 4), (64, 1), (64, 2)),
        }
    )  # fmt: skip


def trained(grid: Grid, law: str, job: Training) -> dict[str, object]:
    made: Trained = train(load_law(law), grid, CLUSTER, job, DEADLINE_S)
    best, shapes, proof = made.best, made.shapes, made.proof
    return {
        "shapes": len(shapes),
        "layers": int(shapes.layers[best.row]), "width": int(shapes.width[best.row]),
        "experts": int(shapes.experts[best.row]),
        "params": int(made.counts.params[best.row]), "tokens": made.trained_on(best),
        "loss": round(best.loss, 5), "step_s": round(best.fastest.step_s, 4), "days": round(made.days(best), 3),
        "searched": proof.searched, "pairs": proof.pairs, "plans_priced": proof.plans_priced,
        "share_priced": float(f"{proof.share_priced:.3g}"),
        "share_bounded": float(f"{proof.rows_bounded / proof.pairs:.3g}"),
    }  # fmt: skip


def served(grid: Grid) -> dict[str, object]:
    made: Serving = serve(
        load_law("plas-10b"), grid, "v5e:4x4", Request(1, 8192, 512, 1, 1),
        tpot_s=0.005, batch=32, weights="int8",
    )  # fmt: skip
    return {
        "shapes": len(made.shapes), "loss": round(float(made.priced.loss[made.best.row]), 5),
        "tp": made.best.choice.part.ways, "looked_at": made.looked_at, "floors": made.floors, "exact": made.exact,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="questions whose name holds it")
    only = parser.parse_args().only
    questions: dict[str, Callable[[], dict[str, object]]] = {
        "1T tokens": lambda: trained(dense_grid(), "besiroglu", FIXED),
        "free tokens": lambda: trained(dense_grid(), "besiroglu", JOB),
        "mixtures on 1T tokens": lambda: trained(load_grid("pretraining"), "abnar", FIXED),
        "decode on a slice": lambda: served(large_grid()),
    }
    summary = {}
    for name, ask in questions.items():
        if only in name:
            start = time.process_time()
            answer = ask()
            summary[name] = {"cpu_s": round(time.process_time() - start, 2), **answer}
            print(f"{name}: {summary[name]}", flush=True)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
