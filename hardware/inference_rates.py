"""What serving engines reach of a device's peaks when one sequence is served, by phase.

    pass = sum over operators of max(FLOPs / rate, bytes / (bandwidth * hbm_share)) + layers * layer_s
    rate = 1 / (1 / (peak * flop_share) + 1 / flop_ceiling_per_s)

A file holds kinds of devices, engines, and devices that were measured. A device that was not has the numbers of its
kind, and their wider band. Every share is of the figure in the chip's file, so the two must be changed together.
"""

import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from meshwright.hardware.chip import Chip
from meshwright.hardware.errors import InputError, UnknownNameError, check_type
from meshwright.hardware.figures import DATA, Strict, load_yaml
from meshwright.hardware.files import read_text

FOLDER = DATA / "inference"
OTHER = "other"  # an engine that no file knows: what all have in common
REFERENCE_BYTES_PER_S = 204.8e9  # of the device whose launches are given; the others' scale from it
WIDEST_USUAL_HEAD = 128

Positive = Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False)]


class Fitted(Strict):
    """A value, its 80% interval over samples of devices, and what should be known of it."""

    value: Positive
    low: Positive | None = None
    high: Positive | None = None
    note: str = ""


class Band(Strict):
    """80% of measured times lie within [predicted / (1 + width), predicted * (1 + width)], their devices left out."""

    width: Positive
    rows: int = Field(ge=0)


class Kind(Strict):
    """Devices that reach alike.

    hbm_share     of the memory's bandwidth, in both phases
    launch_s      seconds per layer, on a device of `REFERENCE_BYTES_PER_S`
    launch_falls  exponent: launches take (reference / bandwidth)^it as long; 0 where None
    flop_share    of the 16-bit peak that the chip's file lists; above 1 where engines multiply at a faster rate than it
    """

    engine: str
    hbm_share: Fitted
    launch_s: Fitted
    launch_falls: Fitted | None = None
    flop_share: Fitted
    decode: Band
    prefill: Band
    note: str = ""


class Engine(Strict):
    """expert_share: rates of routed products over those of others. wide_heads: bandwidth kept where heads are wider than
    128. flop_ceiling_per_s: what its kernels do not pass on any device."""

    expert_share: Fitted
    flop_ceiling_per_s: Fitted | None = None
    wide_heads: Fitted | None = None


class Measured(Strict):
    """Speed of one device over that of its kind, drawn to 1 where rows are few."""

    decode: Positive = 1.0
    prefill: Positive = 1.0
    rows: int = Field(ge=1)


class RatesFile(Strict):
    """One calibration. quantised_flops: rate of products with weights of fewer than 16 bits over others."""

    name: str
    provenance: str
    architectures: dict[str, str]
    kinds: dict[str, Kind]
    engines: dict[str, Engine]
    quantised_flops: Fitted
    devices: dict[str, Measured] = Field(default_factory=dict)


@dataclass(frozen=True)
class PhaseRates:
    """Of one phase; numbers, or columns over requests.

    Attributes:
        flop_share, flop_ceiling_per_s: of products; see the module.
        hbm_share: of bandwidth. expert_share: rates of routed products over those of others.
        layer_s: seconds per layer whatever it does.
        band: 80% of measured times lie within a factor 1 + band.
        rows: measurements of the kind behind that.
    """

    flop_share: Any
    flop_ceiling_per_s: Any
    hbm_share: Any
    expert_share: Any
    layer_s: Any
    band: float
    rows: int

    def flop_per_s(self, peak_flop_per_s: Any) -> Any:
        """What products reach of a peak."""
        return 1 / (1 / (peak_flop_per_s * self.flop_share) + 1 / self.flop_ceiling_per_s)


@dataclass(frozen=True)
class InferenceRates:
    """What one device reaches under one engine.

    Attributes:
        measured: whether the device is among those that the file was fitted on.
        notes: what a reader of an answer should know.
    """

    name: str
    kind: str
    engine: str
    measured: bool
    prefill: PhaseRates
    decode: PhaseRates
    provenance: str
    notes: tuple[str, ...]


def inference_names() -> tuple[str, ...]:
    """Names that `load_inference_rates` takes: `edge`, and `edge-ENGINE` for an engine other than the kind's usual one."""
    names = []
    for path in sorted(FOLDER.glob("*.yaml")):
        engines = [_word(engine) for engine in _shipped(path.stem).engines if engine != OTHER]
        names += [path.stem, *(f"{path.stem}-{engine}" for engine in sorted(engines))]
    return tuple(names)


def is_inference_rates(name_or_path: str) -> bool:
    """Whether a name or file is one of rates of inference, not of training (`hardware.calibration`)."""
    check_type("efficiency", name_or_path, str, "a name such as 'edge', or a path")
    text = name_or_path.strip()
    if _is_path(text):
        path = Path(text).expanduser()
        return (
            path.is_file()
            and re.search(r"^kinds\s*:", read_text(path, "a YAML file"), re.MULTILINE) is not None
        )
    return any(text.lower() == name or text.lower().startswith(f"{name}-") for name in inference_names())


