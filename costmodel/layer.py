"""Seconds of one layer of a kind for one micro-batch: compute, repeated compute, and exposed communication.

Of each communication class a share can hide behind compute (`Rates.hideable`): 1 under full overlap, 0 under
none. What cannot hide is exposed; what can hides up to the compute there is:

    exposed = sum_c (1 - share_c) comm_c + max(0, hidden - compute)
    hidden  = sum_c max_l share_c load_cl   where streams queue (shared)
              max_l sum_c share_c load_cl   where they only meet on a level (independent)

Under full overlap a layer takes max(compute, communication), under none their sum.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.collectives import duration
from meshwright.costmodel.comm import Comm
from meshwright.costmodel.flops import BF16
from meshwright.costmodel.hostlink import state_bytes, wait_s
from meshwright.costmodel.layout import CP_KINDS
from meshwright.costmodel.model import LayerKind
from meshwright.costmodel.operators import Shape, kv_width
from meshwright.costmodel.policies import Chosen
from meshwright.costmodel.rows import Rows
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.shapes import Shapes

Array = NDArray[Any]
RING, ALL_TO_ALL, ALL_GATHER = range(len(CP_KINDS))

GATHERS = 2  # of a layer's weights per micro-batch under ZeRO-3: forward and backward
# Under tp each block (attention, feed-forward) gathers its input and scatters its output, forward and backward, and
# gathers its input again for the weight gradient.
FORWARD_CROSSINGS, BACKWARD_CROSSINGS, REGATHERS = 2, 2, 1
# Of the ends: the table scatters its output and gathers the gradient, the head gathers, scatters and gathers again.
TABLE_CROSSINGS, HEAD_CROSSINGS = 2, 3
# Passes of keys and values over cp: one forward, two backward (again, and gradients). Exchanges of tokens over ep:
# dispatch and combine, forward and backward.
PASSES, EXCHANGES = 3, 4


@dataclass(frozen=True)
class Seconds:
    """Exposed seconds by part, shape [R] each; they sum to the total.

    Attributes:
        backward_s: compute behind which a gradient reduction can hide: backward, or weight gradients that run apart.
        spare_s: seconds of further compute that would hide what now waits for launches or for communication.
        again_s: exposed seconds, at least, of one collective of tp, cp and ep more.
        streamed: bytes of state over the host link.
    """

    parts: dict[str, Array]
    backward_s: Array
    spare_s: Array
    again_s: dict[str, Array]
    streamed: Array

    @property
    def total(self) -> Array:
        return sum(self.parts.values(), np.zeros_like(self.backward_s))

    @property
    def busy_s(self) -> Array:
        """The total without the wait for the host link."""
        return sum((s for part, s in self.parts.items() if part != "offload"), np.zeros_like(self.backward_s))

    def times(self, count: int) -> "Seconds":
        """So many of the same one after the other, as a piece beside the layers (`costmodel.mtp.added`)."""
        parts = {part: count * s for part, s in self.parts.items()}
        return Seconds(parts, count * self.backward_s, count * self.spare_s, {}, count * self.streamed)

    def __getitem__(self, index: Any) -> "Seconds":
        parts, again = ({k: v[index] for k, v in x.items()} for x in (self.parts, self.again_s))
        return Seconds(parts, self.backward_s[index], self.spare_s[index], again, self.streamed[index])


def layer_seconds(setting: Setting, lane: int, shapes: Shapes, comm: Comm) -> Seconds:
    """One layer of the lane, forward, backward and what its policy repeats."""
    kind, of, rows = shapes.of_lane(lane), shapes.of_row, shapes.rows
    chosen = shapes.chosen[lane]
    backward, repeated = kind.backward[of], chosen.repeated_s
    compute = kind.forward[of] + backward
    spec, params = setting.model.kinds[shapes.lanes[lane]], shapes.params[lane]
    launch_s = setting.rates.moe_launch_s if spec.ffn.experts else setting.rates.launch_s
    idle = np.maximum(launch_s - compute - repeated, 0.0)
    trained = shapes.trained.params[lane]
    found = {
        "tp": _tp_loads(setting, spec, shapes.shape, chosen, comm),
        "cp": _cp_loads(setting, spec, rows, shapes.shape, chosen, comm),
        "ep": _ep_loads(setting, spec, rows, shapes.shape, chosen, comm),
        "fsdp": fsdp_loads(setting, params, trained, GATHERS, rows, comm),
    }
    loads = {c: load for c, load in found.items() if load is not None}
    share = {c: np.full(len(rows), setting.rates.hideable[c]) for c in loads}
    if "cp" in share:
        # Only the ring overlaps with the attention it feeds; the other kinds stand before or after the kernel.
        blocking = min(setting.rates.hideable["cp"], setting.rates.hideable["tp"])
        share["cp"] = np.where(rows.cp_kind == RING, share["cp"], blocking)
    parts = {"compute": compute, "recompute": repeated, "launch": idle}
    # What hides can do so while the chip waits for launches, too.
    window, hides = compute + repeated + idle, backward
    if rows.splits.any():
        # Weight gradients run apart from what communicates, and a layer's is whole only after its last one, which
        # ends the step: they hide no collective of the layer, and nothing else hides the reduction.
        apart = shapes.weight_grad_s[shapes.lanes[lane]]
        window, hides = np.where(rows.splits, window - apart, window), np.where(rows.splits, apart, backward)
    if setting.framework.gathers_ahead:
        # Two thirds of what is reduced are gradients, behind backward, one is weights, behind forward, itself half of that.
        hides = hides + np.where((rows.zero == 1) | (rows.zero == 2), kind.forward[of], 0.0)
    waits, excess, comm_s = _exposed(setting, window, loads, share)
    parts |= waits
    streamed = state_bytes(setting, rows, params, trained, GATHERS)
    wait = wait_s(setting, streamed, chosen.host, sum(parts.values(), np.zeros(len(rows))))
    if wait is not None:
        parts["offload"] = wait
    # The fewest collectives of each class under any policy are these; all of one class are alike.
    blocks = (FORWARD_CROSSINGS + BACKWARD_CROSSINGS + REGATHERS) * tp_blocks(spec, rows.etp)
    counts: dict[str, Array | int] = {"tp": blocks, "cp": PASSES, "ep": EXCHANGES}
    again = {c: (1.0 - share[c]) * comm_s[c] / counts[c] for c in counts if c in comm_s}
    return Seconds(parts, hides, idle + excess, again, streamed)


def least_seconds(setting: Setting, none: Seconds, chosen: Chosen) -> Array:
    """Seconds of a layer under policies that are no less than these, [R, P].

    Args:
        none: of a layer that repeats nothing and keeps nothing on the host, [R].
        chosen: the policies of each row, [R, P].

    More compute first fills what waits (`Seconds.spare_s`), then adds; collectives that are repeated add what of them
    cannot hide; what the host keeps waits with the state on the link as in `layer_seconds`.
    """
    more = {"tp": chosen.scatters, "cp": chosen.passes, "ep": chosen.exchanges}
    busy: Array = none.busy_s[:, None] + np.maximum(chosen.repeated_s - none.spare_s[:, None], 0.0)
    for c, each in none.again_s.items():
        busy = busy + each[:, None] * more[c]
    wait = wait_s(setting, none.streamed[:, None], chosen.host, busy)
    return busy if wait is None else busy + wait


def exposed(
    setting: Setting, window: Array, loads: dict[str, Array], share: dict[str, Array]
) -> dict[str, Array]:
    """Exposed seconds of each class when all overlap with `window` seconds of compute."""
    return _exposed(setting, window, loads, share)[0]


def _exposed(
    setting: Setting, window: Array, loads: dict[str, Array], share: dict[str, Array]
) -> tuple[dict[str, Array], Array, dict[str, Array]]:
    """(exposed seconds of each class, seconds that could hide and find no compute, seconds of each class)."""
    if not loads:
        return {}, np.zeros_like(window), {}
    comm = {c: duration(load) for c, load in loads.items()}
    if setting.streams == "shared":
        hidden = sum(share[c] * comm[c] for c in comm)
    else:
        hidden = duration(sum((share[c][..., None] * loads[c] for c in comm), np.zeros(1)))
    want = sum(share[c] * comm[c] for c in comm)
    excess = np.maximum(hidden - window, 0.0)
    spill = np.divide(excess, want, out=np.zeros_like(excess * want), where=want > 0)
    return {c: comm[c] * ((1.0 - share[c]) + share[c] * spill) for c in comm}, excess, comm


def _tp_loads(setting: Setting, kind: LayerKind, shape: Shape, chosen: Chosen, comm: Comm) -> Array | None:
    """Gathers and scatters of the residual over tp."""
    if not (shape.tp > 1).any():
        return None
    repeated = chosen.scatters + np.where(shape.etp > 1, chosen.expert_scatters, 0)
    each = FORWARD_CROSSINGS + BACKWARD_CROSSINGS + REGATHERS
    count = np.where(shape.tp > 1, each * tp_blocks(kind, shape.etp) + repeated, 0)
    full = BF16 * shape.tokens * setting.model.hidden
    return count[:, None] * comm.gather("tp", np.where(shape.tp > 1, full, 0.0))


def tp_blocks(kind: LayerKind, etp: Array | int = 1) -> Array | int:
    """Blocks of a layer that tp cuts: attention, and a feed-forward part that does not read the same input.

    Routed tokens stay where they are, so of a mixture only shared experts and experts that tp cuts (etp) are a block.
    """
    cut = np.greater(etp, 1) & bool(kind.ffn.experts) | bool(kind.ffn.width)
    blocks: Array | int = 1 + 1 * (cut & (not kind.parallel))
    return blocks


def _cp_loads(
    setting: Setting, kind: LayerKind, rows: Rows, shape: Shape, chosen: Chosen, comm: Comm
) -> Array | None:
    """Keys and values of the other sequence shards: one pass forward, two backward (again, and gradients).

    all_to_all instead turns q, k, v and the output from sequence to head shards and back.
    """
    if not (rows.cp > 1).any():
        return None
    a = kind.attention
    passes = PASSES + chosen.passes
    keys = kv_width(kind, shape.tp)
    q_width = a.heads / shape.tp * (a.qk_head_dim + a.v_head_dim)
    apart = rows.cp > 1
    everyone = np.where(apart & (rows.cp_kind != ALL_TO_ALL), BF16 * shape.tokens * keys * rows.cp, 0.0)
    turned = np.where(apart & (rows.cp_kind == ALL_TO_ALL), BF16 * shape.tokens * (keys + q_width), 0.0)
    loads = passes[:, None] * comm.gather("cp", everyone)
    if (turned > 0).any():
        loads = loads + (passes - 1)[:, None] * comm.all_to_all("cp", turned)
    return loads


def _ep_loads(
    setting: Setting, kind: LayerKind, rows: Rows, shape: Shape, chosen: Chosen, comm: Comm
) -> Array | None:
    """Dispatch and combine, forward and backward."""
    if not kind.ffn.experts or not (rows.ep > 1).any():
        return None
    sent = BF16 * shape.routed_tokens(kind) * setting.model.hidden * shape.imbalance
    exchanges, sent = EXCHANGES + chosen.exchanges, np.where(rows.ep > 1, sent, 0.0)
    if setting.framework.dispatches_once:
        return exchanges[:, None] * comm.dispatch("ep", sent, kind.ffn.top_k)
    return exchanges[:, None] * comm.all_to_all("ep", sent)


def fsdp_loads(
    setting: Setting,
    params: tuple[Array, Array],
    trained: tuple[Array, Array],
    times: int,
    rows: Rows,
    comm: Comm,
) -> Array | None:
    """Weights gathered `times` per micro-batch (ZeRO-3), gradients of trained ones scattered once (ZeRO-2 and 3).

    Weights that stay after forward (`reshard` false) are gathered once. Also with micro-batches in flight: backward
    of one frees what forward of the next must gather again.
    """
    if not (rows.zero >= 2).any():
        return None
    each = np.where(rows.reshard > 0, times, min(times, 1))
    gathers, wire = each * (rows.zero == 3), setting.framework.reduce_bytes
    loads = np.zeros(1)
    # As so many collectives of their mean size: the sum of best cases of different sizes is no bound, since one
    # may wait for a level's latency and another for another level's rate.
    for group, held, own in zip(("shard", "edp"), params, trained, strict=True):
        if held.any():
            scatters = own.any() * (rows.zero >= 2)
            count = gathers + scatters
            most = np.maximum(count, 1)
            size = (BF16 * gathers + wire * scatters) / most * held - wire * scatters / most * (held - own)
            loads = loads + count[:, None] * comm.gather(group, size)
    return loads


def ends_seconds(setting: Setting, shapes: Shapes, comm: Comm) -> tuple[Seconds, Seconds]:
    """Embedding on the first stage, head and loss on the last, for one micro-batch."""
    rows = shapes.rows
    tp = None
    if (rows.tp > 1).any():
        tp = comm.gather("tp", np.where(rows.tp > 1, BF16 * shapes.shape.tokens * setting.model.hidden, 0.0))
    none_routed = np.zeros(len(rows))
    out = []
    fw = setting.framework
    own, (table, head) = shapes.trained, shapes.frozen_ends_s
    model = setting.model
    for forward, less, params, trained, held, times, crossings in (
        (
            shapes.embedding_s,
            table,
            shapes.embedding_params,
            own.embedding_params,
            own.embedding_params,
            fw.embedding_gathers,
            TABLE_CROSSINGS if model.table.trained else 1,  # no gradient comes back
        ),
        (
            shapes.head_s,
            head,
            shapes.head_params,
            own.head_params,
            own.head_held,
            fw.head_gathers,
            HEAD_CROSSINGS
            if model.head_matrix.trained
            else HEAD_CROSSINGS - 1,  # nor is the input gathered again
        ),
    ):
        compute = 3.0 * forward - less
        loads = {
            "tp": None if tp is None else crossings * tp,
            "fsdp": fsdp_loads(setting, (params, none_routed), (trained, none_routed), times, rows, comm),
        }
        used = {c: load for c, load in loads.items() if load is not None}
        share = {c: np.full(len(rows), setting.rates.hideable[c]) for c in used}
        parts = {"compute": compute} | exposed(setting, compute, used, share)
        streamed = state_bytes(setting, rows, (params, none_routed), (held, none_routed), 1)
        nothing = np.zeros_like(forward)
        if (wait := wait_s(setting, streamed, nothing, sum(parts.values(), nothing))) is not None:
            parts["offload"] = wait
        out.append(Seconds(parts, 2.0 * forward - less, nothing, {}, streamed))
    return out[0], out[1]


def hop_seconds(setting: Setting, shapes: Shapes, comm: Comm, window: Array) -> Array:
    """Exposed seconds per micro-batch and stage of sending activations on and gradients back.

    `window` is the mean compute of a stage, behind which the calibrated share can hide.
    """
    rows, shape = shapes.rows, shapes.shape
    if not (rows.pp > 1).any():
        return np.zeros(len(rows))
    size = np.where(rows.pp > 1, BF16 * shape.tokens / shape.spread * setting.model.hidden, 0.0)
    once = duration(comm.send("pp", size))
    share, both = setting.rates.hideable["pp"], 2.0 * rows.vpp * once
    wait: Array = (1.0 - share) * both + np.maximum(share * both - window, 0.0)
    return wait
