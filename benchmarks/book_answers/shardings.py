"""Products sharded over a torus, each in the ways that a case compares: part of the topic matmul."""

from math import inf

from book_answers import Given, UnansweredError, Value, answers
from book_answers.collectives import link_of, torus
from book_answers.counts import whole
from book_answers.roofline import compute_rate, memory_rate
from meshwright.costmodel.collectives import Network
from meshwright.costmodel.exchange.span import group_of
from meshwright.costmodel.roofline.intensity import seconds_at
from meshwright.costmodel.sharding.asked import Asked, Machine
from meshwright.costmodel.sharding.mesh import Mesh
from meshwright.costmodel.sharding.parse import Contraction, parse_statements
from meshwright.costmodel.sharding.search import Way, best_ways
from meshwright.costmodel.sharding.words import choice
from meshwright.hardware.network import TorusAxis

TOPIC = "matmul"
MLP = "In[B,D] @ Win[D,F] -> H[B,F]; H @ Wout[F,D] -> Out[B,D]"


def mesh_of(network: Network, names: list[str]) -> Mesh:
    """One mesh axis for each level."""
    own = [
        [level.size if i == at else 1 for i, level in enumerate(network.levels)] for at in range(len(names))
    ]
    return Mesh(network, {name: group_of(ways) for name, ways in zip(names, own, strict=True)})


def contractions(text: str, names: list[str]) -> tuple[Contraction, ...]:
    return tuple(p for p in parse_statements(text, names) if isinstance(p, Contraction))


def cut(ways: list[Way], dims: str, axes: int) -> Way:
    """The fastest way whose products are all cut over so many axes, in these dimensions alone."""
    for way in ways:
        on = [{d for d, a in local.places.items() if a} for local in way.locals]
        full = [sum(len(a) for a in local.places.values()) == axes for local in way.locals]
        if all(places <= set(dims) for places in on) and all(full):
            return way
    raise UnansweredError(f"no way cuts {dims} over {axes} axes")


# One product with a replicated output, its operands stored as one likes.


def square(given: Given) -> list[Way]:
    if "replicated" not in str(given["output"]):
        raise UnansweredError(f"output {given['output']!r} is not known")
    network, names = torus(given)
    sizes = {d: whole(given, d) for d in "IJK"}
    machine = Machine(mesh_of(network, names), compute_rate(given), inf)
    return best_ways(
        Asked(
            contractions("A[I,J] @ B[J,K] -> C[I,K]", names),
            sizes,
            machine,
            free=frozenset("AB"),
            exact=False,
        )
    )


def all_axes(ways: list[Way]) -> int:
    return len(ways[0].asked.axes)


answers(TOPIC, "t_math_sharded")(lambda given: square(given)[0].locals[0].t_math)
answers(TOPIC, "t_math_replicated")(lambda given: cut(square(given), "", 0).locals[0].t_math)
answers(TOPIC, "best_option")(lambda given: choice(square(given)))


@answers(TOPIC, "t_allgather_rows_or_cols")
def gathered(given: Given) -> Value:
    ways = square(given)
    return cut(ways, "I", all_axes(ways)).t_comms


@answers(TOPIC, "t_allreduce_contracting")
def reduced(given: Given) -> Value:
    ways = square(given)
    return cut(ways, "J", all_axes(ways)).t_comms


# A block of two products, tensor parallel over all axes.


def block(given: Given) -> Way:
    if "tensor parallel" not in str(given["strategy"]):
        raise UnansweredError(f"strategy {given['strategy']!r} is not known")
    network, names = torus(given)
    sizes = {d: whole(given, d) for d in "BDF"}
    machine = Machine(mesh_of(network, names), compute_rate(given), memory_rate(given))
    free = frozenset({"In", "Win", "H", "Wout"})
    ways = best_ways(Asked(contractions(MLP, names), sizes, machine, free=free, like={"Out": "In"}))
    return cut(ways, "F", all_axes(ways))


answers(TOPIC, "t_math")(lambda given: sum(local.t_math for local in block(given).locals))
answers(TOPIC, "t_ag_plus_rs")(lambda given: block(given).t_comms)


@answers(TOPIC, "t_hbm")
def weights_read(given: Given) -> Value:
    """Of the weights, as the chapter counts it."""
    way = block(given)
    held = sum(way.asked.held(way.homes[name]) for name in ("Win", "Wout"))
    return seconds_at(held, way.asked.machine.hbm_bytes_per_s)


# A contraction of which one operand is split.


@answers(TOPIC, "ag_over_rs_comms")
def gather_over_scatter(given: Given) -> Value:
    """On any ring, of whatever rate."""
    if "sharded on M" not in str(given["A"]) or "replicated" not in str(given["B"]):
        raise UnansweredError("the operands are stored otherwise")
    ring = Network((TorusAxis("x", 2, 1.0, True, 0.0),), (1.0,))
    machine = Machine(mesh_of(ring, ["X"]), inf, inf)
    sizes = {d: whole(given, d) for d in "NMK"}
    ways = best_ways(Asked(contractions("A[N,M_X] @ B[M,K] -> C[N,K_X]", ["X"]), sizes, machine, exact=False))
    return cut(ways, "", 0).t_comms / cut(ways, "M", 1).t_comms


# Gather the weights and multiply, or multiply and add up: X[B,D] times Y[D_X,F], each at sizes where one of two terms
# is B, D or X times another. Ratios of such terms are where they meet.


def either(given: Given, size: int = 2) -> tuple[Way, Way]:
    """Both ways for B = 1 and D = X, on a ring whose rate, or intensity, is given."""
    if given.has("alpha_ici"):
        flops, link = given.number("alpha_ici"), 0.5
    else:
        flops, link = compute_rate(given), link_of(given)
    ring = Network((TorusAxis("x", size, link, True, 0.0),), (1.0,))
    machine = Machine(mesh_of(ring, ["X"]), flops, inf)
    sizes = {"B": 1, "D": size, "F": size}
    ways = best_ways(Asked(contractions("A[B,D] @ W[D_X,F] -> C[B,F]", ["X"]), sizes, machine, exact=False))
    return cut(ways, "", 0), cut(ways, "D", 1)


@answers(TOPIC, "gather_weights_comms_bound_below_B")
def gather_bound(given: Given) -> Value:
    gather, _ = either(given)
    return gather.t_comms / gather.t_compute


@answers(TOPIC, "allreduce_compute_bound_below_X")
def reduce_bound(given: Given) -> Value:
    size = whole(given, "D")
    _, reduce = either(given, size)
    return size * reduce.t_compute / reduce.t_comms


@answers(TOPIC, "allreduce_wins_small_B_if_D_over_B")
def reduce_wins_bandwidth(given: Given) -> Value:
    """Communication binds both."""
    size = 2
    gather, reduce = either(given, size)
    return size * reduce.t_comms / gather.t_comms


@answers(TOPIC, "allreduce_wins_large_B_if_D_above")
def reduce_wins_compute(given: Given) -> Value:
    """Gathering is compute bound, adding up is not."""
    size = 2
    gather, reduce = either(given, size)
    return size * reduce.t_comms / gather.t_compute
