"""What is inside a chip: matrix and vector units, clocks and memories, and the rates that follow from them.

Figures are in data/onchip.yaml, each with its source; what no source gives is None and never guessed.
Arithmetic: jax-ml/scaling-book, chapters 2 and 12.
"""

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import TypeVar

from meshwright.hardware.errors import MissingFigureError
from meshwright.hardware.figures import (
    DATA,
    BytesFigure,
    CountFigure,
    Figure,
    HertzFigure,
    RateFigure,
    RatioFigure,
    Strict,
    load_yaml,
)

SUBLANES, LANES = 8, 128  # of a TPU's vector unit and registers, in every generation
WORD = 4  # bytes of one lane of a register, of a TPU and of a GPU
SUBPARTITIONS, WARP = 4, 32  # of an SM, each with its own registers and `WARP` vector lanes
FASTEST_CLOCK = 3e9  # of any accelerator here; the fastest listed is 2.1 GHz
SM_REGISTERS = 256 * 2**10  # bytes, in every generation since V100


class ShapeFigure(Figure):
    """Sides like '2x2x1'; si is their product."""

    @property
    def sides(self) -> tuple[int, ...]:
        return tuple(int(side) for side in self.text.split("x"))

    @property
    def si(self) -> float:
        return prod(self.sides)


class TpuUnits(Strict):
    """Units of one TPU chip."""

    cores: CountFigure
    mxus_per_core: CountFigure
    mxu_side: CountFigure
    clock: HertzFigure | None = None
    host_slice: ShapeFigure | None = None
    alus_per_lane: CountFigure | None = None
    vregs_per_core: CountFigure | None = None
    vmem: BytesFigure | None = None
    vmem_over_hbm: RatioFigure | None = None

    @property
    def mxus(self) -> int:
        return self.cores.count * self.mxus_per_core.count

    @property
    def vector_alus(self) -> int | None:
        """Of the whole chip."""
        if self.alus_per_lane is None:
            return None
        return self.cores.count * tpu_alus(SUBLANES * LANES, self.alus_per_lane.count)


class GpuUnits(Strict):
    """Units of one GPU. `flop_per_cycle` is of one tensor core at bf16; `tensor_clock` is behind the listed peak."""

    sms: CountFigure
    tensor_cores_per_sm: CountFigure
    flop_per_cycle: CountFigure | None = None
    clock: HertzFigure | None = None
    boost_clock: HertzFigure | None = None
    tensor_clock: HertzFigure | None = None
    smem_per_sm: BytesFigure | None = None
    tmem_per_sm: BytesFigure | None = None
    l2: BytesFigure | None = None
    l2_rate: RateFigure | None = None

    @property
    def vector_alus(self) -> int:
        return gpu_alus(self.sms.count)


class _Table(Strict):
    tpus: dict[str, TpuUnits]
    gpus: dict[str, GpuUnits]


@cache
def _table() -> _Table:
    return load_yaml(DATA / "onchip.yaml", _Table)


def tpu_units(chip: str) -> TpuUnits:
    """Units of a TPU by its own name. Errors: MissingFigureError."""
    return _found(chip, _table().tpus, "MXUs, VMEM or vector units")


def gpu_units(chip: str) -> GpuUnits:
    """Units of a GPU by its own name. Errors: MissingFigureError."""
    return _found(chip, _table().gpus, "SMs or tensor cores")


def units_of(chip: str) -> TpuUnits | GpuUnits | None:
    """Units of a chip, or None where no source describes them."""
    return _table().tpus.get(chip) or _table().gpus.get(chip)


_Units = TypeVar("_Units", TpuUnits, GpuUnits)


def _found(chip: str, known: dict[str, _Units], what: str) -> _Units:
    if chip not in known:
        raise MissingFigureError(f"no source gives {what} of {chip}; they are known of {', '.join(known)}")
    return known[chip]


def mxu_flop_per_cycle(side: int) -> float:
    """A systolic array multiplies 8 rows with a [side, side] matrix every 8 cycles."""
    return 2.0 * side * side


def mxu_flop_per_s(side: int, clock_hz: float, mxus: int = 1) -> float:
    """Peak of `mxus` systolic arrays."""
    return mxu_flop_per_cycle(side) * clock_hz * mxus


def mxu_clock_hz(flop_per_s: float, side: int, mxus: int) -> float:
    """The clock behind a peak."""
    return flop_per_s / (mxu_flop_per_cycle(side) * mxus)


def tpu_alus(lanes: int, alus_per_lane: int) -> int:
    """Vector ALUs of one core."""
    return lanes * alus_per_lane


def gpu_alus(sms: int, subpartitions: int = SUBPARTITIONS, lanes: int = WARP) -> int:
    """Vector ALUs of a GPU ("CUDA cores")."""
    return sms * subpartitions * lanes


def vector_flop_per_s(alus: float, clock_hz: float) -> float:
    """One operation per ALU and cycle; a fused multiply-add would count twice."""
    return alus * clock_hz


def vector_clock_hz(flop_per_s: float, alus: float, fused: bool = False) -> float:
    """The clock behind a vector rate; `fused` where the rate counts a multiply-add as two."""
    return flop_per_s / (alus * (2.0 if fused else 1.0))


def counts_fused(flop_per_s: float, alus: float) -> bool:
    """Whether a published vector rate counts a multiply-add as two: at one per cycle its clock would be too fast."""
    return vector_clock_hz(flop_per_s, alus) > FASTEST_CLOCK


def gpu_with_alus(alus: int) -> str:
    """The first GPU that has so many vector ALUs. Errors: MissingFigureError."""
    for name, units in _table().gpus.items():
        if units.vector_alus == alus:
            return name
    raise MissingFigureError(f"no GPU is known with {alus:,} vector ALUs")


def tensor_flop_per_cycle(flop_per_s: float, sms: int, tensor_cores_per_sm: int, clock_hz: float) -> float:
    """FLOPs of one tensor core per cycle behind a peak."""
    return flop_per_s / (sms * tensor_cores_per_sm * clock_hz)


def tensor_flop_per_s(sms: int, tensor_cores_per_sm: int, flop_per_cycle: float, clock_hz: float) -> float:
    """Peak from units and clock."""
    return sms * tensor_cores_per_sm * flop_per_cycle * clock_hz


def tensor_clock_hz(flop_per_s: float, sms: int, tensor_cores_per_sm: int, flop_per_cycle: float) -> float:
    """The clock behind a peak."""
    return flop_per_s / (sms * tensor_cores_per_sm * flop_per_cycle)


def padded(size: int, multiple: int) -> int:
    """A size as hardware holds it: the next multiple."""
    return -(-size // multiple) * multiple


def padded_elements(shape: Sequence[int], tile: Sequence[int]) -> int:
    """Elements that an array takes in memory laid out in tiles over its last dimensions."""
    whole = len(shape) - len(tile)
    return prod(shape[:whole]) * prod(padded(d, t) for d, t in zip(shape[whole:], tile, strict=True))


def register_bytes(registers: int, lanes: int, word: int = WORD) -> int:
    """Bytes of a register file: of vector registers (lanes each) or of a sub-partition's words."""
    return registers * lanes * word


def resident_warps(registers: int, per_thread: int, warp: int = WARP) -> int:
    """Warps whose registers fit into one sub-partition, each thread holding `per_thread`."""
    return registers // (per_thread * warp)


def sm_bytes(sms: int, *per_sm: float) -> float:
    """Memories of all SMs together: shared memory, registers."""
    return sms * sum(per_sm)
