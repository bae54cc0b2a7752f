"""Meshwright: the provably best way to lay a language model over a cluster."""
