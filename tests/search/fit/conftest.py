"""Runs made from shipped laws, so that what a fit should find is known."""

from collections.abc import Callable

import numpy as np
import pytest

from meshwright.search.fit.runs import Runs
from meshwright.search.law import load_law

Make = Callable[..., Runs]


def _run(law, rng, rows, tokens, experts, top_k, shared, ffn, noise):
    """Rows of width, depth and so on at random; losses by the law, with noise in nats."""
    width, layers = ffn["width"], ffn["layers"]
    per = layers * width
    given = {
        "l": layers,
        "d": width,
        "n_heads": width // 128,
        "n_kv": ffn["n_kv"],
        "head_dim": np.full(rows, 128),
        "ffn": ffn["ffn"],
        "experts": experts,
        "top_k": top_k,
        "shared": shared,
        "tokens": tokens,
        "params_total": per * (4 * width + 3 * ffn["ffn"] * (experts + shared)),
        "params_active": per * (4 * width + 3 * ffn["ffn"] * (top_k + shared)),
    }
    columns = {name: np.asarray(column, float) for name, column in given.items()}
    read = Runs(columns | {"loss": np.ones(rows)}).read(law.granularity)
    exact = np.broadcast_to(law.loss(read).loss, (rows,))
    return Runs(columns | {"loss": exact + noise * rng.standard_normal(rows)})


def _plas_grid(rng, rows):
    """arXiv 2602.10377 table 5: depth, width, (E, K) and key/value heads; the ratios of its results."""
    width = rng.choice([768, 1024, 1280, 1536, 1792, 2048, 2304, 2560, 3072], rows)
    heads = width // 128
    kv = rng.choice([1, 2, 4, 8, 99], rows)
    experts, top_k = np.array([(1, 1), (8, 1), (8, 2), (16, 1), (16, 2)])[rng.integers(0, 5, rows)].T
    ratio = rng.choice([0.25, 0.5, 1, 1.5, 2, 3, 4], rows)
    more = {
        "width": width,
        "layers": rng.choice([4, 8, 12, 16, 20, 24, 28, 32], rows),
        "n_kv": np.minimum(kv, heads),
        "ffn": np.rint(ratio * width / top_k),
    }
    return experts, top_k, more


@pytest.fixture
def plas_runs() -> Make:
    """170 models on PLAS' grid."""

    def make(noise: float = 0.0, rows: int = 170, seed: int = 0) -> Runs:
        rng = np.random.default_rng(seed)
        experts, top_k, more = _plas_grid(rng, rows)
        zero = np.zeros(rows)
        return _run(load_law("plas-10b"), rng, rows, np.full(rows, 10e9), experts, top_k, zero, more, noise)

    return make


@pytest.fixture
def law_runs() -> Make:
    """Models of the kind that a shipped law was fitted on."""

    def make(name: str, noise: float = 0.0, rows: int = 160, seed: int = 0) -> Runs:
        rng = np.random.default_rng(seed)
        law = load_law(name)
        width, layers = (
            rng.choice([512, 768, 1024, 1536, 2048], rows),
            rng.choice([3, 6, 8, 12, 16, 24], rows),
        )
        one, zero = np.ones(rows, dtype=int), np.zeros(rows, dtype=int)
        tokens = np.full(rows, law.tokens) if law.tokens else rng.choice([5e9, 1e10, 3e10, 1e11], rows)
        experts, top_k, shared, ffn = one, one, zero, 4 * width
        if name == "clark-sbase":
            experts = rng.choice([1, 8, 16, 64], rows)
        elif name == "krajewski":  # 64 G experts of 4 d / G, or dense
            grain, dense = rng.choice([1, 2, 4, 8, 16], rows), rng.random(rows) < 0.3
            experts, top_k = np.where(dense, 1, 64 * grain), np.where(dense, 1, grain)
            ffn = np.where(dense, 4 * width, 4 * width // grain)
        elif name in ("abnar", "zhao"):
            experts = rng.choice([1, 8, 16, 64], rows)
            top_k = np.where(experts == 1, 1, rng.choice([1, 2, 4, 8], rows))
            shared = np.where((experts == 1) | (name == "abnar"), 0, rng.choice([0, 1, 2], rows))
            ffn = rng.choice([1, 2, 4], rows) * width // (top_k + shared)
        more = {"width": width, "layers": layers, "n_kv": width // 128, "ffn": ffn}
        return _run(law, rng, rows, tokens, experts, top_k, shared, more, noise)

    return make
