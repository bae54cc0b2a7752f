"""What kernels reach of a chip's peaks: fitted numbers per chip, engine, kernel and number format.

`data/kernels/machines.yaml` holds peaks and families of the chips that were measured, and number formats; every other
file there holds the numbers of one law of `meshwright.costmodel.kernels`, written by benchmarks/fit_operators.py from
published measurements of single operators. A chip, engine or kernel that was not measured has the numbers of the nearest
that was, with a wider band, and the answer says so (`Found.inherited`); where nothing near was measured there is none.

Peaks stand here beside the catalogue's because the numbers are shares of exactly these; `Machine.catalogue` names the file
in data/chips where the two meet.
"""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from meshwright.hardware.errors import InputError, MissingFigureError, UnknownNameError, check_type, shown
from meshwright.hardware.figures import DATA, Strict, load_yaml

FOLDER = DATA / "kernels"
ANY = "any"  # of engines or kernels: all of them fitted together

Positive = Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False)]


@dataclass(frozen=True)
class MatmulRates:
    """t0_s: launch and ramp. e_c, e_m: shares of peak FLOP/s and of memory bandwidth. p: how sharply the slower limit
    binds. walk_s: of 1,000 terms that one block adds in turn, walk_power: how it grows with their number. e_q: share of
    bandwidth of the pass that quantises inputs, row_columns: columns' worth of time that each of its rows takes."""

    t0_s: Any
    e_c: Any
    e_m: Any
    p: Any
    walk_s: Any
    walk_power: Any
    e_q: Any = 1.0
    row_columns: Any = 0.0
    m0: Any = 0.0
    n0: Any = 0.0


@dataclass(frozen=True)
class PrefillRates:
    """tile: rows of queries that a block takes. keys: met by every row beside its own (diagonal tiles, prologue). score_per_s: scores that the exponential passes.
    walk_s: of 1,000 keys that one tile meets in turn. Others as in MatmulRates."""

    t0_s: Any
    e_c: Any
    e_m: Any
    p: Any
    tile: Any
    keys: Any
    score_per_s: Any
    walk_s: Any


@dataclass(frozen=True)
class DecodeRates:
    """keys: of the tile that the shortest context pays. e_wide: e_c where more than 32 query heads share keys. walk_s,
    walk_power: as in MatmulRates, over keys."""

    t0_s: Any
    e_c: Any
    e_m: Any
    p: Any
    keys: Any
    e_wide: Any
    walk_s: Any
    walk_power: Any


@dataclass(frozen=True)
class ExpertRates:
    """load: pairs of the fullest rank over the mean where routing is skewed. rows: padding of an expert's rows. n0: width
    at which a matrix reaches half. e_a: share of bandwidth of activations of the rank's own pairs, e_pairs: of the passes
    over the pairs of all ranks."""

    t0_s: Any
    e_c: Any
    e_m: Any
    p: Any
    load: Any
    rows: Any
    n0: Any
    e_a: Any
    e_pairs: Any


@dataclass(frozen=True)
class ExchangeRates:
    """alpha_s: of the shortest message. bytes_per_s: bus bandwidth of the longest. q: 1 where latency and bandwidth add,
    1/2 where they pipeline ideally."""

    alpha_s: Any
    bytes_per_s: Any
    q: Any


@dataclass(frozen=True)
class DomainRates:
    """All collectives of one domain: latency a0_s + a1_s (n - 1), of all-reduce a0_s + 2 a1_s (n - 1). bytes_per_s: bus
    bandwidth of many ranks, which n ranks reach but for pair_loss / n. reduce_gain: bandwidth of an all-reduce that the
    switch adds up over that of others."""

    a0_s: Any
    a1_s: Any
    bytes_per_s: Any
    q: Any
    reduce_gain: Any
    pair_loss: Any


@dataclass(frozen=True)
class DispatchRates:
    """Tokens sent to experts and back. sm_bytes_per_s: that one processor given to the kernel moves."""

    alpha_s: Any
    bytes_per_s: Any
    q: Any
    sm_bytes_per_s: Any


@dataclass(frozen=True)
class StreamRates:
    """Work that memory binds."""

    t0_s: Any
    e_m: Any
    p: Any


