"""The best split of a batch's chips into FSDP x TP, and which splits a real network and batch can hold.

X = N / Y with Y from `limits.best_tensor_ways` is a point on a line; a slice holds only degrees that are products of
whole factors of its axes (`placement.joint_splits`), a model only those that divide its heads and widths, a batch only
those that divide its sequences and their length (`legal.RULES`).
"""

from dataclasses import dataclass, replace
from math import isqrt

import numpy as np

from meshwright.costmodel.collectives import Network, duration, gather_loads
from meshwright.costmodel.layer import exposed
from meshwright.costmodel.layout import DIMENSIONS, Placement
from meshwright.costmodel.legal import RULES
from meshwright.costmodel.limits.thresholds import Array, Work
from meshwright.costmodel.placement import joint_splits, least_strides, orders, placement_of
from meshwright.costmodel.rows import Ints, Rows
from meshwright.costmodel.schedules import ONE_F_ONE_B
from meshwright.costmodel.setting import Setting
from meshwright.costmodel.workload import Training
from meshwright.hardware.errors import WorkloadError
from meshwright.hardware.network import TorusAxis

_DATA, _TENSOR = DIMENSIONS.index("dp_shard"), DIMENSIONS.index("tp")


@dataclass(frozen=True)
class Tiling:
    """FSDP over `data * context` ways, TP over `tensor`, at its fastest placement; seconds of all layers forward.

    Attributes:
        data, context: ways over sequences and within them; 0 and 0 where the batch cannot be cut so.
        ways: data * context, X.
        weights_s, residual_s: traffic of FSDP and of TP alone.
        seconds: of products and what communication exposes.
    """

    ways: int
    tensor: int
    data: int
    context: int
    math_s: float
    weights_s: float
    residual_s: float
    seconds: float
    placement: Placement

    @property
    def devices(self) -> int:
        return self.ways * self.tensor

    @property
    def fits_batch(self) -> bool:
        return self.data > 0

    @property
    def compute_bound(self) -> bool:
        return self.seconds <= self.math_s * (1 + 1e-9)


def slice_of(setting: Setting) -> Setting:
    """The same question for one slice: its levels, and its share of the batch.

    Raises:
        WorkloadError: the batch is not whole sequences for every slice.
    """
    cluster, training = setting.cluster, setting.training
    if cluster.slices == 1:
        return setting
    if training.sequences % cluster.slices:
        raise WorkloadError(
            f"{training.sequences} sequences are not a multiple of the {cluster.slices} slices of {cluster.name}; "
            f"use a batch of such a multiple"
        )
    inside = tuple(x for x in cluster.levels if isinstance(x, TorusAxis) or x.name == "package")
    share: Training = replace(
        training, global_batch_tokens=training.global_batch_tokens // cluster.slices, batch_tolerance=0.0
    )
    one = replace(
        cluster,
        levels=inside,
        devices=cluster.devices // cluster.slices,
        chips=cluster.chips // cluster.slices,
        slices=1,
    )
    return replace(setting, cluster=one, training=share)


def legal_splits(setting: Setting) -> dict[tuple[int, int], tuple[int, int]]:
    """(X, Y) -> (data, context) that model and batch allow on so many devices, X = data * context.

    Of several cuts of X the one with most sequences apart, which needs the least context parallelism.
    """
    devices, training = setting.cluster.devices, setting.training
    tensor = np.arange(1, min(devices, _heads(setting)) + 1)
    data, context, tensor = (
        x.ravel()
        for x in np.meshgrid(
            _divisors(training.sequences, devices),
            _divisors(training.seq_len, devices),
            tensor,
            indexing="ij",
        )
    )
    few = data * context * tensor <= devices
    rows = _rows(setting, data[few], context[few], tensor[few])
    legal = np.ones(len(rows), bool)
    for rule in RULES:
        legal &= rule.holds(setting, rows)
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for d, c, t in sorted(zip(rows.dp[legal], rows.cp[legal], rows.tp[legal], strict=True)):
        found[int(d * c), int(t)] = (int(d), int(c))
    return found


def tensor_degrees(setting: Setting) -> tuple[int, ...]:
    """Y that the model allows, whatever the batch."""
    tensor = np.arange(1, min(setting.cluster.devices, _heads(setting)) + 1)
    ones = np.ones_like(tensor)
    rows = _rows(setting, ones, ones, tensor)
    legal = np.ones(len(rows), bool)
    for rule in RULES:
        if rule.name.startswith("tp divides"):
            legal &= rule.holds(setting, rows)
    return tuple(int(t) for t in tensor[legal])


