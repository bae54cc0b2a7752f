"""serve(): grid, law, slice and latency in; the best model that the slice serves, how it is cut, and a proof, out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from meshwright.costmodel.collectives import Network
from meshwright.costmodel.doors import ClusterSource, check_positive, check_whole, cluster_of
from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.setting import ideal_network, network_of
from meshwright.hardware.calibration import load_efficiency
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.errors import WorkloadError, check_type
from meshwright.hardware.inference_rates import is_inference_rates
from meshwright.hardware.units import human_bytes, human_seconds
from meshwright.optimizer.plan import Infeasible
from meshwright.search.architecture import Counts, Ends, counts_of
from meshwright.search.board import Board, board_of
from meshwright.search.grid import Grid
from meshwright.search.law import Law, Priced
from meshwright.search.served.find import MOST_BATCH, Choice, Limits, Pricer, Served, closest, find
from meshwright.search.served.slices import Part, parts_of
from meshwright.search.shape import Shapes
from meshwright.search.trained.known import NO_LIMIT, Outside, in_words, known_shapes, outside


@dataclass(frozen=True)
class Serving:
    """The answer.

    Attributes:
        board: one device of the slice. best: the best shape with its ways, replicas and batch.
        one_more: the best shape with a sequence more, which passes a limit; None where the batch was given, or is the
            most that is tried.
        missed: the shape of least loss, where it is another: where it passes its worst limit by least.
        outside: a shape of less loss that keeps the limits too, and that the range of parameters alone leaves out.
        listed, removed: shapes of the grid, and those that each rule removed.
        looked_at: shapes in order of loss up to the answer.
        floors, exact: pairs of a shape and a choice of part and batch priced without and with the network.
    """

    law: Law
    grid: Grid
    cluster: Cluster
    board: Board
    request: Request
    limits: Limits
    shapes: Shapes
    counts: Counts
    priced: Priced
    parts: tuple[Part, ...]
    batch: int | None
    best: Served
    one_more: Served | None
    missed: Served | None
    outside: Outside | None
    shares: Mapping[str, float]
    one_more_shares: Mapping[str, float]
    missed_shares: Mapping[str, float]
    listed: int
    removed: Mapping[str, int]
    looked_at: int
    floors: int
    exact: int


def serve(
    law: Law,
    grid: Grid,
    cluster: ClusterSource,
    request: Request,
    *,
    tpot_s: float | None = None,
    ttft_s: float | None = None,
    batch: int | None = None,
    compute: str | None = None,
    weights: str = "bf16",
    efficiency: str = "ideal",
    memory_bytes: float | None = None,
    tokens: int | None = None,
    params: tuple[float, float] = NO_LIMIT,
    extrapolate: bool = False,
) -> Serving:
    """The shape of least loss that a slice serves within the limits, by tensor-parallel replicas.

    Args:
        request: prompt, output and bytes per element; of batch 1, the sequences at once are `batch`.
        batch: sequences at once on each replica; None: the most that keep the limits, which makes most tokens.
        tokens: of training, for laws that read them.

    Raises:
        InputError: the question is wrong. Infeasible: proven that no shape keeps the limits on any part.
    """
    check_type("law", law, Law, "what load_law gives")
    check_type("grid", grid, Grid, "what load_grid gives")
    check_type("request", request, Request, "a Request(batch=1, prompt=..., output=...)")
    check_positive(WorkloadError, tpot=tpot_s, ttft=ttft_s)
    if batch is not None:
        check_whole(WorkloadError, batch=batch)
    found = cluster_of(cluster)
    board = board_of(
        replace(found, levels=(), devices=1, chips=1),
        compute=compute, weights=weights, efficiency=efficiency, memory_bytes=memory_bytes,
    )  # fmt: skip
    listing = known_shapes(grid, law, params, extrapolate)
    shapes, counts = listing.shapes, counts_of(listing.shapes, grid.ends)
    priced = _losses(law, shapes, grid.ends, tokens)
    limits = Limits(*(np.inf if limit is None else float(limit) for limit in (tpot_s, ttft_s)))
    pricer = Pricer(shapes, grid.ends, board.device, replace(request, batch=1), limits)
    parts = parts_of(_network(found, efficiency), found.devices)
    loss = np.broadcast_to(priced.loss, (len(shapes),))
    best, looked_at = find(pricer, loss, parts, batch)
    least = [Choice(part, batch or 1) for part in parts]
    if best is None:
        raise _refusal(pricer, closest(pricer, np.arange(len(shapes)), least), found, counts)
    floors, exact = pricer.floors, pricer.exact
    first = int(np.argmin(loss))
    missed = None if loss[first] == loss[best.row] else closest(pricer, np.array([first]), least)
    most = batch is not None or best.choice.batch == MOST_BATCH
    one_more = None if most else pricer.price(best.row, replace(best.choice, batch=best.choice.batch + 1))
    return Serving(
        law, grid, found, board, pricer.request, limits, shapes, counts, priced, parts, batch, best, one_more, missed,
        _outside(pricer, outside(grid, law, params, extrapolate), law, tokens, parts, batch, float(loss[best.row])),
        pricer.shares(best), {} if one_more is None else pricer.shares(one_more),
        {} if missed is None else pricer.shares(missed),
        listing.listed, listing.removed, looked_at, floors, exact,
    )  # fmt: skip


def _losses(law: Law, shapes: Shapes, ends: Ends, tokens: int | None) -> Priced:
    return law.loss(law.columns(shapes, counts_of(shapes, ends), None if tokens is None else float(tokens)))


def _outside(
    pricer: Pricer,
    shapes: Shapes,
    law: Law,
    tokens: int | None,
    parts: tuple[Part, ...],
    batch: int | None,
    loss: float,
) -> Outside | None:
    """Of some shapes the one of least loss that keeps the limits, where that is below a loss."""
    if not len(shapes):
        return None
    losses = np.broadcast_to(_losses(law, shapes, pricer.ends, tokens).loss, (len(shapes),))
    shapes, losses = shapes[losses < loss], losses[losses < loss]
    others = Pricer(shapes, pricer.ends, pricer.one, pricer.request, pricer.limits)
    best, _ = find(others, losses, parts, batch or 1)
    if best is None:
        return None
    one = shapes[[best.row]]
    return Outside(one, float(counts_of(one, pricer.ends).params[0]), float(losses[best.row]))


def _network(cluster: Cluster, efficiency: str) -> Network:
    """At the rates of the efficiency file; rates of inference know of one device, and leave links at their peak."""
    if is_inference_rates(efficiency):
        return ideal_network(cluster)
    return network_of(cluster.levels, load_efficiency(efficiency, cluster.chip))


def _refusal(pricer: Pricer, near: Served, cluster: Cluster, counts: Counts) -> Infeasible:
    s, row, part = pricer.shapes, near.row, near.choice.part
    taken = pricer.shares(near)
    name = max(taken, key=lambda limit: taken[limit])
    spent = {"tpot": near.token_s, "ttft": near.ttft_s, "memory": near.device_bytes}[name]
    allowed = {
        "tpot": pricer.limits.tpot_s,
        "ttft": pricer.limits.ttft_s,
        "memory": float(pricer.one.memory_bytes),
    }[name]
    told = human_bytes if name == "memory" else human_seconds
    at_once = "1 sequence" if near.choice.batch == 1 else f"{near.choice.batch} sequences"
    reason = (
        f"no shape of the grid keeps {' and '.join(_asked(pricer.limits))} on {cluster.name}; the closest, "
        f"{in_words(s, row, counts.params[row])}, takes {told(spent)} of {name} where {told(allowed)} are allowed (tp={part.ways}, {at_once} on "
        f"a replica). Allow more, ask for a smaller {'batch or ' if near.choice.batch > 1 else ''}prompt, or add smaller shapes."
    )
    return Infeasible(reason, None, None, {"limits": len(s)})


def _asked(limits: Limits) -> list[str]:
    given = {"tpot": limits.tpot_s, "ttft": limits.ttft_s}
    return [f"{name} {human_seconds(limit)}" for name, limit in given.items() if isfinite(limit)] + [
        "the memory"
    ]
