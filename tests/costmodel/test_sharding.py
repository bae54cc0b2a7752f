"""Sharded products and changes of sharding: the book's cases, a simulation of every move, and what is refused."""

from dataclasses import replace
from itertools import product
from math import inf, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.costmodel.collectives import Network
from meshwright.costmodel.exchange.span import group_of
from meshwright.costmodel.setting import network_of
from meshwright.costmodel.sharding.asked import Asked, Machine
from meshwright.costmodel.sharding.mesh import Mesh, parse_mesh
from meshwright.costmodel.sharding.parse import (
    Contraction,
    Sharded,
    check_divides,
    parse_array,
    parse_statements,
)
from meshwright.costmodel.sharding.product import shard
from meshwright.costmodel.sharding.reshard import SLICE, Move, reshard
from meshwright.costmodel.sharding.search import Way, best_ways
from meshwright.costmodel.sharding.words import flip_sizes
from meshwright.costmodel.working import Working
from meshwright.hardware.calibration import load_efficiency
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import InputError, LayoutError, UnknownNameError
from meshwright.hardware.network import TorusAxis

AXES = ("X", "Y", "Z")
MLP = "In[B,D] @ Win[D,F] -> H[B,F]; H @ Wout[F,D] -> Out[B,D]"


def torus(*sizes: int, link: float = 9e10, hop_s: float = 0.0) -> Mesh:
    """One mesh axis on each wrapped torus axis."""
    levels = tuple(TorusAxis("xyz"[i], n, link, True, hop_s) for i, n in enumerate(sizes))
    own = {AXES[i]: group_of([n if i == j else 1 for j in range(len(sizes))]) for i, n in enumerate(sizes)}
    return Mesh(Network(levels, (1.0,) * len(levels)), own)


def machine(cluster: str, mesh: str | None = None) -> Machine:
    found = parse_cluster(cluster, profile="book")
    network = network_of(found.levels, load_efficiency("ideal", found.chip))
    chip = found.chip
    return Machine(parse_mesh(mesh, found, network), chip.peak_flop_per_s("bf16"), chip.hbm_bytes_per_s)


def asked(text: str, on: Machine, sizes: dict[str, float], **options: Any) -> Asked:
    read = parse_statements(text, tuple(on.mesh.ways))
    return Asked(tuple(p for p in read if isinstance(p, Contraction)), sizes, on, **options)


def moves(way: Way) -> list[str]:
    return [
        f"{m.operation} {m.before.name}"
        for pair in way.moves
        for part in pair
        for m in part
        if m.operation != SLICE
    ]


SIZES = {"I": 8192, "J": 8192, "K": 8192}


@pytest.mark.parametrize(
    ("text", "case", "expected"),
    [
        # chapter 3's four cases, and question 6 (the first three) on a 4x4 slice
        ("A[I_X,J_Y] @ B[J_Y,K] -> C[I_X,K]", 3, ["all-reduce C"]),
        ("A[I_X,J] @ B[J_X,K_Y] -> C[I_X,K_Y]", 2, ["all-gather B"]),
        ("A[I_X,J] @ B[J,K_Y] -> C[I_X,K_Y]", 1, []),
        ("A[I,J_X] @ B[J_X,K] -> C[I,K]", 3, ["all-reduce C"]),
        ("A[I,J_X] @ B[J_X,K] -> C[I,K_X]", 3, ["reduce-scatter C"]),
        ("A[I_X,J] @ B[J,K_X] -> C[I_X,K]", 4, ["all-gather B"]),
    ],
)
def test_the_books_cases(text: str, case: int, expected: list[str]) -> None:
    on = machine("v5e:4x4", "X=4,Y=4")
    assert moves(best_ways(asked(text, on, dict(SIZES)))[0]) == expected
    assert any(f"Case {case} of the book" in note for note in shard(text, on, SIZES).notes)


