"""Meshwright: the provably best way to lay a language model over a cluster.

    import meshwright as mw
    plan = mw.recommend("llama-3-70b", "h100:8x64", mw.Training(global_batch_tokens=4 * 2**20, seq_len=8192))

Names are loaded on first use, so importing this package imports nothing heavy.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Cluster": "hardware.cluster",
    "Infeasible": "optimizer.plan",
    "InputError": "hardware.errors",
    "Layout": "costmodel.layout",
    "Machine": "costmodel.sharding.asked",
    "MeshwrightError": "hardware.errors",
    "MissingFigureError": "hardware.errors",
    "ModelSpec": "costmodel.model",
    "Plan": "optimizer.plan",
    "Service": "costmodel.serving.service",
    "SolveOptions": "optimizer.solve",
    "Speed": "costmodel.limits.run_answer",
    "StepEstimate": "costmodel.estimate",
    "Training": "costmodel.workload",
    "Undecided": "optimizer.plan",
    "Working": "costmodel.working",
    "attention": "costmodel.roofline.attention",
    "book_chip": "hardware.profile",
    "collective": "costmodel.exchange.collective",
    "count_activations": "costmodel.counting.parts",
    "count_batch": "costmodel.counting.on_chip",
    "count_cache": "costmodel.counting.parts",
    "count_parts": "costmodel.counting.parts",
    "count_state": "costmodel.counting.on_chip",
    "count_utilisation": "costmodel.counting.on_chip",
    "decode_model": "costmodel.serving.decode",
    "estimate": "costmodel.estimate",
    "fabric_tree": "costmodel.exchange.fabric_tree",
    "inventory": "costmodel.roofline.inventory",
    "limits": "costmodel.limits.answer",
    "load_chip": "hardware.chip",
    "load_model": "costmodel.readers",
    "load_plan": "optimizer.files",
    "load_priced": "optimizer.files",
    "matmul": "costmodel.roofline.matmul",
    "operator": "costmodel.roofline.intensity",
    "parse_cluster": "hardware.cluster",
    "parse_layout": "costmodel.layout",
    "parse_mesh": "costmodel.sharding.mesh",
    "parse_shape": "costmodel.textbook",
    "parse_span": "costmodel.exchange.span",
    "point_to_point": "costmodel.exchange.transfer",
    "prefill_model": "costmodel.serving.prefill",
    "pull": "costmodel.exchange.transfer",
    "recommend": "optimizer.recommend",
    "resolve": "optimizer.question",
    "save_plan": "optimizer.files",
    "scaling": "costmodel.limits.answer",
    "shard": "costmodel.sharding.product",
    "textbook_model": "costmodel.textbook",
    "train_time": "costmodel.limits.run_answer",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    return getattr(import_module(f"meshwright.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