Rates = (
    MatmulRates | PrefillRates | DecodeRates | ExpertRates
    | ExchangeRates | DomainRates | DispatchRates | StreamRates
)  # fmt: skip
LAWS: dict[str, type[Any]] = {
    "matmul": MatmulRates, "prefill": PrefillRates, "decode": DecodeRates, "experts": ExpertRates,
    "collective": ExchangeRates, "custom": ExchangeRates, "domain": DomainRates, "dispatch": DispatchRates, "memory": StreamRates,
}  # fmt: skip


class Format(Strict):
    """A number format: the peak that bounds its products, bytes of an input and of a weight, and whether inputs come in 16
    bits and are quantised on the way."""

    peak: str
    x_bytes: Positive
    w_bytes: Positive
    quantises: bool = False


class Machine(Strict):
    """A chip that was measured; peaks in TFLOP/s, dense. `family`: whose numbers it takes where it has none, nearest first.
    `data_centre`: among those that the planner lays models over."""

    catalogue: str | None = None
    peak_tflop_per_s: dict[str, Positive]
    hbm_gb_per_s: Positive
    processors: int = Field(ge=1)
    family: tuple[str, ...] = ()
    data_centre: bool = False

    @property
    def hbm_bytes_per_s(self) -> float:
        return self.hbm_gb_per_s * 1e9


class MachinesFile(Strict):
    """Chips and number formats by name."""

    source: str
    machines: dict[str, Machine]
    formats: dict[str, Format]


class Entry(Strict):
    """Numbers of one law for one case.

    Attributes:
        rows: measurements behind them.
        band: 80% of measured times lie within a factor 1 + band, their shapes left out; None where no shape could be.
        error: standard error of the logarithm of each, over shapes left out.
        loose: numbers that the measurements do not tell: at the end of what is allowed, or an error above `LOOSE`.
    """

    rows: int = Field(ge=1)
    band: Positive | None = None
    values: dict[str, Positive]
    error: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    loose: tuple[str, ...] = ()


class LawFile(Strict):
    """Numbers of one law: entries[chip][engine][kernel][case]. family_band: as `Entry.band` where a chip takes its
    family's numbers, each measured chip left out in turn."""

    law: str
    provenance: str
    family_band: Positive
    entries: dict[str, dict[str, dict[str, dict[str, Entry]]]]


LOOSE = 0.5


@dataclass(frozen=True)
class Found:
    """Numbers of a case and where they are from.

    Attributes:
        band: 80% of measured times lie within a factor 1 + band.
        inherited: what stands in for what was asked, in words; empty if it was measured itself.
    """

    rates: Any
    band: float
    rows: int
    inherited: str
    loose: tuple[str, ...]


@cache
def load_machines() -> MachinesFile:
    """The chips that were measured."""
    return load_yaml(FOLDER / "machines.yaml", MachinesFile)


def machine(name: str) -> Machine:
    """A chip by the name in measurements (`h100_sxm`) or in the catalogue (`h100`). Errors: UnknownNameError, InputError."""
    check_type("chip", name, str, "the name of a measured chip, such as 'h100_sxm'")
    return load_machines().machines[machine_name(name)]


def machine_name(name: str) -> str:
    """The name in measurements. Errors: UnknownNameError."""
    known = load_machines().machines
    if name in known:
        return name
    for measured, one in known.items():
        if one.catalogue == name:
            return measured
    raise UnknownNameError("measured chip", name, known, "numbers of single operators")


def number_format(name: str) -> Format:
    """A number format such as 'fp8_block'. Errors: UnknownNameError, InputError."""
    check_type("number format", name, str, "a name such as 'bf16'")
    known = load_machines().formats
    if name not in known:
        raise UnknownNameError("number format", name, known)
    return known[name]


def peak_flop_per_s(chip: str, dtype: str) -> float:
    """Dense peak of products in a number format.

    Errors: MissingFigureError where the chip has none; UnknownNameError, InputError for a name that is none.
    """
    peaks, of = machine(chip).peak_tflop_per_s, number_format(dtype).peak
    if of not in peaks:
        raise MissingFigureError(
            f"{chip} has no {of} peak, which {dtype} needs; it has {', '.join(sorted(peaks))}"
        )
    return peaks[of] * 1e12


