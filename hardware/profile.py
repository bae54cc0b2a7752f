"""Named sets of figures that replace those of the catalogue: the `book` profile has what the scaling book computes with.

A profile changes rates and sizes, never what a chip is. Its file states them per chip (per package); what it leaves
out stays as in the catalogue. A few chips are in a profile only, as far as it gives their figures. The book's links
are at their achievable rate already: with its profile goes the calibration `ideal`, not `book`.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from pydantic import Field

from meshwright.hardware.chip import Chip, Dtype, is_chip, load_chip, name_key
from meshwright.hardware.errors import MissingFigureError, UnknownNameError
from meshwright.hardware.figures import (
    DATA,
    BytesFigure,
    CountFigure,
    Figure,
    FlopFigure,
    RateFigure,
    SecondsFigure,
    Strict,
    load_yaml,
)

CATALOGUE = "catalogue"


class Printed(Strict):
    """A value as the profile's source prints it, with its unit."""

    text: str
    note: str = ""


class Base(Strict):
    """What a chip is that the catalogue does not have."""

    title: str
    vendor: str
    family: Literal["tpu", "nvidia"]
    architecture: str
    aliases: tuple[str, ...]
    devices_per_chip: int
    torus_dims: Literal[2, 3] | None = None


class Entry(Strict):
    """Figures of one chip; all per chip, all optional.

    Attributes:
        link: one way, of one ICI link, or all NVLink egress of a GPU.
        egress: one way, into the network beyond slice or domain.
        domain: chips of one NVLink domain.
    """

    base: Base | None = None
    peak: dict[Dtype, Printed] = Field(default_factory=dict)
    hbm: Printed | None = None
    hbm_rate: Printed | None = None
    link: Printed | None = None
    egress: Printed | None = None
    host_link: Printed | None = None
    host_memory: Printed | None = None
    chips_per_host: Printed | None = None
    pod_chips: Printed | None = None
    domain: Printed | None = None


class Share(Strict):
    """A range of shares of the peak."""

    low: float = Field(gt=0, le=1)
    high: float = Field(gt=0, le=1)


class Profile(Strict):
    """Figures by chip name.

    Attributes:
        switch_latency: of all switched tiers of a cluster.
        reached: share of the peak that large products reach, by family of chips, as the source says it.
    """

    name: str
    title: str
    source: str
    switch_latency: Printed | None = None
    reached: dict[str, Share] = Field(default_factory=dict)
    chips: dict[str, Entry]

    def figure(self, kind: type[Figure], printed: Printed) -> dict[str, Any]:
        """A printed value as a figure of the chip files."""
        return kind(
            text=printed.text, source=self.source, confidence="secondary", note=printed.note
        ).model_dump()

    @property
    def switch_latency_s(self) -> float | None:
        """Seconds of one switched tier, or None where the profile leaves the catalogue's."""
        if self.switch_latency is None:
            return None
        return SecondsFigure.model_validate(self.figure(SecondsFigure, self.switch_latency)).si


def profile_names() -> tuple[str, ...]:
    """Profiles that ship with the package; `catalogue` means none."""
    return (CATALOGUE, *sorted(path.stem for path in (DATA / "profiles").glob("*.yaml")))


@cache
def load_profile(name: str) -> Profile:
    """Errors: UnknownNameError with the nearest names."""
    if name == CATALOGUE or name not in profile_names():
        raise UnknownNameError("profile", name, profile_names())
    return load_yaml(DATA / "profiles" / f"{name}.yaml", Profile)


def book_chip(name: str) -> Chip:
    """A chip with the figures that the scaling book computes with; names and aliases as everywhere.

    Errors: UnknownNameError; MissingFigureError for a chip of which the book gives too little.
    """
    return profile_chip(name, "book")


def profile_chip(name: str, profile: str = CATALOGUE) -> Chip:
    """A chip of the catalogue (or of the profile alone) with the figures of a profile.

    Errors: as book_chip; UnknownNameError also for the profile.
    """
    return load_chip(name) if profile == CATALOGUE else _chip(profile_entry(name, profile)[0], profile)


