"""The cluster of a published run."""

from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from meshwright.hardware.cluster import Cluster, parse_cluster
from meshwright.hardware.errors import InputError
from training_accuracy.software import source_of

CHIPS = {
    "A100": "a100",
    "A100-80GB": "a100",
    "A100-40GB": "a100-40gb",
    "H100-SXM": "h100",
    "H100-96GB": "h100-96gb",
    "H200": "h200",
    "B200": "b200",
    "B300": "b300",
    "GB200": "gb200",
    "GB300": "gb300",
    "TPUv4": "v4",
    "TPUv5e": "v5e",
    "TPUv5p": "v5p",
    "TPU7x": "tpu7x",
}
# Networks beyond the node, as rows and sources say them.
FABRICS = Path(__file__).parents[1] / "data" / "fabrics"
SIDES_3D, SIDES_2D = (1, 2, 4, 8, 12, 16, 20, 24, 28), (1, 2, 4, 8, 16)


def cluster_of(row: Mapping[str, Any]) -> Cluster:
    """Errors: InputError for a chip that the catalogue does not have, and as parse_cluster."""
    given = row["hardware"]
    chip = CHIPS.get(given["chip"])
    if chip is None:
        raise InputError(f"chip: {given['chip']} is not in the catalogue")
    if given["chip"].startswith("TPU"):
        return _parse(_slices(chip, given["chips"], given.get("slices") or 1))
    node = 72 if given.get("nvlink_domain") == 72 else given.get("per_node") or 8
    domain = next(n for n in range(min(node, given["chips"]), 0, -1) if given["chips"] % n == 0)
    domain = (
        next((n for n in (64, 32) if n <= domain and given["chips"] % n == 0), domain)
        if node == 72
        else domain
    )
    return _parse(
        f"{chip}:{domain}x{given['chips'] // domain}", _fabric(row) if domain < given["chips"] else None
    )


def _fabric(row: Mapping[str, Any]) -> str | None:
    """The network between nodes where a row or its source says it; None for the chip's usual one."""
    note = row["hardware"].get("note") or ""
    if source_of(row) == "bigscience":
        return str(FABRICS / "jean-zay.yaml")
    if "800 Gb/s per node" in note:
        return str(FABRICS / "vtrain.yaml")
    return "roce200" if "1600 Gbps RoCE" in note else None


def _slices(chip: str, chips: int, slices: int) -> str:
    each = chips // slices
    three = chip in ("v4", "v5p", "tpu7x")
    sides = SIDES_3D if three else SIDES_2D
    shapes = (
        [(a, b, each // a // b) for a in sides for b in sides if b >= a and each % (a * b) == 0]
        if three
        else [(a, each // a) for a in sides if each % a == 0]
    )
    legal = [s for s in shapes if s[-1] in sides and s[-1] >= s[-2] and prod(s) == each]
    if not legal:
        raise InputError(f"cluster: {each} chips of {chip} are no slice")
    best = min(legal, key=lambda s: max(s) / min(s))
    return f"{chip}:{'x'.join(map(str, best))}" + (f"*{slices}" if slices > 1 else "")


@cache
def _parse(text: str, fabric: str | None = None) -> Cluster:
    # Runs that offload name no size of their hosts' memory: enough for what they kept there.
    return parse_cluster(text, fabric=fabric, host_memory="100 TB")
