"""Ways to compute a sharded product, in words: what they do, which of the book's cases it is, when another wins."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwright.costmodel.sharding.asked import local_product
from meshwright.costmodel.sharding.parse import Contraction, spelled
from meshwright.costmodel.sharding.reshard import SLICE, Move
from meshwright.costmodel.sharding.search import Way

_FARTHEST = 2.0**40  # elements of a dimension; a flip beyond is told nobody


def strategy(way: Way) -> str:
    """What a way does, in one line."""
    before = [m for b, _ in way.moves for m in b if m.operation != SLICE]
    after = [m for _, a in way.moves for m in a if m.operation != SLICE]
    parts = [_done(before), f"multiply{_cut(way)}", _done(after)]
    return ", ".join(part for part in parts if part)


def _done(moves: Sequence[Move]) -> str:
    return ", ".join(f"{m.operation} {m.before.name} over {spelled(m.axes)}" for m in moves)


def _cut(way: Way) -> str:
    """Which dimensions the local products have parts of: I/X is I split over X."""
    cuts = [
        " ".join(f"{dim}/{spelled(on)}" for dim, on in local.places.items() if on) or "whole"
        for local in way.locals
    ]
    return " " + ", ".join(dict.fromkeys(cuts))


def kind(way: Way) -> str:
    """What a way does, in a few words."""
    return {
        (False, False): "multiply, nothing moves",
        (True, False): "gather, then multiply",
        (False, True): "multiply, then reduce",
        (True, True): "move, multiply, move",
    }[way.kind]


def choice(ways: Sequence[Way]) -> str:
    """How a single product whose operands are free is best cut, with every equally good choice."""
    (product,) = ways[0].asked.products
    best = ways[0]
    equal = [w for w in ways if w.seconds <= best.seconds * (1 + 1e-9) and w.kind == best.kind]
    found = dict.fromkeys(text for w in equal if (text := _whose(w, product)))
    after = [m.operation for _, a in best.moves for m in a if m.operation != SLICE]
    last = f", {after[-1].replace('all-gather', 'gather')} output" if after else ""
    return f"shard {' or '.join(found)} over all axes{last}" if found else strategy(best)


def _whose(way: Way, product: Contraction) -> str:
    """'rows of A', where one dimension alone is cut, over all axes; else nothing."""
    cut = [dim for dim, on in way.locals[0].places.items() if len(on) == len(way.asked.axes)]
    if not cut:
        return ""
    if cut[0] in product.summed:
        return "the summed dimension"
    return f"rows of {product.x.name}" if cut[0] in product.x.dims else f"columns of {product.w.name}"


def alternatives(ways: Sequence[Way]) -> list[Way]:
    """Ways that differ in more than the names of axes, fastest first."""
    seen: set[tuple[object, ...]] = set()
    out = []
    for way in ways:
        key = (f"{way.t_compute:.6e}", f"{way.t_comms:.6e}", way.kind)
        if key not in seen:
            seen.add(key)
            out.append(way)
    return out


def book_case(product: Contraction) -> str:
    """Which of the book's four cases the shardings of the operands are."""
    x, w = product.x, product.w
    own = [(d, x.on(d)) for d in x.dims if d not in product.summed]
    others = [(d, w.on(d)) for d in w.dims if d not in product.summed and d not in product.batch]
    clash = [(a, d, e) for d, on in own for a in on for e, off in others if a in off]
    if clash:
        axis, d, e = clash[0]
        return f"Case 4 of the book: {axis} splits {d} of {x} and {e} of {w}; one must be gathered first."
    split = [(d, x.on(d), w.on(d)) for d in product.summed if x.on(d) or w.on(d)]
    if not split:
        return "Case 1 of the book: the summed dimension is whole on both sides, so products themselves need no communication."
    if all(a == b for _, a, b in split):
        return "Case 3 of the book: both sides are split alike where it sums, so products are partial sums to add up."
    return "Case 2 of the book: the summed dimension is split on one side, or differently: gather it, or slice the other."


def flips(ways: Sequence[Way]) -> Iterator[str]:
    """When the best way would lose to the best of each other kind, one dimension at a time."""
    best = ways[0]
    sizes = best.asked.sizes
    rivals = {w.kind: w for w in reversed(ways) if w.kind != best.kind}
    for other in sorted(rivals.values(), key=lambda w: w.order):
        when = [
            f"{dim} {side} {size:,.5g}"
            if abs(size / sizes[dim] - 1) > 1e-6
            else f"any {dim} {side} its {size:,.5g}"
            for dim in best.asked.products[0].dims
            for side, size in flip_sizes(best, other, dim)
        ]
        if when:
            yield f"It flips to: {strategy(other)}, at {', or at '.join(when)}."


def flip_sizes(best: Way, other: Way, dim: str) -> Iterator[tuple[str, float]]:
    """Nearest sizes of a dimension, below and above its own, at which `other` becomes faster than `best`."""
    now = float(best.asked.sizes[dim])
    for side, factor in (("below", 0.5), ("above", 2.0)):
        near, far = now, now * factor
        while 1 <= far <= _FARTHEST and _ahead(best, other, dim, far):
            near, far = far, far * factor
        if 1 <= far <= _FARTHEST:
            for _ in range(60):
                middle = (near + far) / 2
                near, far = (middle, far) if _ahead(best, other, dim, middle) else (near, middle)
            yield side, far


def _ahead(best: Way, other: Way, dim: str, size: float) -> bool:
    """Whether the best way is still no slower at another size of a dimension."""
    return at_size(best, dim, size).seconds <= at_size(other, dim, size).seconds * (1 + 1e-9)


def at_size(way: Way, dim: str, size: float) -> Way:
    """The same way at another size of one dimension; parts need not be whole."""
    asked = replace(way.asked, sizes={**way.asked.sizes, dim: size})
    mesh = asked.machine.mesh
    locals_ = tuple(
        local_product(asked, product, local.places)
        for product, local in zip(asked.products, way.locals, strict=True)
    )
    comms = tuple(
        sum(m.seconds(mesh, asked.bytes(m.before), asked.exact) for part in pair for m in part)
        for pair in way.moves
    )
    return replace(way, asked=asked, locals=locals_, comms=comms)