def test_a_split_contraction_may_be_gathered_multiplied_first_or_turned() -> None:
    """Question 9: gathering A moves N M, adding up C twice N K, or once if C may be split."""
    on = machine("v5e:4x4", "X=4")
    whole = best_ways(
        asked("A[N,M_X] @ B[M,K] -> C[N,K]", on, {"N": 4096, "M": 8192, "K": 2048}, exact=False)
    )
    split = best_ways(
        asked("A[N,M_X] @ B[M,K] -> C[N,K_X]", on, {"N": 4096, "M": 8192, "K": 2048}, exact=False)
    )
    gather = next(w for w in whole if moves(w) == ["all-gather A"])
    reduce = next(w for w in whole if moves(w) == ["all-reduce C"])
    scatter = next(w for w in split if moves(w) == ["reduce-scatter C"])
    assert gather.t_comms / reduce.t_comms == pytest.approx(8192 / 2048 / 2)
    assert gather.t_comms / scatter.t_comms == pytest.approx(8192 / 2048)
    assert whole[0].seconds <= min(gather.seconds, reduce.seconds)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    b=st.integers(1, 1 << 15),
    d=st.integers(1, 1 << 13),
    f=st.integers(1, 1 << 13),
    x=st.sampled_from([2, 4, 8]),
    flops=st.floats(1e13, 1e16),
)
def test_gather_or_reduce_as_the_book_has_it(b: int, d: int, f: int, x: int, flops: float) -> None:
    """X[B,D] Y[D_X,F]: max(2BDF/C, 2DF/W) against max(2BDF/(XC), 4BF/W), chapter 3, question 4."""
    on = Machine(torus(x), flops, inf)
    d *= x
    ways = best_ways(asked("A[B,D] @ W[D_X,F] -> C[B,F]", on, {"B": b, "D": d, "F": f}, exact=False))
    gather = next(w for w in ways if moves(w) == ["all-gather W"] and not w.locals[0].places["B"])
    reduce = next(w for w in ways if moves(w) == ["all-reduce C"])
    w_ici = 2 * 9e10
    assert gather.seconds == pytest.approx(max(2 * b * d * f / flops, 2 * d * f / w_ici))
    assert reduce.seconds == pytest.approx(max(2 * b * d * f / (x * flops), 4 * b * f / w_ici))
    assert ways[0].seconds == min(w.seconds for w in ways)


def test_it_flips_where_the_book_says() -> None:
    """Reducing wins while D > 2B where communication binds both, and D > 2 C/W where the gather is compute bound."""
    on = Machine(torus(4), 2 * 9e10 * 2550, inf)
    for b, flip in ((512, 1024), (8192, 5100)):
        ways = best_ways(
            asked("A[B,D] @ W[D_X,F] -> C[B,F]", on, {"B": b, "D": 8192, "F": 4096}, exact=False)
        )
        reduce = next(w for w in ways if moves(w) == ["all-reduce C"])
        gather = next(w for w in ways if moves(w) == ["all-gather W"] and not w.locals[0].places["B"])
        assert dict(flip_sizes(reduce, gather, "D"))["below"] == pytest.approx(flip, rel=1e-6)


# Every move against what each device holds.