@cache
def load_law(law: str) -> LawFile:
    """The shipped numbers of a law. Errors: UnknownNameError for a law that is none, InputError for a bad file."""
    if law not in LAWS:
        raise UnknownNameError("law", law, LAWS)
    return checked(load_yaml(FOLDER / f"{law}.yaml", LawFile))


def checked(file: LawFile) -> LawFile:
    """Raises InputError where an entry has other numbers than its law."""
    wanted = {f.name for f in fields(LAWS[file.law])}
    needed = {f.name for f in fields(LAWS[file.law]) if f.default is MISSING}
    for case, entry in cases(file):
        names = set(entry.values)
        if not needed <= names <= wanted:
            raise InputError(
                f"{' '.join(case)} of law {file.law} has {', '.join(sorted(names))}; give "
                f"{', '.join(sorted(needed))} and of {', '.join(sorted(wanted - needed)) or 'no others'} what you like"
            )
    return file


def cases(file: LawFile) -> Iterator[tuple[tuple[str, str, str, str], Entry]]:
    """Every entry with its chip, engine, kernel and case."""
    for chip, engines in file.entries.items():
        for engine, kernels in engines.items():
            for kernel, entries in kernels.items():
                for case, entry in entries.items():
                    yield (chip, engine, kernel, case), entry


def kernel_rates(law: str, chip: str, case: str, engine: str = ANY, kernel: str = ANY) -> Found:
    """The numbers of a law for a chip, and whose they are.

    Args:
        law: one of `LAWS`. chip: as in `machine`, or any chip of a law without peaks.
        case: what the law is fitted for: a number format, 'bf16/fp8 causal', 'all_reduce 8'.
        engine, kernel: as measurements name them; those that were not measured give way to all together.

    Raises:
        UnknownNameError: no such law, or a chip that neither was measured nor has a family that was.
        MissingFigureError: the chip is known, the case was measured neither on it nor on its family.
    """
    for what, name in {"law": law, "chip": chip, "case": case, "engine": engine, "kernel": kernel}.items():
        check_type(what, name, str, "a name")
    return find(load_law(law), chip, case, engine, kernel)


def find(
    file: LawFile, chip: str, case: str, engine: str = ANY, kernel: str = ANY, *, itself: bool = True
) -> Found:
    """As `kernel_rates`, of a given file; `itself=False` leaves the chip's own numbers out."""
    if chip not in file.entries or chip in load_machines().machines:
        chip = machine_name(chip)
    family = load_machines().machines[chip].family if chip in load_machines().machines else ()
    near = ((chip,) if itself else ()) + family
    for by, of in ((engine, kernel), (engine, ANY), (ANY, ANY)):
        for one in near:
            if (at := _at(file.entries.get(one, {}), by, of, case)) is not None:
                return _found(file, at[1], (chip, engine, kernel), (one, *at[0]))
    known = sorted(
        {c for one in near for e in file.entries.get(one, {}).values() for k in e.values() for c in k}
    )
    raise MissingFigureError(
        f"law {file.law} was measured for {shown(case)} neither on {chip} nor on its family "
        f"({', '.join(family) or 'none'}); measured there: {', '.join(known) or 'nothing'}"
    )


def _at(
    engines: dict[str, dict[str, dict[str, Entry]]], engine: str, kernel: str, case: str
) -> tuple[tuple[str, str], Entry] | None:
    """The entry of a case, under its engine and kernel; of any where all were fitted together or there is but one."""
    have = {
        (by, of): entries[case]
        for by, kernels in engines.items()
        for of, entries in kernels.items()
        if case in entries and engine in (by, ANY) and kernel in (of, ANY)
    }
    if (engine, kernel) in have:
        return (engine, kernel), have[engine, kernel]
    return next(iter(have.items())) if len(have) == 1 else None


def _found(file: LawFile, entry: Entry, asked: tuple[str, ...], got: tuple[str, ...]) -> Found:
    wanted, whose = (" ".join(place).replace(f"{ANY} {ANY}", "all kernels") for place in (asked, got))
    same = all(a in (g, ANY) for a, g in zip(asked, got, strict=True))
    inherited = "" if same else f"numbers of {whose}; {wanted} was not measured"
    own = entry.band if entry.band is not None else file.family_band
    band = max(own, file.family_band) if asked[0] != got[0] else own
    return Found(LAWS[file.law](**entry.values), band, entry.rows, inherited, entry.loose)
