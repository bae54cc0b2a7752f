"""What `meshwright decode --sharding` answers: how far to cut the model, where the cache goes, 1D against 2D weights."""

from dataclasses import replace
from math import gcd

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.collectives import Network, duration, gather_loads
from meshwright.costmodel.exchange.span import group_of
from meshwright.costmodel.flops import BF16, product_bytes, product_flops
from meshwright.costmodel.inference.work import decode_attention
from meshwright.costmodel.limits.thresholds import (
    block_work,
    exact_tensor_ways,
    gather_s_per_byte,
    reduce_s_per_byte,
    tensor_ways,
)
from meshwright.costmodel.model import LayerKind
from meshwright.costmodel.readers.blocks import plain_ffn
from meshwright.costmodel.roofline.intensity import critical_intensity
from meshwright.costmodel.serving import layout
from meshwright.costmodel.serving.server import step_s
from meshwright.costmodel.serving.service import Service, check_service, check_whole, main_kind
from meshwright.costmodel.working import Step, Working
from meshwright.hardware.chip import ELEMENT_BYTES
from meshwright.hardware.errors import ClusterError
from meshwright.hardware.network import TorusAxis

Factors = NDArray[np.int64]


def sharding(service: Service, batch: int) -> Working:
    """How a decode step of `batch` sequences is cut over all devices of the cluster, and up to where that pays.

    Of a model with several kinds of layers, the kind that most layers are.

    Errors: WorkloadError for a batch below 1; ClusterError for a single device.
    """
    check_service(service)
    check_whole("batch", batch)
    if service.server.devices == 1:
        raise ClusterError(f"{service.cluster.name} is one device and nothing is cut; give a larger one")
    kind = main_kind(service.model)
    steps = _ways(service, kind, batch) | _crossing(service, batch) | _cache(service, kind, batch)
    steps |= _experts(service, kind, batch) if kind.ffn.experts else _two_d(service, kind, batch)
    step, network = float(step_s(service.served, service.server, batch)), _number(steps, "t_network")
    return Working(
        question=f"How to cut a decode step of {batch:,} sequences: {service.title}?",
        given=_given(service, kind, batch),
        steps=steps | {"t_step": Step(step, "s", note="without the network")},
        binds=_binds(service, steps, step, network),
        notes=_notes(service, kind),
    )


def matrix_steps(
    flop_per_s: float,
    hbm_bytes_per_s: float,
    network_bytes_per_s: float,
    width: float,
    ffn: float,
    batch: float,
    ways: float,
    weight_bytes: float = BF16,
) -> dict[str, Step]:
    """One matrix D x F cut Y ways: its FLOPs, its weights and a crossing of its rows, each alone.

    Args:
        network_bytes_per_s: bytes/s of a gather over the devices: M W.
    """
    math = product_flops(batch, width, ffn / ways) / flop_per_s
    read = product_bytes(0, width, ffn / ways, w=weight_bytes) / hbm_bytes_per_s
    crossing = product_bytes(batch, width, 0) / network_bytes_per_s
    return {
        "t_math": Step(float(math), "s", "2 B D F / (Y C)", "of one matrix D x F"),
        "t_hbm": Step(float(read), "s", "w D F / (Y W_hbm)", "reading it"),
        "t_ici": Step(float(crossing), "s", "2 B D / M_W", "its rows cross, (Y-1)/Y as 1"),
        "hbm_bound": Step(bool(read >= max(math, crossing)), note="reading takes longest"),
    }