def load_inference_rates(
    name_or_path: str,
    chip: Chip,
    *,
    engine: str | None = None,
    weight_bits: float = 16,
    head_dim: int = WIDEST_USUAL_HEAD,
) -> InferenceRates:
    """The rates of a chip: by 'edge' under the usual engine of its kind, by 'edge-mlc' under another; or by a file.

    Args:
        engine: overrides the name's.
        weight_bits: of the weights of products. head_dim: width of an attention head.

    Raises:
        UnknownNameError: no such name or engine.
        InputError: a bad file, or a chip of no kind in it.
    """
    check_type("efficiency", name_or_path, str, "a name such as 'edge', or a path to a YAML file")
    check_type("chip", chip, Chip, "a Chip, such as load_chip('rtx-4090')")
    check_type("weight_bits", weight_bits, (int, float), "bits per weight, such as 4.5")
    check_type("head_dim", head_dim, int, "the width of a head, such as 128")
    if not 0 < weight_bits <= 128:
        raise InputError(f"weight_bits is {weight_bits:g}; give bits per weight, above 0 and at most 128")
    if head_dim < 1:
        raise InputError(f"head_dim is {head_dim}; give the width of a head, 1 or more")
    file, named = _open(name_or_path.strip())
    kind = file.architectures.get(chip.architecture)
    if kind is None:
        raise InputError(
            f"efficiency {file.name} knows no device of architecture {chip.architecture} ({chip.name}), it has "
            f"{', '.join(sorted(file.architectures))}; use --efficiency ideal, or give a YAML file that has it"
        )
    asked = next(word for word in (engine, named, file.kinds[kind].engine) if word is not None)
    known = {_word(e): e for e in file.engines}
    if not isinstance(asked, str) or _word(asked) not in known:
        raise UnknownNameError("engine", str(asked), known, f"of efficiency {file.name}")
    return rates_of(
        file, kind, known[_word(asked)], chip.hbm_bytes_per_s,
        device=chip.name, weight_bits=weight_bits, head_dim=head_dim,
    )  # fmt: skip


def rates_of(
    file: RatesFile,
    kind: str,
    engine: str,
    bytes_per_s: float,
    *,
    device: str | None = None,
    weight_bits: float = 16,
    head_dim: int = WIDEST_USUAL_HEAD,
) -> InferenceRates:
    """The rates of a device that is of a kind; `device` names one that may have been measured."""
    of, by = file.kinds[kind], file.engines[engine]
    measured = file.devices.get(device) if device is not None else None
    hbm = of.hbm_share.value
    notes = [f"{file.name}: {device or 'a device'} as kind {kind} under {engine}, by rows of 16-bit products"]
    if head_dim > WIDEST_USUAL_HEAD and by.wide_heads is not None:
        hbm *= by.wide_heads.value
        notes.append(by.wide_heads.note)
    flops = of.flop_share.value * (file.quantised_flops.value if weight_bits < 16 else 1.0)
    falls = 0.0 if of.launch_falls is None else of.launch_falls.value
    launch_s = of.launch_s.value * (REFERENCE_BYTES_PER_S / bytes_per_s) ** falls
    ceiling = math.inf if by.flop_ceiling_per_s is None else by.flop_ceiling_per_s.value

    def phase(speed: float, band: Band) -> PhaseRates:
        return PhaseRates(
            flops * speed,
            ceiling * speed,
            hbm * speed,
            by.expert_share.value,
            launch_s / speed,
            band.width,
            band.rows,
        )

    if measured is None:
        notes.append(f"not measured itself: the numbers of {of.decode.rows} rows of its kind stand for it")
        measured = Measured(rows=1)
        known = False
    else:
        known = True
    if of.note:
        notes.append(of.note)
    return InferenceRates(
        file.name, kind, engine, known, phase(measured.prefill, of.prefill), phase(measured.decode, of.decode),
        file.provenance, tuple(notes),
    )  # fmt: skip


def load_rates_file(name: str) -> RatesFile:
    """All that a shipped name such as 'edge' holds. Errors: UnknownNameError."""
    check_type("efficiency", name, str, "a name such as 'edge'")
    return _open(name.strip())[0]


def _word(engine: str) -> str:
    return engine.strip().lower().replace(".", "").replace("_", "-")


def _is_path(text: str) -> bool:
    return "/" in text or text.lower().endswith((".yaml", ".yml"))


def _open(text: str) -> tuple[RatesFile, str | None]:
    """The file, and the engine that its name asks for."""
    if _is_path(text):
        return _checked(load_yaml(Path(text).expanduser(), RatesFile)), None
    for path in FOLDER.glob("*.yaml"):
        if text.lower() == path.stem:
            return _shipped(path.stem), None
        if text.lower().startswith(f"{path.stem}-"):
            return _shipped(path.stem), text[len(path.stem) + 1 :]
    raise UnknownNameError("efficiency", text, inference_names(), "a path to a YAML file works too")


def _checked(file: RatesFile) -> RatesFile:
    """Raises InputError for a name that leads nowhere."""
    for architecture, kind in file.architectures.items():
        if kind not in file.kinds:
            raise UnknownNameError("kind", kind, file.kinds, f"of architecture {architecture} in {file.name}")
    for name, kind_of in file.kinds.items():
        if kind_of.engine not in file.engines:
            raise UnknownNameError("engine", kind_of.engine, file.engines, f"of kind {name} in {file.name}")
    return file


@cache
def _shipped(name: str) -> RatesFile:
    return _checked(load_yaml(FOLDER / f"{name}.yaml", RatesFile))
