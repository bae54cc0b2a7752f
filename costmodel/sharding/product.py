"""What a sharded product, or a change of sharding, costs: its working.

    shard("A[I_X,J] @ B[J,K] -> C[I_X,K]", machine, sizes)     collectives, the cheaper strategy, bytes per device
    shard("A[I_X,J] -> A[I,J_X]", machine, sizes)              how to get from one sharding to another

Sources: jax-ml/scaling-book, chapter 3 (four cases, gather or reduce), chapter 10 (collective matmul).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from meshwright.costmodel.sharding.asked import Asked, Machine
from meshwright.costmodel.sharding.measured import measured_overlap, overlap_runs
from meshwright.costmodel.sharding.parse import (
    Contraction,
    Sharded,
    arrays_of,
    check_divides,
    parse_statements,
)
from meshwright.costmodel.sharding.reshard import SLICE, Move, reshard
from meshwright.costmodel.sharding.search import Way, best_ways
from meshwright.costmodel.sharding.words import alternatives, book_case, choice, flips, kind, strategy
from meshwright.costmodel.working import Step, Value, Working
from meshwright.hardware.errors import InputError, UnknownNameError, check_type, shown
from meshwright.hardware.units import human_bytes, human_seconds

_ROWS = 5


def shard(
    text: str,
    machine: Machine,
    sizes: Mapping[str, float],
    *,
    element_bytes: float = 2.0,
    free: Sequence[str] = (),
    like: Mapping[str, str] | None = None,
    memory_bytes: float | None = None,
    overlap: bool = True,
    where: str = "",
) -> Working:
    """Answer for products, or for one array in two shardings.

    Args:
        text: products or one array twice, like 'A[I_X,J] @ B[J,K] -> C[I_X,K]' or 'A[I_X,J] -> A[I,J_X]'.
        machine: Machine(parse_mesh("X=4", "v5p:4x4x4"), FLOP/s of a device, bytes/s of its memory).
        sizes: of every dimension, elements.
        element_bytes: of every array.
        free: arrays that may be stored in any sharding, 'all' but the last output.
        like: arrays stored as another is: {'Out': 'In'}.
        memory_bytes: of a device, at most.
        overlap: whether communication runs under the products.

    Errors: LayoutError for an illegal sharding or one that fits nowhere, InputError, UnknownNameError.
    """
    check_type("machine", machine, Machine, "a Machine(mesh, flop_per_s, hbm_bytes_per_s)")
    _check_sizes(sizes)
    read = parse_statements(text, tuple(machine.mesh.ways))
    if isinstance(read[0], Sharded):
        start, goal = read
        assert isinstance(start, Sharded) and isinstance(goal, Sharded)
        return _resharded(start, goal, machine, sizes, element_bytes, where)
    products = tuple(p for p in read if isinstance(p, Contraction))
    asked = _asked(products, machine, sizes, element_bytes, free, like or {}, memory_bytes, overlap)
    return _computed(text, asked, where)


def _check_sizes(sizes: Mapping[str, float]) -> None:
    check_type("sizes", sizes, Mapping, "the elements of each dimension, like {'I': 8192}")
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | float) or not size >= 1 or size % 1:
            raise InputError(f"size of {name} is {shown(size)}; give a whole number of elements, 1 or more")


def _asked(
    products: tuple[Contraction, ...],
    machine: Machine,
    sizes: Mapping[str, float],
    element_bytes: float,
    free: Sequence[str],
    like: Mapping[str, str],
    memory_bytes: float | None,
    overlap: bool,
) -> Asked:
    arrays = {a.name: a for a in arrays_of(products)}
    last = products[-1].out.name
    names = [n for n in arrays if n != last] if "all" in free else list(free)
    for name in (*names, *like, *like.values()):
        if name not in arrays:
            raise UnknownNameError("array", name, arrays)
    for follower, leader in like.items():
        if sorted(arrays[follower].dims) != sorted(arrays[leader].dims):
            raise InputError(
                f"{arrays[follower]} cannot be stored like {arrays[leader]}: their dimensions differ; "
                f"name an array with {','.join(arrays[follower].dims)}"
            )
    dims = {d for a in arrays.values() for d in a.dims}
    if strange := sorted(set(sizes) - dims):
        raise InputError(f"size {strange[0]} names no dimension; these have {', '.join(sorted(dims))}")
    for array in arrays.values():
        check_divides(array, sizes, machine.mesh.ways)
    return Asked(
        products,
        sizes,
        machine,
        element_bytes,
        frozenset(set(names) - set(like)),
        {f: leader for f, leader in like.items() if f != leader},
        memory_bytes,
        overlap,
    )


def _computed(text: str, asked: Asked, where: str) -> Working:
    ways = best_ways(asked)
    best = ways[0]
    steps = _way_steps(best) | _move_steps(best) | _alternative_steps(ways)
    return Working(
        question=f"How to compute {' '.join(text.split())}" + (f" on {where}?" if where else "?"),
        given=_given(asked.machine, asked.sizes, asked.element_bytes),
        steps=steps,
        binds=_binds(best, ways),
        notes=tuple(_notes(asked, best, ways)),
        table=tuple(_row(way) for way in alternatives(ways)[:_ROWS]),
    )


def _given(machine: Machine, sizes: Mapping[str, float], element_bytes: float) -> dict[str, Step]:
    mesh = machine.mesh
    given = {name: Step(_whole(size), "", note="elements") for name, size in sizes.items()}
    given["element_bytes"] = Step(_whole(element_bytes), "B")
    for axis, ways in mesh.ways.items():
        given[f"mesh_{axis}"] = Step(ways, "ways", note=f"over {mesh.described(axis)}")
    given["C"] = Step(machine.flop_per_s, "FLOP/s")
    given["W_hbm"] = Step(machine.hbm_bytes_per_s, "B/s")
    return given


def _whole(number: float) -> float | int:
    return int(number) if number == int(number) else number


def _way_steps(way: Way) -> dict[str, Step]:
    asked = way.asked
    mesh = asked.machine.mesh
    steps = {"strategy": Step(kind(way), note=strategy(way))}
    for name, home in way.homes.items():
        steps[f"bytes_{name}"] = Step(
            asked.held(home), "B", note=f"{home} on a device, {_copies(home, asked.machine)}"
        )
    steps["peak_bytes"] = Step(way.peak_bytes, "B", note="of a device, with working copies")
    copies = max(
        mesh.devices // prod(mesh.ways[a] for on in x.places.values() for a in on) for x in way.locals
    )
    computed = f"of a device; each product on {copies} devices" if copies > 1 else "of a device"
    steps["flops"] = Step(sum(x.flops for x in way.locals), "FLOP", _flops_formula(way), computed)
    steps["compute_copies"] = Step(copies, note="devices that compute the same")
    steps["t_math"] = Step(sum(x.t_math for x in way.locals), "s", "flops / C")
    steps["hbm_bytes"] = Step(sum(x.hbm_bytes for x in way.locals), "B", note="of operands and results")
    steps["t_hbm"] = Step(sum(x.t_hbm for x in way.locals), "s", "hbm_bytes / W_hbm")
    steps["t_comms"] = Step(way.t_comms, "s", note="of what must move")
    steps["t_comms_approx"] = Step(_approximate(way), "s", note="short forms, X - 1 as X")
    steps |= _joined_steps(way)
    if way.t_comms > 0:
        hidden = (way.t_upper - way.t_lower) / way.t_comms
        one, several = "min(1, compute / t_comms)", "(t_upper - t_lower) / t_comms"
        formula = one if len(way.locals) == 1 else several
        steps["hidden"] = Step(hidden, "ratio", formula, "of communication, at most")
    return steps


def _flops_formula(way: Way) -> str:
    """2 I J K / 4: every dimension of a product, over the devices that share it; products are added."""
    ways = way.asked.machine.mesh.ways
    terms = []
    for product, local in zip(way.asked.products, way.locals, strict=True):
        cut = prod(ways[a] for on in local.places.values() for a in on)
        terms.append(f"2 {' '.join(product.dims)}" + (f" / {cut}" if cut > 1 else ""))
    return " + ".join(terms)


def _joined_steps(way: Way) -> dict[str, Step]:
    """Both times; a product overlaps with its own moves only, so of several each has its two parts shown."""
    under, after = "overlapped", "one after the other"
    if len(way.locals) == 1:
        return {
            "compute": Step(way.t_compute, "s", "max(t_math, t_hbm)"),
            "t_lower": Step(way.t_lower, "s", "max(compute, t_comms)", under),
            "t_upper": Step(way.t_upper, "s", "compute + t_comms", after),
        }
    steps: dict[str, Step] = {}
    parts = zip(way.asked.products, way.locals, way.comms, strict=True)
    for number, (product, local, comms) in enumerate(parts, 1):
        most = (
            f"{product.out.name}: {human_seconds(local.t_math)} of math, {human_seconds(local.t_hbm)} of HBM"
        )
        steps[f"compute_{number}"] = Step(local.seconds, "s", "the larger", most)
        steps[f"comms_{number}"] = Step(comms, "s", note=f"its moves for {product.out.name}")
    own = "each product over its own moves only"
    steps["t_lower"] = Step(way.t_lower, "s", "sum of max(compute_i, comms_i)", own)
    steps["t_upper"] = Step(way.t_upper, "s", "sum of compute_i + comms_i", after)
    return steps


def _approximate(way: Way) -> float:
    mesh = way.asked.machine.mesh
    return sum(m.seconds(mesh, way.asked.bytes(m.before), exact=False) for m in _moves(way))


def _moves(way: Way) -> Iterator[Move]:
    for before, after in way.moves:
        yield from before
        yield from after


def _move_steps(way: Way) -> dict[str, Step]:
    moves = tuple(_moves(way))
    return _steps_of(moves, way.asked)


def _steps_of(moves: Sequence[Move], asked: Asked) -> dict[str, Step]:
    mesh = asked.machine.mesh
    steps = {}
    for number, move in enumerate(moves, 1):
        size = asked.bytes(move.before)
        what = "nothing moves" if move.operation == SLICE else human_bytes(move.bytes(mesh, size))
        steps[f"move_{number}"] = Step(move.seconds(mesh, size), "s", note=f"{move}, {what}")
    return steps


def _alternative_steps(ways: Sequence[Way]) -> dict[str, Step]:
    """The best of each kind of a single product, for who compares them."""
    names = {
        (False, False): ("t_without_comms", "nothing moves"),
        (True, False): ("t_gather_then_multiply", "move operands, then multiply"),
        (False, True): ("t_multiply_then_reduce", "multiply, then move the result"),
        (True, True): ("t_both", "move before and after"),
    }
    steps: dict[str, Step] = {}
    for way in ways if len(ways[0].locals) == 1 else ():
        name, note = names[way.kind]
        steps.setdefault(name, Step(way.seconds, "s", note=note))
    return steps


def _row(way: Way) -> Mapping[str, Value]:
    return {
        "way": strategy(way),
        "compute": human_seconds(way.t_compute),
        "comms": human_seconds(way.t_comms),
        "t_lower": human_seconds(way.t_lower),
        "t_upper": human_seconds(way.t_upper),
        "peak": human_bytes(way.peak_bytes),
    }


def _binds(best: Way, ways: Sequence[Way]) -> str:
    local = max(best.locals, key=lambda x: x.seconds)
    compute = "compute" if local.t_math >= local.t_hbm else "HBM"
    times = {compute: best.t_compute, "communication": best.t_comms}
    first, second = sorted(times, key=lambda name: -times[name])
    text = f"{first}: {human_seconds(times[first])} against {human_seconds(times[second])} of {second}"
    if times[second] > 0:
        text += f", {times[first] / times[second]:.3g} times as long"
    other = next((w for w in ways if w.seconds > best.seconds * (1 + 1e-9)), None)
    if other is not None:
        text += f"; the next way ({strategy(other)}) takes {other.seconds / best.seconds:.3g} times as long"
    return text


def _notes(asked: Asked, best: Way, ways: Sequence[Way]) -> Iterator[str]:
    if len(asked.products) == 1 and asked.free:
        yield f"As fast as any: {choice(ways)}."
    if len(asked.products) == 1 and not asked.free:
        yield book_case(asked.products[0])
        yield from flips(ways)
    if best.t_comms > 0:
        run = overlap_runs()[0]
        share = measured_overlap(run.chip, run.mesh, run.sizes).number("hidden")
        yield f"A collective matmul was measured to hide {share:.0%} of a gather, on {run.chip} ({run.blocking.source})."
    idle = [a for a, n in asked.machine.mesh.ways.items() if n > 1 and a not in asked.axes]
    if idle:
        names = " and ".join(idle)
        more = best_ways(replace(asked, idle_too=True))[0]
        text = f"Nothing is split over {names}: memory and compute there are copies."
        if more.seconds < best.seconds * (1 - 1e-9):
            text += f" With {names} used too: {strategy(more)}, {human_seconds(more.seconds)}."
        yield text


def _resharded(
    start: Sharded,
    goal: Sharded,
    machine: Machine,
    sizes: Mapping[str, float],
    element_bytes: float,
    where: str,
) -> Working:
    for array in (start, goal):
        check_divides(array, sizes, machine.mesh.ways)
    asked = Asked((), sizes, machine, element_bytes)
    mesh, size = machine.mesh, asked.bytes(start)
    moves = reshard(start, goal, mesh, size)
    exact = sum(m.seconds(mesh, size) for m in moves)
    moved = [m for m in moves if m.operation != SLICE]
    steps = {
        "collectives": Step(", then ".join(f"{m.operation} over {''.join(m.axes)}" for m in moves) or "none"),
        "bytes_before": Step(asked.held(start), "B", note=f"{start} on a device, {_copies(start, machine)}"),
        "bytes_after": Step(asked.held(goal), "B", note=f"{goal} on a device, {_copies(goal, machine)}"),
        **_steps_of(moves, asked),
        "t": Step(exact, "s", note="of what must move"),
        "t_approx": Step(
            sum(m.seconds(mesh, size, exact=False) for m in moves),
            "s",
            note="the book's short forms, X - 1 as X",
        ),
    }
    binds = "nothing moves: each device keeps a part of what it has" if not moved else ""
    if moved:
        slowest = max(moved, key=lambda m: m.seconds(mesh, size))
        binds = f"the {slowest.operation} over {''.join(slowest.axes)}: {human_seconds(slowest.seconds(mesh, size))} of {human_seconds(exact)}"
    return Working(
        question=f"How to get from {start} to {goal}" + (f" on {where}?" if where else "?"),
        given=_given(machine, sizes, element_bytes) | {"V": Step(size, "B", note="the whole array")},
        steps=steps,
        binds=binds,
    )


def _copies(array: Sharded, machine: Machine) -> str:
    copies = machine.mesh.devices // prod(machine.mesh.ways[a] for a in (*array.split, *array.partial))
    return f"{copies} copies" if copies > 1 else "no copies"
