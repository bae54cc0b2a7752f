"""Numbers and layouts as the pages write them."""

import re
from collections.abc import Sequence
from itertools import groupby
from math import floor, log10
from typing import Any

from meshwright.costmodel.layout import DIMENSIONS, Layout, layout_text
from meshwright.optimizer.report.recompute import summed

# What each exposed part of a step is.
PARTS = {
    "compute": "products, attention, elementwise work",
    "recompute": "forward work repeated in the backward pass",
    "launch": "time the chip waits for the host to launch work",
    "tp": "tensor parallel gathers and scatters",
    "cp": "context parallel exchange of keys and values",
    "ep": "expert parallel exchange of tokens",
    "fsdp": "gathers and scatters of sharded weights",
    "pp": "hops between pipeline stages",
    "dp": "gradient reduction",
    "offload": "host link",
    "bubble": "pipeline stages that wait",
    "optimizer": "weight update",
}
_LONG_WORD = 40  # characters of a part of the layout text that a page may break
ZERO = {
    0: "nothing sharded",
    1: "optimizer",
    2: "optimizer, gradients",
    3: "optimizer, gradients, weights (FSDP)",
}


def seconds(value: float) -> str:
    return f"{value:.4g} s"


def decimals_for(value: float) -> int:
    """Decimals that give `value` four digits, three at least."""
    return min(9, max(3, 3 - floor(log10(value)))) if value > 0 else 3


def fixed(value: float, decimals: int) -> str:
    """Fixed decimals, thousands apart; rounding noise below zero shows as zero."""
    text = f"{value:,.{decimals}f}"
    return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text


def gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:,.2f}"


def size_of(params: int) -> str:
    """Parameters at four digits: `8.03B`."""
    scale, letter = next(
        ((s, c) for s, c in ((1e12, "T"), (1e9, "B"), (1e6, "M")) if params >= s), (1e3, "K")
    )
    return f"{params / scale:.4g}{letter}"


def percent(share: float, decimals: int = 1) -> str:
    return f"{share:.{decimals}%}"


def less(share: float) -> str:
    """`-1.20%` of a share that is saved; nothing saved, or less than is shown, has no sign."""
    return f"-{share:.2%}" if round(share, 4) > 0 else f"{0:.2%}"


def plural(count: int, noun: str) -> str:
    """`1 stage`, `4 stages`, `2 micro-batches`."""
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "s")) else "s"
    return f"{count:,} {noun}{ending}"


def devices_and_chips(devices: int, cluster: dict[str, Any]) -> str:
    """`64 chips`, or where a chip has several devices, `128 devices (64 chips)`."""
    per_chip = cluster["devices"] // cluster["chips"]
    if per_chip == 1:
        return plural(devices, "chip")
    return f"{devices:,} devices ({_chips(devices, per_chip)} chips)"


def share_of(devices: int, cluster: dict[str, Any]) -> str:
    """`16 of 512 chips`, `64 of 256 devices (32 of 128 chips)`."""
    whole = cluster["devices"]
    per_chip = whole // cluster["chips"]
    if per_chip == 1:
        return f"{devices:,} of {plural(whole, 'chip')}"
    return f"{devices:,} of {whole:,} devices ({_chips(devices, per_chip)} of {cluster['chips']:,} chips)"


def _chips(devices: int, per_chip: int) -> str:
    """A plan may use one device of a chip."""
    return f"{devices // per_chip:,}" if devices % per_chip == 0 else f"{devices / per_chip:,.1f}"


def sits_on(layout: Layout, levels: Sequence[tuple[str, int, int]], dimension: str) -> str:
    """Where a degree sits, inner level first: `nvlink 2 * ib400 64`, `x 4 of 16 (inner)`."""
    found = []
    for (name, _, size), members in zip(levels, layout.placement, strict=False):
        names = [d for d, _ in members]
        if dimension not in names:
            continue
        at = names.index(dimension)
        factor = members[at][1]
        text = f"{name} {factor}" if factor == size else f"{name} {factor} of {size}"
        if len(members) > 1:
            text += " (inner)" if at == 0 else " (outer)" if at == len(members) - 1 else " (middle)"
        found.append(text)
    return " * ".join(found)


def experts_sit_on(layout: Layout, levels: Sequence[tuple[str, int, int]]) -> str:
    """Where expert ranks sit; the cost model says."""
    import numpy as np

    from meshwright.costmodel.placement import groups_of

    groups = groups_of([layout.placement], np.array([layout.ep]), np.array([layout.etp]))
    factors = groups.ep.factors[0]
    pairs = zip(levels, factors, strict=True)
    return " * ".join(
        f"{name} {f}" if f == size else f"{name} {f} of {size}" for (name, _, size), f in pairs if f > 1
    )


def stages(layout: Layout) -> str:
    """`8 layers on each of 4 stages`, or runs of equal stages: `0-2: 11, 3: 10`."""
    if len(set(layout.layers_per_stage)) <= 1:
        each = layout.layers_per_stage[0] if layout.layers_per_stage else 0
        return (
            f"{plural(each, 'layer')} on each of {layout.pp} stages"
            if layout.pp > 1
            else plural(each, "layer")
        )
    runs, at = [], 0
    for layers, run in groupby(layout.layers_per_stage):
        length = len(list(run))
        runs.append(
            f"{layers} on stage {at}" if length == 1 else f"{layers} on stages {at}-{at + length - 1}"
        )
        at += length
    chunks = ""
    if any(layers % layout.vpp for layers in layout.layers_per_stage):
        each = sum(layout.layers_per_stage) // (layout.pp * layout.vpp)
        chunks = f"; where {layout.vpp} chunks do not divide them {each} in each but the last"
    return "layers: " + ", ".join(runs) + chunks


def layout_option(layout: Layout) -> str:
    """`--layout 'tp=8, zero=1, ...'`, which prices the same layout; blanks so that a page breaks it where it still reads."""
    text = re.sub(r"[,;|]", r"\g<0> ", layout_text(layout))
    words = (re.sub("[/+:]", r"\g<0> ", word) if len(word) > _LONG_WORD else word for word in text.split(" "))
    return f"--layout '{' '.join(words)}'"


def kept(layout: Layout) -> str:
    """What is said of weights that stay gathered from forward to backward."""
    return "" if layout.reshard else ", weights kept for backward"


def apart(layouts: Sequence[Layout], shown: Sequence[dict[str, str]]) -> list[str]:
    """Names of what differs among layouts, `shown` as `visible` gives it; recompute also where only its full text does."""
    different = {name for name in shown[0] if len({cells[name] for cells in shown}) > 1}
    if len({layout.policy_words for layout in layouts}) > 1:
        different.add("recompute")
    return [name for name in shown[0] if name in different]


def visible(layout: Layout, kinds: Sequence[str]) -> dict[str, str]:
    """What tells two plans apart, by name, in the order shown; recompute in brief."""
    return {
        **{name: str(getattr(layout, name)) for name in DIMENSIONS},
        "zero": str(layout.zero),
        "reshard": str(layout.reshard).lower() if layout.zero == 3 else "-",
        "ep": str(layout.ep),
        "etp": str(layout.etp),
        "vpp": str(layout.vpp),
        "cp_kind": layout.cp_kind if layout.cp > 1 else "-",
        "micro_batch": str(layout.micro_batch),
        "recompute": summed(layout.policy_words, layout.layers_per_stage, kinds),
        "offload": layout.offload,
    }
