"""Scores where nobody measured any: a loss law's own terms, spread evenly over the layers. A stand-in, and labelled so.

The law PLAS (arXiv 2602.10377) adds a term in the width of keys and terms in the feed-forward's width and share of
active experts. A layer's score is 1/L of those terms at its variant, so that a model of equal layers scores what the
law says of it, its depth and floor left out. Real layers differ, and a law cannot see windows: only sizes that the
law reads are scored.
"""

from collections.abc import Callable

import numpy as np

from meshwright.costmodel.model import Attention, Ffn, ModelSpec
from meshwright.hardware.errors import InputError
from meshwright.search.law import Law, load_law
from meshwright.search.law_columns import Columns
from meshwright.search.layers.problem import Floats
from meshwright.search.layers.variants import Variants

DEFAULT = "plas-10b"
_READS = ("layers", "width", "ffn_ratio", "activation", "kv_width")


def stand_in(model: ModelSpec, variants: Variants, name: str) -> tuple[Floats, Floats, str, tuple[str, ...]]:
    """(score [L, A], score [L, F], label, warnings) by a law.

    Errors: InputError for a law without such terms, or a variant that it cannot see.
    """
    law = load_law(name)
    if set(law.formula.variables) != set(_READS):
        raise InputError(
            f"law {law.name} has no terms of kv width and feed-forward width to score layers by; take {DEFAULT}, or give "
            "--scores"
        )
    _visible(variants)
    made = [[(a.of(k), f.of(k)) for a in variants.attention for f in variants.ffn] for k in model.kinds]
    shape = (len(model.kinds), len(variants.attention), len(variants.ffn))

    def column(of: Callable[[Attention, Ffn], float]) -> Floats:
        rows = [[of(a.attention, f.ffn) for a, f in row] for row in made]
        return np.array(rows, dtype=np.float64).reshape(shape)

    columns = Columns(
        layers=model.layers,
        width=model.hidden,
        ffn_ratio=column(lambda a, f: (f.width + f.top_k * f.expert_width) / model.hidden),
        activation=column(lambda a, f: f.top_k / f.experts if f.experts else 1),
        kv_width=column(lambda a, f: a.kv_heads * a.qk_head_dim),
        gqa=column(lambda a, f: a.heads / a.kv_heads),
        experts=column(lambda a, f: f.experts or 1),
        top_k=column(lambda a, f: f.top_k or 1),
        shared_share=column(lambda a, f: f.width / (f.width + f.top_k * f.expert_width) if f.experts else 0),
    )
    pattern = list(model.pattern)
    attention, ffn = _terms(law, columns, "kv_width"), _terms(law, columns, "ffn_ratio")
    label = (
        f"a stand-in, not measured: terms of the loss law {law.name} in kv width and feed-forward width, spread evenly "
        "over layers"
    )
    return (
        (attention[:, :, 0] / model.layers)[pattern],
        (ffn[:, 0, :] / model.layers)[pattern],
        label,
        law.loss(columns).warnings,
    )


def _terms(law: Law, columns: Columns, reads: str) -> Floats:
    """The sum of the terms that read a variable."""
    named = law.terms(columns)
    return np.asarray(sum(named[t] for t, names in law.formula.reads.items() if reads in names))


def _visible(variants: Variants) -> None:
    for a in variants.attention:
        if a.linear or a.none or a.window is not None:
            what = "linear attention" if a.linear else "no attention" if a.none else "windows"
            raise InputError(
                f"no law here sees {what}, so variant {a.name} has no stand-in score; give --scores"
            )
    for f in variants.ffn:
        if f.none:
            raise InputError(
                f"no law here sees layers without feed-forward, so variant {f.name} has no stand-in score; give --scores"
            )
