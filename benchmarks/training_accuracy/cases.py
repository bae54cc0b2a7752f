"""Published runs as questions to the cost model: what is priced, what is assumed, what is refused and why."""

import gzip
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from meshwright.costmodel.estimate import complete, stage_counts, step_seconds, table_of
from meshwright.costmodel.flops import model_flops
from meshwright.costmodel.layout import DIMENSIONS, Layout, Placement, with_stages
from meshwright.costmodel.legal import RULES
from meshwright.costmodel.policies import tensor_bits
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.setting import setting as setting_of
from meshwright.costmodel.tensors import TENSORS
from meshwright.costmodel.workload import Training
from meshwright.hardware.calibration import Efficiency
from meshwright.hardware.errors import InputError, LayoutError, MeshwrightError
from meshwright.hardware.network import TorusAxis
from training_accuracy.machines import cluster_of
from training_accuracy.models import model_of
from training_accuracy.remat import ASSUMED, Remat, remat_of
from training_accuracy.rows import check, step_s
from training_accuracy.software import JAX, dispatches_once, software_of, source_of

DTYPES = {
    "bf16": "bf16", "amp_bf16": "bf16", "te bf16": "bf16", "fp16": "fp16", "fp16 mixed": "fp16",
    "fp16/bf16 mixed (not stated)": "fp16", "bf16 (fp32 grad accumulation)": "bf16",
    "fp8": "fp8", "mxfp8": "fp8", "fp8-mx": "fp8", "fp8-cs": "fp8", "fp8 per-tensor": "fp8", "float8": "fp8",
    "amp_fp8": "fp8", "fp8 current scaling": "fp8", "fp8 (granularity variant)": "fp8",
    "fp8_full (bf16 base)": "fp8", "float8 tensorwise": "fp8", "float8 rowwise": "fp8", "te fp8": "fp8",
    "nvfp4": "fp4",
}  # fmt: skip
# Rows that are no measurement of what they say; `reason` is printed beside each.
BAD_ROWS = Path(__file__).parents[1] / "data" / "training_bad_rows.yaml"


@dataclass(frozen=True)
class Refusal:
    id: str
    reason: str  # first words, for counting
    text: str


@dataclass(frozen=True)
class Case:
    """One run with the layout it was made with.

    Attributes:
        counts: layers of each lane on each stage, [1, S, Q]. step_s: measured.
        assumed: what the row does not say, and what is taken for it; empty for a stated row.
        source, family, group: rows of one cluster and team; of one model family; of one model, chips and batch.
        config: what makes rows repeats of one another.
    """

    row: Mapping[str, Any]
    setting: Setting
    layout: Layout
    counts: np.ndarray
    step_s: float
    assumed: tuple[str, ...]
    software: str
    source: str

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def experts(self) -> bool:
        return any(kind.ffn.experts for kind in self.setting.model.kinds)

    @property
    def kind(self) -> str:
        if self.row.get("task"):
            return "fine-tuning"
        return "MoE" if self.experts else "dense"

    @property
    def family(self) -> str:
        name = self.setting.model.name
        for start in (
            "Llama2",
            "Llama3",
            "Llama4",
            "DeepSeek",
            "Nemotron",
            "Gemma4",
            "Qwen3",
            "GPT-OSS",
            "GPT3",
        ):
            if name.startswith(start):
                return start
        if "BigScience" in name:
            return f"BigScience {self.setting.model.hidden}"
        return name if name.startswith("MPT") else name.split()[0] if name.startswith("MaxText") else name

    @cached_property
    def config(self) -> str:
        row = self.row
        keys = ("dtype", "global_batch", "micro_batch", "remat", "offload", "task")
        shape = {k: v for k, v in row["model"].items() if k not in ("shape_source", "params_B_reported")}
        of = [
            shape,
            row["layout"],
            row["hardware"]["chip"],
            row["hardware"]["chips"],
            *(row.get(k) for k in keys),
        ]
        return repr(of) + self.software + self.source

    @property
    def group(self) -> str:
        """Of runs that differ in layout alone: one model, cluster, batch, format, program and its state."""
        model, row = self.setting.model, self.row
        shape = (model.name, model.layers, model.hidden, model.kinds[0].attention.heads)
        batch = (
            row["global_batch"],
            self.setting.training.seq_len,
            str(row["dtype"]).lower(),
            row.get("task"),
        )
        return repr(
            (self.source, self.software, shape, row["hardware"]["chip"], row["hardware"]["chips"], batch)
        )

    def predicted_s(self, efficiency: Efficiency) -> float:
        """Step seconds by the cost model at these rates."""
        given = replace(self.setting, efficiency=efficiency)
        table = table_of(given, [self.layout])
        return float(step_seconds(table, np.arange(self.counts.shape[1])[None, :], self.counts)[0])


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Errors: InputError for a file that is none of published runs."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        rows = yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError, EOFError, RecursionError, zlib.error) as error:
        raise InputError(
            f"{path}: cannot be read as a list of runs: {' '.join(str(error).split())[:200]}"
        ) from None
    needed = ("id", "model", "hardware", "layout", "dtype", "global_batch")
    if not isinstance(rows, list) or not all(
        isinstance(r, dict) and all(k in r for k in needed) for r in rows
    ):
        raise InputError(f"{path}: no list of runs with {', '.join(needed)}")
    return rows


