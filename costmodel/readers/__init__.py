"""Readers of published model configurations: Hugging Face `config.json` to `ModelSpec`, exactly or not at all."""

from meshwright.costmodel.readers.source import load_model, model_names, model_sources

__all__ = ["load_model", "model_names", "model_sources"]