def held(
    array: Sharded, sizes: tuple[int, ...], ways: dict[str, int], at: dict[str, int]
) -> set[tuple[int, ...]]:
    """Elements of the block that a device of the mesh holds."""
    ranges = []
    for size, axes in zip(sizes, array.axes, strict=True):
        index, parts = 0, 1
        for axis in axes:  # outermost first
            index, parts = index * ways[axis] + at[axis], parts * ways[axis]
        ranges.append(range(index * (size // parts), (index + 1) * (size // parts)))
    return set(product(*ranges))


def simulate(move: Move, sizes: tuple[int, ...], ways: dict[str, int]) -> None:
    """Asserts that the collective turns what devices hold before into what they hold after."""
    places = [dict(zip(ways, at, strict=True)) for at in product(*(range(n) for n in ways.values()))]
    for at in places:
        team = [p for p in places if all(p[a] == at[a] for a in ways if a not in move.axes)]
        before = [held(move.before, sizes, ways, p) for p in team]
        mine, after = held(move.before, sizes, ways, at), held(move.after, sizes, ways, at)
        summed = set(move.before.partial) - set(move.after.partial)
        if move.operation == SLICE:
            assert after < mine and not summed
        elif move.operation == "all-gather":
            assert set().union(*before) == after and not summed
        elif move.operation == "all-to-all":
            assert after <= set().union(*before) and len(after) == len(mine) and not summed
        elif move.operation == "all-reduce":
            assert after == mine and all(b == mine for b in before) and summed == set(move.axes)
        else:
            assert move.operation == "reduce-scatter" and summed == set(move.axes)
            parts = [held(move.after, sizes, ways, p) for p in team]
            assert all(b == mine for b in before) and set().union(*parts) == mine
            assert sum(map(len, parts)) == len(mine)


@st.composite
def shardings(draw: st.DrawFn, dims: int, partial: bool) -> Sharded:
    """Axes dealt to dimensions in any order; some left out, some holding partial sums."""
    order = draw(st.permutations(AXES))
    homes = [draw(st.integers(-2 if partial else -1, dims - 1)) for _ in order]
    axes = tuple(tuple(a for a, h in zip(order, homes, strict=True) if h == d) for d in range(dims))
    return Sharded(
        "A", ("I", "J", "K")[:dims], axes, tuple(a for a, h in zip(order, homes, strict=True) if h == -2)
    )


@settings(max_examples=120, deadline=None, derandomize=True)
@given(data=st.data(), dims=st.integers(1, 3), size=st.floats(1e3, 1e9))
def test_every_move_does_what_it_says_and_no_plan_is_dearer_than_gathering_all(
    data: st.DataObject, dims: int, size: float
) -> None:
    mesh = torus(2, 2, 2, hop_s=1e-6)
    start, goal = data.draw(shardings(dims, True)), data.draw(shardings(dims, False))
    plan = reshard(start, goal, mesh, size)
    now = start
    for move in plan:
        assert move.before == now
        simulate(move, (8,) * dims, mesh.ways)
        now = move.after
    assert now == goal
    seconds = sum(m.seconds(mesh, size) for m in plan)
    whole = replace(start, axes=((),) * dims)
    steps = [Move("all-reduce", start.partial, start, replace(start, partial=()))] if start.partial else []
    if start.split:
        steps.append(Move("all-gather", start.split, replace(start, partial=()), whole))
    assert seconds <= sum(m.seconds(mesh, size) for m in steps) * (1 + 1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), size=st.floats(1e3, 1e9))
def test_a_gather_costs_what_the_reduction_it_transposes_does(data: st.DataObject, size: float) -> None:
    mesh = torus(4, 4, 4)
    array = data.draw(shardings(2, False))
    whole = replace(array, axes=((), ()))
    gathered = sum(m.seconds(mesh, size) for m in reshard(array, whole, mesh, size))
    sums = replace(whole, partial=array.split)
    scattered = sum(m.seconds(mesh, size) for m in reshard(sums, array, mesh, size))
    assert gathered == pytest.approx(scattered)


@pytest.mark.parametrize(
    ("start", "goal", "expected"),
    [
        ("A[I_X,J]", "A[I,J_X]", ["all-to-all"]),
        ("A[I_X,J]", "A[I,J]", ["all-gather"]),
        ("A[I,J]", "A[I_X,J_Y]", [SLICE, SLICE]),
        ("A[I,J]{U_X}", "A[I,J]", ["all-reduce"]),
        ("A[I,J]{U_X}", "A[I,J_X]", ["reduce-scatter"]),
        ("A[I_XY,J]", "A[I,J]", ["all-gather"]),  # over both at once
        ("A[I_XY,J]", "A[I_X,J]", ["all-gather"]),
        ("A[I_XY,J]", "A[I_Y,J]", ["all-gather", SLICE]),  # Y nests in X: no device has neighbouring blocks
        ("A[I,J_X]{U_Y}", "A[I_Y,J]", ["reduce-scatter", "all-gather"]),
    ],
)
def test_resharding(start: str, goal: str, expected: list[str]) -> None:
    mesh = torus(4, 4)
    plan = reshard(parse_array(start, AXES), parse_array(goal, AXES), mesh, 1e9)
    assert [m.operation for m in plan] == expected


# Products.


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), gain=st.floats(1.0, 8.0))
def test_work_is_shared_and_faster_links_are_never_slower(data: st.DataObject, gain: float) -> None:
    arrays = [replace(data.draw(shardings(2, False)), name=n) for n in "ABC"]
    names = ("IJ", "JK", "IK")
    arrays = [replace(a, dims=tuple(d)) for a, d in zip(arrays, names, strict=True)]
    text = f"{arrays[0]} @ {arrays[1]} -> {arrays[2]}"
    sizes = {"I": 256, "J": 1024, "K": 512}
    ways = best_ways(asked(text, Machine(torus(2, 2, 2), 1e14, 1e12), sizes))
    for way in ways:
        used = prod(2 for on in way.locals[0].places.values() for _ in on)
        assert way.locals[0].flops * used == 2 * 256 * 1024 * 512
        assert way.t_lower <= way.t_upper <= 2 * way.t_lower * (1 + 1e-12)
        stored = sum(way.asked.held(a) for a in arrays)
        assert way.peak_bytes >= stored
    faster = best_ways(asked(text, Machine(torus(2, 2, 2, link=9e10 * gain), 1e14, 1e12), sizes))
    assert faster[0].seconds <= ways[0].seconds * (1 + 1e-12)
    idle_too = best_ways(asked(text, Machine(torus(2, 2, 2), 1e14, 1e12), sizes, idle_too=True))
    assert idle_too[0].seconds <= ways[0].seconds * (1 + 1e-12)