def read_cases(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Case], list[Refusal]]:
    """Runs that can be priced, and those that cannot. One bad row is one refusal."""
    cases, refused = [], []
    for row in rows:
        try:
            cases.append(case_of(row))
        except MeshwrightError as error:
            text = str(error).splitlines()[0]
            refused.append(Refusal(str(row["id"]), text.split(":")[0][:40], text))
    return cases, refused


def case_of(row: Mapping[str, Any]) -> Case:
    """Errors: InputError and its kin where a run is not stated well enough, or not possible."""
    step = step_s(check(row))
    assumed: list[str] = []
    software = software_of(row)
    setting = _setting(row, software, assumed)
    layout = _layout(row, setting, software, assumed)
    layout, counts = _stages(row, setting, layout)
    _possible(row, setting, layout, step)
    return Case(row, setting, layout, counts, step, tuple(assumed), software, source_of(row))


def _possible(row: Mapping[str, Any], setting: Setting, layout: Layout, step: float) -> None:
    """Errors: LayoutError where a layout breaks a rule, InputError for a step that no chip can run so fast."""
    # Sources cut chunks of their own; heads that a row does not give are no ground to refuse it on.
    left = {"interleaved chunks are equal within a stage"}
    if row["model"].get("heads") is None:
        left.add("tp divides the heads")
    given = Rows.of([layout], setting)
    for rule in RULES:
        if rule.name not in left and not rule.holds(setting, given).all():
            raise LayoutError(f"layout: {rule.message(setting, layout)}")
    training, chip = setting.training, setting.cluster.chip
    least = model_flops(setting) / layout.devices / chip.peak_flop_per_s(training.compute_dtype)
    if step < least:
        raise InputError(
            f"step time: {step:.3g} s is less than the {least:.3g} s that the model's FLOPs take at the peak of "
            f"{layout.devices} {chip.name} in {training.compute_dtype}"
        )


def _setting(row: Mapping[str, Any], software: str, assumed: list[str]) -> Setting:
    model, given = model_of(row), row["model"]
    if given.get("heads") is None:
        assumed.append(f"heads {model.kinds[0].attention.heads}")
    if row["global_batch"] is None:
        raise InputError("row: global_batch is not stated")
    dtype = row["dtype"]
    if dtype is None:
        if source_of(row) == "vtrain":
            dtype = "fp16"
            assumed.append("dtype fp16")
        else:
            raise InputError("dtype: not stated")
    if str(dtype).lower() not in DTYPES:
        raise InputError(f"dtype: no entry for {dtype!r}")
    note = row.get("note") or ""
    training = Training(
        global_batch_tokens=row["global_batch"] * given["seq"],
        seq_len=given["seq"],
        compute_dtype=DTYPES[str(dtype).lower()],
        mtp=1 if model.mtp and "suggests it is included" in note else 0,
        trainable=_trainable(row, assumed),
    )
    overlap = "none" if "all communication overlap switched off" in row["software"] else "calibrated"
    found = setting_of(
        model, cluster_of(row), training, overlap=overlap, framework="jax" if software == JAX else "megatron"
    )
    habits = replace(
        found.framework,
        software=software,
        chooses=frozenset(TENSORS),
        offloads=frozenset(TENSORS),
        dispatches_once=dispatches_once(row),
    )
    return replace(found, framework=habits)


