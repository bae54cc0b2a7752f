"""How long the proof of per-layer choices takes: `python benchmarks/layers.py [--only TEXT]`.

The instance: 80 layers of llama-3-70b on jetson-agx-orin-64gb (int4 weights, batch 4, context 8,192, rates `edge`), 50
choices a layer, four limits. Prices are the cost model's, scores stand in data/layers/scores.csv. Nobody published
such scores for all variants, so they are made by `--make-scores` and say so: a loss of each variant, times an
importance by depth that is high at both ends, times noise of 15%, seed 7. They come as parts (attention + ffn) and as
whole layers with 20% of noise on each of the 4,000, under five sets of limits; also with latencies that differ by 1%
from layer to layer, as measured ones do. Then random tables: scores and four resources independent and uniform, 80 x
50, ten seeds, room for 0.3 of each on average.

CPU seconds (`time.process_time`) of `solve` alone; one JSON summary line at the end.
"""

import argparse
import csv
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from meshwright.hardware.errors import MeshwrightError
from meshwright.search.board import board_of
from meshwright.search.layers.limits import parse_limits
from meshwright.search.layers.price import Asked
from meshwright.search.layers.problem import Limit, Part, Problem
from meshwright.search.layers.scores import read_scores
from meshwright.search.layers.solve import solve
from meshwright.search.layers.table import build_table
from meshwright.search.layers.variants import load_variants

DATA = Path(__file__).parent / "data" / "layers"
LAYERS, SEED = 80, 7
LIMITS = {
    "as asked": "decode_ms <= 165, memory_bytes <= 26GiB, params >= 38e9, kv_bytes <= 3GiB",
    "tight": "decode_ms <= 125, memory_bytes <= 20GiB, params >= 36e9, kv_bytes <= 1.5GiB",
    "loose": "decode_ms <= 205, memory_bytes <= 32GiB, params >= 50e9, kv_bytes <= 4GiB",
    "min and max": "decode_ms <= 160, decode_ms >= 158, memory_bytes <= 26GiB, params >= 40e9, params <= 44e9, kv_bytes >= 2GiB",
    "prefill too": "decode_ms <= 165, prefill_s <= 13, params >= 36e9, kv_bytes <= 3GiB",
    "a clash": "decode_ms <= 100, memory_bytes <= 26GiB, params >= 38e9, kv_bytes <= 3GiB",
}
# What one variant costs in quality, beside nothing for the whole; ratios after Puzzle's finding that feed-forward
# matters more and that narrowing costs more the narrower it gets.
LOSS = {
    "full": 0.0, "kv4": 0.02, "kv2": 0.05, "kv1": 0.09, "w4096": 0.01, "w2048": 0.02, "w1024": 0.04, "kv4-w2048": 0.035,
    "linear": 0.12, "no-attention": 0.30, "whole": 0.0, "f21504": 0.03, "half": 0.08, "quarter": 0.17, "no-ffn": 0.50,
}  # fmt: skip


def make_scores() -> None:
    """Write scores.csv by the recipe above; costs of linear attention as one product of 8192 x 8192 at 150 GB/s."""
    r = np.random.default_rng(SEED)
    depth = np.linspace(0, 1, LAYERS)
    importance = 0.3 + 1.5 * np.exp(-12 * depth) + 0.8 * np.exp(-10 * (1 - depth)) + 0.3 * depth
    with (DATA / "scores.csv").open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(
            ["layer", "variant", "score", "prefill_s", "decode_s", "weight_bytes", "kv_bytes", "params"]
        )
        for layer in range(LAYERS):
            for name, loss in LOSS.items():
                score = loss * importance[layer] * np.exp(0.15 * r.standard_normal())
                cost = [0.2, 2.3e-4, 2**25, 0, 2**26] if name == "linear" else [""] * 5
                out.writerow([layer, name, f"{score:.6f}", *cost])


