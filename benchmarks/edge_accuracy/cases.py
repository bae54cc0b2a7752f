"""Rows of a file of token rates as cases to price, or as refusals with their reason."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from edge_accuracy.classes import Machine, RefusedError, bits_of, classes, engine_of, machine_of
from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.stack import Stack
from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.readers import load_model
from meshwright.costmodel.textbook import textbook_model
from meshwright.hardware.errors import InputError, MeshwrightError
from meshwright.hardware.figures import yaml_fault
from meshwright.hardware.files import read_text
from meshwright.hardware.inference_rates import RatesFile

PHASES = ("decode", "prefill")
_LETTERS = ("d_model", "ffn", "layers", "heads", "kv_heads", "head_dim", "vocab")


@dataclass(frozen=True)
class Case:
    """One measurement. `rate` in tokens/s. `folded`: over the whole request, prompt included. `assumed`: its lengths."""

    id: str
    machine: Machine
    engine: str
    model: ModelSpec
    request: Request
    phase: str
    folded: bool
    assumed: bool
    rate: float

    @property
    def stack(self) -> Stack:
        return Stack.of(self.model)

    @property
    def bits(self) -> float:
        """Of the weights of products."""
        return 8 * self.request.weight_bytes

    @property
    def moe(self) -> bool:
        return any(kind.ffn.experts for kind in self.model.kinds)

    @property
    def head_dim(self) -> int:
        return max(kind.attention.qk_head_dim for kind in self.model.kinds)


@dataclass(frozen=True)
class Refusal:
    id: str
    reason: str
    text: str


def read_cases(path: Path, rates: RatesFile) -> tuple[list[Case], list[Refusal]]:
    """Every row, priced or refused.

    Errors: InputError where the file is not one of token rates; `rates` says which architectures are of which kind.
    """
    wanted = "a YAML file of token rates with models, devices and rows"
    try:
        raw = yaml.safe_load(read_text(path, wanted))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{path} is not valid YAML{yaml_fault(error)}; correct it there") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("rows"), list) or not raw["rows"]:
        raise InputError(f"{path} has no list of rows; give {wanted}")
    for block in ("models", "devices", "how_est_is_computed"):
        if not isinstance(raw.get(block, {}), dict):
            raise InputError(f"{block} of {path} is no mapping; give {wanted}")
    bits = raw.get("how_est_is_computed", {}).get("bits", {})
    raw["bits"] = bits if isinstance(bits, dict) else {}
    cases, refused = [], []
    for place, row in enumerate(raw["rows"]):
        name = str(row.get("id", f"row {place}")) if isinstance(row, dict) else f"row {place}"
        try:
            cases.append(_case(name, row, raw, rates))
        except RefusedError as why:
            refused.append(Refusal(name, why.reason, str(why)))
    return cases, refused


def _case(name: str, row: Any, file: Mapping[str, Any], rates: RatesFile) -> Case:
    if not isinstance(row, dict):
        raise RefusedError("row malformed", "a row is no mapping")
    texts = {key: row.get(key) for key in ("device", "model", "quant", "engine", "phase")}
    if missing := [key for key, value in texts.items() if not isinstance(value, str) or not value.strip()]:
        raise RefusedError("row malformed", f"{', '.join(missing)} missing or no text")
    rate = row.get("value")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise RefusedError("row malformed", f"value is {rate!r}, no rate above 0")
    if texts["phase"] not in PHASES or row.get("unit", "tokens/s") != "tokens/s":
        raise RefusedError("not a token rate of a phase", f"phase {texts['phase']}, unit {row.get('unit')}")
    if row.get("batch") not in (None, 1):
        raise RefusedError("batch above 1", f"batch {row['batch']!r}: the rates are those of one sequence")
    model = _model(str(texts["model"]), file.get("models", {}))
    body, head = bits_of(str(texts["quant"]), file["bits"])
    machine = machine_of(str(texts["device"]), file.get("devices", {}), rates)
    folded, prompt, output, assumed = _lengths(row)
    if machine.peak_flop_per_s == math.inf and (folded or texts["phase"] == "prefill"):
        raise RefusedError("no 16-bit peak", f"prefill on {machine.name} needs a peak that no source gives")
    request = Request(1, max(prompt, 1), max(output, 1), body / 8, 2, head / 8)
    return Case(
        name,
        machine,
        engine_of(str(texts["engine"])),
        model,
        request,
        str(texts["phase"]),
        folded,
        assumed,
        float(rate),
    )


def _lengths(row: Mapping[str, Any]) -> tuple[bool, int, int, bool]:
    """Whether prefill is in the average, tokens in and out, and whether those are assumed. Errors: RefusedError."""
    known = classes()
    folded = row["phase"] == "decode" and (
        str(row.get("source")) in known["folded"] or known["folded_note"] in str(row.get("note", ""))
    )
    assumed = known["folded"].get(str(row.get("source")), known["unstated"]) if folded else known["unstated"]
    given = {"prompt": row.get("prompt_tokens"), "output": row.get("output_tokens")}
    for what, value in given.items():
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**30
        ):
            raise RefusedError("row malformed", f"{what} tokens are {value!r}")
    needed = ("prompt",) if row["phase"] == "prefill" else ("prompt", "output")
    lengths = {what: assumed[what] if value is None else value for what, value in given.items()}
    return folded, lengths["prompt"], lengths["output"], any(given[what] is None for what in needed)


def _model(name: str, models: Mapping[str, Any]) -> ModelSpec:
    """By its sizes in the file, else one that the readers know. Errors: RefusedError."""
    sizes = models.get(name)
    if sizes is None:
        try:
            return load_model(name) if "/" not in name else _unknown(name)
        except MeshwrightError:
            return _unknown(name)
    if not isinstance(sizes, dict):
        raise RefusedError("model malformed", f"{name} is no mapping of sizes")
    if missing := [key for key in _LETTERS if sizes.get(key) is None]:
        raise RefusedError("model without its shape", f"{name} lacks {', '.join(missing)}")
    width, ffn, layers, heads, kv_heads, head_dim, vocab = (sizes[key] for key in _LETTERS)
    experts, top_k = sizes.get("experts") or 1, sizes.get("top_k") or 1
    routed = {"experts": experts, "top_k": top_k} if experts != 1 else {}
    try:
        return textbook_model(
            width, ffn, layers, heads, kv_heads, head_dim, vocab, name=name, **routed,
            gated=sizes.get("gated_ffn") is not False, tied=sizes.get("tied_embeddings") is True,
        )  # fmt: skip
    except MeshwrightError as why:
        raise RefusedError("model malformed", f"{name}: {why}") from why


def _unknown(name: str) -> ModelSpec:
    raise RefusedError("model without its shape", f"{name} is neither in the file's models nor known by name")


def groups(cases: list[Case]) -> Iterator[str]:
    """Devices that are left out together, each once."""
    yield from dict.fromkeys(case.machine.group for case in cases)