def is_profile_chip(name: str, profile: str = CATALOGUE) -> bool:
    """Whether `profile_chip` knows the name."""
    return is_chip(name) or (profile != CATALOGUE and name_key(name) in _own(load_profile(profile)))


def profile_entry(name: str, profile: str = "book") -> tuple[str, Entry]:
    """A chip's own name and what a profile says of it, also where that is too little for a Chip.

    Errors: UnknownNameError.
    """
    loaded = load_profile(profile)
    own = _own(loaded)
    key = name_key(name)
    if key in own:
        return own[key], loaded.chips[own[key]]
    if not is_chip(key):
        known = {*own, *loaded.chips}
        raise UnknownNameError("chip", name, known, f"profile {profile}")
    found = load_chip(key).name
    return found, loaded.chips.get(found, Entry())


def _own(profile: Profile) -> dict[str, str]:
    """Names and aliases of chips that only the profile has."""
    own = {name: entry.base for name, entry in profile.chips.items() if entry.base is not None}
    return {alias: name for name, base in own.items() for alias in (name, *base.aliases)}


@cache
def _chip(name: str, profile_name: str) -> Chip:
    profile = load_profile(profile_name)
    entry = profile.chips.get(name, Entry())
    if entry.base is not None:
        return Chip.model_validate(_new(name, entry, entry.base, profile))
    return _with_entry(load_chip(name), entry, profile)


def _with_entry(chip: Chip, entry: Entry, profile: Profile) -> Chip:
    data = chip.model_dump()
    torus = data["scale_up"].get("dims") is not None
    data["peak"] |= {dtype: profile.figure(FlopFigure, p) for dtype, p in entry.peak.items()}
    places: tuple[tuple[Printed | None, type[Figure], tuple[str, str]], ...] = (
        (entry.hbm, BytesFigure, ("memory", "capacity")),
        (entry.hbm_rate, RateFigure, ("memory", "bandwidth")),
        (entry.link, RateFigure, ("scale_up", "per_link_one_way" if torus else "per_chip_one_way")),
        (entry.egress, RateFigure, ("scale_out", "per_chip_one_way")),
        (entry.pod_chips, CountFigure, ("scale_up", "pod_chips")),
        (entry.domain, CountFigure, ("scale_up", "domain")),
        (entry.chips_per_host, CountFigure, ("host", "chips_per_host")),
        (entry.host_memory, BytesFigure, ("host", "dram_per_host")),
    )
    for printed, kind, (part, field) in places:
        if printed is not None:
            data[part] = data[part] or {}
            data[part][field] = profile.figure(kind, printed)
    if entry.host_link is not None:
        data["host_link"] = profile.figure(RateFigure, entry.host_link)
    if entry.hbm is not None:
        data["memory"]["usable_per_device"] = _whole_memory(entry.hbm, profile, data["devices_per_chip"])
    if not torus and profile.switch_latency is not None and entry != Entry():
        data["scale_up"]["latency"] = profile.figure(SecondsFigure, profile.switch_latency)
    return Chip.model_validate(data)


