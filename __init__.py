"""Meshwright: the provably best way to lay a language model over a cluster.

    import meshwright as mw
    plan = mw.recommend("llama-3-70b", "h100:8x64", mw.Training(global_batch_tokens=4 * 2**20, seq_len=8192))

Names are loaded on first use, so importing this package imports nothing heavy.
"""

from importlib import import_module
from typing import Any

# The module of each name, and after a colon what it is called there.
_HOMES = {
    "Budget": "search.asked",
    "Cluster": "hardware.cluster",
    "Failures": "costmodel.limits.run_time",
    "Framework": "costmodel.framework",
    "Infeasible": "optimizer.plan",
    "InputError": "hardware.errors",
    "Layout": "costmodel.layout",
    "LimitMissed": "optimizer.plan",
    "Machine": "costmodel.sharding.asked",
    "MeshwrightError": "hardware.errors",
    "MissingFigureError": "hardware.errors",
    "ModelSpec": "costmodel.model",
    "Plan": "optimizer.plan",
    "Request": "costmodel.inference.request",
    "Routing": "costmodel.exchange.operations",
    "Served": "costmodel.serving.server",
    "Server": "costmodel.serving.server",
    "Service": "costmodel.serving.service",
    "ShapeLimit": "search.engine.question:Limit",
    "ShapeQuestion": "search.engine.question:Question",
    "SolveOptions": "optimizer.solve",
    "Speed": "costmodel.limits.run_answer",
    "StepEstimate": "costmodel.estimate",
    "Training": "costmodel.workload",
    "Undecided": "optimizer.plan",
    "Work": "costmodel.roofline.operands",
    "Working": "costmodel.working",
    "attention": "costmodel.roofline.attention",
    "best_shape": "search.engine.solve",
    "board_of": "search.board",
    "balance": "optimizer.reasons.balance",
    "book_chip": "hardware.profile",
    "calibrate": "optimizer.traces.calibrate",
    "calibrate_runs": "optimizer.runs_file",
    "cheapest_device": "search.machine.cheapest:cheapest",
    "collective": "costmodel.exchange.collective",
    "compare_runs": "costmodel.limits.run_answer",
    "count_activations": "costmodel.counting.parts",
    "count_batch": "costmodel.counting.on_chip",
    "count_cache": "costmodel.counting.parts",
    "count_parts": "costmodel.counting.parts",
    "count_state": "costmodel.counting.on_chip",
    "count_utilisation": "costmodel.counting.on_chip",
    "decode_model": "costmodel.serving.decode",
    "decode_numbers": "costmodel.serving.decode:decode",
    "decode_sharding": "costmodel.serving.layout_answer:sharding",
    "decode_slices": "costmodel.serving.tables:slices",
    "decode_sweep": "costmodel.serving.tables:sweep",
    "device_price_front": "search.machine.cheapest:price_front",
    "dot_product": "costmodel.roofline.intensity",
    "elementwise": "costmodel.roofline.intensity",
    "estimate": "optimizer.question",
    "exact_front": "search.engine.solve",
    "explain": "optimizer.reasons.explain",
    "fabric_tree": "costmodel.exchange.fabric_tree",
    "fit_law": "search.fit.fit",
    "front": "optimizer.goals.front",
    "in_band": "optimizer.reasons.band",
    "inventory": "costmodel.roofline.inventory",
    "limits": "costmodel.limits.answer",
    "load_chip": "hardware.chip",
    "load_framework": "costmodel.framework",
    "load_grid": "search.grid",
    "load_law": "search.law",
    "load_model": "costmodel.readers",
    "load_plan": "optimizer.files",
    "load_priced": "optimizer.files",
    "matmul": "costmodel.roofline.matmul",
    "network_of": "costmodel.setting:ideal_network",
    "operator": "costmodel.roofline.intensity",
    "parse_cluster": "hardware.cluster",
    "parse_layout": "costmodel.layout",
    "parse_mesh": "costmodel.sharding.mesh",
    "parse_shape": "costmodel.textbook",
    "parse_span": "costmodel.exchange.span",
    "pipeline_hops": "costmodel.exchange.bubble:hops",
    "pipeline_schedule": "costmodel.exchange.bubble:schedule",
    "point_to_point": "costmodel.exchange.transfer",
    "prefill_model": "costmodel.serving.prefill",
    "prefill_numbers": "costmodel.serving.prefill:prefill",
    "profile": "optimizer.traces.profile",
    "prove_shapes": "search.proven",
    "pull": "costmodel.exchange.transfer",
    "read_trace": "optimizer.traces.read",
    "recommend": "optimizer.recommend",
    "resolve": "optimizer.question",
    "save_calibration": "optimizer.traces.calibrate",
    "save_runs_calibration": "optimizer.runs_file",
    "save_plan": "optimizer.files",
    "scaling": "costmodel.limits.answer",
    "search_shapes": "search.asked",
    "serve_shape": "search.served.serve:serve",
    "shape_model": "search.architecture:model_of",
    "shadow_prices": "optimizer.reasons.shadow",
    "shard": "costmodel.sharding.product",
    "split_matmul": "costmodel.roofline.split_matmul",
    "textbook_model": "costmodel.textbook",
    "train_shape": "search.trained.train:train",
    "train_time": "costmodel.limits.run_answer",
    "why_none": "optimizer.reasons.infeasible",
    "why_not": "optimizer.reasons.why_not",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    home, _, inside = _HOMES[name].partition(":")
    return getattr(import_module(f"meshwright.{home}"), inside or name)


def __dir__() -> list[str]:
    return __all__
