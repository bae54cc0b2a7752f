"""Precision corrections: low precision as fewer parameters, laid over the law that reads them. None is a law."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from meshwright.hardware.errors import UnknownNameError, check_type
from meshwright.hardware.figures import Strict, load_yaml
from meshwright.search.law_columns import Column, Columns, Confidence, LawError, Positive, Precision, Range
from meshwright.search.law_forms import Array

_DATA = Path(__file__).parent / "data" / "corrections"


class AfterTraining(Strict):
    """Loss added by rounding weights after training: scale * D^tokens / N^parameters * exp(-bits_of_weights/bits)."""

    scale: Positive
    tokens: Positive
    parameters: Positive
    bits: Positive


class Correction(Strict):
    """Low precision as fewer parameters, N_eff = N * prod(1 - exp(-bits/gamma)); it corrects a law and is none."""

    name: str
    title: str
    source: str
    confidence: Confidence
    weights: Positive
    activations: Positive
    kv: Positive
    after_training: AfterTraining
    box: dict[str, Range]
    notes: tuple[str, ...] = ()

    def kept(self, weights: Column = None, activations: Column = None, kv: Column = None) -> Array:
        """Share of the parameters that training at these bits leaves; None is full precision, which keeps all."""
        given = zip((weights, activations, kv), (self.weights, self.activations, self.kv), strict=True)
        share = np.asarray(1.0)
        for bits, gamma in given:
            if bits is not None:
                share = share * -np.expm1(-read_bits(bits) / gamma)
        return share

    def on(
        self, columns: Columns, weights: Column = None, activations: Column = None, kv: Column = None
    ) -> Columns:
        """Columns whose parameters a law will read as the effective ones.

        Errors: LawError where no bits are given, or the columns are corrected already.
        """
        bits = tuple(read_bits(b) for b in (weights, activations, kv) if b is not None)
        if not bits:
            raise LawError(f"{self.name} needs bits of weights, activations or kv; give at least one")
        if columns.precision is not None:
            raise LawError(f"these columns are corrected for precision already, by {columns.precision.by}")
        kept = self.kept(weights, activations, kv)
        return replace(columns, precision=Precision(self.name, kept, bits, self.box))

    def added_after_training(self, parameters: Column, tokens: Column, bits: Column) -> Array:
        """Loss that rounding the weights of a trained model to so many bits adds."""
        k = self.after_training
        size, data = np.asarray(parameters, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
        return np.asarray(k.scale * data**k.tokens / size**k.parameters * np.exp(-read_bits(bits) / k.bits))


@cache
def correction_names() -> tuple[str, ...]:
    """Names of the precision corrections that ship with the package."""
    return tuple(sorted(path.stem for path in _DATA.glob("*.yaml")))


def load_correction(name: str) -> Correction:
    """A shipped precision correction.

    Errors: UnknownNameError with near names.
    """
    check_type("a precision correction", name, str, "its name")
    if name.strip().lower() not in correction_names():
        raise UnknownNameError("precision correction", name, correction_names())
    return load_yaml(_DATA / f"{name.strip().lower()}.yaml", Correction)


def read_bits(bits: Column) -> Array:
    column = np.asarray(bits, dtype=np.float64)
    if not (np.isfinite(column) & (column > 0)).all():
        raise LawError("bits of a number must be finite and above 0")
    return column