def useful_ways(
    flop_per_s: float,
    hbm_bytes_per_s: float,
    s_per_byte: float,
    width: int,
    ffn: int,
    batch: float,
    weight_bytes: float = BF16,
    held_ffn: int | None = None,
) -> tuple[float, float]:
    """Ways of tensor parallelism up to which a crossing takes less than the FLOPs, and less than reading the weights.

    Args:
        s_per_byte: of a gather over the devices: 1 / (M W).
        held_ffn: width that is read; of a mixture more than the F that a token meets.
    """
    work = block_work(flop_per_s, width, ffn)
    reads = weight_bytes * sum(w.params for w in plain_ffn(width, held_ffn or ffn, bias=False))
    reading = layout.reading_work(work, reads, hbm_bytes_per_s, batch)
    return float(tensor_ways(work, s_per_byte)), float(tensor_ways(reading, s_per_byte))


def prompt_ways(service: Service) -> tuple[float, int]:
    """Ways of tensor parallelism that FLOPs hide whatever the number of rows: over all axes, M F / alpha, and the most
    that divide the devices."""
    work = block_work(service.server.flop_per_s, service.model.hidden, met_ffn(main_kind(service.model)))
    limit = float(tensor_ways(work, _s_per_byte(service.network, _whole(service.network))))
    return limit, layout.widest_tensor(work, service.network)


def gather_bytes_per_s(network: Network) -> float:
    """Of a gather over all devices, each at its place: M W."""
    return 1.0 / _s_per_byte(network, _whole(network))


def met_ffn(kind: LayerKind) -> int:
    """Width that a token meets, of all its experts together."""
    return kind.ffn.width + kind.ffn.top_k * kind.ffn.expert_width


def _held_ffn(kind: LayerKind) -> int:
    """Width that is read in a step."""
    return kind.ffn.width + kind.ffn.experts * kind.ffn.expert_width


def _given(service: Service, kind: LayerKind, batch: int) -> dict[str, Step]:
    a, server, model = kind.attention, service.server, service.model
    layers = model.layers_by_kind[model.kinds.index(kind)]
    note = f"layers of kind {kind.name}: {layers} of {model.layers}" if len(model.kinds) > 1 else ""
    given = {
        "Y": Step(server.devices, "ways", note="all devices"),
        "chips": Step(server.chips, "chips"),
        "D": Step(model.hidden, note=note),
        "F": Step(met_ffn(kind), note="that a token meets" if kind.ffn.experts else ""),
        "N": Step(a.heads, note="query heads"),
        "H": Step(decode_attention(kind).qk_head_dim, note="of a query, as it meets the cache"),
        "K": Step(layout.cached_heads(kind), note="heads of the cache"),
        "B": Step(batch, "sequences"),
        "C": Step(server.flop_per_s, "FLOP/s"),
        "W_hbm": Step(server.hbm_bytes_per_s, "B/s"),
        "w": Step(ELEMENT_BYTES[service.weights], "B", note="per parameter"),
    }
    if kind.ffn.experts:
        given["E"] = Step(kind.ffn.experts, "experts")
        given["F_read"] = Step(_held_ffn(kind), note="that a step reads: of all experts")
    return given


def _whole(network: Network) -> Factors:
    return np.array(network.sizes, np.int64)


def _closed(network: Network) -> Network:
    """The same links with every axis a ring."""
    levels = (replace(one, wraps=True) if isinstance(one, TorusAxis) else one for one in network.levels)
    return replace(network, levels=tuple(levels))


def _s_per_byte(network: Network, factors: Factors) -> float:
    return float(duration(gather_s_per_byte(network, factors, exact=False)))


def _rules(service: Service, kind: LayerKind, batch: int, network: Network) -> tuple[float, float]:
    """Useful ways over all devices of a network, for throughput and for latency."""
    server, per_byte = service.server, _s_per_byte(network, _whole(network))
    return useful_ways(
        server.flop_per_s,
        server.hbm_bytes_per_s,
        per_byte,
        service.model.hidden,
        met_ffn(kind),
        batch,
        ELEMENT_BYTES[service.weights],
        _held_ffn(kind),
    )


