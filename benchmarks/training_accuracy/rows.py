"""What a row of published runs may hold: kinds and ranges of its values, read before anything is computed from it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from meshwright.hardware.errors import InputError, shown
from meshwright.hardware.figures import Strict

Degree = Annotated[int, Field(ge=1, le=10**6)]
Whole = Annotated[int, Field(ge=0, le=10**6)]
Size = Annotated[int, Field(ge=1, le=10**9)]
# Less is no step of a cluster, more is no step of training: 10 microseconds, eleven days.
Seconds = Annotated[float, Field(ge=1e-5, le=1e6, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]
# What pydantic calls kinds of values, in words of YAML.
WORDS = {"string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}


class Part(Strict):
    """Of a row: no text is read as a number; what is not used may stand there too."""

    model_config = ConfigDict(extra="ignore", strict=True)


class Mla(Part):
    model_config = ConfigDict(extra="forbid")  # all of it goes to the reader of model files

    q_lora_rank: Size | None = None
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size


class Windows(Part):
    window: Size
    global_fraction: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Model(Part):
    """Sizes are null where a source does not give them; the reader of models refuses those it needs."""

    name: Text
    seq: Size
    layers: Degree | None = None
    hidden: Size | None = None
    ffn: Size | None = None
    vocab: Size | None = None
    heads: Size | None = None
    kv_heads: Size | None = None
    head_dim: Size | None = None
    mlp_type: Literal["gated", "ungated", "ungated (relu)"] | None = None
    experts: Whole | None = None
    topk: Size | None = None
    moe_ffn: Size | None = None
    shared_experts: Whole | None = None
    first_dense_layers: Whole | None = None
    moe_layer_step: Degree | None = None
    tied_embedding: bool | None = None
    mla: Mla | None = None
    swa: Windows | None = None

    @model_validator(mode="after")
    def _possible(self) -> "Model":
        heads, kv_heads, layers = self.heads, self.kv_heads, self.layers
        if heads and kv_heads and heads % kv_heads:
            raise ValueError(f"kv_heads {kv_heads} does not divide {heads} heads")
        if heads and self.hidden and not self.head_dim and not self.mla and self.hidden % heads:
            raise ValueError(f"{heads} heads do not divide hidden {self.hidden}, and head_dim is not given")
        if self.mla and (not heads or not self.experts):
            raise ValueError("mla needs heads and experts")
        if self.experts:
            if self.topk is None or self.moe_ffn is None:
                raise ValueError(f"{self.experts} experts need topk and moe_ffn")
            if self.topk > self.experts:
                raise ValueError(f"topk {self.topk} is more than the {self.experts} experts")
        for name in ("first_dense_layers", "moe_layer_step"):
            if layers is not None and (getattr(self, name) or 0) > layers:
                raise ValueError(f"{name} {getattr(self, name)} is more than the {layers} layers")
        return self


class Hardware(Part):
    chip: Text
    chips: Degree
    per_node: Degree | None = None
    nvlink_domain: Degree | None = None
    slices: Degree | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _possible(self) -> "Hardware":
        if self.slices and self.chips % self.slices:
            raise ValueError(f"{self.slices} slices do not divide {self.chips} chips")
        node = self.per_node or 8
        if self.nvlink_domain not in (None, 72, node):
            raise ValueError(
                f"nvlink_domain {self.nvlink_domain} is neither 72 nor the {node} chips of a node"
            )
        return self


class Degrees(Part):
    """Degrees that a source does not give are null, and refused where they are needed."""

    model_config = ConfigDict(extra="forbid")  # an unknown degree would go unpriced

    dp: Degree | None = None
    tp: Degree | None = None
    cp: Degree | None = None
    pp: Degree | None = None
    vpp: Degree | None = None
    ep: Degree | None = None
    etp: Degree | None = None
    fsdp: Whole | None = None
    sp: bool | None = None
    zero_stage: Literal[0, 1, 2, 3] | None = None


class Measured(Part):
    step_time_s: Seconds | None = None
    tokens_per_s_per_chip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class FromRate(Part):
    full_attention: Seconds
    causal_attention: Seconds


class Row(Part):
    """One run."""

    id: Text
    software: Text
    source: str | None = None
    model: Model
    hardware: Hardware
    layout: Degrees
    dtype: str | None = None
    global_batch: Size | None = None
    micro_batch: Size | None = None
    remat: str | None = None
    offload: str | None = None
    task: Literal["sft", "lora"] | None = None
    note: str | None = None
    flops_convention: str | None = None
    measured: Measured | None = None
    derived_step_time_s: Seconds | None = None
    step_time_from_rate_s: FromRate | None = None


def check(row: Mapping[str, Any]) -> Row:
    """Errors: InputError with the first value that cannot be, on one line."""
    try:
        return Row.model_validate(row)
    except ValidationError as error:
        raise InputError(f"row: {_told(error)}") from None


def _told(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    where, message = ".".join(map(str, fault["loc"])), str(fault["msg"])
    if fault["type"] == "missing":
        return f"{where} is missing"
    if fault["type"] == "extra_forbidden":
        part = Degrees if fault["loc"][0] == "layout" else Mla
        return f"{where} is not known; known are {', '.join(part.model_fields)}"
    if fault["type"] == "value_error" and isinstance(fault["input"], Mapping):
        return f"{where}: {message.removeprefix('Value error, ')}"
    if fault["type"] in ("model_type", "model_attributes_type"):
        message = "a mapping"
    wanted = message.removeprefix("Value error, ").removeprefix("Input should be ").removeprefix("a valid ")
    return f"{where} is {shown(fault['input'])}; expected {WORDS.get(wanted, wanted)}"


def step_s(row: Row) -> float:
    """Printed, from tokens/s, or from a rate under the counting of attention that its source uses.

    Errors: InputError where a row gives none of these.
    """
    measured = row.measured or Measured()
    step = measured.step_time_s or row.derived_step_time_s
    if step is not None:
        return step
    if (rate := measured.tokens_per_s_per_chip) is not None:
        if row.global_batch is None:
            raise InputError("no time: tokens/s per chip without a global batch")
        step = row.global_batch * row.model.seq / (row.hardware.chips * rate)
        if not 1e-5 <= step <= 1e6:
            raise InputError(
                f"row: measured.tokens_per_s_per_chip is {rate:g}, a step of {step:.3g} s; expected 1e-05 s to 1e+06 s"
            )
        return step
    if both := row.step_time_from_rate_s:
        convention = row.flops_convention or ""
        if "not stated" in convention or "not settled" in convention:
            raise InputError("no time: a rate alone, and how attention was counted is not stated")
        return both.causal_attention if "causal" in convention else both.full_attention
    raise InputError("no time: neither a step time nor tokens/s nor a rate")
