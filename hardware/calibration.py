"""How much of a chip's peak rates programs really reach.

A file holds parts: `common`, then `families`, `architectures`, `chips`; the narrower part wins field by
field. Where no part names the chip's architecture, the family's prior stands and a note says so. `software` holds such
parts again for programs with habits of their own, which win over those of the machine.
Every number is a share of the figure in the chip's data file, so the two must be changed together.

    matmul rate    = peak * matmul / ((1 + m0/m) * (1 + n0/min(k, n)))
    attention rate = peak * attention * min(1, head width / 128)^narrow_heads
"""

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from meshwright.hardware.chip import Chip, Family, Torus, is_chip, load_chip
from meshwright.hardware.errors import InputError, MissingFigureError, UnitError, UnknownNameError
from meshwright.hardware.figures import DATA, RateFigure, Strict, load_yaml
from meshwright.hardware.profile import load_profile

BOOK = "book"  # of calibrations and of profiles
CommClass = Literal["tp", "cp", "ep", "fsdp", "dp", "pp", "offload"]
COMM_CLASSES: tuple[CommClass, ...] = ("tp", "cp", "ep", "fsdp", "dp", "pp", "offload")

RunKind = Literal["dense", "MoE", "fine-tuning"]
Band = tuple[Annotated[float, Field(gt=0, le=1)], Annotated[float, Field(ge=1, le=100)]]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
ZeroToOne = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class Efficiency(Strict):
    """Achieved shares for one chip.

    matmul          of the dtype's dense peak, for large shapes; m0 (tokens) and n0 (width) bend small ones
    attention       of the bf16 peak, by a fused kernel
    narrow_heads    exponent by which heads narrower than 128 slow attention
    score_bytes     bytes that attention moves per score and pass where it is not fused, and then at matmul's rate; 0 = fused
    hbm             of HBM bandwidth
    scale_up        of the NVLink, xGMI or ICI rate
    scale_out       of the NIC or DCN rate
    host_link       of the host link
    expert_matmul   routed-expert matmuls relative to dense ones
    elementwise     multiplier on the counted bytes of elementwise work
    misaligned      time that a product takes more where a width it is cut to is no multiple of 64
    misaligned_heads  the same of attention, where the width of a head is no multiple of 8
    permute         the same of moving tokens into the order of their experts and back
    sum_bytes       bytes moved per weight and micro-batch to add its gradient to the sum of the step's
    launch_s        least seconds per layer and micro-batch; 0 = none
    moe_launch_s    the same of a layer with routed experts
    straggler       time that a device's work takes more for every doubling of the cluster, as all wait for the slowest
    step_s          seconds of every step whatever it does: input, logging, norms of gradients
    low_precision   share of the nominal gain over bf16 that a dtype keeps; 1 where absent
    overlap         share of a communication class that can hide under compute, for `calibrated`
    bands           measured over predicted step seconds by kind of run, 80% of runs; none where nothing was measured
    band_source     what the bands are of
    pinned_mfu      when set, compute runs at this share of peak whatever the shapes
    """

    name: str
    matmul: Share
    attention: Share
    hbm: Share
    scale_up: Share
    scale_out: Share
    host_link: Share
    matmul_m0: NotNegative
    matmul_n0: NotNegative
    expert_matmul: Share
    narrow_heads: NotNegative
    score_bytes: NotNegative
    misaligned: NotNegative
    misaligned_heads: NotNegative
    elementwise: Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)]
    permute: Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)]
    sum_bytes: NotNegative
    launch_s: NotNegative
    moe_launch_s: NotNegative
    straggler: NotNegative
    step_s: NotNegative
    low_precision: dict[str, Share]
    overlap: dict[CommClass, ZeroToOne]
    bands: dict[RunKind, Band] | None = None
    band_source: str = ""
    pinned_mfu: Share | None = None
    provenance: str
    notes: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash((self.name, self.matmul, self.scale_up, self.scale_out))

    def low_precision_kept(self, dtype: str) -> float:
        """Share of the dtype's nominal gain over bf16 that is reached."""
        return self.low_precision.get(dtype, 1.0)