def instances() -> Iterator[tuple[str, Problem, tuple[Limit, ...]]]:
    """(name, problem, limits)."""
    parts = build_table(
        "llama-3-70b",
        load_variants(str(DATA / "variants.yaml")),
        board_of("jetson-agx-orin-64gb", weights="int4", efficiency="edge"),
        Asked(batch=4, prompt=1024, context=8192, weight_bytes=0.5, kv_bytes=2),
        read_scores(str(DATA / "scores.csv")),
    ).problem
    r = np.random.default_rng(SEED)
    (joint,) = parts.joined().parts
    whole = replace(joint, score=joint.score * np.exp(0.2 * r.standard_normal(joint.score.shape)))
    measured = joint.cost.copy()
    measured[..., :2] *= np.exp(0.01 * r.standard_normal((*joint.score.shape, 2)))
    for name, text in LIMITS.items():
        limits = parse_limits(text)
        yield f"parts, {name}", parts, limits
        yield f"whole layers, {name}", replace(parts, parts=(whole,)), limits
        yield f"measured latencies, {name}", replace(parts, parts=(replace(whole, cost=measured),)), limits
    for seed in range(10):
        yield f"random {seed}", *random_table(seed)


def random_table(seed: int) -> tuple[Problem, tuple[Limit, ...]]:
    r = np.random.default_rng(seed)
    names = tuple("abcd")
    part = Part(
        "layer", tuple(f"v{i}" for i in range(50)), r.uniform(size=(80, 50)), r.uniform(size=(80, 50, 4))
    )
    return Problem((part,), names, np.zeros(4)), tuple(Limit(name, most=0.3 * 80) for name in names)


def run(name: str, problem: Problem, limits: tuple[Limit, ...]) -> dict[str, object]:
    start = time.process_time()
    row: dict[str, object] = {"instance": name}
    try:
        proof = solve(problem, limits).best.proof
    except MeshwrightError as no:
        return row | {
            "status": type(no).__name__,
            "cpu_s": round(time.process_time() - start, 3),
            "why": str(no),
        }
    cpu_s = time.process_time() - start
    share = proof.gap / abs(proof.value)
    relaxed = (proof.value - proof.relaxed) / abs(proof.value)
    return row | {
        "status": proof.status, "score": proof.value, "gap": share, "lp_gap": relaxed, "rows": proof.rows,
        "kept": proof.kept, "labels": proof.labels, "cpu_s": round(cpu_s, 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="instances whose name contains this")
    parser.add_argument(
        "--make-scores", action="store_true", help="write data/layers/scores.csv anew and stop"
    )
    args = parser.parse_args()
    if args.make_scores:
        make_scores()
        return
    rows = []
    print(
        f"{'instance':34} {'status':>9} {'score':>9} {'gap':>8} {'LP gap':>8} {'rows':>5} {'kept':>5} {'labels':>7} {'CPU s':>6}"
    )
    for name, problem, limits in instances():
        if args.only not in name:
            continue
        rows.append(row := run(name, problem, limits))
        if "score" not in row:
            print(f"{name:34} {row['status']:>9} {'':49} {row['cpu_s']:>6}  {row['why']}")
            continue
        print(
            f"{name:34} {row['status']:>9} {row['score']:>9.5f} {row['gap']:>8.1e} {row['lp_gap']:>8.1e} {row['rows']:>5} "
            f"{row['kept']:>5} {row['labels']:>7} {row['cpu_s']:>6.2f}",
            flush=True,
        )
    stated = [row for row in rows if not str(row["instance"]).startswith("random")]
    random = [row for row in rows if str(row["instance"]).startswith("random")]
    print(json.dumps({"rows": rows, "stated": summary(stated), "random": summary(random)}, sort_keys=True))


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    return {
        "instances": len(rows),
        "proven": sum(row["status"] in ("OPTIMAL", "NoChoice") for row in rows),
        "slowest_cpu_s": max((float(str(row["cpu_s"])) for row in rows), default=0.0),
        "widest_gap": max((float(str(row.get("gap", 0.0))) for row in rows), default=0.0),
    }


if __name__ == "__main__":
    main()
