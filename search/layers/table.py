"""From a base model, variants and scores to a problem: priced and scored once, kept in a file, solved many times."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.costmodel.doors import ModelSource, model_of
from meshwright.costmodel.model import ModelSpec
from meshwright.hardware.errors import InputError, check_type
from meshwright.hardware.files import MAX_BYTES, read_text
from meshwright.optimizer.files import replacing
from meshwright.search.board import Board
from meshwright.search.layers.price import COSTS, Asked, Prices, price
from meshwright.search.layers.problem import Floats, Part, Problem
from meshwright.search.layers.scores import Given, Key, read_scores
from meshwright.search.layers.stand_in import DEFAULT, stand_in
from meshwright.search.layers.variants import Variants, load_variants

SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Table:
    """A problem, and what it was made of.

    Attributes:
        model: facts of the base that a configuration needs. asked: the question, by name. notes: what was assumed.
    """

    problem: Problem
    variants: Variants
    model: dict[str, Any]
    asked: dict[str, Any]
    notes: tuple[str, ...] = field(default=())


def build_table(
    model: ModelSource,
    variants: Variants | str,
    board: Board,
    asked: Asked,
    given: Given | str | None = None,
    *,
    law: str = DEFAULT,
    higher_is_better: bool = False,
) -> Table:
    """Price and score every variant of every layer; `variants` and `given` may be the paths of their files.

    Errors: InputError naming layer and variant where a score or a cost is missing.
    """
    base = model_of(model)
    variants = load_variants(variants) if isinstance(variants, str) else variants
    given = read_scores(given) if isinstance(given, str) else given
    check_type("variants", variants, Variants, "Variants, or the path of their file")
    check_type("board", board, Board, "a Board, such as board_of('jetson-agx-orin-64gb')")
    check_type("asked", asked, Asked, "an Asked")
    check_type("given", given, (Given, type(None)), "what read_scores gives, the path of a CSV file, or None")
    prices = price(base, variants, board.device, asked)
    notes = list(board.notes)
    label = ""
    if given is None:
        attention, ffn, label, warnings = stand_in(base, variants, law)
        notes += warnings
        parts = _parts(base, variants, prices, (attention, ffn), None)
    else:
        parts = (
            _joint(base, variants, prices, given)
            if given.joint
            else _parts(base, variants, prices, None, given)
        )
        if higher_is_better:
            parts = tuple(Part(p.name, p.variants, -p.score, p.cost) for p in parts)
    problem = Problem(parts, COSTS, prices.constant, label, higher_is_better)
    question = {
        "model": base.name, "cluster": board.name, "efficiency": board.efficiency, "compute": board.compute,
        "weights": board.weights, "batch": asked.batch, "prompt": asked.prompt, "context": asked.context,
        "kv_element_bytes": asked.kv_bytes, "device_memory_bytes": float(board.device.memory_bytes),
        "scores": label or (given.where if given is not None else ""),
    }  # fmt: skip
    return Table(problem, variants, _facts(base), question, tuple(notes))


def _parts(
    base: ModelSpec,
    variants: Variants,
    prices: Prices,
    scores: tuple[Floats, Floats] | None,
    given: Given | None,
) -> tuple[Part, ...]:
    names = [[v.name for v in variants.attention], [v.name for v in variants.ffn]]
    keys: list[list[Key]] = [[(name,) for name in part] for part in names]
    if given is not None:
        given.check(base.layers, keys[0] + keys[1])
    parts = []
    for p, (part, cost) in enumerate((("attention", prices.attention), ("ffn", prices.ffn))):
        score = scores[p] if scores is not None else _scored(given, base.layers, keys[p])
        parts.append(Part(part, tuple(names[p]), score, _costed(given, cost, keys[p])))
    return tuple(parts)


def _joint(base: ModelSpec, variants: Variants, prices: Prices, given: Given) -> tuple[Part, ...]:
    keys: list[Key] = [(a.name, f.name) for a in variants.attention for f in variants.ffn]
    given.check(base.layers, keys)
    cost = prices.attention[:, :, None] + prices.ffn[:, None]
    cost = cost.reshape(base.layers, len(keys), -1)
    names = tuple("+".join(key) for key in keys)
    return (Part("layer", names, _scored(given, base.layers, keys), _costed(given, cost, keys)),)


def _scored(given: Given | None, layers: int, keys: Sequence[Key]) -> Floats:
    assert given is not None
    score = given.table("score", layers, keys)
    _complete(given.where, "score", score, keys)
    return score


def _costed(given: Given | None, cost: Floats, keys: Sequence[Key]) -> Floats:
    out = cost.copy()
    for k, name in enumerate(COSTS[:-1]):
        if given is not None:
            own = given.table(name, len(cost), keys)
            out[..., k] = np.where(np.isnan(own), out[..., k], own)
        _complete("without a cost model for it" if given is None else given.where, name, out[..., k], keys)
    return out


def _complete(where: str, column: str, values: Floats, keys: Sequence[Key]) -> None:
    missing = np.argwhere(np.isnan(values))
    if len(missing):
        layer, key = int(missing[0][0]), "+".join(keys[int(missing[0][1])])
        more = f", and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise InputError(
            f"{where}: no {column} of layer {layer}, variant {key}{more}; give it in the scores file, nothing is guessed"
        )


def _facts(base: ModelSpec) -> dict[str, Any]:
    """Of the base: what a configuration of its successor repeats."""
    kinds = [base.kinds[k] for k in base.pattern]
    return {
        "name": base.name, "hidden": base.hidden, "vocab": base.vocab, "tied": base.tied, "layers": base.layers,
        "max_seq_len": base.max_seq_len,
        "attention_bias": any(w.name == "attn.q.bias" for k in kinds for w in k.weights),
        "mlp_bias": any(w.name.startswith("mlp.") and w.name.endswith(".bias") for k in kinds for w in k.weights),
        "beyond": _beyond(base),
        "heads": [k.attention.heads for k in kinds],
        "kv_heads": [k.attention.kv_heads for k in kinds],
        "head_dim": [k.attention.qk_head_dim for k in kinds],
        "window": [k.attention.window for k in kinds],
        "ffn": [
            [k.ffn.width, k.ffn.gated, k.ffn.experts, k.ffn.top_k, k.ffn.expert_width] for k in kinds
        ],
    }  # fmt: skip


# Weights of layers in the Llama spelling, biases apart.
_LLAMA = {
    "embed", "final_norm", "head", "input_norm", "post_attention_norm", "attn.q", "attn.k", "attn.v", "attn.o", "router",
    *(f"{part}.{name}" for part in ("mlp", "experts", "shared") for name in ("gate", "up", "down")),
}  # fmt: skip


_BIASED = ("attn.", "mlp.", "experts.", "router")  # what the two keys of biases reach


def _beyond(base: ModelSpec) -> list[str]:
    """Weights of the base that layers in the Llama spelling do not have, and those that it lacks of a set."""
    names = {w.name for k in base.kinds for w in k.weights} | {w.name for w in (*base.embedding, *base.head)}
    found = sorted(n for n in names if n.removesuffix(".bias" * n.startswith(_BIASED)) not in _LLAMA)
    for one, other in (("attn.q.bias", "attn.o.bias"), ("mlp.up", "mlp.gate")):
        found += [f"{one} without {other}"] * (one in names and other not in names)
    return found


def save_table(table: Table, path: str | PathLike[str]) -> None:
    """Errors: InputError where it cannot be written."""
    p = table.problem
    data = {
        "schema_version": SCHEMA_VERSION, "kind": "layers table",
        "asked": table.asked, "model": table.model, "notes": list(table.notes),
        "variants": table.variants.model_dump(exclude_defaults=True), "costs": list(p.costs),
        "constant": p.constant.tolist(), "stand_in": p.stand_in, "higher_is_better": p.higher_is_better,
        "parts": [
            {"name": q.name, "variants": list(q.variants), "score": q.score.tolist(), "cost": q.cost.tolist()}
            for q in p.parts
        ],
    }  # fmt: skip
    text = json.dumps(data, sort_keys=True, separators=(",", ":")) + "\n"
    if len(text) > MAX_BYTES:
        raise InputError(
            f"the table has {len(text):,} characters and files of at most {MAX_BYTES:,} are read back; score parts rather "
            "than whole layers, or give fewer variants"
        )
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def load_table(path: str | PathLike[str]) -> Table:
    """What `save_table` wrote. Errors: InputError where it is none."""
    check_type("path", path, (str, PathLike), "the name of a file")
    wanted = "a file that `meshwright layers --save-table` wrote"
    text = read_text(Path(path), wanted)
    try:
        data = json.loads(text)
        if data["schema_version"] != SCHEMA_VERSION:
            raise InputError(
                f"{path}: schema_version is {data['schema_version']!r}, this program reads {SCHEMA_VERSION}; write it again"
            )
        parts = tuple(
            Part(
                str(q["name"]), tuple(q["variants"]), np.array(q["score"], float), np.array(q["cost"], float)
            )
            for q in data["parts"]
        )
        problem = Problem(
            parts, tuple(data["costs"]), np.array(data["constant"], float), str(data["stand_in"]),
            bool(data["higher_is_better"]),
        )  # fmt: skip
        variants = Variants.model_validate(data["variants"])
        return Table(problem, variants, dict(data["model"]), dict(data["asked"]), tuple(data["notes"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = " ".join(str(error).split())[:100] or type(error).__name__
        raise InputError(
            f"{path} is no table of layers ({type(error).__name__}: {what}); give {wanted}"
        ) from None