class Part(Strict):
    """Some of the numbers; the rest comes from a wider part."""

    matmul: Share | None = None
    attention: Share | None = None
    hbm: Share | None = None
    scale_up: Share | None = None
    scale_out: Share | None = None
    host_link: Share | None = None
    matmul_m0: NotNegative | None = None
    matmul_n0: NotNegative | None = None
    expert_matmul: Share | None = None
    narrow_heads: NotNegative | None = None
    score_bytes: NotNegative | None = None
    misaligned: NotNegative | None = None
    misaligned_heads: NotNegative | None = None
    elementwise: Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)] | None = None
    permute: Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)] | None = None
    sum_bytes: NotNegative | None = None
    launch_s: NotNegative | None = None
    moe_launch_s: NotNegative | None = None
    straggler: NotNegative | None = None
    step_s: NotNegative | None = None
    low_precision: dict[str, Share] | None = None
    overlap: dict[CommClass, ZeroToOne] | None = None
    note: str = ""


class Machines(Strict):
    """Parts by machine, wide to narrow."""

    common: Part = Part()
    families: dict[Family, Part] = Field(default_factory=dict)
    architectures: dict[str, Part] = Field(default_factory=dict)
    chips: dict[str, Part] = Field(default_factory=dict)


class Software(Machines):
    """Parts of one program; `extends` names another of the same file to start from."""

    extends: str | None = None


class Bands(Strict):
    """How far predictions miss, by kind of run: measured over predicted step seconds, least and most of 80% of runs.

    measured: of chips that have runs, whose model family was left out of the fit. others: of chips that have none, so that
    their family's numbers stand for them: of runs whose whole source was left out.
    """

    source: str
    chips: tuple[str, ...]
    measured: dict[RunKind, Band]
    others: dict[RunKind, Band]


class EfficiencyFile(Machines):
    """One calibration. `extends` names a shipped one to start from."""

    name: str
    provenance: str
    extends: str | None = None
    bands: Bands | None = None
    software: dict[str, Software] = Field(default_factory=dict)


@cache
def efficiency_names() -> tuple[str, ...]:
    """Names of the calibrations that ship with the package."""
    return tuple(sorted(path.stem for path in (DATA / "calibration").glob("*.yaml")))


def load_efficiency(name_or_path: str, chip: Chip, software: str = "") -> Efficiency:
    """The shares for one chip: 'ideal', 'default', 'book', a YAML file, or 'mfu=0.4'; those of a program where the file
    knows it.

    Errors: UnknownNameError, InputError (a bad file, one that leaves a number out, or 'book' for a chip of the profile
    `book`, whose links are at its rate already), UnitError (a bad mfu).
    """
    text = name_or_path.strip()
    if re.match(r"mfu\s*=", text, re.IGNORECASE):
        mfu = _read_mfu(text)
        ideal = load_efficiency("ideal", chip)
        return ideal.model_copy(
            update={"name": f"mfu={mfu:g}", "pinned_mfu": mfu, "provenance": "compute pinned by the user"}
        )
    file = _open(text)
    made = resolve(file, chip, software)
    if BOOK in (file.name, file.extends):
        _check_links(made, chip)
    return made


def _check_links(made: Efficiency, chip: Chip) -> None:
    """Raises InputError where a share of the vendors' links would be taken of links that are at that share already."""
    if chip.is_board:  # it has no links
        return
    profile, link = load_profile(BOOK), _link(chip)
    of_profile = link.source == profile.source and not (
        is_chip(chip.name) and link == _link(load_chip(chip.name))
    )
    if of_profile and made.scale_up < 1:
        raise InputError(
            f"efficiency {made.name} takes {made.scale_up:.0%} of the links that vendors list, and the links of profile "
            f"{profile.name} ({link.text} of {chip.name}) are at that rate already; use --efficiency ideal with it"
        )


def _link(chip: Chip) -> RateFigure:
    up = chip.scale_up
    return up.per_link_one_way if isinstance(up, Torus) else up.per_chip_one_way


def _read_mfu(text: str) -> float:
    try:
        mfu = float(text.split("=", 1)[1])
    except ValueError:
        mfu = -1.0
    if not 0 < mfu <= 1:
        raise UnitError(
            f"{text[:40]!r} is not a share of peak; write a number above 0 and at most 1, like 'mfu=0.4'"
        )
    return mfu


