"""Rules a layout must obey, whatever chooses it: what divides what.

Each rule is one predicate over columns, used by the planner to drop rows by name, and one sentence for a
single layout.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.lanes import wrong_mix
from meshwright.costmodel.layout import CP_KINDS, Layout, with_stages
from meshwright.costmodel.policy_rules import policy_refusal
from meshwright.costmodel.rows import Rows, least_micro_batches
from meshwright.costmodel.schedules import INTERLEAVED, SCHEDULES
from meshwright.costmodel.setting import Setting
from meshwright.hardware.errors import LayoutError, MissingFigureError

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Rule:
    """`holds` gives a boolean per row; `message` tells a user about one row that breaks the rule."""

    name: str
    holds: Callable[[Setting, Rows], Bools]
    message: Callable[[Setting, Layout], str]


def pattern_period(pattern: tuple[int, ...]) -> int:
    """Least number of layers after which the order of layer kinds repeats."""
    length = len(pattern)
    return next(p for p in range(1, length + 1) if length % p == 0 and pattern == pattern[:p] * (length // p))


def chunk_unit(setting: Setting, vpp: int) -> int:
    """Layers that a stage takes at a time: one, or with interleaving one pattern period per chunk."""
    return vpp * pattern_period(setting.model.pattern) if vpp > 1 else 1


def chunk_periods(setting: Setting, rows: Rows) -> Ints:
    """Pattern periods in a chunk of rows whose stages may hold one more or some fewer than equal chunks would, 0 elsewhere, [R].

    Where the periods of the model divide evenly into b >= 2 for every chunk of every stage, and the framework spells out
    chunks, a stage may hold b in each chunk but its last, and there one to b + 1. More would never be faster: once a stage
    differs one has b v + 1 or more. See `costmodel.pipeline` for what this does to time and memory.
    """
    if not setting.framework.uneven_chunks:
        return np.zeros(len(rows), np.int64)
    model = setting.model
    periods, chunks = model.layers // pattern_period(model.pattern), rows.pp * rows.vpp
    free = (rows.schedule == INTERLEAVED) & (periods % chunks == 0) & (periods >= 2 * chunks)
    return np.where(free, periods // chunks, 0)


def whole_chunks(vpp: int, each: int, periods: Ints) -> Bools:
    """Whether a stage may hold so many pattern periods: equal chunks, or as in `chunk_periods` where `each` is not 0."""
    moved = (periods > (vpp - 1) * each) & (periods <= vpp * each + 1)
    good: Bools = (periods > 0) & ((periods % vpp == 0) | (moved & (each > 0)))
    return good


def _heads(setting: Setting) -> list[tuple[int, int]]:
    return [(k.attention.heads, k.attention.kv_heads) for k in setting.model.kinds]


def _tp_cuts_heads(setting: Setting, rows: Rows) -> Bools:
    return _cuts_heads(setting, rows.tp)


def _cuts_heads(setting: Setting, tp: Ints) -> Bools:
    ok = np.ones(len(tp), bool)
    for heads, kv in _heads(setting):
        ok &= (heads % tp == 0) & ((kv % tp == 0) | (tp % kv == 0))
    return ok


def _tp_cuts_widths(setting: Setting, rows: Rows) -> Bools:
    ok = _cuts_widths(setting, rows.tp)
    for kind in setting.model.kinds:
        ok &= (kind.ffn.expert_width % rows.etp == 0) if kind.ffn.experts else True
    return ok


def _cuts_widths(setting: Setting, tp: Ints) -> Bools:
    ok = np.ones(len(tp), bool)
    for kind in setting.model.kinds:
        ok &= kind.ffn.width % tp == 0
    return ok


def _tp_cuts_tower(setting: Setting, rows: Rows) -> Bools:
    return _cuts_tower(setting, rows.tp)


def _cuts_tower(setting: Setting, tp: Ints) -> Bools:
    tower = setting.model.tower
    if tower is None or not setting.training.images:
        return np.ones(len(tp), bool)
    ok: Bools = (tower.kind.attention.heads % tp == 0) & (tower.kind.ffn.width % tp == 0)
    return ok


def _uncut_tower(setting: Setting, layout: Layout) -> str:
    assert setting.model.tower is not None
    kind = setting.model.tower.kind
    return (
        f"tp={layout.tp} does not divide the {kind.attention.heads} heads and the feed-forward width {kind.ffn.width} of the "
        f"vision tower; use tp={listed(tp_choices(setting))}, or images=0"
    )


def tp_choices(setting: Setting) -> Ints:
    """Degrees of tp that cut the heads and the feed-forward widths of the model on its devices, ascending."""
    tp = np.arange(1, min(setting.cluster.devices, *(heads for heads, _ in _heads(setting))) + 1)
    return tp[_cuts_heads(setting, tp) & _cuts_widths(setting, tp) & _cuts_tower(setting, tp)]


def listed(values: Iterable[object]) -> str:
    """`1, 2 or 4`."""
    words = [str(v) for v in values]
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _experts(setting: Setting, rows: Rows) -> Bools:
    experts = {k.ffn.experts for k in setting.model.kinds if k.ffn.experts}
    if not experts:
        dense: Bools = (rows.ep == 1) & (rows.etp == 1)
        return dense
    ok: Bools = rows.stage_devices % (rows.ep * rows.etp) == 0
    for count in experts:
        ok &= count % rows.ep == 0
    return ok


def _sequence_cut(setting: Setting, rows: Rows) -> Bools:
    # Causal balance deals each rank one early and one late chunk, so a rank takes two.
    pieces = np.where(rows.cp > 1, 2 * rows.cp, 1) * np.where(rows.sp > 0, rows.tp, 1)
    holds: Bools = setting.training.seq_len % pieces == 0
    return holds


def _cp_heads(setting: Setting, rows: Rows) -> Bools:
    ok = np.ones(len(rows), bool)
    for heads, kv in _heads(setting):
        ways = rows.tp * rows.cp
        ok &= (heads % ways == 0) & (kv % ways == 0)
    holds: Bools = ok | (rows.cp == 1) | (rows.cp_kind != CP_KINDS.index("all_to_all"))
    return holds


def _whole_micro_batches(setting: Setting, rows: Rows) -> Bools:
    holds: Bools = rows.sequences % (rows.dp * rows.micro_batch) == 0
    return holds


def _enough_layers(setting: Setting, rows: Rows) -> Bools:
    holds: Bools = rows.pp * rows.vpp <= setting.model.layers
    return holds


def _chunks(setting: Setting, rows: Rows) -> Bools:
    unit = rows.vpp * pattern_period(setting.model.pattern)
    even = (setting.model.layers % unit == 0) & (setting.model.layers // unit >= rows.pp)
    holds: Bools = (rows.vpp == 1) | even
    return holds


def _interleaved_rounds(setting: Setting, rows: Rows) -> Bools:
    holds: Bools = (rows.schedule != INTERLEAVED) | (rows.micro_batches % rows.pp == 0)
    return holds


def _filled(setting: Setting, rows: Rows) -> Bools:
    holds: Bools = rows.micro_batches >= least_micro_batches(rows.schedule, rows.pp)
    return holds


def _least(layout: Layout) -> int:
    return int(least_micro_batches(np.array(SCHEDULES.index(layout.schedule)), np.array(layout.pp)))


def _weights_away(setting: Setting, rows: Rows) -> Bools:
    holds: Bools = ~rows.offloads("parameters") | (rows.zero == 3)
    return holds


def _gradients_away(setting: Setting, rows: Rows) -> Bools:
    mixture = any(k.ffn.experts for k in setting.model.kinds)
    alone = (rows.shard == 1) & ((rows.edp == 1) | (not mixture))  # nobody to reduce with
    holds: Bools = ~rows.offloads("gradients") | ((rows.dp_replicate == 1) & ((rows.zero >= 2) | alone))
    return holds


def _devices(setting: Setting, rows: Rows) -> Bools:
    holds: Bools = rows.devices <= setting.cluster.devices
    return holds


RULES: tuple[Rule, ...] = (
    Rule(
        "uses at most the devices there are",
        _devices,
        lambda s, x: (
            f"the layout uses {x.devices} devices, {s.cluster.name} has {s.cluster.devices}; lower a degree"
        ),
    ),
    Rule(
        "tp divides the heads",
        _tp_cuts_heads,
        lambda s, x: (
            f"tp={x.tp} does not fit the model's heads "
            f"({', '.join(f'{h} heads, {k} kv heads' for h, k in sorted(set(_heads(s))))}): it must divide the heads, and "
            f"divide the kv heads or be a multiple of them; use tp={listed(tp_choices(s))}"
        ),
    ),
    Rule(
        "tp divides the feed-forward width",
        _tp_cuts_widths,
        lambda s, x: (
            f"tp={x.tp} (etp={x.etp}) does not divide the feed-forward widths "
            f"({', '.join(sorted({str(k.ffn.width or k.ffn.expert_width) for k in s.model.kinds}))}); use a divisor"
        ),
    ),
    Rule("tp divides the vision tower", _tp_cuts_tower, _uncut_tower),
    Rule(
        "ep divides the experts and the stage",
        _experts,
        lambda s, x: (
            f"ep={x.ep}, etp={x.etp}: ep must divide the model's "
            f"{max(k.ffn.experts for k in s.model.kinds)} experts and ep*etp the {x.stage_devices} devices of a stage; "
            "use such a divisor"
            if any(k.ffn.experts for k in s.model.kinds)
            else f"ep={x.ep}, etp={x.etp}: {s.model.name} has no experts; use ep=1 and etp=1"
        ),
    ),
    Rule(
        "cp and tp divide the sequence",
        _sequence_cut,
        lambda s, x: (
            f"seq_len {s.training.seq_len} is not a multiple of 2*cp (cp={x.cp}) times tp={x.tp}; "
            "use degrees that divide it"
        ),
    ),
    Rule(
        "all_to_all cuts the heads over cp too",
        _cp_heads,
        lambda s, x: (
            f"cp_kind=all_to_all needs tp*cp={x.tp * x.cp} to divide heads and kv heads "
            f"({', '.join(f'{h} and {k}' for h, k in sorted(set(_heads(s))))}); use ring or all_gather"
        ),
    ),
    Rule(
        "the batch is whole micro-batches",
        _whole_micro_batches,
        lambda s, x: (
            f"a batch of {x.sequences or s.training.sequences} sequences is not a multiple of "
            f"dp*micro_batch = {x.dp}*{x.micro_batch}; change one of them"
        ),
    ),
    Rule(
        "every chunk has a layer",
        _enough_layers,
        lambda s, x: f"pp*vpp = {x.pp}*{x.vpp} is more than the model's {s.model.layers} layers; lower one",
    ),
    Rule(
        "interleaved chunks are equal within a stage",
        _chunks,
        lambda s, x: (
            f"vpp={x.vpp}{' of dualpipev' if x.schedule == 'dualpipev' else ''} needs the {s.model.layers} layers to be a "
            f"multiple of vpp times the pattern's period {pattern_period(s.model.pattern)}, with one such group a stage; use "
            f"{'another schedule' if x.schedule == 'dualpipev' else 'vpp=1'}"
        ),
    ),
    Rule(
        "interleaving runs whole rounds of pp micro-batches",
        _interleaved_rounds,
        lambda s, x: (
            f"vpp={x.vpp} needs the number of micro-batches to be a multiple of pp={x.pp}; "
            "change micro_batch or use vpp=1"
        ),
    ),
    Rule(
        "a schedule that splits backward has micro-batches to fill it",
        _filled,
        lambda s, x: (
            f"schedule={x.schedule} needs {_least(x)} micro-batches at pp={x.pp}, there are "
            f"{(x.sequences or s.training.sequences) // (x.dp * x.micro_batch)}; change micro_batch or use schedule=1f1b"
        ),
    ),
    Rule(
        "offloaded weights are sharded by ZeRO-3",
        _weights_away,
        lambda s, x: (
            f"offload={x.offload} streams the shards of weights from the host, and zero={x.zero} does not shard them; "
            "use zero=3, or leave parameters out"
        ),
    ),
    Rule(
        "offloaded gradients leave fully reduced",
        _gradients_away,
        lambda s, x: (
            f"offload={x.offload} sends each micro-batch's gradients to the host once they are reduced, but zero={x.zero} "
            f"with dp_replicate={x.dp_replicate} reduces them at the end of the step; use zero>=2 and dp_replicate=1, "
            "or leave gradients out"
        ),
    ),
)


def check_layout(setting: Setting, layout: Layout) -> None:
    """Raises LayoutError at the first rule a complete layout breaks, MissingFigureError for refused offload."""
    rows = Rows.of([layout], setting)
    kinds = len(setting.model.kinds)
    for words in layout.policy_words:
        if len(words) not in (1, kinds):
            raise LayoutError(
                f"{len(words)} recompute policies for {kinds} layer kinds "
                f"({', '.join(k.name for k in setting.model.kinds)}); give one, or one each"
            )
    if reason := policy_refusal(setting.framework, setting.model.kinds, layout):
        raise LayoutError(reason)
    if layout.sequences is not None and layout.sequences not in setting.training.sequence_range:
        allowed = setting.training.sequence_range
        span = f"{allowed[0]} to {allowed[-1]}" if len(allowed) > 1 else f"{allowed[0]}"
        raise LayoutError(
            f"sequences={layout.sequences} is not the batch asked for, {span} sequences; "
            "give that batch, or a tolerance like 4Mi~5%"
        )
    for rule in RULES:
        if not rule.holds(setting, rows).all():
            raise LayoutError(rule.message(setting, layout))
    _check_stages(setting, layout, int(chunk_periods(setting, rows)[0]))
    if reason := wrong_mix(setting.model, layout):
        raise LayoutError(reason)
    if reason := offload_refusal(setting, layout.offload):
        raise MissingFigureError(reason)


def _check_stages(setting: Setting, layout: Layout, each: int) -> None:
    """Raises LayoutError where the layers of the stages are not those of the model, in whole chunks."""
    layers, unit = setting.model.layers, chunk_unit(setting, layout.vpp)
    given = f"layers={_runs(layout.layers_per_stage)}"
    if sum(layout.layers_per_stage) != layers:
        even = with_stages(replace(layout, layers_per_stage=()), layers, unit).layers_per_stage
        raise LayoutError(
            f"{given} sums to {sum(layout.layers_per_stage)}, the model has {layers} layers; make them {layers}, "
            f"or leave layers out for even stages{f', {_runs(even)}' if len(even) <= 16 else ''}"
        )
    v = layout.vpp
    period = unit // v if v > 1 else 1
    periods, left = np.divmod(np.array(layout.layers_per_stage), period)
    if left.any() or not whole_chunks(v, each, periods).all():
        least = "1 layer or more" if unit == 1 else f"a positive multiple of {unit} layers (whole chunks)"
        if each:
            least += f", or {period} to {period * (each + 1)} after {v - 1} chunks of {period * each}"
        raise LayoutError(f"{given}: every stage needs {least}; move layers, or lower pp={layout.pp}")


def _runs(layers: tuple[int, ...]) -> str:
    return "/".join(map(str, layers))


def offload_refusal(setting: Setting, offload: str) -> str | None:
    """Why this cluster cannot price this offload; None if it can."""
    cluster = setting.cluster
    if offload == "none":
        return None
    if cluster.host_memory_bytes is None:
        return (
            f"offload={offload} needs the host's memory and {cluster.name} gives none (field host_memory_bytes); "
            "say it with --host-memory 2TB, or use offload=none"
        )
    if setting.rates.host_bytes_per_s is None:
        return f"offload={offload} needs the host link's rate and {cluster.chip.name} gives none (field host_link)"
    if "optimizer" in offload and cluster.cpu_update_params_per_s is None:
        return (
            f"offload={offload} needs the host's optimizer rate and {cluster.name} gives none "
            "(field cpu_update_params_per_s); say it with --cpu-update '1 Gparam/s', or use offload=activations"
        )
    return None