def _ways(service: Service, kind: LayerKind, batch: int) -> dict[str, Step]:
    server, network, whole = service.server, service.network, _whole(service.network)
    rate = gather_bytes_per_s(network)
    width, ffn = service.model.hidden, met_ffn(kind)
    flops, reads = _rules(service, kind, batch, network)
    exact = exact_tensor_ways(block_work(server.flop_per_s, width, ffn), network, whole)
    axes = [level for level in network.levels if isinstance(level, TorusAxis)]
    rings = sum(axis.wraps for axis in axes)
    read = "F_read" if kind.ffn.experts else "F"
    wired = f"{rings} of {len(axes)} axes are rings" if axes else "switched"
    steps = {
        "M_W": Step(rate, "B/s", note=f"of a gather; {wired}"),
        "alpha": Step(critical_intensity(server.flop_per_s, rate), "FLOP/B", "C / M_W"),
        "beta": Step(server.hbm_bytes_per_s / rate, "ratio", "W_hbm / M_W"),
        "ways_throughput": Step(flops, "ways", "F / alpha", "crossings as long as FLOPs"),
        "ways_throughput_exact": Step(float(exact.min()), "ways", note="with (Y-1)/Y"),
        "ways_latency": Step(reads, "ways", f"(w/2) {read} / (B beta)", "crossings as long as weight reads"),
    }
    if rings < len(axes):
        flops, reads = _rules(service, kind, batch, _closed(network))
        steps["ways_throughput_if_rings"] = Step(flops, "ways", note="had every axis closed into a ring")
        steps["ways_latency_if_rings"] = Step(reads, "ways")
    if kind.ffn.experts:
        return steps
    return steps | matrix_steps(
        server.flop_per_s,
        server.hbm_bytes_per_s,
        rate,
        width,
        ffn,
        batch,
        server.devices,
        ELEMENT_BYTES[service.weights],
    )


def _crossing(service: Service, batch: int) -> dict[str, Step]:
    network, group = service.network, group_of(service.network.sizes)
    row = BF16 * service.model.hidden
    hops = layout.hops_s(network, group)
    once = float(duration(gather_loads(network, batch * row, group.factors, group.strides)))
    per_byte = float(duration(gather_s_per_byte(network, group.factors, exact=True)))
    return {
        "crossing_bytes": Step(batch * row, "B", "2 B D"),
        "t_crossing": Step(once, "s", note="exact, with latency"),
        "t_hops": Step(hops, "s", note="of a crossing, however small it is"),
        "latency_bound": Step(bool(batch * row * per_byte < hops)),
        "s_per_byte": Step(per_byte, "s/B", note="of a crossing, exact, no hops"),
        "batch_latency_bound": Step(
            hops / (per_byte * row),
            "sequences",
            "t_hops / (2 D s_per_byte)",
            "hops take longer below",
        ),
        "t_network": Step(
            layout.network_s(service.model, network, batch), "s", note="all collectives of a step"
        ),
    }


def _cache(service: Service, kind: LayerKind, batch: int) -> dict[str, Step]:
    placed = layout.place_cache(service.server.devices, layout.cached_heads(kind), batch)
    each = layout.queries_bytes(kind, batch)
    return {
        "kv_head_shards": Step(placed.heads, "ways", "gcd(Y, K)"),
        "kv_batch_shards": Step(placed.batch, "ways", "gcd(Y / kv_head_shards, B)"),
        "kv_sequence_shards": Step(placed.sequence, "ways", note="the rest"),
        "alltoalls_per_layer": Step(placed.all_to_alls, "collectives", note="queries there, outputs back"),
        "bytes_per_alltoall": Step(each, "B", "2 B N H", "queries of all heads"),
        "t_cache_exchange": Step(
            layout.cache_exchange_s(service.network, kind, batch, placed), "s", note="per layer"
        ),
    }


