"""What backward wants of a model of which not all is trained."""

from meshwright.costmodel.model import LayerKind, ModelSpec, operator_of

# Tensors that the products of an operator read: the first that a layer has.
READS = {
    "latent": ("norm1",), "qkv": ("latent", "norm1"), "out": ("core",), "up": ("norm2", "norm1"), "down": ("act",),
    "expert_up": ("router",), "expert_down": ("expert_act",),
}  # fmt: skip
FIRST = ".lora_a"  # ends the name of the matrix of an adapter that reads what the weight reads


def unread_tensors(kind: LayerKind) -> dict[str, str]:
    """Tensors that backward does not want, since only products with frozen weights read them, and what is made of each.

    A tensor that two operators read stays, as do dispatched tokens: each one left out has one tensor that is made of it,
    or none, so that to make that again is to make both.
    """
    products = [w for w in kind.weights if w.matmul]
    here = {operator_of(w) for w in products}
    still = here - {operator_of(w) for w in products if w.trained}
    found = {"act": ""} if "down" in still else {}
    if "expert_down" in still:
        found["expert_act"] = "expert_down"
    attention, ffn = here & {"latent", "qkv"}, here & {"up", "router"}
    if not kind.parallel and attention <= still:
        found["norm1"] = "latent" if "latent" in attention else "qkv"
    if not kind.parallel and len(ffn) == 1 and ffn <= still:
        found["norm2"] = ffn.pop()
    return found


def trains_tower(model: ModelSpec) -> bool:
    """Whether the vision tower is trained: all of it is or nothing, and nothing is trained before it."""
    return model.tower is not None and model.tower.kind.weights[0].trained
