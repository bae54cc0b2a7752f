"""What one chip is, as its data file states it. Achieved efficiency lives in calibration.py.

Figures in the files are per chip (per package); the properties are per *device*, what a program sees.
A TPU7x chip shows two devices. Boards (data/boards) are chips without a network: an edge board, a consumer device.
"""

from functools import cache
from typing import Literal, NoReturn

from pydantic import Field

from meshwright.hardware.errors import MissingFigureError, UnknownNameError, check_type
from meshwright.hardware.figures import (
    DATA,
    BytesFigure,
    CountFigure,
    FlopFigure,
    PowerFigure,
    RateFigure,
    SecondsFigure,
    Strict,
    load_yaml,
)

Family = Literal["tpu", "nvidia", "amd", "apple"]
Dtype = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8", "int4"]

# Bytes of one element; scales of block formats are not counted.
ELEMENT_BYTES: dict[str, float] = {
    "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp6": 0.75, "fp4": 0.5, "int8": 1, "int4": 0.5,
}  # fmt: skip


class Memory(Strict):
    """HBM of one chip. `usable_per_device` is what driver or compiler leaves, per device."""

    capacity: BytesFigure
    usable_per_device: BytesFigure | None = None
    bandwidth: RateFigure


class Torus(Strict):
    """Scale-up by a torus of direct links (ICI)."""

    kind: str
    dims: Literal[2, 3]
    wraps: Literal["axis of 16", "whole cubes", "not stated"]
    per_link_one_way: RateFigure
    hop_latency: SecondsFigure
    package_one_way_per_device: RateFigure | None = None
    pod_chips: CountFigure
    largest_job_chips: CountFigure | None = None
    max_multislice_chips: CountFigure | None = None


class Switch(Strict):
    """Scale-up through switches or a full mesh (NVLink, xGMI). `domain` is the largest group of chips."""

    kind: str
    domain: CountFigure
    per_chip_one_way: RateFigure
    per_pair_one_way: RateFigure | None = None
    latency: SecondsFigure


class Alone(Strict):
    """A board or consumer device: one chip, and nothing that joins it to another. Asking for a rate raises."""

    kind: Literal["none"]

    @property
    def domain(self) -> CountFigure:
        """Of one chip, by what a board is."""
        return CountFigure(text="1", source="", confidence="derived", note="a board stands alone")

    @property
    def per_chip_one_way(self) -> NoReturn:
        """Errors: MissingFigureError."""
        raise MissingFigureError("a board has no network: no link joins it to another chip")


class ScaleOut(Strict):
    """The way out of the scale-up domain; `default_fabric` names a file in data/fabrics, `none` on a board."""

    per_chip_one_way: RateFigure | None = None
    default_fabric: str


class Host(Strict):
    """The machine that chips are plugged into."""

    chips_per_host: CountFigure
    dram_per_host: BytesFigure | None = None


class Price(Strict):
    """A published price. The date is when the price held, or what is known about that."""

    usd_per_chip_hour: float = Field(gt=0, lt=1000)
    provider: str
    date: str
    source: str
    kind: str
    note: str = ""


