"""What `data/edge_classes.yaml` knows of devices, engines and quantisations beside the rows themselves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from meshwright.hardware.chip import Chip, is_chip, load_chip
from meshwright.hardware.inference_rates import OTHER, RatesFile

DATA = Path(__file__).parents[1] / "data"
SHIPPED = DATA / "edge_tokens.yaml"


class RefusedError(Exception):
    """A row that cannot be priced: `reason` is counted, the text tells the particulars."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(text or reason)
        self.reason = reason


@dataclass(frozen=True)
class Machine:
    """A device as a row names it.

    Attributes:
        key: its name among the measured devices of the rates. group: what is left out with it, parts of one chip together.
        peak_flop_per_s: 16-bit; infinite where nothing gives it.
        sourced: whether the bandwidth has a source, else it is the measuring file's own.
    """

    name: str
    key: str
    group: str
    kind: str
    bytes_per_s: float
    peak_flop_per_s: float
    sourced: bool


@cache
def classes() -> dict[str, Any]:
    """The file as it is."""
    loaded: dict[str, Any] = yaml.safe_load((DATA / "edge_classes.yaml").read_text(encoding="utf-8"))
    return loaded


def machine_of(name: str, file_devices: Mapping[str, Any], rates: RatesFile) -> Machine:
    """Errors: RefusedError where no kind or no bandwidth is known."""
    entry = classes()["devices"].get(name, {})
    given = file_devices.get(name)
    given = given if isinstance(given, dict) else {}
    chip_name = entry.get("chip", name if is_chip(name) else None)
    if chip_name is not None:
        chip = load_chip(chip_name)
        kind = rates.architectures.get(chip.architecture) or _kind_of(name)
        share = entry.get("gpu_share", 1.0)
        listed = _peak(chip)
        peak = _tera(given.get("fp16_dense_tflops")) if listed is None else listed * share
        key = chip.name if share == 1.0 else name
        return Machine(name, key, chip.name, kind, chip.hbm_bytes_per_s, peak or math.inf, True)
    kind = entry.get("kind") or _kind_of(name)
    sourced = "bandwidth_gb_s" in entry
    figures = entry if sourced else given
    bandwidth = figures.get("bandwidth_gb_s", 0)
    if not _is_positive(bandwidth):
        raise RefusedError("no bandwidth", f"no source and no devices block gives a bandwidth of {name}")
    peak = _tera(figures.get("fp16_dense_tflops"))
    return Machine(name, name, name, kind, bandwidth * 1e9, peak or math.inf, sourced)


def _kind_of(name: str) -> str:
    for pattern, kind in classes()["kinds"]:
        if fnmatch(name, pattern):
            return str(kind)
    raise RefusedError(
        "kind of device not known", f"{name} fits no chip file and no pattern of edge_classes.yaml"
    )


def _peak(chip: Chip) -> float | None:
    """Of the 16-bit dtypes the one that is sourced."""
    return next((chip.peak_flop_per_s(d) for d in ("fp16", "bf16") if d in chip.peak), None)


def engine_of(text: str) -> str:
    """By the first word of the name; versions do not count."""
    words = text.lower().split()
    return str(classes()["engines"].get(words[0] if words else "", OTHER))


def bits_of(quant: str, file_bits: Mapping[str, Any]) -> tuple[float, float]:
    """Bits per weight of body and head. Errors: RefusedError."""
    for known in (file_bits, classes()["bits"]):
        entry = known.get(quant)
        if isinstance(entry, dict):
            body, head = entry.get("body", 0), entry.get("head", 0)
            if not (_is_positive(body) and _is_positive(head) and max(body, head) <= 64):
                raise RefusedError("bits per weight malformed", f"{quant}: body {body!r}, head {head!r}")
            return float(body), float(head)
    raise RefusedError("quantisation not known", f"no bits per weight for {quant}")


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _tera(value: Any) -> float | None:
    return value * 1e12 if _is_positive(value) else None