def tilings(setting: Setting, work: Work) -> tuple[Tiling, ...]:
    """Every split that network, model and batch hold, and those that use every device; fastest first.

    Args:
        work: of the layers to time, see `limits.layers_work` or `limits.block_work`.
    """
    legal = legal_splits(setting)
    devices = setting.cluster.devices
    whole = {(devices // t, t) for t in tensor_degrees(setting) if devices % t == 0}
    found = [t for pair in sorted({*legal, *whole}) if (t := tiling(setting, work, *pair, legal)) is not None]
    return tuple(sorted(found, key=_order))


def _order(t: Tiling) -> tuple[float, float, int, int]:
    """Fastest first; of equals the least communication, then the least context and tensor parallelism."""
    return t.seconds, t.weights_s + t.residual_s, t.context, t.tensor


def tiling(
    setting: Setting,
    work: Work,
    ways: int,
    tensor: int,
    legal: dict[tuple[int, int], tuple[int, int]],
) -> Tiling | None:
    """One split at its fastest placement; None where the network holds none."""
    tokens = setting.training.global_batch_tokens
    math_s = work.math_s * tokens / (ways * tensor)
    degrees = [1] * len(DIMENSIONS)
    degrees[_DATA], degrees[_TENSOR] = ways, tensor
    splits = joint_splits(tuple(degrees), setting.network.sizes)
    if not len(splits):
        return None

    def price(factors: Ints, strides: Ints) -> tuple[Array, Array, Array]:
        loads = _loads(setting.network, work, tokens, factors, strides)
        share = {name: np.ones(len(factors)) for name in loads}
        late = exposed(setting, np.full(len(factors), math_s), loads, share)
        return np.asarray(math_s + sum(late.values())), duration(loads["fsdp"]), duration(loads["tp"])

    # Splits in the order of what they take at least, both innermost; orders of each until none left is faster.
    least, weights, residual = price(splits, least_strides(splits, setting.network.torus))
    best: tuple[float, float, float, float, Placement] | None = None
    for index in np.lexsort((weights + residual, least)):
        if best is not None and (least[index], weights[index] + residual[index]) >= best[:2]:
            break
        strides = orders(splits[index], setting.network.levels)
        factors = np.broadcast_to(splits[index], strides.shape)
        seconds, of_weights, of_residual = price(factors, strides)
        one = int(np.lexsort((of_weights + of_residual, seconds))[0])
        alone = float(of_weights[one]), float(of_residual[one])
        found = (float(seconds[one]), sum(alone), *alone, placement_of(factors[one], strides[one]))
        best = found if best is None or found[:2] < best[:2] else best
    assert best is not None
    data, context = legal.get((ways, tensor), (0, 0))
    return Tiling(ways, tensor, data, context, math_s, best[2], best[3], best[0], best[4])


def _loads(network: Network, work: Work, tokens: float, factors: Ints, strides: Ints) -> dict[str, Array]:
    """Loads of FSDP's gathers and of TP's crossings, [placements, levels] each."""
    ways = np.prod(factors[:, _DATA], axis=-1, dtype=float)
    tensor = np.prod(factors[:, _TENSOR], axis=-1, dtype=float)
    crossing = work.crossing_bytes * tokens / ways
    return {
        "fsdp": gather_loads(network, work.weight_bytes / tensor, factors[:, _DATA], strides[:, _DATA]),
        "tp": gather_loads(network, crossing, factors[:, _TENSOR], strides[:, _TENSOR]),
    }


def batch_for_whole(setting: Setting, found: tuple[Tiling, ...]) -> tuple[int, int, int, int] | None:
    """(sequences, data, context, tensor) of a batch within a tenth of the one asked for that FSDP x TP lays over every
    device as fast as any, with the least context parallelism and then the nearest; None where there is none.

    Args:
        found: of `tilings`.
    """
    training = setting.training
    whole = [t for t in found if t.devices == setting.cluster.devices]
    fastest = [t for t in whole if t.seconds <= 1.01 * min(x.seconds for x in whole)]
    batches: list[tuple[int, int, tuple[int, int, int, int]]] = []
    for t in fastest:
        for context in (int(c) for c in _divisors(t.ways, t.ways)):
            data = t.ways // context
            pieces = (2 * context if context > 1 else 1) * t.tensor
            sequences = max(1, round(training.sequences / data)) * data
            away = abs(sequences - training.sequences)
            if training.seq_len % pieces == 0 and 10 * away <= training.sequences:
                batches.append((context, away, (sequences, data, context, t.tensor)))
    return min(batches)[2] if batches else None


def _heads(setting: Setting) -> int:
    return max(k.attention.heads for k in setting.model.kinds)


def _divisors(n: int, most: int) -> Ints:
    """Ascending, none above `most`."""
    small = [d for d in range(1, min(isqrt(n), most) + 1) if n % d == 0]
    return np.array(sorted({*small, *(n // d for d in small if n // d <= most)}), np.int64)


def _rows(setting: Setting, data: Ints, context: Ints, tensor: Ints) -> Rows:
    """FSDP x TP with one sequence a micro-batch."""
    one, none = np.ones(len(data), np.int64), np.zeros(len(data), np.int64)
    return Rows(
        dp_replicate=one, dp_shard=data, zero=3 * one, reshard=one, cp=context, cp_kind=none, tp=tensor, sp=one, pp=one,
        vpp=one, schedule=ONE_F_ONE_B * one, ep=one, etp=one, micro_batch=one, sequences=one * setting.training.sequences,
        policies=np.zeros((len(data), len(setting.model.kinds)), np.int64), offload=none,
    )  # fmt: skip