def test_least_latency_of_one_product() -> None:
    """Chapter 3, question 5: rows or columns over everything, gathered at the end: V / (3 W)."""
    on = machine("v4:4x4x4")
    working = shard("A[I,J] @ B[J,K] -> C[I,K]", on, SIZES, free=["A", "B"])
    assert working["t_math"] == pytest.approx(6.2472e-5, rel=1e-4)
    assert working["t_comms_approx"] == pytest.approx(0.0004971, rel=1e-4)
    assert working.notes[0] == "As fast as any: shard rows of A or columns of B over all axes, gather output."
    assert working["t_without_comms"] == pytest.approx(0.0039982, rel=1e-4)


def mlp(memory: float | None, cluster: str = "v5e:2x2") -> Working:
    sizes = {"B": 128, "D": 8192, "F": 32768}
    return shard(MLP, machine(cluster), sizes, free=["all"], like={"Out": "In"}, memory_bytes=memory)


def test_an_mlp_block_under_a_memory_cap() -> None:
    """Chapter 3, question 7: 2x2 v5e, 300 MB: weights over all four, gather In and scatter Out."""
    working = mlp(300e6)
    assert working["t_math"] == pytest.approx(0.00017441, rel=1e-4)
    assert working["t_comms"] == pytest.approx(3.4953e-5, rel=1e-3)
    assert working.number("peak_bytes") <= 300e6
    note = working.steps["strategy"].note
    assert note == "all-gather In over XY, multiply F/XY, reduce-scatter Out over XY"
    with pytest.raises(
        LayoutError, match=r"no sharding fits 95.37 MiB on a device: the smallest takes 261 MiB"
    ):
        mlp(100e6)


def test_more_memory_is_never_slower() -> None:
    caps = (60e6, 100e6, 200e6, 400e6, None)
    times = [
        shard(
            MLP, machine("v5p:4x4x4"), {"B": 4096, "D": 8192, "F": 32768},
            free=["all"], like={"Out": "In"}, memory_bytes=cap,
        ).number("t_lower")
        for cap in caps
    ]  # fmt: skip
    assert times == sorted(times, reverse=True) and times[0] > times[-1]


def test_replication_over_an_idle_axis_is_told() -> None:
    """Chapter 3, question 1: what no axis splits is copied, memory and compute."""
    working = shard("A[I_X,J] @ B[J,K] -> C[I_X,K]", machine("v5p:4x4x4", "X=4,Y=4,Z=4"), SIZES)
    assert working["bytes_A"] == 2 * 8192 * 8192 / 4 and "16 copies" in working.steps["bytes_A"].note
    assert working["bytes_B"] == 2 * 8192 * 8192 and "64 copies" in working.steps["bytes_B"].note
    assert working["compute_copies"] == 16
    assert any(note.startswith("Nothing is split over Y and Z") for note in working.notes)


def test_a_mesh_takes_whole_axes_where_they_fit() -> None:
    on = machine("v5p:4x4x8", "X=32,Y=4").mesh
    assert (on.described("X"), on.described("Y")) == ("x*z", "y")
    halves = machine("v5e:16x16", "X=4,Y=4").mesh
    assert (halves.described("X"), halves.described("Y")) == ("x:4", "x:4@4")
    both = halves.joint(["X", "Y"])
    assert (both.factors.tolist(), both.strides.tolist()) == ([16, 1], [1, 1])
    assert np.array_equal(halves.joint(["Y"]).strides, [4, 1])