def _open(name_or_path: str) -> EfficiencyFile:
    if "/" in name_or_path or name_or_path.lower().endswith((".yaml", ".yml")):
        return load_yaml(Path(name_or_path).expanduser(), EfficiencyFile)
    name = name_or_path.lower()
    if name not in efficiency_names():
        raise UnknownNameError(
            "efficiency", name_or_path, efficiency_names(), "a path to a YAML file or 'mfu=0.4' works too"
        )
    return _shipped(name)


def load_bands(name: str) -> Bands:
    """The bands of a shipped calibration. Errors: UnknownNameError, MissingFigureError where it has none."""
    bands = _open(name).bands
    if bands is None:
        raise MissingFigureError(f"efficiency {name} states no error bands; use default")
    return bands


@cache
def _shipped(name: str) -> EfficiencyFile:
    return load_yaml(DATA / "calibration" / f"{name}.yaml", EfficiencyFile)


def resolve(file: EfficiencyFile, chip: Chip, software: str = "") -> Efficiency:
    """The shares that a file gives for one chip. Errors: as `load_efficiency`."""
    numbers: dict[str, object] = {}
    notes: list[str] = []
    bands: dict[str, object] = {}
    if file.extends is not None:
        if file.extends not in efficiency_names():
            raise UnknownNameError("efficiency", file.extends, efficiency_names(), f"extended by {file.name}")
        base = resolve(_shipped(file.extends), chip, software)
        numbers = {key: getattr(base, key) for key in Part.model_fields if key != "note"}
        notes += base.notes
        bands = {"bands": base.bands, "band_source": base.band_source}
    for part in _parts(file, chip, software, notes):
        _overlay(numbers, part)
        if part.note:
            notes.append(f"{file.name}: {part.note}")
    missing = [key for key in Part.model_fields if key != "note" and key not in numbers]
    missing += [f"overlap.{c}" for c in COMM_CLASSES if c not in _as_dict(numbers.get("overlap"))]
    if missing:
        raise InputError(
            f"efficiency {file.name} gives no {', '.join(missing)} for {chip.name}; "
            f"add it under common, or start from a shipped one with 'extends: default'"
        )
    if file.bands is not None:
        bands = _bands_of(file.bands, chip, notes)
    return Efficiency.model_validate(
        {
            **numbers,
            **bands,
            "name": file.name,
            "provenance": file.provenance,
            "notes": tuple(dict.fromkeys(notes)),
        }
    )


def _bands_of(bands: Bands, chip: Chip, notes: list[str]) -> dict[str, object]:
    if chip.name in bands.chips:
        return {"bands": bands.measured, "band_source": f"{bands.source}, model families left out"}
    notes.append(
        f"no measured run on {chip.name}: its family's numbers stand for it, and its error band is wider"
    )
    return {"bands": bands.others, "band_source": f"{bands.source}, sources left out; none on {chip.name}"}


def _parts(file: EfficiencyFile, chip: Chip, software: str, notes: list[str]) -> list[Part]:
    """Wide to narrow."""
    known = chip.architecture in file.architectures or chip.name in file.chips
    if file.architectures and file.extends is None and not known:
        notes.append(
            f"{file.name}: no entry for {chip.architecture}; the prior of family {chip.family} is used"
        )
    return [part for of in (file, *_programs(file, software)) for part in _of_chip(of, chip)]


def _programs(file: EfficiencyFile, software: str) -> list[Software]:
    """A program and those it extends, widest first; none where the file does not know it."""
    found: list[Software] = []
    name: str | None = software
    while name in file.software:
        found.insert(0, file.software[name])
        name = found[0].extends
        if len(found) > len(file.software) or (name is not None and name not in file.software):
            raise InputError(
                f"efficiency {file.name}: software {software} extends {name}, which "
                f"{'extends it in turn' if name in file.software else 'the file does not have'}; name another"
            )
    return found


def _of_chip(of: Machines, chip: Chip) -> list[Part]:
    found = (of.families.get(chip.family), of.architectures.get(chip.architecture), of.chips.get(chip.name))
    return [of.common, *(part for part in found if part is not None)]


def _overlay(numbers: dict[str, object], part: Part) -> None:
    for key in Part.model_fields:
        value = getattr(part, key)
        if key == "note" or value is None:
            continue
        numbers[key] = {**_as_dict(numbers.get(key)), **value} if isinstance(value, dict) else value


def _as_dict(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}
