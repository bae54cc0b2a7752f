"""Which layers look back over a window only, and how far: one entry per layer, None for full attention."""

from collections.abc import Callable

from meshwright.costmodel.readers.fields import Fields, show

Windows = tuple[int | None, ...]
WindowRule = Callable[[Fields, int], Windows]

KINDS = ("sliding_attention", "full_attention")


def full(f: Fields, layers: int) -> Windows:
    f.only("sliding_window", None)
    return (None,) * layers


def every(missing: int | None) -> WindowRule:
    """One window for all layers (mistral, mixtral, phi3). `missing` is the class default; null is no window."""

    def rule(f: Fields, layers: int) -> Windows:
        # mlc-llm presets spell the key with _size
        return (f.size_or_none("sliding_window", "sliding_window_size", missing=missing),) * layers

    return rule


def switched(f: Fields, layers: int) -> Windows:
    """Qwen: `sliding_window` counts only with `use_sliding_window`, and from `max_window_layers` on."""
    on = f.flag("use_sliding_window", False)
    for key in ("sliding_window", "max_window_layers"):
        if on and not f.has(key):
            f.fail(
                f"the key {key} is missing and use_sliding_window is true; give it, or set the latter to false"
            )
    window = f.size_or_none("sliding_window")
    full_below = f.count("max_window_layers")
    types = read_types(f, layers)
    if not on or window is None:
        if types and "sliding_attention" in types:
            f.fail(
                "layer_types holds sliding_attention although use_sliding_window is not true or sliding_window "
                "is not given; make them agree"
            )
        return (None,) * layers
    if types is None:
        return tuple(window if i >= full_below else None for i in range(layers))
    return tuple(window if t == "sliding_attention" else None for t in types)


def never(f: Fields, layers: int) -> Windows:
    """Qwen3-MoE: no published model turns its window on, and the class applies it to no layer list."""
    f.only("use_sliding_window", False)
    f.skip("sliding_window", "max_window_layers")
    types = read_types(f, layers)
    if types and "sliding_attention" in types:
        f.fail("layer_types holds sliding_attention, which is not read for this model type")
    return (None,) * layers


def alternating(missing: int, period: int, *period_keys: str) -> WindowRule:
    """Every `period`-th layer full, the others windowed, unless `layer_types` says otherwise.

    gemma2 and gpt_oss: 2; olmo3: 4; gemma3: 6, which its files may spell out under `period_keys`.
    """

    def rule(f: Fields, layers: int) -> Windows:
        window = f.size("sliding_window", "sliding_window_size", missing=missing)
        every_nth = f.size(*period_keys, missing=period) if period_keys else period
        by_rule = tuple(
            "full_attention" if (i + 1) % every_nth == 0 else "sliding_attention" for i in range(layers)
        )
        types = read_types(f, layers)
        if types is not None and types != by_rule and any(k in f.raw for k in period_keys):
            f.fail(f"layer_types and {show(every_nth)} for {period_keys[0]} disagree; keep one")
        return tuple(window if t == "sliding_attention" else None for t in (types or by_rule))

    return rule


def read_types(f: Fields, layers: int) -> tuple[str, ...] | None:
    types = f.items("layer_types", layers, " or ".join(KINDS), lambda v: isinstance(v, str) and v in KINDS)
    return None if types is None else tuple(map(str, types))