def refused(text: str, sizes: dict[str, float] | None = None, mesh: str = "X=4,Y=4", **options: Any) -> Any:
    return lambda: shard(text, machine("v5p:4x4x4", mesh), sizes or dict(SIZES), **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (refused("A[I_X,J_X] @ B[J,K] -> C[I,K]"), LayoutError, "A[I_X,J_X]: axis X splits I and J; an axis may be used once in an array"),
        (refused("A[I_XX,J] @ B[J,K] -> C[I,K]"), LayoutError, "axis X splits I and the same dimension"),
        (refused("A[I_X,J] @ B[J,K_X]"), LayoutError, "output would be split by it twice; gather one first: write the output as C[I_X,K] or C[I,K_X]"),
        (refused("A[I_X,J] @ B[J,K_X] -> C[I_X,K_X]"), LayoutError, "C[I_X,K_X]: axis X splits I and K"),
        (refused("A[I_Q,J] @ B[J,K]"), UnknownNameError, "unknown mesh axis 'Q'; known: X, Y"),
        (refused("A[I_X,J] @ B[J,K]", {"I": 4097, "J": 8, "K": 8}), LayoutError, "I=4097 does not divide over X=4; pad it to 4100"),
        (refused("A[I_X,J] @ B[J,K]", {"I": 4096, "J": 8}), InputError, "dimension K of B has no size; give it, like --sizes K=8192"),
        (refused("A[I_X,J] @ B[J,K]", {**SIZES, "L": 2}), InputError, "size L names no dimension; these have I, J, K"),
        (refused("A[I,J] @ B[L,K] -> C[I,K]"), InputError, "dimension J of A[I,J] is neither in B[L,K] nor in the output"),
        (refused("A[I,J] @ B[J,K] -> C[I,L]"), InputError, "neither in A[I,J] nor in the output"),
        (refused("A[I,J]{U_X} -> A[I,J]{U_X}"), LayoutError, "partial sums are no target"),
        (refused("A[I_X,J]{U_X} -> A[I,J]"), LayoutError, "axis X holds partial sums and splits I too"),
        (refused("A[I_X,J] -> A[J,I]"), InputError, "have different dimensions; an array keeps its own, write A[I,J]"),
        (refused("A[I,I] -> A[I,I]"), InputError, "A[I,I] has a dimension twice"),
        (refused("nonsense"), InputError, "cannot read 'nonsense'; write it like 'A[I_X,J] @ B[J,K] -> C[I_X,K]'"),
        (refused("A[I,J] @ B[J,K] -> C[I,K]", free=["D"]), UnknownNameError, "unknown array 'D'; known: A, B, C"),
        (refused("A[I,J] @ B[J,K] -> C[I,K]", free=["A"], like={"C": "A"}), InputError, "cannot be stored like A[I,J]: their dimensions differ"),
        (refused("A[I,J] @ B[J,K]", mesh="X=3"), LayoutError, "mesh X=3 cannot be laid over x 4 x y 4 x z 4"),
        (refused("A[I,J] @ B[J,K]", mesh="X=x:2,Y=x:2"), LayoutError, "mesh axes X and Y share level x of 4 and overlap; give the outer one a stride, like Y=x:2@2"),
        (refused("A[I,J] @ B[J,K]", mesh="X=4,X=4"), LayoutError, "mesh axis X is given twice"),
        (refused("A[I,J] @ B[J,K]", mesh="X=4,Y=x"), LayoutError, "mixes ways and levels"),
        (refused("A[I,J] @ B[J,K]", mesh="X"), LayoutError, "cannot read mesh 'X'; write a mesh like X=4,Y=16"),
        (
            lambda: shard(MLP, machine("v5p:4x4x4*4"), {"B": 256, "D": 256, "F": 256}, free=["all"]),
            LayoutError,
            "4 mesh axes and 2 products have 65,536 ways, more than the 20,000 that are searched; join axes with --mesh",
        ),
        (lambda: check_divides(parse_array("bf16[6_X]"), {}, {"X": 4}), LayoutError, "6=6 does not divide over X=4"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_arrays_as_they_are_written() -> None:
    long = parse_array("A[I_{data,model},J]{U_pipe}", ("data", "model", "pipe"))
    assert (long.axes, long.partial) == ((("data", "model"), ()), ("pipe",))
    assert str(long) == "A[I_{data,model},J]{U_{pipe}}"
    assert parse_array(str(long), ("data", "model", "pipe")) == long
    assert parse_array("bf16[1024_X,4096_Y]{U_Z}").bytes == 2 * 1024 * 4096


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shard("A[I,J] @ B[J,K]", machine("v5e:4x4"), {"I": -4, "J": 8, "K": 8}), "size of I is -4; give a whole number"),
        (lambda: shard("A[I,J] @ B[J,K]", machine("v5e:4x4"), {"I": "x", "J": 8, "K": 8}), "size of I is 'x'; give a whole number"),  # type: ignore[dict-item]
        (lambda: shard("A[I,J] -> A[I,J]", machine("v5e:4x4"), {"I": 2.5, "J": 8}), "size of I is 2.5"),
        (lambda: Machine(torus(4), 0, 0), "flop_per_s=0 of a machine is no rate; give a number above 0"),
        (lambda: Machine(torus(4), 1e14, -1), "hbm_bytes_per_s=-1 of a machine is no rate"),
    ],
)  # fmt: skip
def test_misuse_is_told_in_one_line(call: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value) and "\n" not in str(caught.value)
