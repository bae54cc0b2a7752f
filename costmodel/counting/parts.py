"""What `meshwright count` answers of a model: parameters and FLOPs, cache, activations, state, MFU, with the working.

The numbers are those of counts.py, kvcache.py and activations.py; what is called a rule or the book's is
jax-ml/scaling-book, chapters 4 to 7.
"""

from collections.abc import Callable

from meshwright.costmodel.counting import counts
from meshwright.costmodel.counting.activations import (
    BOOK_WIDTHS,
    Saved,
    checkpoint_bytes,
    saved_by_all,
    training_ratio,
)
from meshwright.costmodel.counting.counts import FEED_FORWARD, KERNEL, PROJECTIONS
from meshwright.costmodel.counting.kvcache import SAVINGS, cache_bytes, cached_width, without
from meshwright.costmodel.doors import ModelSource, check_whole, framework_of, model_of
from meshwright.costmodel.flops import BF16, TRAIN, token_flops
from meshwright.costmodel.framework import Framework
from meshwright.costmodel.model import LayerKind, ModelSpec
from meshwright.costmodel.roofline.operands import parse_dtype
from meshwright.costmodel.tensors import POLICIES
from meshwright.costmodel.working import Step, Value, Working
from meshwright.hardware.chip import ELEMENT_BYTES

CACHE_DTYPES = ("bf16", "int8", "int4")  # that the table of a cache lists
SHARE = "ratio"


def letters(model: ModelSpec) -> dict[str, Step]:
    """A model by the book's letters in one line; where its kinds of layers differ, one value per kind."""

    def each(read: Callable[[LayerKind], int]) -> str:
        values = [str(read(kind)) for kind in model.kinds]
        return values[0] if len(set(values)) == 1 else "/".join(values)

    found: dict[str, object] = {
        "D": model.hidden,
        "F": each(lambda k: k.ffn.expert_width or k.ffn.width),
        "L": "+".join(map(str, model.layers_by_kind)),
        "N": each(lambda k: k.attention.heads),
        "K": each(lambda k: k.attention.kv_heads),
        "H": each(lambda k: k.attention.qk_head_dim),
        "V": model.vocab,
    }
    if any(kind.ffn.experts for kind in model.kinds):
        found |= {"E": each(lambda k: k.ffn.experts), "k": each(lambda k: k.ffn.top_k)}
    kinds = "/".join(kind.name for kind in model.kinds)
    tied = ", tied" if model.tied else ""
    return {"model": Step(" ".join(f"{k}={v}" for k, v in found.items()), note=f"{kinds}{tied}")}


def count_parts(model: ModelSource, seq_len: int, tokens: int | None = None) -> Working:
    """Parameters and FLOPs by part, and when attention matters.

    Args:
        seq_len: T; attention grows with it.
        tokens: of a whole run, for its FLOPs; None leaves them out.
    """
    model = model_of(model)
    check_whole(seq_len=seq_len, tokens=1 if tokens is None else tokens)
    parts = counts.parts_of(model, seq_len)
    forward, whole = token_flops(model, seq_len), token_flops(model, seq_len, causal=False)
    kernel, all_keys = (counts.attention_flops(model, seq_len, causal) for causal in (True, False))
    rule = counts.rule_flops(model.active_params)
    steps = {
        "params": Step(model.params, formula="every weight once", note="a tied head once"),
        "active_params": Step(model.active_params, formula="those that one token meets"),
        "params_book": Step(
            counts.matrices(parts).params, formula="matrices only", note="norms, biases, routers left out"
        ),
        "attention_share_of_params": Step(
            counts.layer_share(parts, *PROJECTIONS), SHARE, "q k v o / layer matrices"
        ),
        "forward_flops": Step(
            forward, "FLOP", "2 active + attention", "per token; attention: causal half only"
        ),
        "train_flops": Step(TRAIN * forward, "FLOP", "3 x forward_flops", "per token, nothing recomputed"),
        "train_flops_all_keys": Step(
            TRAIN * whole, "FLOP", note="per token; masked keys counted, as in the book"
        ),
        "train_flops_rule": Step(rule, "FLOP", "6 x active_params", "per token (6ND); forward 2 x"),
        "rule_over_exact": Step(rule / (TRAIN * forward), SHARE, "rule / train_flops"),
        "attention_share": Step(kernel / forward, SHARE, "kernel / forward_flops", "causal half only"),
        "attention_share_all_keys": Step(all_keys / whole, SHARE, note="masked keys counted"),
        **_crossovers(model),
    }
    if tokens is not None:
        steps["run_flops"] = Step(TRAIN * forward * tokens, "FLOP", "train_flops x tokens")
        steps["run_flops_rule"] = Step(rule * tokens, "FLOP", "6 x active_params x tokens")
    given = letters(model) | {"T": Step(seq_len, "tokens", note="sequence length")}
    return Working(
        question=f"{model.name}: parameters by part, and FLOPs of a token in a sequence of {seq_len:,}",
        given=given if tokens is None else given | {"tokens": Step(tokens, "tokens")},
        steps=steps,
        binds=_what_costs(parts, forward, seq_len, steps["crossover_causal"].value),
        notes=model.notes,
        table=_part_rows(parts, model.params, forward),
    )


