"""What one chip can do at most: FLOP/s by dtype, and bytes/s from each place its operands may come from.

    hbm      the chip's own memory
    vmem     on-chip memory of a TPU, at the published ratio to HBM
    l2       the cache of a GPU
    host     over the host link (PCIe, or the CPU's link)
    network  inside slice or domain: one wrapped torus axis, both directions; or all NVLink egress
    dcn      out of slice or domain: this chip's share of the NICs

Rates are of a whole chip. Sources: the figures' own.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.costmodel.collectives import Network, axis_rate
from meshwright.hardware.chip import Chip, Torus
from meshwright.hardware.errors import MissingFigureError, UnknownNameError, check_type
from meshwright.hardware.figures import Figure
from meshwright.hardware.network import TorusAxis
from meshwright.hardware.onchip import SUBLANES, TpuUnits, gpu_units, tpu_units, units_of, vector_flop_per_s

_PLACES = {
    "hbm": "HBM", "vmem": "VMEM", "l2": "L2", "host": "host link", "network": "network", "dcn": "scale-out network",
}  # fmt: skip
SOURCES = tuple(_PLACES)
_SHORT = 45  # characters of a note that a line still takes
LINKS = ("host", "network", "dcn")  # operands that come over these pass through HBM


@dataclass(frozen=True)
class Ceiling:
    """A rate with what it is and where the figure comes from."""

    name: str
    per_s: float
    note: str = ""


def peak(chip: Chip, dtype: str) -> Ceiling:
    """FLOP/s of a chip's matrix units. Errors: MissingFigureError naming the dtypes it has."""
    rate = chip.peak_flop_per_s(dtype) * chip.devices_per_chip
    return Ceiling(f"{dtype} peak", rate, cited(chip.peak[dtype]))  # type: ignore[index]


def vector_peak(chip: Chip) -> Ceiling:
    """FLOP/s of a chip's vector units, one operation per ALU and cycle.

    Errors: MissingFigureError where no source gives ALUs or clock.
    """
    units = units_of(chip.name)
    clock = None
    if units is not None:
        clock = units.clock if isinstance(units, TpuUnits) else units.boost_clock
    if units is None or clock is None or units.vector_alus is None:
        raise MissingFigureError(
            f"no source gives vector ALUs and their clock of {chip.name}; give the rate, like --peak '7 TFLOP/s'"
        )
    rate = vector_flop_per_s(units.vector_alus, clock.si)
    return Ceiling("vector peak", rate, f"{units.vector_alus:,} ALUs x {clock.text}, {clock.source}")


def given_rate(source: str, per_s: float) -> Ceiling:
    """A rate that the question gives, of a place of SOURCES. Errors: UnknownNameError."""
    check_type("source", source, str, "a place such as 'hbm'")
    if source not in _PLACES:
        raise UnknownNameError("source", source, SOURCES)
    return Ceiling(_PLACES[source], per_s, "given")


def source_rate(chip: Chip, source: str) -> Ceiling:
    """Bytes/s from a place of SOURCES.

    Errors: UnknownNameError; MissingFigureError where the chip has no such place or no source gives its rate.
    """
    readers = {
        "hbm": _hbm, "vmem": _vmem, "l2": _l2, "host": _host, "network": _network, "dcn": _dcn,
    }  # fmt: skip
    check_type("source", source, str, "a place such as 'hbm'")
    if source not in readers:
        raise UnknownNameError("source", source, SOURCES)
    return readers[source](chip)


def cited(figure: Figure) -> str:
    """Where a figure comes from, with its note where that is short (all of it: `meshwright chips`)."""
    return figure.source + (f"; {figure.note}" if 0 < len(figure.note) <= _SHORT else "")


def mxu_multiples(chip: Chip) -> tuple[int, int] | None:
    """Rows, and contracted and output columns, are padded to these; None where no source says so."""
    units = units_of(chip.name)
    return (SUBLANES, units.mxu_side.count) if isinstance(units, TpuUnits) else None


def _hbm(chip: Chip) -> Ceiling:
    return Ceiling("HBM", chip.hbm_bytes_per_s * chip.devices_per_chip, cited(chip.memory.bandwidth))


def _vmem(chip: Chip) -> Ceiling:
    if chip.family != "tpu":
        raise MissingFigureError(f"{chip.name} has no VMEM; ask for its cache with --from l2")
    ratio = tpu_units(chip.name).vmem_over_hbm
    if ratio is None:
        raise MissingFigureError(
            f"no source gives the VMEM rate of {chip.name}; give it, like --rate '20 TB/s'"
        )
    return Ceiling("VMEM", _hbm(chip).per_s * ratio.si, f"{ratio.text} x HBM, {cited(ratio)}")


def _l2(chip: Chip) -> Ceiling:
    if chip.family == "tpu":
        raise MissingFigureError(f"{chip.name} has no L2 cache; ask for its VMEM with --from vmem")
    rate = gpu_units(chip.name).l2_rate
    if rate is None:
        raise MissingFigureError(
            f"no source gives the L2 rate of {chip.name}; give it, like --rate '5.5 TB/s'"
        )
    return Ceiling("L2", rate.si, cited(rate))


def _host(chip: Chip) -> Ceiling:
    if chip.host_link is None:
        raise MissingFigureError(
            f"no source gives the host link of {chip.name}; give it, like --rate '16 GB/s'"
        )
    return Ceiling("host link", chip.host_link.si, cited(chip.host_link))


def _network(chip: Chip) -> Ceiling:
    if isinstance(chip.scale_up, Torus):
        link = chip.scale_up.per_link_one_way
        return Ceiling(
            "one ICI axis", ring_rate(link.si), f"2 x {link.text} one way on a ring; {cited(link)}"
        )
    if chip.is_board:
        raise MissingFigureError(f"{chip.name} is a board: no network joins it to another chip")
    figure = chip.scale_up.per_chip_one_way
    return Ceiling(chip.scale_up.kind, figure.si, f"egress of one chip; {cited(figure)}")


def ring_rate(link_bytes_per_s: float) -> float:
    """Bytes/s of a collective along one whole wrapped torus axis."""
    size = 4  # any ring; the rate does not depend on it
    ring = Network((TorusAxis("x", size, link_bytes_per_s, True, 0.0),), (1.0,))
    return float(axis_rate(ring, 0, np.array([size]), np.array([1])))


def _dcn(chip: Chip) -> Ceiling:
    figure = chip.scale_out.per_chip_one_way
    if chip.is_board:
        raise MissingFigureError(f"{chip.name} is a board: no network joins it to another chip")
    if figure is None:
        raise MissingFigureError(
            f"no source gives the scale-out rate of {chip.name}; give it, like --rate '6.25 GB/s'"
        )
    return Ceiling("scale-out network", figure.si, cited(figure))
