"""Per-layer choices: which variant of attention and feed-forward each layer of a model takes."""