class Chip(Strict):
    """One chip. Fields are per chip, properties per device. `power` is what it may draw, its note says which measure."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    vendor: str
    family: Family
    architecture: str
    aliases: tuple[str, ...] = ()
    devices_per_chip: int = Field(ge=1, le=16)
    peak: dict[Dtype, FlopFigure]
    memory: Memory
    power: PowerFigure | None = None
    host_link: RateFigure | None = None
    scale_up: Torus | Switch | Alone
    scale_out: ScaleOut
    host: Host | None = None
    prices: tuple[Price, ...] = ()
    notes: tuple[str, ...] = ()

    def __hash__(self) -> int:
        # Dict fields have no hash; equal chips share a name, which is all a hash must promise.
        return hash(self.name)

    def peak_flop_per_s(self, dtype: str) -> float:
        """Dense peak of one device, FLOP/s (integer operations/s for int8, int4).

        Errors: MissingFigureError when no source lists the dtype; it is never extrapolated.
        """
        figure = self.peak.get(dtype)  # type: ignore[call-overload]
        if figure is None:
            listed = f"it has {', '.join(self.peak)}" if self.peak else "only its memory is known"
            if dtype == "bf16" and "fp16" in self.peak:
                listed += "; fp16 is as wide: ask with that where a compute dtype can be named"
            raise MissingFigureError(f"no source lists a peak in {dtype} for {self.name}; {listed}")
        return float(figure.si) / self.devices_per_chip

    @property
    def is_board(self) -> bool:
        """Whether it is one chip without a network."""
        return isinstance(self.scale_up, Alone)

    def chips_of(self, devices: int) -> int | float:
        """Chips that so many devices are; of several devices to a chip a part of one may be among them."""
        whole, rest = divmod(devices, self.devices_per_chip)
        return whole if rest == 0 else devices / self.devices_per_chip

    @property
    def memory_bytes(self) -> int:
        """Memory of one device, bytes: the usable figure where one is known, else the nominal capacity."""
        if self.memory.usable_per_device is not None:
            return int(self.memory.usable_per_device.si)
        return int(self.memory.capacity.si) // self.devices_per_chip

    @property
    def memory_warning(self) -> str | None:
        """A sentence when `memory_bytes` is nominal only."""
        if self.memory.usable_per_device is not None:
            return None
        return (
            f"{self.name}: no source gives the usable memory, so the nominal "
            f"{self.memory.capacity.text} is planned with"
        )

    @property
    def hbm_bytes_per_s(self) -> float:
        """HBM bandwidth of one device, bytes/s."""
        return self.memory.bandwidth.si / self.devices_per_chip

    @property
    def host_link_bytes_per_s(self) -> float | None:
        """Host link of one device, bytes/s one way; None where no source gives it."""
        return None if self.host_link is None else self.host_link.si / self.devices_per_chip

    @property
    def scale_out_bytes_per_s(self) -> float | None:
        """NIC or DCN egress of one device, bytes/s; None where it depends on the system."""
        figure = self.scale_out.per_chip_one_way
        return None if figure is None else figure.si / self.devices_per_chip

    @property
    def price(self) -> Price | None:
        """The price in use: the first on-demand list price in the file (see its note for the order)."""
        return next((p for p in self.prices if p.kind == "on-demand list"), None)

    @property
    def price_usd_per_hour(self) -> float | None:
        """USD per chip-hour (not per device), on-demand list; None where no source gives one."""
        return None if self.price is None else self.price.usd_per_chip_hour

    def sources(self) -> tuple[str, ...]:
        """Where the figures come from, without repeats."""
        found: dict[str, None] = {}
        _collect(self, found)
        return tuple(found)


def _collect(part: object, found: dict[str, None]) -> None:
    if isinstance(part, Price):  # a price is not a property of the machine
        return
    if isinstance(part, Strict):
        source = getattr(part, "source", None)
        if isinstance(source, str):
            found[source] = None
        for name in type(part).model_fields:
            _collect(getattr(part, name), found)
    elif isinstance(part, dict):
        for value in part.values():
            _collect(value, found)
    elif isinstance(part, tuple):
        for value in part:
            _collect(value, found)


@cache
def _files(folder: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (DATA / folder).glob("*.yaml")))


@cache
def _by_alias() -> dict[str, str]:
    known: dict[str, str] = {}
    for stem in (*_files("chips"), *_files("boards")):
        chip = _read(stem)
        for name in (chip.name, *chip.aliases):
            known[name.lower()] = chip.name
    return known


@cache
def _read(name: str) -> Chip:
    folder = "chips" if name in _files("chips") else "boards"
    return load_yaml(DATA / folder / f"{name}.yaml", Chip)


def chip_names() -> tuple[str, ...]:
    """Names of all chips that clusters are made of, as the cluster string writes them."""
    return _files("chips")


def board_names() -> tuple[str, ...]:
    """Names of all boards and consumer devices; each is a cluster string by itself."""
    return _files("boards")


def is_chip(name: str) -> bool:
    """Whether a chip or board has that name or alias."""
    return name_key(name) in _by_alias()


def name_key(name: str) -> str:
    """A chip's name as it is looked up: lower case, dashes. Errors: InputError for what is no text."""
    check_type("chip", name, str, "a name such as 'v5p'")
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def load_chip(name: str) -> Chip:
    """The chip or board of that name or alias; upper and lower case are the same.

    Errors: UnknownNameError with the nearest names.
    """
    key = name_key(name)
    if key in (*_files("chips"), *_files("boards")):  # the common case: do not read every file to find one
        return _read(key)
    known = _by_alias()
    if key not in known:
        see = f"{len(chip_names())} chips and {len(board_names())} boards are known: meshwright chips"
        raise UnknownNameError("chip", name, known, see=see)
    return _read(known[key])
