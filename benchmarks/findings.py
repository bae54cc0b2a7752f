"""The findings of the PLAS paper (arXiv 2602.10377), section by section, under its own forms and under the full model.

    python benchmarks/findings.py [--device jetson-agx-orin-64gb]

Fronts of loss against prefill, decode and both on the paper's grid: 1,024 tokens in, 16 out, batch 1. `edge` are the rates
fitted on published runs; `experts .43` are ideal rates at the expert share that the one measured mixture on that board
asks for. Ends with one JSON line.
"""

import argparse
import json
from dataclasses import replace

import numpy as np

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.search.board import board_of
from meshwright.search.front import front
from meshwright.search.grid import list_shapes, load_grid
from meshwright.search.law import load_law
from meshwright.search.price import Costs, Latency, Pricer
from meshwright.search.shape import Shapes

GRID, LAW = load_grid("plas"), load_law("plas-10b")
SHAPES = list_shapes(GRID).shapes
LOSS = LAW.loss(LAW.columns(SHAPES)).loss
AXES = {"prefill": "prefill_s", "decode": "token_s", "both": "total_s"}
LEAST_MEASURED = 0.43  # hardware/data/inference/edge.yaml: qwen3-30b-a3b under vLLM on this board


def request(weight_bytes: float = 2, prompt: int = 1024, output: int = 16) -> Request:
    return Request(1, prompt, output, weight_bytes, 2)


def devices(name: str) -> dict[str, tuple[Latency, Device]]:
    """The ways to price, by name."""
    ideal, edge = (board_of(name, efficiency=rates).device for rates in ("ideal", "edge"))
    slow = replace(
        ideal,
        prefill=replace(ideal.prefill, expert_share=LEAST_MEASURED),
        decode=replace(ideal.decode, expert_share=LEAST_MEASURED),
    )
    return {
        "paper's forms": ("plas", ideal),
        "full, ideal": ("full", ideal),
        "full, experts .43": ("full", slow),
        "full, edge": ("full", edge),
    }


def costs_of(latency: Latency, device: Device, asked: Request) -> Costs:
    return Pricer(GRID.ends, device, asked, latency).costs(SHAPES)


def on_front(costs: Costs, device: Device, axis: str) -> Shapes:
    """Shapes of the front that fit the memory."""
    fits = np.flatnonzero(costs.memory_bytes <= device.memory_bytes)
    cost = getattr(costs, AXES[axis])
    return SHAPES[fits[front(LOSS[fits], cost[fits])]]


def shares(shapes: Shapes) -> dict[str, float]:
    """What the paper says of its fronts, as shares of the points."""
    upper = shapes[len(shapes) // 2 :]  # the slower half: where the width has room to grow
    return {
        "points": len(shapes),
        "moe": float(np.mean(shapes.experts > 1)),
        "k1": float(np.mean(shapes.top_k == 1)),
        "depth_below_20": float(np.mean(shapes.layers < 20)),
        "widest_in_slower_half": float(np.mean(upper.width == max(GRID.width))),
        "mean_experts": float(np.mean(shapes.experts)),
        "ratio_up_to_1": float(np.mean(shapes.ffn_ratio <= 1)),
        "ratio_below_4": float(np.mean(shapes.ffn_ratio < 4)),
    }


def int8_gain(name: str, latency: Latency, compute: str) -> dict[str, tuple[float, float]]:
    """Least and most seconds at 16 bits over those with int8 weights, over all shapes, by phase."""
    before = costs_of(latency, board_of(name).device, request())
    after = costs_of(latency, board_of(name, compute=compute, weights="int8").device, request(1))
    out = {}
    for axis, column in AXES.items():
        gain = getattr(before, column) / getattr(after, column)
        out[axis] = (float(gain.min()), float(gain.max()))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="jetson-agx-orin-64gb")
    name = parser.parse_args().device
    found: dict[str, object] = {}
    print(f"{'front of loss against':32} " + " ".join(f"{k:>21}" for k in shares(SHAPES)))
    for way, (latency, device) in devices(name).items():
        costs = costs_of(latency, device, request())
        for axis in AXES:
            told = shares(on_front(costs, device, axis))
            found[f"{way}: {axis}"] = {k: round(v, 4) for k, v in told.items()}
            print(f"{way + ', ' + axis:32} " + " ".join(f"{v:21.3g}" for v in told.values()))
    for latency in ("plas", "full"):
        for compute in ("fp16", "int8"):
            gain = int8_gain(name, latency, compute)
            found[f"int8 weights, products in {compute}, {latency}"] = gain
            words = ", ".join(f"{axis} {low:.2f} to {high:.2f}" for axis, (low, high) in gain.items())
            print(f"int8 weights over fp16, products in {compute}, {latency}: times {words}")
    print(json.dumps({"benchmark": "findings", "device": name, **found}, sort_keys=True))


if __name__ == "__main__":
    main()