def _trainable(row: Mapping[str, Any], assumed: list[str]) -> str:
    """No row gives rank and targets of its adapters: NeMo's recipes for speed have them on queries, keys and values."""
    if row.get("task") != "lora":
        return "all"
    found = "lora:16" if source_of(row) == "automodel" else "lora:16:qkv"
    assumed.append(f"adapters {found}")
    return found


def _layout(row: Mapping[str, Any], setting: Setting, software: str, assumed: list[str]) -> Layout:
    given = row["layout"]
    for name in ("dp", "tp", "cp", "pp"):
        if given.get(name) is None:
            raise InputError(f"layout: {name} not stated")
    micro_batch = row.get("micro_batch")
    if micro_batch is None:
        micro_batch = 1
        assumed.append("micro-batch 1")
    zero, dp, cp = given.get("zero_stage"), given["dp"], given["cp"]
    if zero is None:
        zero = 3 if given.get("fsdp") else 1
        assumed.append(f"ZeRO {zero}")
    ep = given.get("ep")
    moe = any(kind.ffn.experts for kind in setting.model.kinds)
    if not moe and (ep or 1) * (given.get("etp") or 1) > 1:
        raise InputError(f"layout: ep {ep} of a model without experts")
    if moe and ep is None:
        raise InputError("layout: ep of a mixture not stated")
    shard = (given.get("fsdp") or dp * cp) if zero == 3 else dp * cp
    shard = max(shard // cp, 1)
    if dp % shard:
        raise InputError(f"layout: shard groups of {shard} do not divide dp {dp}")
    if zero and shard * cp == 1:
        zero = 0
    remat = row.get("remat")
    if remat is None:
        word = ASSUMED["jax" if software == JAX else "other"]
        assumed.append("recompute")
    else:
        word = remat_of(remat)
    offload = row.get("offload") or "none"
    policies, stages, moved = _policies(word, offload, setting, given["pp"])
    tp, sp = given["tp"], given.get("sp")
    vpp, pp = (given.get("vpp") or 1) if given["pp"] > 1 else 1, given["pp"]
    return Layout(
        dp_replicate=dp // shard if zero else dp,
        dp_shard=shard if zero else 1,
        zero=zero,
        cp=cp,
        tp=tp,
        sp=bool(sp) if sp is not None else tp > 1,
        pp=pp,
        vpp=vpp,
        schedule="interleaved" if vpp > 1 else "1f1b",
        ep=ep if moe else 1,
        etp=given.get("etp") or 1 if moe else 1,
        micro_batch=micro_batch,
        offload=moved,
        policies=policies if not stages else ("none",),
        stage_policies=stages,
    )


def _policies(
    remat: Remat, offload: str, setting: Setting, pp: int
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...], str]:
    """Policies by kind, or by stage and kind, and the offload class."""
    kinds, layers = setting.model.kinds, setting.model.layers
    words = [remat.word(kind, tensor_bits(setting.framework, kind)) for kind in kinds]
    moved = "activations" if remat.host else "none"
    if told := re.fullmatch(r"activations of (\d{1,6}) layers to host", offload, re.ASCII):
        away, moved = int(told[1]), "activations"
        if away > layers:
            raise InputError(f"offload: {offload} of a model with {layers} layers")
        if len(kinds) > 1 or pp > 1:
            raise InputError(f"offload: {offload} of a model with {len(kinds)} kinds of layers")
        names = "+".join(
            n for i, n in enumerate(TENSORS) if tensor_bits(setting.framework, kinds[0]) >> i & 1
        )
        on_host = f"{words[0]}:offload({names})"
        return (), ((f"{on_host}*{away}|{words[0]}*{layers - away}",),), moved
    if offload != "none" and not offload.startswith("activations to host:"):
        raise InputError(f"offload: {offload}")
    if remat.every == 1 and remat.first is None:
        return tuple(words), (), moved
    if len(kinds) > 1 or layers % pp:
        raise InputError("remat: some layers of a model whose stages differ")
    each = layers // pp
    full = min(remat.first, each) if remat.first is not None else each // remat.every
    word = f"{words[0]}*{full}|none*{each - full}" if full < each else words[0]
    return (), ((word,),) * (max(1, pp)), moved


