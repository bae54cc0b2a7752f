"""Built-in models against counts made by other people's code: `tests/golden/model_params.yaml`."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.costmodel.readers import load_model, model_names, model_sources

GOLDEN_FILE = Path(__file__).parents[1] / "golden" / "model_params.yaml"
GOLDEN: dict[str, dict[str, Any]] = yaml.safe_load(GOLDEN_FILE.read_text())


def test_every_built_in_model_has_a_golden_count_and_a_source() -> None:
    assert model_names() == sorted(GOLDEN)
    sources = model_sources()
    assert list(sources) == model_names()
    assert all("/" in line for line in sources.values())


@pytest.mark.parametrize("name", GOLDEN)
def test_parameters_are_exact(name: str) -> None:
    spec, row = load_model(name), GOLDEN[name]
    assert spec.params == row["params_total"]
    assert spec.active_params == row.get("params_active", row["params_total"])


# The three counts of the hub that differ by more than vision do so for known reasons.
HUB_EXTRA = {"falcon-7b": 65024 * 4544, "deepseek-v3": 58 * 256}  # tied head stored twice; score corrections


@pytest.mark.parametrize("name", [n for n, row in GOLDEN.items() if "hub_exact" in row])
def test_hub_counts_agree(name: str) -> None:
    row = GOLDEN[name]
    extra = row.get("params_vision", 0) + HUB_EXTRA.get(name, 0)
    assert load_model(name).params + extra == row["hub_exact"]


# Stored parameters by the hub: the model, its module with copies of token table and head, and a score correction per
# expert and layer with experts (numbers of the hub's metadata for bf16 weights; DeepSeek-V3: 671B and 685B with fp8 scales).
HUB_WITH_MODULE = {
    "deepseek-v3": 684489845504 - 59 * 256,
    "deepseek-r1": 684489845504 - 59 * 256,
    "glm-4.5": 358337791296 - 90 * 160,
    "glm-4.5-air": 110468824832 - 46 * 128,
}


@pytest.mark.parametrize(("name", "stored"), HUB_WITH_MODULE.items())
def test_a_model_with_its_multi_token_prediction_module_is_as_the_hub_counts_it(
    name: str, stored: int
) -> None:
    spec = load_model(name)
    assert spec.mtp is not None
    assert spec.mtp.modules == 1
    assert spec.params + spec.mtp_stored_params == stored


def test_the_module_of_deepseek_v3_is_as_published() -> None:
    """README_WEIGHTS.md of deepseek-ai/DeepSeek-V3: 11.5B parameters of its own, 2.4B that a token meets with table and
    head; both leave out what joins hidden states and embeddings."""
    spec = load_model("deepseek-v3")
    assert spec.mtp is not None
    layer, join = spec.kinds[spec.mtp.kind], sum(w.params for w in spec.mtp.weights)
    assert join == 2 * 7168**2 + 3 * 7168
    assert spec.mtp_params == layer.params + join
    assert round((spec.mtp_params - join) / 1e9, 1) == 11.5
    assert round((layer.active_params + spec.table.params + spec.head_matrix.params) / 1e9, 1) == 2.4


def siglip_and_projector(hidden: int) -> int:
    """Vision part of gemma-3, written out: 27 SigLIP layers of 1152, 4304 wide, 896/14 patches a side."""
    d, f, patches = 1152, 4304, (896 // 14) ** 2
    layer = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 2 * 2 * d
    tower = (3 * 14 * 14 * d + d) + patches * d + 27 * layer + 2 * d
    return tower + d + d * hidden  # the projector's norm and matrix


@pytest.mark.parametrize(("name", "hidden"), [("gemma-3-4b-it", 2560), ("gemma-3-27b-it", 5376)])
def test_a_model_with_its_vision_tower_is_as_the_hub_counts_it(name: str, hidden: int) -> None:
    spec, row = load_model(name), GOLDEN[name]
    assert spec.tower is not None
    assert spec.tower_params == row["params_vision"] == siglip_and_projector(hidden)
    assert spec.params + spec.tower_params == row["hub_exact"]
    assert (spec.tower.patches, spec.tower.tokens) == (4096, 256)
    assert "text only: the vision tower is not trained, and not among the parameters" in spec.notes


# name: (kind, layers of it, window)
PATTERNS = {
    "llama-3-70b": [("dense", 80, None)],
    "mistral-7b-v0.1": [("sliding", 32, 4096)],
    "mistral-7b-v0.2": [("dense", 32, None)],
    "mistral-large-2407-123b": [("dense", 88, None)],
    "qwen2-0.5b": [("dense", 24, None)],
    "gemma-2-9b": [("sliding", 21, 4096), ("global", 21, None)],
    "gemma-3-1b-it": [("sliding", 22, 512), ("global", 4, None)],
    "gemma-3-27b-it": [("sliding", 52, 1024), ("global", 10, None)],
    "olmo-3-32b": [("sliding", 48, 4096), ("global", 16, None)],
    "gpt-oss-120b": [("sliding_moe", 18, 128), ("global_moe", 18, None)],
    "mixtral-8x7b": [("moe", 32, None)],
    "qwen3-235b-a22b": [("moe", 94, None)],
    "deepseek-v2-lite": [("dense", 1, None), ("moe", 26, None)],
    "deepseek-v3": [("dense", 3, None), ("moe", 58, None)],
}


@pytest.mark.parametrize("name", PATTERNS)
def test_layer_kinds(name: str) -> None:
    spec = load_model(name)
    counts = Counter(spec.pattern)
    assert [(k.name, counts[i], k.attention.window) for i, k in enumerate(spec.kinds)] == PATTERNS[name]
    assert spec.layers == len(spec.pattern) == sum(spec.layers_by_kind)


def test_order_of_kinds() -> None:
    assert load_model("gemma-2-9b").pattern[:4] == (0, 1, 0, 1)
    assert load_model("gemma-3-27b-it").pattern[:7] == (0, 0, 0, 0, 0, 1, 0)
    assert load_model("deepseek-v3").pattern[:5] == (0, 0, 0, 1, 1)


# name: (heads, kv heads, width of a head's query and key, of its value, latent width)
GEOMETRY = {
    "llama-3.1-405b": (128, 8, 128, 128, None),
    "gemma-7b": (16, 16, 256, 256, None),  # 4096 wide inside a width of 3072
    "falcon-7b": (71, 1, 64, 64, None),  # num_kv_heads 71 in the file is ignored
    "falcon-40b": (128, 8, 64, 64, None),
    "gpt-oss-120b": (64, 8, 64, 64, None),
    "deepseek-v3": (128, 128, 192, 128, 576),
    "gpt3-175b": (96, 96, 128, 128, None),
}


@pytest.mark.parametrize("name", GEOMETRY)
def test_attention_geometry(name: str) -> None:
    a = load_model(name).kinds[0].attention
    assert (a.heads, a.kv_heads, a.qk_head_dim, a.v_head_dim, a.latent_width) == GEOMETRY[name]


@pytest.mark.parametrize(
    ("name", "norms", "parallel"),
    [
        ("llama-3-8b", 2, False),
        ("gemma-2-2b", 4, False),
        ("olmo-2-7b", 2, False),
        ("falcon-7b", 1, True),
        ("falcon-40b", 2, True),
        ("pythia-1b", 2, True),
        ("redpajama-incite-3b", 2, False),
        ("opt-350m", 2, False),
    ],
)
def test_norms_and_parallel_blocks(name: str, norms: int, parallel: bool) -> None:
    kind = load_model(name).kinds[0]
    assert (kind.norms, kind.parallel) == (norms, parallel)


def test_names_are_found_in_any_case() -> None:
    assert load_model("Llama-3.1-405B") == load_model("llama-3.1-405b")
    assert load_model("deepseek-v3").name == "deepseek-v3"


def test_what_a_reader_leaves_out_is_said() -> None:
    assert load_model("deepseek-v3").notes == (
        "1 multi-token-prediction layer not counted",
        "quantization_config is left out: parameters are counted as unpacked weights",
    )
    assert load_model("llama-3-8b").notes == ()


def test_reading_a_model_needs_the_standard_library_only() -> None:
    code = (
        "import sys; from meshwright.costmodel.readers import load_model; load_model('gpt2'); "
        "print(*{'numpy', 'pydantic', 'yaml', 'ortools'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
