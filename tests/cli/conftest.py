"""A model small enough that every question about it takes milliseconds."""

import json
from pathlib import Path

import pytest

TINY = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
}
HUGE = {**TINY, "hidden_size": 65536, "intermediate_size": 262144}  # 250 billion parameters


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with tiny.json and huge.json in it."""
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    (tmp_path / "huge.json").write_text(json.dumps(HUGE))
    monkeypatch.chdir(tmp_path)
    return tmp_path
