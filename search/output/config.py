"""Shapes as `config.json`, in the spelling of a published family, so that launchers and `load_model` read them.

Dense shapes are `qwen3`, mixtures `qwen3_moe`, mixtures with shared experts `glm4_moe`: the three with a gated
feed-forward, a norm of every query and key head and a head size of its own. What a family's class decides beyond a
shape (rotary base, epsilon) is left to the class.
"""

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from meshwright.hardware.errors import InputError, check_type
from meshwright.optimizer.files import replacing
from meshwright.search.architecture import FAMILY, Ends, kind_name
from meshwright.search.shape import Shapes

_CLASSES = {"qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "glm4_moe": "Glm4MoeForCausalLM"}


def config_of(shapes: Shapes, row: int, ends: Ends, positions: int, note: str = "") -> dict[str, Any]:
    """The content of one row's config.json.

    positions: tokens of the longest sequence. note: where the shape comes from, for a reader of the file.

    Errors: InputError for a row that is no whole number or a head size that rotary positions cannot pair; IndexError
    for a row that is not there.
    """
    s = _whole(shapes, row)
    if s["head_dim"] % 2:
        raise InputError(
            f"head_dim {s['head_dim']} is odd, and rotary positions turn pairs of channels; take a grid of even head sizes"
        )
    family = FAMILY[kind_name(s["experts"], s["shared"])]
    config: dict[str, Any] = {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "attention_bias": False,
        "head_dim": s["head_dim"],
        "hidden_act": "silu",
        "hidden_size": s["width"],
        "intermediate_size": s["expert_width"],
        "max_position_embeddings": positions,
        "num_attention_heads": s["heads"],
        "num_hidden_layers": s["layers"],
        "num_key_value_heads": s["kv_heads"],
        "tie_word_embeddings": ends.tied,
        "torch_dtype": "bfloat16",
        "vocab_size": ends.vocab,
    }
    if family != "qwen3":
        config |= {
            "moe_intermediate_size": s["expert_width"],
            "norm_topk_prob": True,
            "num_experts_per_tok": s["top_k"],
        }
    if family == "qwen3_moe":
        config |= {"decoder_sparse_step": 1, "mlp_only_layers": [], "num_experts": s["experts"]}
    if family == "glm4_moe":
        config |= {
            "first_k_dense_replace": 0,
            "n_group": 1,
            "n_routed_experts": s["experts"],
            "n_shared_experts": s["shared"],
            "num_nextn_predict_layers": 0,
            "partial_rotary_factor": 1.0,
            "topk_group": 1,
            "use_qk_norm": True,
        }
    return config | ({"_note": note} if note else {})


def shape_name(shapes: Shapes, row: int) -> str:
    """A folder name that says the shape: layers, width, heads over KV heads of a size, experts, expert width."""
    s = _whole(shapes, row)
    name = f"l{s['layers']}-d{s['width']}-h{s['heads']}-kv{s['kv_heads']}x{s['head_dim']}"
    if s["experts"] > 1:
        name += f"-e{s['experts']}k{s['top_k']}" + (f"s{s['shared']}" if s["shared"] else "")
    return f"{name}-f{s['expert_width']}"


def write_configs(
    folder: str | PathLike[str],
    shapes: Shapes,
    rows: Sequence[int],
    ends: Ends,
    positions: int,
    note: str = "",
) -> tuple[Path, ...]:
    """One folder per row, named by its shape, with a config.json each; what was there under that name is replaced.

    The folder itself is made where only it is missing.

    Errors: InputError where something cannot be written.
    """
    root = check_folder(folder)
    written = []
    for row in rows:
        own = root / shape_name(shapes, row)
        try:
            root.mkdir(exist_ok=True)
            own.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write {own}: {error.strerror}") from None
        text = json.dumps(config_of(shapes, row, ends, positions, note), indent=2) + "\n"
        with replacing(own / "config.json") as part:
            part.write_text(text, encoding="utf-8")
        written.append(own / "config.json")
    return tuple(written)


def check_folder(folder: str | PathLike[str]) -> Path:
    """Errors: InputError where no folder is or can be made; asked before a search, so that no answer is lost."""
    check_type("folder", folder, (str, PathLike), "the name of a folder")
    try:
        root = Path(folder)
        if not str(folder) or "\0" in str(folder):
            raise InputError(f"{str(folder)!r} is not the name of a folder; give one like shapes")
        if root.exists() and not root.is_dir():
            raise InputError(f"cannot write into {root}: it is a file; give the name of a folder")
        if not root.exists() and not root.parent.is_dir():
            raise InputError(f"cannot write into {root}: no folder {root.parent}; make it first")
    except OSError as error:
        raise InputError(f"cannot write into {str(folder)[:80]}: {error.strerror}") from None
    return root


def _whole(shapes: Shapes, row: int) -> dict[str, int]:
    check_type("row", row, int, "the number of a shape")
    names = ("layers", "width", "heads", "kv_heads", "head_dim", "experts", "top_k", "shared", "expert_width")
    return {name: int(getattr(shapes, name)[row]) for name in names}
