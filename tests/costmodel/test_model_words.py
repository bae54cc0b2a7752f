"""The words of a model: what follows from a list of weights, on every built-in model and on a toy."""

from collections import Counter
from dataclasses import replace

import pytest

from meshwright.costmodel.model import Attention, Ffn, LayerKind, ModelSpec, Shard, Weight
from meshwright.costmodel.readers import load_model, model_names

TABLE = Weight("embed", 10, 4, Shard.VOCAB, matmul=False)
HEAD = Weight("head", 4, 10, Shard.VOCAB)
TOY_KIND = LayerKind(
    "moe",
    (
        Weight("attn.q", 4, 4, Shard.COLUMN),
        Weight("experts.up", 4, 3, Shard.EXPERT_COLUMN, count=8),
        Weight("experts.down", 3, 4, Shard.EXPERT_ROW, count=8),
    ),
    Attention(2, 1, 2, 2),
    Ffn(0, gated=False, experts=8, top_k=2, expert_width=3),
    norms=2,
)
TOY = ModelSpec("toy", "toy", 4, 10, (TOY_KIND,), (0, 0), (TABLE,), (HEAD,), tied=False)


def test_a_token_meets_its_experts_only() -> None:
    assert TOY_KIND.params == 16 + 8 * (12 + 12)
    assert TOY_KIND.active_params == 16 + 2 * (12 + 12)
    assert TOY.params == 2 * TOY_KIND.params + 80
    assert TOY.active_params == 2 * TOY_KIND.active_params + 80


def test_head_matrix_is_the_table_when_tied() -> None:
    assert TOY.head_matrix is HEAD
    assert replace(TOY, head=(), tied=True).head_matrix is TABLE


@pytest.mark.parametrize("name", model_names())
def test_every_built_in_model_keeps_the_conventions(name: str) -> None:
    """Sums, positive sizes, no weight named twice, and which weights are multiplied and how they are cut."""
    spec = load_model(name)
    parts = [*spec.embedding, *spec.head, *(w for k in spec.pattern for w in spec.kinds[k].weights)]
    assert spec.params == sum(w.rows * w.cols * w.count for w in parts)
    assert spec.active_params <= spec.params < 2**53
    for weights in (spec.embedding + spec.head, *(k.weights for k in spec.kinds)):
        assert max(Counter(w.name for w in weights).values()) == 1
        for w in weights:
            assert min(w.rows, w.cols, w.count) >= 1
            assert w.matmul == (w.rows > 1 and w.name not in ("embed", "positions"))
            if w.rows == 1:
                assert w.shard is not Shard.ROW  # a vector has no input dimension to cut
    assert len([w for w in spec.head if w.shard is Shard.VOCAB]) == (0 if spec.tied else 1)
    assert {spec.head_matrix.rows, spec.head_matrix.cols} >= {spec.vocab}


@pytest.mark.parametrize("name", model_names())
def test_geometry_matches_the_weights(name: str) -> None:
    """Heads times widths are what the projections are as wide as."""
    spec = load_model(name)
    for kind in spec.kinds:
        a, shapes = kind.attention, {w.name: (w.rows, w.cols) for w in kind.weights}
        queries = shapes["attn.q"][1] if "attn.q" in shapes else shapes["attn.q_b"][1]
        assert queries == a.heads * a.qk_head_dim
        assert shapes["attn.o"] == (a.heads * a.v_head_dim, spec.hidden)
        if a.latent_width is None:
            assert shapes["attn.k"] == (spec.hidden, a.kv_heads * a.qk_head_dim)
            assert shapes["attn.v"] == (spec.hidden, a.kv_heads * a.v_head_dim)
        else:
            assert shapes["attn.kv_a"] == (spec.hidden, a.latent_width)
        if kind.ffn.experts:
            assert shapes["experts.up"] == (spec.hidden, kind.ffn.expert_width)
            assert shapes["router"] == (spec.hidden, kind.ffn.experts)
            assert ("shared.up" in shapes) == (kind.ffn.width > 0)
        else:
            assert shapes["mlp.up"] == (spec.hidden, kind.ffn.width)
            assert ("mlp.gate" in shapes) == kind.ffn.gated
