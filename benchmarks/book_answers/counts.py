"""Adapters; see the package."""
