"""calibrate(): the efficiency file that a trace gives, with only the numbers that it tells.

    matmul     seconds of products at their peak, bent by m0 and n0 as the cost model bends them, over measured seconds; of
               bf16 and fp16 products that FLOPs bound
    attention  FLOPs of attention kernels at the bf16 peak over measured seconds; a causal kernel's half only
    hbm        bytes of elementwise operations at the peak rate over measured seconds
    scale_up, scale_out, host_link   bytes sent at the peak rate over measured seconds
    overlap    hidden seconds of a class over all of its seconds

Only operations of at least 10 us count: shorter ones are mostly launch and tail. A collective's seconds hold the wait for the
slowest rank, and a class can hide no more than there is compute: link shares and overlaps are what was reached, not what can be.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from meshwright.costmodel.doors import ChipSource, ModelSource
from meshwright.costmodel.estimate import digits
from meshwright.costmodel.operators import product_s
from meshwright.costmodel.setting import COMM_CLASSES, Rates
from meshwright.hardware.calibration import EfficiencyFile, efficiency_names, load_efficiency
from meshwright.hardware.chip import Chip
from meshwright.hardware.errors import InputError, check_type
from meshwright.optimizer.files import check_output, replacing
from meshwright.optimizer.plan import SCHEMA_VERSION, Priced
from meshwright.optimizer.traces.against import Against, against
from meshwright.optimizer.traces.events import Event, Trace
from meshwright.optimizer.traces.measure import Measured, measured
from meshwright.optimizer.traces.planned import HOST_LINK, SCALE_OUT, SCALE_UP
from meshwright.optimizer.traces.read import read_trace
from meshwright.optimizer.traces.stream import TraceError

LEAST_S = 10e-6
_BASE = "default"


@dataclass(frozen=True)
class Reached:
    """One number of an efficiency file.

    Attributes:
        name: its key; of overlap `overlap.fsdp`. share: in (0, 1], of overlap from 0.
        count: operations behind it. low, high: the middle 80% of them lie between; None of overlap.
    """

    name: str
    share: float
    count: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Calibration:
    """What a trace tells of one chip.

    Attributes:
        hardware: what the trace calls its device. reached: numbers that are told. silent: those that are not, with the reason.
    """

    trace: str
    maker: str
    chip: str
    device: str
    hardware: str
    steps: int
    reached: tuple[Reached, ...]
    silent: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        out: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **vars(self)}
        numbers = {
            r.name: {k: digits(v) if isinstance(v, float) else v for k, v in vars(r).items() if k != "name"}
            for r in self.reached
        }
        return out | {"reached": numbers}

    def to_yaml(self, name: str) -> str:
        """An efficiency file of that name, with count and spread beside every number."""
        of = f" of {self.hardware}" if self.hardware else ""
        source = f"meshwright calibrate {Path(self.trace).name}: {self.maker}, {self.steps} steps, {self.device}{of}"
        lines = [
            f"# Shares of the peaks of {self.chip} that one trace reached; what it does not tell stays as in {_BASE}.",
            "# In brackets: operations of at least 10 us behind a number, and the range of the middle 80% of them.",
            *yaml.safe_dump(
                {"name": name, "provenance": source, "extends": _BASE}, sort_keys=False, width=1000
            ).splitlines(),
            "chips:",
            f"  {self.chip}:",
        ]
        lines += [f"    {r.name}: {r.share:.4g}  # {_behind(r)}" for r in self.reached if "." not in r.name]
        if inner := [r for r in self.reached if "." in r.name]:
            lines.append("    overlap:")
            lines += [f"      {r.name.partition('.')[2]}: {r.share:.4g}  # {_behind(r)}" for r in inner]
        lines += [f"# {name}: {reason}" for name, reason in self.silent.items()]
        return "\n".join(lines) + "\n"


def _behind(reached: Reached) -> str:
    if reached.low is None or reached.high is None:
        return f"[{reached.count}]"
    return f"[{reached.count}; {reached.low:.3g} to {reached.high:.3g}]"


def calibrate(
    trace: Trace | str | PathLike[str],
    *,
    plan: Priced | None = None,
    chip: ChipSource | None = None,
    steps: int | None = None,
    model: ModelSource | None = None,
    efficiency: str | None = None,
) -> Calibration:
    """The shares of a chip's peaks that a trace reached; see the module docstring, arguments as `profile`.

    Errors: TraceError as `read_trace`, where no steps are found, where a share is above 1, and where the trace tells no
    number at all; InputError as `against`.
    """
    held = against(chip, plan, model=model, efficiency=efficiency)
    read = trace if isinstance(trace, Trace) else read_trace(trace)
    found = measured(read, held.label, steps)
    if held.foreign(found.device):
        raise TraceError(
            f"{read.path} has operations of {found.device}, none of {held.chip.name}; profile where that chip is"
            + (", with ProfilerActivity.CUDA" if read.maker == "torch" else "")
        )
    reached, silent = [], {}
    for name, pairs, reason in (
        (
            "matmul",
            _products(found, held.chip),
            "no product in bf16 or fp16 with known sizes that FLOPs bound",
        ),
        ("attention", _attention(found, held), "no attention kernel with known sizes"),
        ("hbm", _memory(found, held), "no elementwise operation with known bytes"),
        (SCALE_UP, _link(found, held, SCALE_UP), "no collective whose bytes and place are known on it"),
        (SCALE_OUT, _link(found, held, SCALE_OUT), "no collective whose bytes and place are known on it"),
        (HOST_LINK, _link(found, held, HOST_LINK), "no copy with known bytes, or no rate of the chip's link"),
    ):
        if pairs:
            reached.append(_reached(read.path, held.chip, name, pairs))
        else:
            silent[name] = reason
    overlaps = _overlaps(found, held)
    reached += overlaps
    if not overlaps:
        silent["overlap"] = "no communication whose class is known"
    if not reached:
        told = "; ".join(f"{name}: {reason}" for name, reason in silent.items())
        raise TraceError(f"{read.path} tells no number for an efficiency file: {told}")
    return Calibration(
        read.path,
        read.maker,
        held.chip.name,
        found.device,
        read.hardware,
        found.steps,
        tuple(reached),
        silent,
    )


Pairs = list[tuple[float, float]]  # (seconds at peak, measured seconds)


def _reached(path: str, chip: Chip, name: str, pairs: Pairs) -> Reached:
    floor, seconds = (sum(column) for column in zip(*pairs, strict=True))
    share = floor / seconds
    if share > 1:
        raise TraceError(
            f"{path}: {name} would be {share:.4g} of peak, above 1: what takes {floor:.4g} s at the peak of {chip.name} took "
            f"{seconds:.4g} s; name the chip that the trace is of, and profile in its dtype"
        )
    low, high = np.quantile([at_peak / took for at_peak, took in pairs], (0.1, 0.9))
    return Reached(name, share, len(pairs), float(low), float(high))


def _long(found: Measured, wanted: Callable[[Event], bool]) -> Iterable[tuple[Event, float]]:
    pairs = zip(found.events, found.own_s, strict=True)
    return ((event, own) for event, own in pairs if own >= LEAST_S and wanted(event))


def _products(found: Measured, chip: Chip) -> Pairs:
    rates, out = _peak_rates(chip), []
    for event, own in _long(found, lambda e: e.kind == "matmul" and e.dtype in ("bf16", "fp16")):
        if event.dtype not in chip.peak or not event.flops:
            continue
        peak = chip.peak_flop_per_s(event.dtype)
        if len(event.shape) >= 3:
            many = event.shape[0] if len(event.shape) == 4 else 1
            m, k, n = (np.array(float(size)) for size in event.shape[-3:])
            seconds = many * float(product_s(rates, m, k, n, peak))
            bound = float(product_s(replace(rates, hbm_bytes_per_s=np.inf), m, k, n, peak)) * many
        else:  # XLA tells FLOPs and bytes without sizes
            bound = event.flops / peak
            seconds = max(bound, (event.moved_bytes or 0.0) / chip.hbm_bytes_per_s)
        if bound >= seconds:
            out.append((seconds, own))
    return out


def _peak_rates(chip: Chip) -> Rates:
    """Peak rates, with what bends a product in the file that is extended; rates and bends of the same name are the same."""
    base = load_efficiency(_BASE, chip)
    known = {"m0": base.matmul_m0, "n0": base.matmul_n0, "hbm_bytes_per_s": chip.hbm_bytes_per_s}
    return Rates(**{f.name: known.get(f.name, getattr(base, f.name, None)) for f in fields(Rates)})  # type: ignore[arg-type]


def _attention(found: Measured, held: Against) -> Pairs:
    if "bf16" not in held.chip.peak:
        return []
    peak = held.chip.peak_flop_per_s("bf16")
    return [
        (event.flops / peak, own)
        for event, own in _long(found, lambda e: e.kind == "attention" and e.dtype in ("bf16", "fp16"))
        if event.flops
    ]


def _memory(found: Measured, held: Against) -> Pairs:
    long = _long(found, lambda e: e.kind == "elementwise")
    return [(floor, own) for event, own in long if (floor := held.hbm_floor(event))]


def _link(found: Measured, held: Against, link: str) -> Pairs:
    out = []
    for event in found.events:
        if not event.computes and event.seconds >= LEAST_S:
            told = held.link_floor(event)
            if told is not None and told[0] == link:
                out.append((told[1], event.seconds))
    return out


def _overlaps(found: Measured, held: Against) -> list[Reached]:
    out = []
    for name in COMM_CLASSES:
        hidden = found.spent.hidden.get(name, 0.0)
        total = hidden + found.spent.exposed.get(name, 0.0)
        count = sum(not e.computes and held.label(e) == name for e in found.events)
        if total > 0:
            out.append(Reached(f"overlap.{name}", min(1.0, hidden / total), count))
    return out


def check_place(path: str | PathLike[str]) -> Path:
    """Where an efficiency file would be written. Errors: InputError where it cannot be one, or is called as a shipped one."""
    real = check_output(path)
    if real.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(f"an efficiency file is YAML; write {fspath(path)[:80]!r} as .yaml")
    if real.stem in efficiency_names():
        raise InputError(
            f"{real.stem} is the name of a shipped efficiency; write to another file, like mine.yaml"
        )
    return real


def save_calibration(made: Calibration, path: str | PathLike[str]) -> str:
    """Write it as an efficiency file, called as the file is; returns that name. Errors: InputError as `check_place`."""
    check_type("calibration", made, Calibration, "what calibrate returns")
    real = check_place(path)
    text = made.to_yaml(real.stem)
    EfficiencyFile.model_validate(yaml.safe_load(text))  # what is written is read
    with replacing(real) as part:
        part.write_text(text, encoding="utf-8")
    return real.stem
