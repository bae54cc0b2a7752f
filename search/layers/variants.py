"""Variants of attention and feed-forward as a YAML file, and the layer that each makes of a layer of the base.

attention:
  - {name: full}                       # the base's own
  - {name: kv2, kv_heads: 2}
  - {name: w1024, window: 1024}
  - {name: lin, linear: true}          # its cost stands in the scores file
  - {name: no_attention, none: true}
ffn:
  - {name: whole}
  - {name: half, width: 7168}
  - {name: moe, experts: 16, top_k: 2, expert_width: 3584}
  - {name: no_ffn, none: true}
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from meshwright.costmodel.model import Ffn, LayerKind, Weight
from meshwright.costmodel.readers.blocks import attention, gated_ffn, mixture, plain_ffn
from meshwright.hardware.errors import InputError, check_type
from meshwright.hardware.figures import Strict, load_yaml

Size = Annotated[int, Field(ge=1, le=10**9, strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[^\s,+*]+$")]


class AttentionVariant(Strict):
    """Heads of keys and values and window as the base's where not given; window 0 reaches over everything."""

    name: Name
    kv_heads: Size | None = None
    window: Annotated[int, Field(ge=0, le=10**9, strict=True)] | None = None
    linear: bool = False
    none: bool = False

    @model_validator(mode="after")
    def _one_kind(self) -> "AttentionVariant":
        sized = self.kv_heads is not None or self.window is not None
        if sized + self.linear + self.none > 1:
            raise ValueError(f"{self.name} is more than one of: sizes, linear, none; give one kind")
        return self

    def of(self, base: LayerKind) -> LayerKind:
        """A layer with this attention; `linear` and `none` have no operators that the cost model knows.

        Errors: InputError where the base's heads do not allow it.
        """
        a = base.attention
        window = a.window if self.window is None else self.window or None
        if self.kv_heads is None or self.kv_heads == a.kv_heads:
            return replace(base, attention=replace(a, window=window))
        if a.latent_width is not None:
            raise InputError(
                f"variant {self.name}: the base has latent attention, whose cache has no kv heads; vary the window"
            )
        if a.heads % self.kv_heads:
            raise InputError(
                f"variant {self.name}: {a.heads} heads are no multiple of {self.kv_heads} kv heads; give a divisor"
            )
        new = replace(a, kv_heads=self.kv_heads, window=window)
        names = {w.name: w for w in base.weights}
        hidden = names["attn.q"].rows
        q_norm = names.get("attn.q_norm")
        qk_norm = "" if q_norm is None else "head" if q_norm.cols == a.qk_head_dim else "full"
        built = attention(hidden, new, "attn.q.bias" in names, "attn.o.bias" in names, qk_norm)
        made = {w.name for w in built}
        if missing := {n for n in names if n.startswith("attn.")} - made - {"attn.sinks"}:
            raise InputError(
                f"variant {self.name}: the base's attention has {', '.join(sorted(missing))}, which do not follow from "
                "heads; give its costs in the scores file with linear: true"
            )
        weights = built + tuple(w for w in base.weights if w.name not in made)
        return replace(base, weights=weights, attention=new)


class FfnVariant(Strict):
    """The base's where nothing is given; shared experts are the base's where not given."""

    name: Name
    width: Size | None = None
    experts: Size | None = None
    top_k: Size | None = None
    expert_width: Size | None = None
    shared_width: Annotated[int, Field(ge=0, le=10**9, strict=True)] | None = None
    none: bool = False

    @model_validator(mode="after")
    def _one_kind(self) -> "FfnVariant":
        routed = (self.experts, self.top_k, self.expert_width)
        if any(x is not None for x in routed) and not all(x is not None for x in routed):
            raise ValueError(f"{self.name} lacks one of experts, top_k, expert_width; give all three")
        mixed = self.experts is not None
        if self.shared_width is not None and not mixed:
            raise ValueError(f"{self.name} has shared_width and no experts; give experts, or width")
        if (self.width is not None) + mixed + self.none > 1:
            raise ValueError(f"{self.name} is more than one of: width, experts, none; give one kind")
        if self.experts is not None and self.top_k is not None and self.top_k > self.experts:
            raise ValueError(f"{self.name}: top_k {self.top_k} is more than its {self.experts} experts")
        return self

    def of(self, base: LayerKind) -> LayerKind:
        """A layer with this feed-forward."""
        ffn = self.geometry(base.ffn)
        if ffn == base.ffn:
            return base
        kept = tuple(w for w in base.weights if not is_ffn(w))
        hidden = next(w.rows for w in base.weights if w.name.startswith("attn.") and w.matmul)
        bias = any(is_ffn(w) and w.name.endswith(".bias") for w in base.weights)
        if ffn.experts:
            made = mixture(hidden, ffn, bias)
        else:
            made = gated_ffn(hidden, ffn.width, bias) if ffn.gated else plain_ffn(hidden, ffn.width, bias)
        return replace(base, weights=kept + made, ffn=ffn)

    def geometry(self, base: Ffn) -> Ffn:
        """Its sizes; the base's own where nothing is given."""
        if self.width is not None:
            return Ffn(self.width, base.gated)
        if self.experts is None or self.top_k is None or self.expert_width is None:
            return base
        shared = base.width if base.experts else 0
        shared = shared if self.shared_width is None else self.shared_width
        return Ffn(shared, base.gated, self.experts, self.top_k, self.expert_width)


class Variants(Strict):
    """What each part of a layer may be. Names differ over both lists: a scores file tells variants by name."""

    attention: Annotated[tuple[AttentionVariant, ...], Field(min_length=1, max_length=500)]
    ffn: Annotated[tuple[FfnVariant, ...], Field(min_length=1, max_length=500)]

    @model_validator(mode="after")
    def _names(self) -> "Variants":
        names = [v.name for v in self.attention] + [v.name for v in self.ffn]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"{', '.join(twice)} names more than one variant; give each a name of its own")
        return self


def load_variants(path: str) -> Variants:
    """Errors: InputError where the file is not one of variants."""
    check_type("variants", path, str, "the path of a YAML file")
    return load_yaml(Path(path).expanduser(), Variants)


_FFN = ("mlp.", "router", "experts.", "shared.")


def is_ffn(weight: Weight) -> bool:
    """Whether a weight belongs to the feed-forward's products."""
    return weight.name.startswith(_FFN)
