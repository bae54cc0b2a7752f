"""Which model is best: architectures, loss laws, fronts."""