def _two_d(service: Service, kind: LayerKind, batch: int) -> dict[str, Step]:
    network, width, ffn, devices = (
        service.network,
        service.model.hidden,
        met_ffn(kind),
        service.server.devices,
    )
    x, yz = _x_and_yz(network)
    found = layout.two_d(
        width,
        ffn,
        batch,
        _s_per_byte(network, _whole(network)),
        float(duration(reduce_s_per_byte(network, x, exact=False))),
        _s_per_byte(network, yz),
    )
    legal = [
        (layout.two_d_s(network, width, ffn, batch, gx, gyz), int(gx.size))
        for gx, gyz in layout.two_d_groups(network)
    ]
    best_s, best_x = min(legal)
    one_d = next(s for s, ways in legal if ways == 1)
    return {
        "a": Step(found.rows_s, "s", note="rows crossing YZ, were X = 1"),
        "b": Step(found.hidden_s, "s", note="hidden rows over X, were YZ = 1"),
        "X_opt": Step(found.best_x(devices), "ways", "sqrt(a Y / b)"),
        "t_2d": Step(found.best_s(devices), "s", "2 sqrt(a b / Y)", "a feed-forward part, at X_opt"),
        "t_1d": Step(found.one_d_s, "s", "2 (2 B D) / M_W"),
        "chips_2d": Step(
            found.crossing / service.server.devices_per_chip,
            "chips",
            "4 a b chips / (Y t_1d^2)",
            "2D wins beyond",
        ),
        "X": Step(best_x, "ways", note="best there is, exact; 1 is 1D"),
        "t_2d_exact": Step(best_s, "s", note=f"at that X; 1D {one_d * 1e6:.4g} us"),
    }


def _x_and_yz(network: Network) -> tuple[Factors, Factors]:
    """X over one axis of a torus, YZ over the others, as the book has them; else both over everything."""
    whole, axes = _whole(network), network.torus
    if len(axes) < 2:
        return whole, whole
    first = np.arange(len(whole)) == axes[0]
    return np.where(first, whole, 1), np.where(first, 1, whole)


def _experts(service: Service, kind: LayerKind, batch: int) -> dict[str, Step]:
    over = gcd(service.server.devices, kind.ffn.experts)
    seconds = layout.experts_s(kind, service.model.hidden, service.network, batch)
    return {
        "expert_ways": Step(
            over, "ways", "gcd(Y, E)", f"each expert cut {service.server.devices // over} ways"
        ),
        "t_experts": Step(seconds, "s", note="per layer: to experts, back, within"),
    }


def _number(steps: dict[str, Step], name: str) -> float:
    value = steps[name].value
    assert not isinstance(value, str)
    return float(value)


def _binds(service: Service, steps: dict[str, Step], step: float, network: float) -> str:
    ways = service.server.devices
    flops, reads = _number(steps, "ways_throughput"), _number(steps, "ways_latency")
    side = {
        (False, False): "within both",
        (True, False): "beyond the first, within the second",
        (False, True): "within the first, beyond the second",
        (True, True): "beyond both",
    }[ways > flops, ways > reads]
    return (
        f"FLOPs hide crossings up to {flops:.3g} ways, at this batch weight reads up to {reads:.3g}: {ways} ways are "
        f"{side}; collectives take {network / step:.0%} of the step without them"
    )


def _notes(service: Service, kind: LayerKind) -> tuple[str, ...]:
    notes = [
        "rules are those of two matrices D x F; a gated feed-forward part has three and hides half as many ways more"
    ]
    lines = [
        level.name
        for level in service.network.levels
        if isinstance(level, TorusAxis) and not level.wraps and level.size > 2
    ]
    if lines:
        notes.append(
            f"{' and '.join(lines)} of {service.cluster.name} {'do' if len(lines) > 1 else 'does'} not close into a ring, "
            f"which halves the rate: figures that count both directions of a ring are for other slices"
        )
    if kind.ffn.experts:
        notes.append(
            "of a mixture alpha and beta hold for a crossing of all rows and the experts that they meet; the exchange "
            "with experts is in t_experts"
        )
    return tuple(notes)