def _crossovers(model: ModelSpec) -> dict[str, Step]:
    def step(found: int | None, formula: str, note: str = "") -> Step:
        return (
            Step("never", "", formula, "its windows keep it below")
            if found is None
            else Step(found, "tokens", formula, note)
        )

    return {
        "crossover": step(
            counts.crossover(model, "layers"), "T: kernel = layers' products", "masked keys counted"
        ),
        "crossover_causal": step(
            counts.crossover(model, "model", causal=True), "T: kernel = all products", "causal half only"
        ),
        "crossover_rule": step(counts.rule_crossover(model.hidden), "8 D", "F = 4D, N H = K H = D"),
        "crossover_projections": step(
            counts.crossover(model, "projections"), "T: kernel = q k v o", "masked keys counted"
        ),
        "crossover_projections_rule": step(
            counts.rule_crossover(model.hidden, "projections"), "2 D", "N H = K H = D"
        ),
    }


def _what_costs(parts: dict[str, counts.Part], forward: float, seq_len: int, crossover: Value) -> str:
    groups = {
        "feed-forward": sum(parts[p].flops for p in FEED_FORWARD if p in parts),
        "attention projections": sum(parts[p].flops for p in PROJECTIONS if p in parts),
        "attention kernel": parts[KERNEL].flops,
        "head": parts["head"].flops,
    }
    shares = ", ".join(f"{name} {flops / forward:.1%}" for name, flops in groups.items())
    until = "never" if isinstance(crossover, str) else f"from {crossover:,} tokens on"
    return f"At {seq_len:,} tokens: {shares}. Attention kernels outweigh all products {until}."


def _part_rows(parts: dict[str, counts.Part], params: int, forward: float) -> tuple[dict[str, Value], ...]:
    rows: list[dict[str, Value]] = [
        {
            "part": name,
            "params": part.params,
            "of params": f"{part.params / params:.2%}",
            "active": part.active,
            "forward FLOP/token": part.flops,
            "of FLOP": f"{part.flops / forward:.2%}",
        }
        for name, part in parts.items()
    ]
    return tuple(rows)


def count_cache(model: ModelSource, context: int, sequences: int = 1, dtype: str = "bf16") -> Working:
    """The key-value cache of sequences of `context` tokens, by dtype, and what makes it small.

    Raises:
        UnknownNameError: no such dtype.
    """
    model, dtype = model_of(model), parse_dtype(dtype)
    check_whole(context=context, sequences=sequences)
    each = ELEMENT_BYTES[dtype]
    token, sequence = _whole(cache_bytes(model, 1, each)), _whole(cache_bytes(model, context, each))
    weights = BF16 * model.params
    width = sum(n * cached_width(kind) for n, kind in zip(model.layers_by_kind, model.kinds, strict=True))
    latent = any(kind.attention.latent_width for kind in model.kinds)
    steps = {
        "elements_per_token": Step(
            width, "", "latent vector x L" if latent else "2 K H L", "what one token leaves in all layers"
        ),
        "bytes_per_token": Step(token, "B", f"{each:g} x elements_per_token", dtype),
        "bytes_per_sequence": Step(
            sequence, "B", "S x bytes_per_token", "windows keep their last tokens only"
        ),
        "bytes_of_batch": Step(sequence * sequences, "B", "B x bytes_per_sequence"),
        "weights_bf16": Step(weights, "B", "2 x parameters"),
        "sequences_as_weights": Step(weights / sequence, "", "weights_bf16 / bytes_per_sequence"),
    }
    for saving in SAVINGS:
        plain = _whole(cache_bytes(without(model, saving), context, each))
        if plain > sequence:
            name = f"without_{saving.replace(' ', '_')}"
            steps[name] = Step(plain, "B", "", f"of a sequence: {plain / sequence:.4g} times as much")
    rows: list[dict[str, Value]] = [
        {
            "dtype": name,
            "B/token": _whole(cache_bytes(model, 1, ELEMENT_BYTES[name])),
            "B/sequence": _whole(cache_bytes(model, context, ELEMENT_BYTES[name])),
            "B of batch": _whole(sequences * cache_bytes(model, context, ELEMENT_BYTES[name])),
        }
        for name in dict.fromkeys((*CACHE_DTYPES, dtype))
    ]
    over = sequence * sequences / weights
    return Working(
        question=f"{model.name}: key-value cache of {sequences:,} sequence{'s'[: sequences > 1]} of {context:,} tokens",
        given=letters(model)
        | {"S": Step(context, "tokens", note="context"), "B": Step(sequences, "sequences")},
        steps=steps,
        binds=f"The caches are {over:.3g} times the weights in bf16; as large as them at "
        f"{weights / sequence:,.1f} sequences.",
        notes=model.notes,
        table=tuple(rows),
    )


