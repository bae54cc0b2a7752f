"""The shape of least loss that some part of a slice serves within the limits, and the part and batch that serve it best.

Shapes are taken in order of their loss, some at a time. What the devices of a part take, and hold, are columns over
shapes for each part, and a floor of the time: the network only adds. Of those whose floors keep the limits the network
is priced, one by one, until one keeps them too: no shape before it does, none after it is better.

Where nobody gives a batch, a shape is held against the limits with one sequence, and of the shape that is found each
part takes the largest batch B that keeps them. That loses nothing:

    t(B) never falls   products, caches and rows on the network grow with B, and so do the experts that B tokens meet;
                       a prompt is prefilled alone; memory grows by a cache: what keeps the limits with B does with 1
    B / t(B) too       an operator is the longer of its FLOPs, linear in B, and its bytes: a constant, a linear part and
                       the experts met, concave; a collective is a latency and a linear part. Over B each falls: of the
                       batches that keep the limits the largest makes most tokens
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device, memory_bytes, prefill_s, token_s
from meshwright.costmodel.model import ModelSpec
from meshwright.costmodel.serving.server import largest
from meshwright.search.architecture import Ends, model_of, stack_of
from meshwright.search.served.slices import Part
from meshwright.search.shape import Floats, Ints, Shapes

_FIRST, _MOST = 1024, 1 << 17  # shapes priced together; most searches end in the first lot
LIMITS = ("tpot", "ttft", "memory")
MOST_BATCH = 1 << 20  # sequences at once on a replica; an answer that reaches it says so


@dataclass(frozen=True)
class Limits:
    """Longest decode step and prefill of one prompt, in seconds; inf where there is none."""

    tpot_s: float = np.inf
    ttft_s: float = np.inf


@dataclass(frozen=True)
class Choice:
    """A part of the slice with so many sequences at once on it."""

    part: Part
    batch: int


@dataclass(frozen=True)
class Served:
    """One shape on one choice.

    Attributes:
        token_s, ttft_s: of a decode step, and of one prompt's prefill; `token_network_s`, `ttft_network_s` of them in
            collectives.
        device_bytes: on each device.
        tokens_per_s: of all replicas together, decoding.
    """

    row: int
    choice: Choice
    token_s: float
    ttft_s: float
    token_network_s: float
    ttft_network_s: float
    device_bytes: float

    @property
    def tokens_per_s(self) -> float:
        return self.choice.batch * self.choice.part.replicas / self.token_s


@dataclass
class Pricer:
    """Prices shapes on the parts of a slice, and counts.

    Attributes:
        floors: pairs of a shape and a choice whose floor was computed, as columns. exact: of them with the network.
    """

    shapes: Shapes
    ends: Ends
    one: Device
    request: Request
    limits: Limits
    floors: int = field(default=0, init=False)
    exact: int = field(default=0, init=False)
    _known: dict[tuple[Any, ...], tuple[float, float]] = field(default_factory=dict, init=False)

    def floor(self, rows: Ints, choice: Choice) -> tuple[Floats, Floats, Floats]:
        """Seconds of a decode step and of a prefill without the network, and bytes on a device; [R] each."""
        if not len(rows):
            return np.zeros(0), np.zeros(0), np.zeros(0)
        self.floors += len(rows)
        several = replace(self.request, batch=choice.batch)
        device, stack = choice.part.device(self.one), stack_of(choice.part.held(self.shapes[rows]), self.ends)
        held = memory_bytes(stack, several)
        held["activations"] = memory_bytes(stack, self.request)["activations"]
        on_device: Floats = np.asarray(sum(held.values())) / choice.part.ways
        return token_s(stack, device, several), prefill_s(stack, device, self.request), on_device

    def taken(self, rows: Ints, choice: Choice) -> Floats:
        """Of each limit at least, [R, limits]; inf where the part does not cut a shape evenly."""
        cuts = choice.part.cuts(self.shapes[rows])
        out = np.full((len(rows), len(LIMITS)), np.inf)
        out[cuts] = self._shares(*self.floor(rows[cuts], choice))
        return out

    def price(self, row: int, choice: Choice) -> Served:
        """One shape on one choice, the network included."""
        token, prefill, held = (float(x[0]) for x in self.floor(np.array([row]), choice))
        self.exact += 1
        layers = int(self.shapes.layers[row])
        decode_network, prefill_network = self._network_s(row, choice)
        decode_network, prefill_network = layers * decode_network, layers * prefill_network
        return Served(
            row,
            choice,
            token + decode_network,
            prefill + prefill_network,
            decode_network,
            prefill_network,
            held,
        )

    def keeps(self, served: Served) -> bool:
        return max(self.shares(served).values()) <= 1

    def best_batch(self, row: int, part: Part, batch: int | None) -> Served | None:
        """One shape on one part with a batch, or with the largest that keeps the limits; None where none does."""
        served = self.price(row, Choice(part, batch or 1))
        if not self.keeps(served):
            return None
        if batch is not None:
            return served
        # The floor knows no network and is the cheaper rule; the exact one then starts below it.
        most = largest(lambda n: self._floor_keeps(row, Choice(part, n)), MOST_BATCH)
        found = largest(lambda n: n == 1 or self.keeps(self.price(row, Choice(part, n))), most)
        return self.price(row, Choice(part, found))

    def _floor_keeps(self, row: int, choice: Choice) -> bool:
        return bool((self.taken(np.array([row]), choice) <= 1).all())

    def shares(self, served: Served) -> dict[str, float]:
        """What a shape takes of each limit."""
        taken = self._shares(served.token_s, served.ttft_s, served.device_bytes)
        return dict(zip(LIMITS, taken.tolist(), strict=True))

    def _shares(self, token: Any, ttft: Any, held: Any) -> Floats:
        each = (token / self.limits.tpot_s, ttft / self.limits.ttft_s, held / float(self.one.memory_bytes))
        return np.stack(each, axis=-1)

    def _network_s(self, row: int, choice: Choice) -> tuple[float, float]:
        """Seconds of collectives per layer in decode and prefill; the width of the feed-forward part is in neither."""
        s = self.shapes
        names = ("width", "heads", "kv_heads", "head_dim", "experts", "top_k", "shared")
        key = (choice.part.ways, choice.batch, *(int(getattr(s, name)[row]) for name in names))
        if key not in self._known:
            held = choice.part.held(s[np.array([row])])
            model: ModelSpec = model_of(held, 0, self.ends)
            layer = replace(model, pattern=(0,))
            self._known[key] = (
                choice.part.decode_s(layer, choice.batch),
                choice.part.prefill_s(layer, self.request),
            )
        return self._known[key]


def find(pricer: Pricer, loss: Floats, parts: Sequence[Part], batch: int | None) -> tuple[Served | None, int]:
    """(the best, shapes looked at): least loss, then most tokens per second of the slice, then fewest ways.

    Args:
        batch: sequences at once on a replica; None: as many as keep the limits, which makes most tokens.

    None where no shape keeps the limits.
    """
    order, best = np.argsort(loss, kind="stable"), None
    for at, stop in _lots(len(order)):
        rows = order[at:stop]
        if best is not None and loss[rows[0]] > loss[best.row]:
            break
        floors = [pricer.taken(rows, Choice(part, batch or 1)) for part in parts]
        kept = np.stack([(taken <= 1).all(axis=1) for taken in floors], axis=1)
        for i in np.flatnonzero(kept.any(axis=1)):
            row = int(rows[i])
            if best is not None and loss[row] > loss[best.row]:
                break
            asked = [pricer.best_batch(row, part, batch) for part, k in zip(parts, kept[i], strict=True) if k]
            good = [served for served in (best, *asked) if served is not None]
            best = max(good, key=lambda s: (s.tokens_per_s, -s.choice.part.ways), default=None)
    return best, len(order) if best is None else int((loss <= loss[best.row]).sum())


def closest(pricer: Pricer, rows: Ints, choices: Sequence[Choice]) -> Served:
    """Of some shapes the one that passes its worst limit by least, on the choice where it does."""
    best, least = None, np.inf
    for at, stop in _lots(len(rows)):
        floors = np.stack([pricer.taken(rows[at:stop], choice).max(axis=1) for choice in choices], axis=1)
        for cell in np.argsort(floors, axis=None, kind="stable"):
            if not floors.flat[cell] < least:
                break
            row, choice = divmod(int(cell), len(choices))
            served = pricer.price(int(rows[at + row]), choices[choice])
            share = max(pricer.shares(served).values())
            if best is None or share < least:
                best, least = served, share
    assert best is not None, "one way cuts every shape"
    return best


def _lots(count: int) -> Iterator[tuple[int, int]]:
    """(first, stop) of lots that grow."""
    at, size = 0, _FIRST
    while at < count:
        yield at, min(at + size, count)
        at, size = at + size, min(2 * size, _MOST)
