"""Parts of a slice that serve one copy of a model: tensor-parallel ways, their network, and which shapes they cut.

A KV head stays whole: beyond as many ways as there are heads each device keeps a copy of one, its share of the k and v
weights, of the cache and of reading it no smaller. So no query leaves its device for the cache.
"""

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from meshwright.costmodel.collectives import Network
from meshwright.costmodel.exchange.span import group_of
from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device, Machine
from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.serving.layout import crossings_s, experts_s, network_s, places
from meshwright.hardware.network import Level, TorusAxis
from meshwright.search.shape import Shapes

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """`ways` devices that hold one copy together; the slice holds `replicas` of it.

    Attributes:
        networks: of every even part of the slice with so many devices.
    """

    ways: int
    replicas: int
    networks: tuple[Network, ...]

    def device(self, one: Device) -> Device:
        """All devices of the part as one: rates and memory of each times their number, launches as on one."""
        return Device(
            _together(one.prefill, self.ways), _together(one.decode, self.ways), self.ways * one.memory_bytes
        )

    def held(self, shapes: Shapes) -> Shapes:
        """The shapes as the part holds them: with a KV head for every device where there are fewer."""
        return replace(shapes, kv_heads=np.maximum(shapes.kv_heads, self.ways))

    def cuts(self, shapes: Shapes) -> Bools:
        """Shapes whose heads, KV heads, feed-forward widths and experts the ways cut evenly, [R].

        Of KV heads every device gets as many, or as many devices get each. Experts go over as many ways as divide
        their number, the rest cuts each of them, as in `costmodel.serving.layout`.
        """
        dense = shapes.experts == 1
        within = self.ways // np.where(dense, 1, np.gcd(shapes.experts, self.ways))
        together = shapes.shared * shapes.expert_width
        return np.asarray(
            (shapes.heads % self.ways == 0)
            & ((shapes.kv_heads % self.ways == 0) | (self.ways % shapes.kv_heads == 0))
            & (shapes.expert_width % within == 0)
            & (together % self.ways == 0)
        )

    def decode_s(self, model: ModelSpec, batch: int) -> float:
        """Seconds that a decode step of the copy spends in collectives, at the fastest of the parts."""
        return min(network_s(model, network, batch) for network in self.networks)

    def prefill_s(self, model: ModelSpec, request: Request) -> float:
        """The same of a prefill: the residual crosses around every block, rows go to their experts and back."""
        tokens = request.prefill.tokens
        if self.ways == 1:
            return 0.0
        return min(
            crossings_s(model, network, group_of(network.sizes), tokens)
            + sum(
                n * experts_s(kind, model.hidden, network, tokens)
                for n, kind in zip(model.layers_by_kind, model.kinds, strict=True)
            )
            for network in self.networks
        )


def parts_of(network: Network, devices: int) -> tuple[Part, ...]:
    """Every number of ways that divides a slice and lies on an even part of its network, fewest first."""
    out = []
    for ways in (d for d in range(1, devices + 1) if devices % d == 0):
        networks = tuple(_part(network, tuple(g.factors.tolist())) for g in places(network, ways))
        if networks:
            out.append(Part(ways, devices // ways, networks))
    return tuple(out)


def _part(network: Network, factors: tuple[int, ...]) -> Network:
    """The network that an inner part of every level has among itself: a part of a ring is a line."""
    levels = tuple(_shortened(level, size) for level, size in zip(network.levels, factors, strict=True))
    assert prod(factors) == prod(level.size for level in levels)
    return Network(levels, network.achieved)


def _shortened(level: Level, size: int) -> Level:
    if isinstance(level, TorusAxis):
        return replace(level, size=size, wraps=level.wraps and size == level.size)
    return replace(level, size=size)


def _together(machine: Machine, ways: int) -> Machine:
    return replace(
        machine,
        flop_per_s=ways * machine.flop_per_s,
        attention_flop_per_s=ways * machine.attention_flop_per_s,
        bytes_per_s=ways * machine.bytes_per_s,
    )
