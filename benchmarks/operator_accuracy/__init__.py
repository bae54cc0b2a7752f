"""Measurements of single operators: read, priced by the laws of costmodel/kernels.py, fitted, and scored on shapes left out."""
