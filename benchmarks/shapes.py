"""What a proof over shapes costs: `python benchmarks/shapes.py [--only TEXT]`.

The whole front of the PLAS paper's grid (9,474 shapes that fit), single budgets and sparse fronts over a product of
1,079,377,920 shapes, and one row by columns of all pairs beside its program. Prints CPU seconds of one worker, what was
priced and what was proved; peak memory; then one JSON summary line.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.search.engine.answers import Found, NoShape
from meshwright.search.engine.question import Limit, Question
from meshwright.search.engine.search import Effort
from meshwright.search.engine.solve import best_shape, exact_front
from meshwright.search.grid import Grid, load_grid
from meshwright.search.law import load_law

ORIN = Device.ideal(
    42.5e12, 204.8e9, 64e9
)  # FLOP/s, bytes/s and bytes of a Jetson AGX Orin 64GB, ideal rates
FP16 = Request(batch=1, prompt=1024, output=16, weight_bytes=2, kv_bytes=2)
TOKENS = 1e11
LAWS = ("plas-10b", "gemstones-wdpt", "besiroglu", "krajewski", "abnar", "clark-sbase", "zhao")
LIMITS = {
    "everything fits": (),
    "total 100 ms": (Limit("total_s", 0.1),),
    "total 500 ms, 20 ms a token, 8 GB": (
        Limit("total_s", 0.5),
        Limit("token_s", 0.02),
        Limit("memory_bytes", 8e9),
    ),
    "0.99e9 to 1e9 parameters": (Limit("params", 1e9, 0.99e9),),
    "total 1 us": (Limit("total_s", 1e-6),),
}
BILLION = Grid.model_validate(
    {
        "source": "benchmarks/shapes.py",
        "layers": {"from": 1, "to": 64},
        "width": {"from": 256, "to": 4096, "step": 64},
        "head_dim": [32, 64, 96, 128, 256],
        "kv_heads": {"from": 1, "to": 32},
        "ffn_ratio": [*(x / 8 for x in range(2, 11)), *(x / 4 for x in range(6, 17)), 4.5, 5, 6, 8],
        "experts": [[1, 1], *([e, k] for e in (4, 8, 16, 32, 64, 128) for k in (1, 2, 4, 8) if k <= e)],
        "shared": [0, 1, 2],
        "vocab": 151936,
        "tied": True,
        "rules": [
            "heads_fill_width", "kv_heads_divide_heads", "top_k_within_experts", "shared_beside_experts",
            "whole_expert_width", "distinct",
        ],
    }
)  # fmt: skip


def asked(grid: Grid, law: str, latency: Any = "full", limits: tuple[Limit, ...] = ()) -> Question:
    loss = load_law(law)
    return Question(grid, loss, ORIN, FP16, latency, limits, TOKENS if "tokens" in loss.reads else None)


def measured(name: str, answer: Callable[[], Found]) -> dict[str, Any]:
    """CPU seconds and the certificate's counts of one answer."""
    start = time.process_time()
    try:
        found: Found | None = answer()
    except NoShape as no:
        found, told = None, str(no)
    row: dict[str, Any] = {"question": name, "cpu_s": round(time.process_time() - start, 3)}
    if found is None:
        return row | {"status": "INFEASIBLE", "told": told}
    proof = found.certificate
    return row | {
        "status": proof.status, "points": len(found), "loss": round(proof.value, 5), "bounded": proof.bounded,
        "parts_priced": proof.parts_priced, "combined": proof.combined, "shapes_priced": proof.shapes_priced,
        "share_priced": float(f"{proof.share_priced:.3g}"), "programs": proof.programs, "space": proof.space,
    }  # fmt: skip


def questions() -> dict[str, Callable[[], Found]]:
    out: dict[str, Callable[[], Found]] = {}
    for latency in ("plas", "full"):
        out[f"front of the paper's grid, {latency}"] = lambda k=latency: exact_front(
            asked(load_grid("plas"), "plas-10b", k)
        )  # type: ignore[misc]
    for law in LAWS:
        for text, limits in LIMITS.items():
            out[f"10^9, {law}, {text}"] = lambda w=law, x=limits: best_shape(asked(BILLION, w, "full", x))  # type: ignore[misc]
    for law in LAWS:
        out[f"10^9, {law}, front 5% apart"] = lambda w=law: exact_front(asked(BILLION, w), apart=0.05)  # type: ignore[misc]
    out["10^9, plas-10b, whole front"] = lambda: exact_front(asked(BILLION, "plas-10b"))
    return out


def row_by_both(ffn: int, heads: int) -> dict[str, Any]:
    """One row of so many options by columns and by its program: CPU seconds and the same loss."""
    width = 4096
    grid = BILLION.model_copy(
        update={
            "layers": (24,), "width": (width,), "head_dim": (4,), "shared": (0,), "experts": ((1, 1), (8, 2), (64, 1)),
            "kv_heads": tuple(range(1, heads + 1)), "ffn_ratio": tuple(np.linspace(0.25, 6, ffn // 3).round(9).tolist()),
            "rules": ("heads_fill_width", "top_k_within_experts"),
        }
    )  # fmt: skip
    question = asked(grid, "plas-10b", "full", (Limit("total_s", 0.6), Limit("memory_bytes", 9e9)))
    row: dict[str, Any] = {"pairs": len(grid.ffn_ratio) * 3 * heads}
    losses = []
    for name, effort in (("columns", Effort(pairs=2**40)), ("program", Effort(pairs=0))):
        start = time.process_time()
        found = best_shape(question, effort=effort)
        losses.append(float(found.priced.loss[0]))
        row[f"{name}_cpu_s"] = round(time.process_time() - start, 3)
    return row | {"same": losses[0] == losses[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="questions whose name holds this text")
    only = parser.parse_args().only
    rows = [measured(name, answer) for name, answer in questions().items() if only in name]
    for row in rows:
        print(json.dumps(row), flush=True)
    both = (
        [row_by_both(f, h) for f, h in ((60, 16), (600, 64), (3000, 256), (12000, 512))]
        if only in "row"
        else []
    )
    for row in both:
        print(json.dumps(row), flush=True)
    budgets = [r for r in rows if r["question"].startswith("10^9") and "front" not in r["question"]]
    fronts = [r for r in rows if "paper" in r["question"]]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        json.dumps(
            {
                "paper_front_cpu_s": {r["question"][-4:]: r["cpu_s"] for r in fronts},
                "paper_front_points": {r["question"][-4:]: r["points"] for r in fronts},
                "billion_budgets": len(budgets),
                "billion_worst_cpu_s": max((r["cpu_s"] for r in budgets), default=0),
                "billion_worst_share": max((r.get("share_priced", 0) for r in budgets), default=0),
                "all_proved": all(r["status"] in ("OPTIMAL", "INFEASIBLE") for r in rows),
                "columns_and_program_agree": all(r["same"] for r in both),
                "peak_gib": round(peak, 3),
            }
        )
    )


if __name__ == "__main__":
    main()
