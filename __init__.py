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
    "MeshwrightError": "hardware.errors",
    "MissingFigureError": "hardware.errors",
    "ModelSpec": "costmodel.model",
    "Plan": "optimizer.plan",
    "SolveOptions": "optimizer.solve",
    "StepEstimate": "costmodel.estimate",
    "Training": "costmodel.workload",
    "Undecided": "optimizer.plan",
    "estimate": "costmodel.estimate",
    "load_model": "costmodel.readers",
    "load_plan": "optimizer.files",
    "load_priced": "optimizer.files",
    "parse_cluster": "hardware.cluster",
    "parse_layout": "costmodel.layout",
    "recommend": "optimizer.recommend",
    "resolve": "optimizer.question",
    "save_plan": "optimizer.files",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    return getattr(import_module(f"meshwright.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
