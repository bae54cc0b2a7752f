"""Readers of published model configurations."""
