"""What published runs call their recomputation, in words of this project.

A spelling that is not listed is refused: nothing unknown passes for no recomputation.
"""

from dataclasses import dataclass

from meshwright.costmodel.model import LayerKind
from meshwright.costmodel.tensors import HOST, TENSORS, bits, simplest, word_of
from meshwright.hardware.errors import InputError

NORMS = {"norm1", "norm2"}
ROUTED = {"router", "expert_up", "expert_act", "expert_down"}
DENSE = frozenset({"up", "act"})
# Modules of Megatron-Core's --recompute-modules and what they repeat.
MODULES = {
    "core_attn": {"core"},
    "mla_up_proj": {"qkv"},
    "layernorm": NORMS,
    "moe_act": {"expert_act"},
    "moe": ROUTED,
    "default-modules": {"core"},
}
# Names of MaxText's tensors and where ours are saved; the output of the feed-forward part is the next layer's input.
MAXTEXT = {
    "decoder_layer_input": {"input"},
    "query_proj": {"qkv"},
    "key_proj": {"qkv"},
    "value_proj": {"qkv"},
    "qkv_proj": {"qkv"},
    "context": {"core"},
    "out_proj": {"out"},
    "mlpwo": set(),
}
PRODUCTS = {"latent", "qkv", "out", "up", "expert_up"}


@dataclass(frozen=True)
class Remat:
    """Tensors that backward makes again, and that live on the host.

    Attributes:
        every: 2 where only every other layer repeats all. first: the layers of a stage that do.
        dense: what only layers without experts repeat.
    """

    dropped: frozenset[str] = frozenset()
    host: frozenset[str] = frozenset()
    every: int = 1
    first: int | None = None
    dense: frozenset[str] = frozenset()

    def word(self, kind: LayerKind, present: int) -> str:
        """The policy of a layer kind whose tensors are `present` (bits)."""
        dropped = self.dropped if kind.ffn.experts else self.dropped | self.dense
        on_host = bits(self.host - dropped) & present
        return word_of(simplest(bits(dropped), present) | on_host << HOST, present)


def _drop(*names: str) -> Remat:
    return Remat(frozenset(names))


def _save(*names: str, host: frozenset[str] = frozenset()) -> Remat:
    return Remat(frozenset(TENSORS) - {"input", *names} - host, host)


FULL = Remat(frozenset(TENSORS) - {"input"})
NONE = Remat()
NAMED: dict[str, Remat] = {
    "none": NONE,
    "full": FULL,
    "minimal": _save(*PRODUCTS),
    "minimal_flash": _save(*PRODUCTS, "core"),
    "policy minimal_flash": _save(*PRODUCTS, "core"),
    "save_dot_with_context_except_mlp": _save("latent", "qkv", "core", "out"),
    # torchtitan saves every second product and the attention kernel's output.
    "selective (torchtitan default)": _drop(*NORMS, "up", "act", "unfused"),
    "selective (per-op)": _drop(*NORMS, "up", "act", "unfused"),
    "selective:per-op": _drop(*NORMS, "up", "act", "unfused"),
    "selective:every other layer": Remat(FULL.dropped, every=2),
    "full:block:5-layers": Remat(FULL.dropped, first=5),
}
# Not stated, of JAX: some products are saved. Of others: nothing is repeated.
ASSUMED = {"jax": _drop(*NORMS, "up", "act", "unfused"), "other": NONE}


def remat_of(text: str) -> Remat:
    """Errors: InputError for a spelling that is not listed."""
    if text in NAMED:
        return NAMED[text]
    start, _, listed = text.partition(":")
    names = [name.strip() for name in listed.replace("+", ",").split(",") if name.strip()]
    if start == "selective" and names and all(name in MODULES or name == "mlp" for name in names):
        modules = (MODULES[name] for name in names if name != "mlp")
        return Remat(frozenset[str]().union(*modules), dense=DENSE if "mlp" in names else frozenset())
    if start == "custom":
        return _custom(text)
    raise InputError(f"remat: no entry for {text!r}")


def _custom(text: str) -> Remat:
    """`custom: keep [a, b], offload [c], rest recomputed`."""
    lists = [part.partition("]")[0] for part in text.split("[")[1:]]
    if len(lists) != 2 or not text.endswith("rest recomputed"):
        raise InputError(f"remat: no entry for {text!r}")
    keep, host = ({n.strip() for n in part.split(",") if n.strip()} for part in lists)
    if unknown := (keep | host) - set(MAXTEXT):
        raise InputError(f"remat: no entry for {', '.join(sorted(unknown))} in {text!r}")
    saved = set().union(*(MAXTEXT[n] for n in keep)) if keep else set()
    away = frozenset().union(*(MAXTEXT[n] for n in host)) if host else frozenset()
    return _save(*saved, host=away)
