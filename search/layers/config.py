"""A choice as files: `config.json` as nemotron-nas publishes it, and `layers.yaml` in our own words.

`block_configs` follows DeciLM (nvidia/Llama-3_3-Nemotron-Super-49B-v1): attention by heads per group, window or no_op;
a feed-forward by ffn_mult (`costmodel/readers/block_configs.py`, which reads such a file back, has the formula). A width that is no multiple of 256, and experts, have no ffn_mult; they stand as intermediate_size and moe, as in the
later configurations of the same line (NVIDIA Model-Optimizer, block_config.py). What the class has no key for, such as
norms of query heads, is refused.
"""

import json
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

from meshwright.costmodel.estimate import digits
from meshwright.costmodel.model import Ffn
from meshwright.costmodel.readers.block_configs import width_of
from meshwright.hardware.errors import InputError
from meshwright.optimizer.files import replacing
from meshwright.search.layers.solve import Choice
from meshwright.search.layers.table import Table
from meshwright.search.output.config import check_folder


def config_of(table: Table, choice: Choice) -> dict[str, Any]:
    """The content of config.json.

    Errors: InputError where the base has no single number of heads, or weights that the class does not have.
    """
    base = table.model
    if len(set(base["heads"])) > 1:
        raise InputError(
            f"{base['name']} has layers of {sorted(set(base['heads']))} heads, a config.json has one number"
        )
    if base["beyond"]:
        raise InputError(
            f"{base['name']} has {', '.join(base['beyond'])}, which a nemotron-nas config.json cannot say; take a base in "
            "the Llama spelling, or leave out --config"
        )
    blocks = [_block(layer) for layer in layers_of(table, choice)]
    return {
        "architectures": ["DeciLMForCausalLM"],
        "model_type": "nemotron-nas",
        "attention_bias": base["attention_bias"],
        "block_configs": blocks,
        "head_dim": base["head_dim"][0],
        "hidden_act": "silu",
        "hidden_size": base["hidden"],
        "intermediate_size": None,
        "max_position_embeddings": base["max_seq_len"],
        "mlp_bias": base["mlp_bias"],
        "num_attention_heads": base["heads"][0],
        "num_hidden_layers": len(blocks),
        "num_key_value_heads": None,
        "tie_word_embeddings": base["tied"],
        "torch_dtype": "bfloat16",
        "vocab_size": base["vocab"],
        "_note": _note(table, choice),
    }


def layers_of(table: Table, choice: Choice) -> list[dict[str, Any]]:
    """What each layer has, by name and size; None for a part that is gone, "linear" for one that is replaced."""
    return [_layer(table, i, *taken) for i, taken in enumerate(_pairs(table, choice))]


def write_config(folder: str | PathLike[str], table: Table, choice: Choice) -> tuple[Path, ...]:
    """config.json and layers.yaml in a folder, which is made where only it is missing.

    Errors: InputError where they cannot be written.
    """
    root = check_folder(folder)
    texts = {
        "config.json": json.dumps(config_of(table, choice), indent=2) + "\n",
        "layers.yaml": _yaml(table, choice),
    }
    try:
        root.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {root}: {error.strerror}") from None
    for name, text in texts.items():
        with replacing(root / name) as part:
            part.write_text(text, encoding="utf-8")
    return tuple(root / name for name in texts)


def ffn_mult(width: int, hidden: int) -> float | None:
    """The ffn_mult of a width; None where no number gives it."""
    mult = 3 * width / (2 * hidden)
    return mult if width_of(mult, hidden) == width else None


def _pairs(table: Table, choice: Choice) -> list[tuple[int, int]]:
    """Variants of attention and feed-forward by layer, also where layers were chosen whole."""
    rows = choice.taken.tolist()
    if len(choice.problem.parts) == 2:
        return [(a, f) for a, f in rows]
    return [divmod(row[0], len(table.variants.ffn)) for row in rows]


def _layer(table: Table, i: int, a: int, f: int) -> dict[str, Any]:
    base, attention, ffn = table.model, table.variants.attention[a], table.variants.ffn[f]
    has: Any = None
    if attention.linear:
        has = "linear"
    elif not attention.none:
        window = base["window"][i] if attention.window is None else attention.window or None
        kv_heads = base["kv_heads"][i] if attention.kv_heads is None else attention.kv_heads
        has = {"heads": base["heads"][i], "kv_heads": kv_heads, "window": window}
    width, gated, experts, top_k, expert_width = base["ffn"][i]
    sizes = ffn.geometry(Ffn(width, gated, experts, top_k, expert_width))
    fed: Any = None
    if not ffn.none and sizes.experts:
        fed = {
            "experts": sizes.experts, "top_k": sizes.top_k, "expert_width": sizes.expert_width,
            "shared_width": sizes.width, "hidden": base["hidden"],
        }  # fmt: skip
    elif not ffn.none:
        fed = {"width": sizes.width, "hidden": base["hidden"]}
    return {"names": [attention.name, ffn.name], "attention": has, "ffn": fed}


def _block(layer: dict[str, Any]) -> dict[str, Any]:
    attention, ffn = layer["attention"], layer["ffn"]
    sized = isinstance(attention, dict)
    block: dict[str, Any] = {
        "attention": {
            "n_heads_in_group": attention["heads"] // attention["kv_heads"] if sized else None,
            "no_op": attention is None,
            "num_sink_tokens": None,
            "replace_with_linear": attention == "linear",
            "sparsify": None,
            "unshifted_sink": False,
            "use_prefill_window_in_sink_attention": False,
            "window_length": attention["window"] if sized else None,
        },
        "ffn": {"ffn_mult": None, "no_op": ffn is None, "replace_with_linear": False, "sparsify": None},
    }
    if ffn is not None and "experts" in ffn:
        block["ffn"]["moe"] = {
            "num_local_experts": ffn["experts"],
            "num_experts_per_tok": ffn["top_k"],
            "expert_intermediate_dim": ffn["expert_width"],
            "shared_expert_intermediate_dim": ffn["shared_width"],
        }
    elif ffn is not None:
        block["ffn"]["ffn_mult"] = ffn_mult(ffn["width"], ffn["hidden"])
        if block["ffn"]["ffn_mult"] is None:
            block["ffn"]["intermediate_size"] = ffn["width"]
    return block


def _note(table: Table, choice: Choice) -> str:
    layers = layers_of(table, choice)
    gone = any(layer[part] in (None, "linear") for layer in layers for part in ("attention", "ffn"))
    said = [
        f"chosen per layer for {table.asked['model']}; scores: {table.asked['scores']}",
        "what a shape does not decide (rotary positions, epsilon, activation) is the base's own",
    ]
    if gone:
        said.append("meshwright does not read a layer without one of its parts back as a model")
    if any(layer["attention"] == "linear" for layer in layers):
        said.append(
            "replace_with_linear is one linear layer in the published class; the variant chosen may be another"
        )
    return "; ".join(said)


def _yaml(table: Table, choice: Choice) -> str:
    proof = choice.proof
    layers = [
        {"layer": i, "attention": one["attention"], "ffn": _sizes(one["ffn"]), "variants": one["names"]}
        for i, one in enumerate(layers_of(table, choice))
    ]
    data = {
        "asked": table.asked,
        "score": digits(choice.score),
        "status": proof.status,
        "gap": digits(proof.gap),
        "totals": {name: digits(value) for name, value in choice.totals.items()},
        "layers": layers,
    }
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110)


def _sizes(ffn: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if ffn is None else {name: value for name, value in ffn.items() if name != "hidden"}
