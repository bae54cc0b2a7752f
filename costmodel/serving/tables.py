"""What `meshwright decode --sweep` and `--slices` answer: batches, and slices of a chip, against each other."""

from dataclasses import replace
from math import ceil

from meshwright.costmodel.serving import disaggregation as pools
from meshwright.costmodel.serving import server as serving
from meshwright.costmodel.serving.decode import decode
from meshwright.costmodel.serving.server import Served, Server
from meshwright.costmodel.serving.service import (
    Service,
    check_finite,
    check_queries,
    check_service,
    check_whole,
    money,
)
from meshwright.costmodel.working import Step, Value, Working
from meshwright.hardware.errors import InputError
from meshwright.hardware.units import human_seconds

EXACT = (
    "step_ms is the book's; exact_ms has each product with its activations and, of a mixture, only the experts that "
    "the batch meets; the network is in neither"
)

# Of a step, whatever the batch, and what its formulas refer to.
_SHOWN = (
    "param_bytes",
    "kv_per_sequence",
    "free_hbm",
    "max_batch",
    "t_load",
    "t_floor",
    "critical_batch",
    "t_full",
)


def sweep(service: Service, batch: int, limit_s: float | None = None) -> Working:
    """Batches against each other: latency, throughput, what the cache takes of the step, money."""
    check_service(service)
    check_whole("batch", batch)
    _check_limit(limit_s)
    served, server = service.served, service.server
    most = serving.most_sequences(served, server)
    critical = ceil(serving.critical_batch(served, server))
    powers = [2**n for n in range(40) if 2**n < max(most, batch)]
    rows = sorted({*powers, batch, most, critical} - {0})
    found = decode(served, server, batch, title=service.title)
    steps = {name: found.steps[name] for name in _SHOWN if name in found.steps}
    steps["t_floor"] = replace(steps["t_floor"], formula="")  # its formula is of one batch
    if limit_s is not None:
        steps["batch_within_limit"] = _within(served, server, limit_s)
    return replace(
        found,
        question=f"Which batch: {service.title}, {service.context:,} tokens each?",
        given={name: step for name, step in found.given.items() if name != "B"},
        steps=steps,
        binds=f"at a batch of {batch:,}: {found.binds}",
        notes=(EXACT, *service.notes),
        table=tuple(_row(service, b, limit_s) for b in rows[-20:]),
    )


def slices(service: Service, decode_tokens: int | None = None, limit_s: float | None = None) -> Working:
    """Slices of the chip against each other, each filled with caches.

    Errors: InputError where no slices of the chip are known.
    """
    check_service(service)
    check_queries(service.context, decode_tokens, None)
    _check_limit(limit_s)
    shapes = serving.slices_of(service.cluster.chip)
    if not shapes:
        raise InputError(
            f"no slices of {service.cluster.chip.name} are listed; ask about one with --cluster alone"
        )
    served, chip = service.served, service.cluster.chip
    experts = served.active_params != served.params
    needed = serving.chips_for(served.param_bytes + served.kv_bytes, service.server)
    steps = {
        "param_bytes": Step(served.param_bytes, "B"),
        "kv_per_sequence": Step(served.kv_bytes, "B", note=f"of {service.context:,} tokens"),
        "min_chips": Step(serving.chips_for(served.param_bytes, service.server), "chips", note="for weights"),
        "slice": Step(serving.smallest_slice(chip, needed) or "none listed", note="weights and one cache"),
        "t_full": Step(serving.full_memory_s(service.server), "s", note="to read all of the memory once"),
    }
    rows = [
        _slice_row(service, shape, decode_tokens, limit_s)
        for shape in shapes
        if serving.chips_of(shape) >= needed
    ]
    best = max(rows, key=lambda row: float(row["tok_per_s_chip"]), default=None)
    binds = f"most tokens per chip: {best['slice']} at {best['max_batch']:,} sequences" if best else ""
    return Working(
        question=f"Which slice: {service.model.name} in {service.weights} (cache {service.kv}) on {chip.name}?",
        given={
            "memory": Step(service.server.memory_bytes, "B", note="of one device"),
            "C": Step(service.server.flop_per_s, "FLOP/s", note="of one device"),
            "W": Step(service.server.hbm_bytes_per_s, "B/s", note="HBM of one device"),
        },
        steps=steps,
        binds=binds,
        notes=(
            "each slice is filled with caches, nothing else is in its memory; the network is left out",
            *(("floor_ms reads all experts; one token meets few of them",) if experts else ()),
            *service.notes,
        ),
        table=tuple(rows),
    )


def _check_limit(limit_s: float | None) -> None:
    if limit_s is not None:
        check_finite(limit_s=limit_s)


def _within(served: Served, server: Server, limit_s: float) -> Step:
    batch = min(serving.most_within(served, server, limit_s), serving.most_sequences(served, server))
    return Step(batch, "sequences", note=f"largest that fits and takes at most {human_seconds(limit_s)}")


def _row(service: Service, batch: int, limit_s: float | None) -> dict[str, Value]:
    served, server = service.served, service.server
    step = float(serving.step_s(served, server, batch))
    rate = float(serving.throughput(served, server, batch))
    math, read = float(serving.math_s(served, server, batch)), serving.load_s(served, server)
    cache = float(serving.kv_s(served, server, batch))
    largest = max((cache, "cache"), (read, "weights"), (math, "FLOPs"))[1]
    row: dict[str, Value] = {
        "batch": batch,
        "step_ms": step * 1e3,
        "exact_ms": service.exact_s(batch) * 1e3,
        "tok_per_s": rate,
        "tok_per_s_chip": rate / server.chips,
        "cache_share": f"{cache / step:.0%}",
        "largest": largest,
        "fits": batch <= serving.most_sequences(served, server),
    }
    for price in money(server, rate).values():
        row["usd_per_mtok"] = price.value
    if limit_s is not None:
        row["in_time"] = step <= limit_s
    return row


def _slice_row(
    service: Service, shape: str, decode_tokens: int | None, limit_s: float | None
) -> dict[str, Value]:
    chips = serving.chips_of(shape)
    server = Server.of_chip(service.cluster.chip, chips, service.compute)
    served = service.served
    batch = max(1, serving.most_sequences(served, server))
    step = float(serving.step_s(served, server, batch))
    row: dict[str, Value] = {
        "slice": shape,
        "chips": chips,
        "free_gib": serving.free_bytes(served, server) / 2**30,
        "max_batch": batch,
        "floor_ms": float(serving.step_s(served, server, 1)) * 1e3,
        "step_ms": step * 1e3,
        "tok_per_s_chip": batch / step / chips,
    }
    if decode_tokens is not None:
        row["qps_per_chip"] = float(pools.queries_per_s(batch, step, decode_tokens)) / chips
    if limit_s is not None:
        row["batch_in_time"] = min(batch, serving.most_within(served, server, limit_s))
    return row
