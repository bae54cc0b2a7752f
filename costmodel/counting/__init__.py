"""Parameters, FLOPs, caches and activations of a model, by part."""