def with_figures(
    chip: Chip,
    *,
    peaks: Mapping[str, float] | None = None,
    hbm_bytes: float | None = None,
    hbm_bytes_per_s: float | None = None,
    link_bytes_per_s: float | None = None,
    egress_bytes_per_s: float | None = None,
    host_link_bytes_per_s: float | None = None,
    chips_per_host: int | None = None,
) -> Chip:
    """A chip with figures of the question in place of its own; all per chip, rates one way, link as in Entry.

    Peaks of dtypes that are not given keep their ratio to the first one that is: the same chip at another clock.
    """
    given = Profile(name="question", title="", source="given", chips={})

    def printed(value: float, unit: str) -> Printed:
        return Printed(text=f"{value!r} {unit}")

    scale = 1.0
    for dtype, rate in (peaks or {}).items():
        if dtype in chip.peak:
            scale = rate / chip.peak[dtype].si
            break
    wanted = {} if scale == 1.0 else {str(dtype): scale * figure.si for dtype, figure in chip.peak.items()}
    wanted |= peaks or {}
    entry = Entry(
        peak={dtype: printed(rate, "FLOP/s") for dtype, rate in wanted.items()},  # type: ignore[misc]
        hbm=None if hbm_bytes is None else printed(hbm_bytes, "B"),
        hbm_rate=None if hbm_bytes_per_s is None else printed(hbm_bytes_per_s, "B/s"),
        link=None if link_bytes_per_s is None else printed(link_bytes_per_s, "B/s"),
        egress=None if egress_bytes_per_s is None else printed(egress_bytes_per_s, "B/s"),
        host_link=None if host_link_bytes_per_s is None else printed(host_link_bytes_per_s, "B/s"),
        chips_per_host=None if chips_per_host is None else Printed(text=str(chips_per_host)),
    )
    return _with_entry(chip, entry, given)


def _whole_memory(hbm: Printed, profile: Profile, devices: int) -> dict[str, Any]:
    """The profile plans with all of the memory."""
    size = BytesFigure.model_validate(profile.figure(BytesFigure, hbm)).si / devices
    return profile.figure(
        BytesFigure, Printed(text=f"{size:.0f} B", note=f"profile {profile.name}: all of it")
    )


def _new(name: str, entry: Entry, base: Base, profile: Profile) -> dict[str, Any]:
    """Data of a chip that only the profile has.

    Errors: MissingFigureError naming what the profile does not give.
    """
    needed = {
        "a peak": entry.peak or None,
        "an HBM size": entry.hbm,
        "an HBM rate": entry.hbm_rate,
        "a link rate": entry.link,
        "a pod size": entry.pod_chips,
    }
    if missing := [what for what, value in needed.items() if value is None]:
        raise MissingFigureError(
            f"the {profile.name} profile gives no {missing[0].split(' ', 1)[1]} for {base.title}, so nothing can be "
            f"computed with it; it has {', '.join(profile_chips(profile.name))}"
        )
    assert entry.hbm and entry.hbm_rate and entry.link and entry.pod_chips and base.torus_dims
    hop = Printed(text="1 us", note="about 1 us per hop on any generation")
    data: dict[str, Any] = {
        "name": name,
        "devices_per_chip": base.devices_per_chip,
        **base.model_dump(exclude={"torus_dims"}),
        "peak": {dtype: profile.figure(FlopFigure, p) for dtype, p in entry.peak.items()},
        "memory": {
            "capacity": profile.figure(BytesFigure, entry.hbm),
            "usable_per_device": _whole_memory(entry.hbm, profile, base.devices_per_chip),
            "bandwidth": profile.figure(RateFigure, entry.hbm_rate),
        },
        "scale_up": {
            "kind": f"ICI {base.torus_dims}D torus",
            "dims": base.torus_dims,
            "wraps": "not stated",
            "per_link_one_way": profile.figure(RateFigure, entry.link),
            "hop_latency": profile.figure(SecondsFigure, hop),
            "pod_chips": profile.figure(CountFigure, entry.pod_chips),
        },
        "scale_out": {"default_fabric": "dcn"},
    }
    if entry.egress is not None:
        data["scale_out"]["per_chip_one_way"] = profile.figure(RateFigure, entry.egress)
    if entry.host_link is not None:
        data["host_link"] = profile.figure(RateFigure, entry.host_link)
    if entry.chips_per_host is not None:
        data["host"] = {"chips_per_host": profile.figure(CountFigure, entry.chips_per_host)}
    return data


def profile_chips(profile: str = "book") -> tuple[str, ...]:
    """Chips that have figures of their own in a profile and enough of them to compute with."""
    loaded = load_profile(profile)
    whole = (n for n, e in loaded.chips.items() if e.base is None or (e.peak and e.hbm_rate and e.pod_chips))
    return tuple(whole)
