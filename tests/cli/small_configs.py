"""Models small enough that every question about them takes milliseconds, and one that fits nowhere."""

from typing import Any

TINY: dict[str, Any] = {
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
