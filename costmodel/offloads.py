"""Classes of tensors that may live in host memory, as words."""

# Gradients go to the host only where its CPU updates the weights.
OFFLOADS = (
    "none",
    "activations",
    "optimizer",
    "optimizer+activations",
    "optimizer+gradients",
    "optimizer+gradients+activations",
    "parameters",
    "parameters+activations",
    "optimizer+parameters",
    "optimizer+parameters+activations",
    "optimizer+gradients+parameters",
    "optimizer+gradients+parameters+activations",
)


def without_activations(offload: str) -> str:
    """The class that offloads the same but activations."""
    return "+".join(part for part in offload.split("+") if part != "activations") or "none"


def in_order(word: str) -> str:
    """The class of OFFLOADS that names the same parts; the word itself where there is none."""
    parts = sorted(word.split("+"))
    return next((offload for offload in OFFLOADS if sorted(offload.split("+")) == parts), word)