def _whole(size_bytes: float) -> float:
    """As an integer where it is one, which prints exactly."""
    return int(size_bytes) if float(size_bytes).is_integer() else size_bytes


def count_activations(model: ModelSource, framework: Framework | str, seq_len: int, tokens: int) -> Working:
    """What each recompute policy saves of `tokens` and which FLOPs it repeats, by the planner and by the book."""
    model = model_of(model)
    framework = framework_of(framework)
    check_whole(seq_len=seq_len, tokens=tokens)
    found = saved_by_all(model, framework, seq_len)
    full, everything = found[POLICIES.index("full")], found[POLICIES.index("none")]
    rows = [_policy_row(saved, model, tokens, i < len(POLICIES)) for i, saved in enumerate(found)]
    rows += [
        {
            "policy": policy,
            "counted by": f"book, {widths} x D",
            "D-wide": float(widths),
            "B/token": _whole(checkpoint_bytes(1, model.layers, model.hidden, widths)),
            "B": checkpoint_bytes(tokens, model.layers, model.hidden, widths),
            "repeats": "",
            "training FLOP": "",
        }
        for policy, widths in BOOK_WIDTHS.items()
    ]
    steps = {
        "least": Step(
            _whole(full.saved_bytes * tokens), "B", "2 D L tokens", "full: the input of each layer"
        ),
        "most": Step(
            _whole(everything.saved_bytes * tokens), "B", "", f"none: as {framework.name} keeps them"
        ),
        "recompute_of_least": Step(full.training_ratio, SHARE, "training FLOPs, over none"),
        "book_everything_repeated": Step(
            training_ratio(1.0), SHARE, "(6 + 2) N D / 6 N D", "the book's block recompute"
        ),
    }
    return Working(
        question=f"{model.name}: activations saved of {tokens:,} tokens by recompute policy, over all devices",
        given=letters(model)
        | {
            "T": Step(seq_len, "tokens", note="sequence length"),
            "tokens": Step(tokens, "tokens", note="of a batch"),
        },
        steps=steps,
        binds=f"Saving everything takes {everything.saved_bytes / full.saved_bytes:.1f} times the memory of full "
        f"recompute, which costs {full.training_ratio - 1:.1%} more FLOPs.",
        notes=(
            "big products: outputs of q k v o gate up down are saved; mlp products: of gate up down, 2 B L (D + 2F)",
            "not here: logits and what the running layer needs; estimate has them",
        ),
        table=tuple(rows),
    )


def _policy_row(saved: Saved, model: ModelSpec, tokens: int, ours: bool) -> dict[str, Value]:
    return {
        "policy": saved.policy,
        "counted by": "planner" if ours else "book, exact",
        "D-wide": saved.saved_bytes / checkpoint_bytes(1, model.layers, model.hidden, 1),
        "B/token": _whole(saved.saved_bytes),
        "B": saved.saved_bytes * tokens,
        "repeats": f"{(saved.training_ratio - 1) * TRAIN:.1%} of forward",
        "training FLOP": f"x {saved.training_ratio:.3f}",
    }