def _stages(row: Mapping[str, Any], setting: Setting, layout: Layout) -> tuple[Layout, np.ndarray]:
    """The layout with stages and placement, and layers by stage.

    Where a source counts the ends as layers, or cuts chunks of its own, stages are as balanced as that makes them.
    """
    layers, pp = setting.model.layers, layout.pp
    torus = any(isinstance(level, TorusAxis) for level in setting.cluster.levels)
    if (setting.training.sequences % (layout.dp * layout.micro_batch)) != 0:
        raise LayoutError(
            f"layout: {setting.training.sequences} sequences are no multiple of {layout.dp}*{layout.micro_batch}"
        )
    if layout.devices > setting.cluster.devices:
        raise LayoutError(f"layout: {layout.devices} devices, the cluster has {setting.cluster.devices}")
    if torus:
        layout = complete(setting, layout)
        return layout, stage_counts(setting, [layout])[0]
    layout = replace(layout, placement=nested(layout, [level.size for level in setting.cluster.levels]))
    if layers % (pp * layout.vpp) == 0 and "embedding layers counted" not in (row.get("note") or ""):
        layout = with_stages(layout, layers, layout.vpp)
        return layout, stage_counts(setting, [layout])[0]
    cut = with_stages(replace(layout, vpp=1, schedule="1f1b"), layers, 1)
    if "embedding layers counted" in (row.get("note") or ""):
        each = [len(c) for c in np.array_split(np.arange(layers + 2), pp)]
        each[0] -= 1
        each[-1] -= 1
        cut = replace(cut, layers_per_stage=tuple(each))
        return replace(layout, layers_per_stage=tuple(each)), stage_counts(setting, [cut])[0]
    counts = stage_counts(setting, [cut])[0]
    if source_of(row) != "bigscience":
        counts = _balanced(setting, layout, counts)
    return replace(layout, layers_per_stage=cut.layers_per_stage), counts


def _balanced(setting: Setting, layout: Layout, counts: np.ndarray) -> np.ndarray:
    """Layers in fractions, such that stages with what the first and last run beside take equally long."""
    table = table_of(setting, [layout])
    pp = layout.pp
    total = counts.sum(axis=(0, 1))
    layer_s = float(np.sum(total * table.layer_s[0]) / total.sum())
    ends = np.zeros(pp)
    ends[0] += float(table.first.total[0])
    ends[-1] += float(table.last.total[0])
    each = (layer_s * total.sum() + ends.sum()) / pp
    share = np.maximum(each - ends, 0.0)
    return (share / share.sum())[None, :, None] * total[None, None, :]


def nested(layout: Layout, sizes: Sequence[int]) -> Placement:
    """Ranks in the usual order, tp innermost and pp outermost, over levels from the inside."""
    left = list(sizes)
    levels: list[list[tuple[str, int]]] = [[] for _ in sizes]
    for name in DIMENSIONS:
        degree = getattr(layout, name)
        for i in range(len(left)):
            part = gcd(degree, left[i])
            if part > 1:
                levels[i].append((name, part))
                degree, left[i] = degree // part, left[i] // part
        if degree > 1:
            raise LayoutError(
                f"layout: {name}={getattr(layout, name)} cannot be placed on {'x'.join(map(str, sizes))}"
            )
    return tuple(tuple(level) for level in levels)
