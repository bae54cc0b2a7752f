"""Token rates of many cases at once: the cost model's own operators over columns of cases."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_accuracy.cases import Case
from meshwright.costmodel.inference.request import Pass
from meshwright.costmodel.inference.seconds import Machine, operator_s
from meshwright.costmodel.inference.work import Work, ends_work, layer_work
from meshwright.hardware.inference_rates import PhaseRates, RatesFile, rates_of

Floats = NDArray[np.float64]
Place = tuple[int, str]  # part of the stack, operator


@dataclass(frozen=True)
class Columns:
    """Cases as columns [R]: work of a whole pass by operator, and what the machines are."""

    cases: tuple[Case, ...]
    prefill: dict[Place, Work]
    decode: dict[Place, Work]
    layers: Floats
    prompt: Floats
    output: Floats
    peak_flop_per_s: Floats
    bytes_per_s: Floats
    is_prefill: NDArray[np.bool_]
    folded: NDArray[np.bool_]
    rate: Floats

    @staticmethod
    def of(cases: Sequence[Case]) -> "Columns":
        def column(values: Sequence[float]) -> Floats:
            return np.array(values, np.float64)

        return Columns(
            tuple(cases),
            _stacked([_work(c, c.request.prefill) for c in cases]),
            _stacked([_work(c, c.request.decode) for c in cases]),
            column([c.model.layers for c in cases]),
            column([c.request.prompt for c in cases]),
            column([c.request.output for c in cases]),
            np.minimum(column([c.machine.peak_flop_per_s for c in cases]), 1e30),  # unknown: bytes alone bind
            column([c.machine.bytes_per_s for c in cases]),
            np.array([c.phase == "prefill" for c in cases]),
            np.array([c.folded for c in cases]),
            column([c.rate for c in cases]),
        )


def token_rates(columns: Columns, rates: RatesFile | None, *, measured: bool = False) -> Floats:
    """Tokens/s of every case: of the prompt, of decode, or of the whole request where prefill is folded in.

    Args:
        rates: None for the bare roofline.
        measured: let devices that the rates were fitted on have their own speed.
    """
    if rates is None:
        machines = [Machine(columns.peak_flop_per_s, columns.peak_flop_per_s, columns.bytes_per_s)] * 2
    else:
        reached = [
            rates_of(
                rates, c.machine.kind, c.engine, c.machine.bytes_per_s, weight_bits=c.bits, head_dim=c.head_dim,
                device=c.machine.key if measured else None,
            )
            for c in columns.cases
        ]  # fmt: skip
        peaks = (columns.peak_flop_per_s, columns.peak_flop_per_s, columns.bytes_per_s)
        machines = [
            Machine.reached(_column([getattr(r, phase) for r in reached]), *peaks)
            for phase in ("prefill", "decode")
        ]
    prefill_s, token_s = (
        sum(operator_s(name, work, machine) for (_, name), work in works.items())
        + columns.layers * machine.layer_s
        for works, machine in zip((columns.prefill, columns.decode), machines, strict=True)
    )
    request_s = np.where(columns.folded, prefill_s, 0.0) + columns.output * token_s
    out: Floats = np.where(columns.is_prefill, columns.prompt / prefill_s, columns.output / request_s)
    return out


def _column(phases: list[PhaseRates]) -> PhaseRates:
    columns: list[Any] = [np.array([getattr(p, field.name) for p in phases]) for field in fields(PhaseRates)]
    return PhaseRates(*columns)


def _work(case: Case, p: Pass) -> dict[Place, Work]:
    """Of the ends (part -1) and of all layers of each part, by operator."""
    out = {(-1, name): work for name, work in ends_work(case.stack, p).items()}
    for part, (layers, kind) in enumerate(case.stack.parts):
        for name, work in layer_work(kind, p).items():
            out[part, name] = Work(*(layers * getattr(work, field.name) for field in fields(Work)))
    return out


def _stacked(works: list[dict[Place, Work]]) -> dict[Place, Work]:
    places = dict.fromkeys(place for work in works for place in work)
    return {
        place: Work(
            *(
                np.array([float(getattr(work.get(place, Work()), f.name)) for work in works])
                for f in fields(Work)
            )
        )
        for place in places
    }
