"""Transfers that are no collective: from one chip to another, and of a host-offloaded array to one chip that uses it.

    first byte   hops x t_hop                      last byte   first byte + bytes / (links x W)
    links        those by which a shortest way leaves: one for each axis along which the ends differ, two where a ring
                 is as short both ways round

Source: jax-ml/scaling-book, chapter 2 (latency and bandwidth of one transfer add).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.costmodel.collectives import Network
from meshwright.costmodel.exchange.place import check_bytes, name_of, network_at
from meshwright.costmodel.flops import product_flops
from meshwright.costmodel.working import Step, Value, Working
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.errors import InputError, LayoutError, MissingFigureError, check_type
from meshwright.hardware.network import TorusAxis
from meshwright.hardware.units import human_seconds

Place = Sequence[int]


@dataclass(frozen=True)
class Device:
    """Rates of one device; None where no source gives the host link."""

    flop_per_s: float
    hbm_bytes_per_s: float
    host_bytes_per_s: float | None


def point_to_point(
    size_bytes: float,
    network: Network | Cluster | str,
    src: Place,
    dst: Place,
    *,
    links: int | None = None,
    where: str = "",
) -> Working:
    """First and last byte of a transfer between two chips of a torus.

    Args:
        network: a cluster like "v5e:4x4" or of parse_cluster, at ideal rates as `meshwright transfer` has it; or a
            Network at other rates.
        src, dst: coordinates, one per torus axis.
        links: by which the bytes leave, where not all shortest ways are used, or longer ones too.

    Errors: LayoutError for coordinates that are not there, InputError where both are the same.
    """
    check_bytes(size_bytes)
    found = network_at(network)
    where, network = where or name_of(network), found
    axes = _axes(network)
    steps = list(_ways(axes, _checked(src, axes), _checked(dst, axes)))
    hops = sum(distance for _, distance, _ in steps)
    if hops == 0:
        raise InputError(f"{_text(src)} and {_text(dst)} are the same chip; nothing is sent")
    used = sum(ways for *_, ways in steps) if links is None else links
    if not 1 <= used <= sum(2 for _ in axes):
        raise LayoutError(
            f"{used} links are none or more than the {2 * len(axes)} of a chip; use 1 to {2 * len(axes)}"
        )
    rate = min(network.rate(i) for i in network.torus)
    hop = max(axis.hop_s for axis in axes)
    first, bandwidth = hops * hop, size_bytes / (used * rate)
    return Working(
        question=f"How long is a transfer under way from {_text(src)} to {_text(dst)}"
        + (f" of {where}?" if where else "?"),
        given={
            "bytes": Step(size_bytes, "B"),
            "W": Step(rate, "B/s", note="one link, one way"),
            "t_hop": Step(hop, "s"),
        },
        steps={
            "hops": Step(
                hops,
                "hops",
                " + ".join(str(d) for _, d, _ in steps),
                "over links, the shorter way round rings",
            ),
            "links": Step(
                used, "links", note="by which shortest ways leave" if links is None else "as given"
            ),
            "t_first_byte": Step(first, "s", "hops t_hop"),
            "t_bandwidth": Step(bandwidth, "s", "bytes / (links W)"),
            "t_last_byte": Step(first + bandwidth, "s", "t_first_byte + t_bandwidth"),
        },
        binds=_binds({"latency": first, "bandwidth": bandwidth}),
        notes=(
            "The ways over different links must not cross for all of them to count; in a torus they need not.",
        ),
        table=tuple(
            {"axis": axis.name, "of": axis.size, "wraps": axis.wraps, "hops": distance, "links": ways}
            for axis, distance, ways in steps
        ),
    )


def pull(
    array_bytes: float,
    network: Network | Cluster | str,
    device: Device,
    dst: Place | None = None,
    *,
    rows: float = 0,
    elements: float = 0,
    where: str = "",
) -> Working:
    """An array sharded over the hosts of all chips: to the chips, to one of them, and used there.

    Stages run at once on successive parts, so the slowest bounds the time.

    Args:
        network: a cluster like "v5e:4x4" or of parse_cluster, at ideal rates; or a Network at other rates.
        dst: coordinates of the chip, on a torus; the corner (0, 0, ..) if not given.
        rows, elements: where used in a product [rows, k] x array, the rows and the array's elements.

    Errors: MissingFigureError where no source gives the host link; LayoutError for coordinates.
    """
    if device.host_bytes_per_s is None:
        raise MissingFigureError(
            "no source gives the host link of this chip; give its rate, like --host-rate '16 GB/s'"
        )
    check_bytes(array_bytes)
    found = network_at(network)
    where, network = where or name_of(network), found
    count = int(np.prod(network.sizes))
    place = _checked(dst, _axes(network)) if dst is not None else tuple(0 for _ in network.torus)
    stages = dict(_arrivals(array_bytes, network, place))
    times = {
        "t_host": array_bytes / (count * device.host_bytes_per_s),
        "t_gather": max(stages.values(), default=0.0),
        "t_hbm": array_bytes / device.hbm_bytes_per_s,
    }
    steps = {
        "t_host": Step(times["t_host"], "s", "V / (N W_host)", "each chip loads its part"),
        **_gather_steps(network, place, stages),
        "t_hbm": Step(times["t_hbm"], "s", "V / W_hbm", "read once"),
    }
    if rows > 0:
        flops = float(product_flops(rows, elements, 1))
        times["t_math"] = flops / device.flop_per_s
        steps["flops"] = Step(flops, "FLOP", "2 rows x elements")
        steps["t_math"] = Step(times["t_math"], "s", "flops / C")
    steps["t_lower"] = Step(max(times.values()), "s", "the slowest stage", "all at once, part by part")
    steps["t_upper"] = Step(sum(times.values()), "s", "the sum", "one after the other")
    return Working(
        question="How long to bring an array from the hosts to one chip"
        + (f" of {where}" if where else "")
        + " and use it?",
        given={
            "V": Step(array_bytes, "B", note="the whole array, an equal part behind each chip"),
            "N": Step(count, "devices"),
            "W": Step(
                min(network.rate(i) for i in range(len(network.levels))), "B/s", note="one link, one way"
            ),
            "W_host": Step(device.host_bytes_per_s, "B/s", note="host link of one device"),
            "W_hbm": Step(device.hbm_bytes_per_s, "B/s"),
            "C": Step(device.flop_per_s, "FLOP/s"),
        },
        steps=steps,
        binds=_binds({name[2:]: t for name, t in times.items()}),
        table=tuple(_arrival_rows(stages)),
    )


def _gather_steps(network: Network, place: Place, stages: Mapping[str, float]) -> dict[str, Step]:
    seconds = max(stages.values(), default=0.0)
    if not network.torus:
        return {"t_gather": Step(seconds, "s", "", "into one chip, over its slowest level")}
    formula = "V (N - 1) / (N links W)" if len(stages) == 1 else ""
    return {
        "links_in": Step(sum(_links_by_axis(network, place)), "links", note="of the chip that gathers"),
        "t_gather": Step(seconds, "s", formula, "into one chip"),
    }


def _arrivals(array_bytes: float, network: Network, place: Place) -> Iterator[tuple[str, float]]:
    """Seconds in which what lies beyond each level comes into one device."""
    count, inside = float(np.prod(network.sizes)), 1.0
    for members in network.stages:
        block = inside * np.prod([network.levels[i].size for i in members])
        ends = count if network.beyond(members[0]) else block
        rate = network.rate(members[0])
        if members == network.torus:
            rate = sum(
                network.rate(i) * n for i, n in zip(members, _links_by_axis(network, place), strict=True)
            )
        coming = array_bytes * (ends - inside) / count
        if coming > 0:
            yield " ".join(network.levels[i].name for i in members), float(coming / rate)
        inside = block


def _arrival_rows(stages: Mapping[str, float]) -> Iterator[Mapping[str, Value]]:
    if len(stages) > 1:
        for name, seconds in stages.items():
            yield {"into the chip by": name, "takes": human_seconds(seconds)}


def _links_by_axis(network: Network, place: Place) -> list[int]:
    """Links of a chip along each torus axis: an end of a line has one, others two."""
    links = []
    for axis, at in zip(_axes(network), place, strict=True):
        ends = (at == 0) + (at == axis.size - 1)
        links.append(2 if axis.wraps else 2 - ends)
    return links


def _axes(network: Network) -> list[TorusAxis]:
    return [axis for axis in network.levels if isinstance(axis, TorusAxis)]


def _checked(place: Place, axes: Sequence[TorusAxis]) -> tuple[int, ...]:
    if not axes:
        raise LayoutError(
            "coordinates are for chips of a torus; on switches ask 'meshwright collective permute'"
        )
    check_type("place", place, (tuple, list), "coordinates like (0, 3)", LayoutError)
    for at in place:
        check_type("coordinate", at, int, "whole numbers like (0, 3)", LayoutError)
    shape = "x".join(str(axis.size) for axis in axes)
    if len(place) != len(axes) or any(not 0 <= at < axis.size for at, axis in zip(place, axes, strict=False)):
        far = ",".join(str(axis.size - 1) for axis in axes)
        raise LayoutError(
            f"{_text(place)} is no chip of {shape}; coordinates run from {','.join('0' for _ in axes)} to {far}"
        )
    return tuple(place)


def _ways(axes: Sequence[TorusAxis], src: Place, dst: Place) -> Iterator[tuple[TorusAxis, int, int]]:
    """Hops along each axis, and links by which a shortest way may leave."""
    for axis, a, b in zip(axes, src, dst, strict=True):
        there = abs(a - b)
        round_ = axis.size - there if axis.wraps else there
        distance = min(there, round_)
        yield axis, distance, 0 if distance == 0 else 2 if axis.wraps and there == round_ else 1


def _text(place: Place) -> str:
    return f"({','.join(map(str, place))})"


def _binds(times: Mapping[str, float]) -> str:
    first, second = sorted(times, key=lambda name: -times[name])[:2]
    text = f"{first}: {human_seconds(times[first])} against {human_seconds(times[second])} of {second}"
    return text + (f", {times[first] / times[second]:.3g} times as long" if times[second] > 0 else "")
