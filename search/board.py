"""A single device as a search sees it: by name, at the rates of an efficiency file, with what was assumed."""

from dataclasses import dataclass

from meshwright.costmodel.doors import ClusterSource, check_positive, cluster_of
from meshwright.costmodel.inference.seconds import Device
from meshwright.costmodel.roofline.operands import parse_dtype
from meshwright.costmodel.working import Step
from meshwright.hardware.calibration import load_efficiency
from meshwright.hardware.chip import ELEMENT_BYTES, Chip, is_chip, load_chip
from meshwright.hardware.errors import InputError, MissingFigureError, check_type
from meshwright.hardware.figures import Figure
from meshwright.hardware.inference_rates import InferenceRates, is_inference_rates, load_inference_rates

_IDEAL = (
    "ideal rates: times are floors; published runs reach 0.31 to 0.87 of the bandwidth (--efficiency edge)"
)
_HALF = ("fp16", "bf16")  # what products run in where nobody says; both are 16 bits wide


@dataclass(frozen=True)
class Board:
    """A device and where its rates come from.

    Attributes:
        compute: dtype of the products. weights: dtype of the stored weights. efficiency: name of the rates.
        notes: sentences on what was assumed.
    """

    name: str
    chip: Chip
    device: Device
    compute: str
    weights: str
    efficiency: str
    notes: tuple[str, ...]

    def given(self) -> dict[str, Step]:
        """Rates and memory as an answer states them."""
        chip, device = self.chip, self.device
        peak, bandwidth = chip.peak[self.compute], chip.memory.bandwidth  # type: ignore[index]
        held = chip.memory.capacity.source
        if device.memory_bytes != chip.memory_bytes:
            held = "as given"
        elif chip.memory_warning:
            held = f"nominal, no source gives what is usable; {held}"
        return {
            "C": _reached(device.prefill.flop_per_s, "FLOP/s", peak, self.compute),
            "W": _reached(device.decode.bytes_per_s, "B/s", bandwidth, ""),
            "memory": Step(device.memory_bytes, "B", "", held),
            "rates": Step(self.efficiency),
        }


def board_of(
    cluster: ClusterSource,
    *,
    compute: str | None = None,
    weights: str = "bf16",
    efficiency: str = "ideal",
    memory_bytes: float | None = None,
    otherwise: str = "",
) -> Board:
    """The one device of that name, such as 'jetson-agx-orin-64gb' or 'h100', with memory as given or its own.

    compute: dtype whose peak products run at; fp16 where None and the device has it, else bf16. Weights of fewer bits
    are then widened as they are read.

    otherwise: what else the caller may do with several devices, for the message.

    Errors: ClusterError, UnknownNameError; InputError for more than one device or weights wider than the products;
    MissingFigureError where no source lists the peak.
    """
    check_type("efficiency", efficiency, str, "a name such as 'ideal', or the path of a YAML file")
    check_positive(memory_bytes=memory_bytes)
    title, chip = _single(cluster, otherwise)
    stored = parse_dtype(weights)
    dtype = _products(chip) if compute is None else parse_dtype(compute)
    chip.peak_flop_per_s(dtype)  # a peak that no source lists is refused
    if ELEMENT_BYTES[stored] > ELEMENT_BYTES[dtype]:
        raise InputError(
            f"products in {dtype} cannot take weights of {stored}, which are wider; store them in {dtype} or narrower, "
            f"or compute in {_products(chip)}"
        )
    if is_inference_rates(efficiency):
        rates = load_inference_rates(efficiency, chip, weight_bits=8 * ELEMENT_BYTES[stored])
        device, name, notes = Device.of(chip, dtype, rates), rates.name, _measured(rates)
    else:
        shares = load_efficiency(efficiency, chip)
        device, name, notes = Device.of(chip, dtype, shares), shares.name, [_IDEAL, *shares.notes]
        if name != "ideal":
            notes[0] = f"rates of {name}: {shares.provenance}"
    if memory_bytes is not None:
        device = device.holding(float(memory_bytes))
    return Board(title, chip, device, dtype, stored, name, (*notes, *_width_notes(stored, dtype)))


def _single(cluster: ClusterSource, otherwise: str) -> tuple[str, Chip]:
    """Name and chip of one device: a board, a cluster of one, or a chip by its bare name."""
    if isinstance(cluster, str) and is_chip(cluster.strip()):
        chip = load_chip(cluster.strip())
        return chip.name, chip
    found = cluster_of(cluster)
    if found.devices != 1:
        raise InputError(
            f"{found.name} has {found.devices} devices, this is asked of one; name a single device, such as "
            f"{found.chip.name}{otherwise}"
        )
    return found.name, found.chip


def _measured(rates: InferenceRates) -> list[str]:
    """How far the rates are known to miss."""
    phases = {"decode": rates.decode, "prefill": rates.prefill}
    within = " and ".join(
        f"a factor {1 + phase.band:.2f} in {name} ({phase.rows} rows)"
        for name, phase in phases.items()
        if phase.rows
    )
    unmeasured = [
        f"no measured row of this kind in {name}: its rates are priors"
        for name, p in phases.items()
        if not p.rows
    ]
    bands = [f"80% of measured times lie within {within}, their devices left out"] if within else []
    return [*bands, *unmeasured, *rates.notes]


def _reached(rate: float, unit: str, figure: Figure, dtype: str) -> Step:
    """A rate, the peak behind it where less is reached, and the source of that."""
    of = f"of {figure.text}" if rate != figure.si else ""
    return Step(rate, unit, "", "; ".join(filter(None, (dtype, of, figure.source))))


def _products(chip: Chip) -> str:
    for dtype in _HALF:
        if dtype in chip.peak:
            return dtype
    listed = (
        f"it has {', '.join(chip.peak)}: name one with --compute" if chip.peak else "only its memory is known"
    )
    raise MissingFigureError(f"no source lists an fp16 or bf16 peak for {chip.name}; {listed}")


def _width_notes(stored: str, dtype: str) -> list[str]:
    notes = []
    if ELEMENT_BYTES[dtype] < ELEMENT_BYTES["bf16"]:
        notes.append(
            f"products run in {dtype}, activations are narrowed for them; attention's scores stay in 16 bits"
        )
    if ELEMENT_BYTES[stored] < ELEMENT_BYTES[dtype]:
        notes.append(
            f"weights of {stored} are widened as they are read and multiplied in {dtype} (weight-only); "
            f"--compute {stored} has products in {stored} where the device lists such a peak"
        )
    return notes
