"""Arrays, their shards and products: parts of the topics memory and flops."""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod

from book_answers import Given, UnansweredError, Value, answers
from book_answers.counts import whole
from meshwright.costmodel.collectives import Network
from meshwright.costmodel.exchange.span import group_of
from meshwright.costmodel.flops import TRAIN, product_flops
from meshwright.costmodel.roofline.intensity import seconds_at
from meshwright.costmodel.sharding.asked import Asked, Machine, local_product
from meshwright.costmodel.sharding.mesh import Mesh
from meshwright.costmodel.sharding.parse import (
    Contraction,
    Sharded,
    check_divides,
    parse_array,
    parse_statements,
)
from meshwright.hardware.network import TorusAxis

SPEC = r"\([^()]*\)|[\w']+"  # parts of P('X', None) and P(('X', 'Y'), None)

# Shards of arrays


def array_of(given: Given, key: str = "array") -> Sharded:
    """An array as a case writes it: 'bf16[8,2048] P(X,None)', or its sharding beside it."""
    text = str(given[key])
    shape, spec = parse_array(text.partition(" P(")[0]), re.findall(SPEC, text.partition(" P(")[2])
    if given.has("sharding"):
        layout = parse_array(f"A{given['sharding']}", list(given["mesh"]))
        return Sharded(shape.name, shape.dims, layout.axes, layout.partial)
    axes = [tuple(name for name in re.findall(r"\w+", part) if name != "None") for part in spec]
    return replace(shape, axes=(*axes, *shape.axes[len(axes) :]))


def mesh_of(given: Given) -> dict[str, int]:
    return {str(axis): int(ways) for axis, ways in given["mesh"].items()}


def local_dims(given: Given, key: str) -> tuple[int, ...]:
    """Sizes of one device's shard."""
    array, ways = array_of(given, key), mesh_of(given)
    check_divides(array, {}, ways)
    split = zip(array.dims, array.axes, strict=True)
    return tuple(int(size) // prod(ways[axis] for axis in axes) for size, axes in split)


def local_bytes(given: Given) -> float:
    whole_array = array_of(given)
    return replace(whole_array, dims=tuple(map(str, local_dims(given, "array")))).bytes


answers("memory", "local_rows")(lambda given: local_dims(given, "array")[0])
answers("memory", "local_bytes", "bytes_per_device")(local_bytes)
for _array in ("A", "B"):
    for _dim, _name in enumerate(("rows", "cols")):
        answers("memory", f"{_array}_local_{_name}")(
            lambda given, array=_array, dim=_dim: local_dims(given, array)[dim]
        )


@answers("memory", "bytes_all_devices")
def bytes_all_devices(given: Given) -> Value:
    return local_bytes(given) * prod(mesh_of(given).values())


@answers("memory", "t_load")
def t_load(given: Given) -> Value:
    return seconds_at(local_bytes(given), given.number("hbm_Bps"))


# Products of arrays


MATRICES = (("N", "P", "M"), ("B", "D", "F"), ("N", "P"), ("P",))  # of [N, P] x [P, M]; a vector lacks M


def contraction_of(given: Given) -> Contraction:
    """The product that a case spells with two or three arrays; what two share and no third has is summed."""
    keys = [key for key in given if isinstance(given.inputs[key], str) and "[" in given.inputs[key]]
    if len(keys) not in (2, 3):
        raise UnansweredError("no product of two arrays is given")
    arrays = [f"{key}[{str(given[key]).partition('[')[2].replace(' ', '')}" for key in keys]
    if given.has("contract") and len(arrays) == 2:
        x, w = (parse_array(array) for array in arrays)
        summed = [d.strip() for d in str(given["contract"]).split(",")]
        arrays.append(f"out[{','.join(d for d in dict.fromkeys((*x.dims, *w.dims)) if d not in summed)}]")
    found = parse_statements(" -> ".join((" @ ".join(arrays[:2]), *arrays[2:])), [])[0]
    if not isinstance(found, Contraction):
        raise UnansweredError("no product of two arrays is given")
    return found


def local_flops(given: Given, ways: Mapping[str, int]) -> float:
    """Forward FLOPs of one device of a mesh; of the whole product on an empty one."""
    product = contraction_of(given)
    sizes = {d: size_of(given, d) for d in product.dims}
    places = {d: (product.x.on(d) or product.w.on(d)) if ways else () for d in product.dims}
    both = [d for d in product.summed if ways and product.x.on(d) != product.w.on(d)]
    for d in both:  # one of the two is gathered, so all of it is summed
        places[d] = ()
    used = [axis for axes in places.values() for axis in axes]
    if len(set(used)) < len(used):
        raise UnansweredError("one mesh axis splits two dimensions of the product")
    groups = {axis: group_of([n if a == axis else 1 for a, n in ways.items()]) for axis in ways}
    levels = tuple(TorusAxis(axis, n, 1.0, True, 0.0) for axis, n in ways.items())
    machine = Machine(Mesh(Network(levels, (1.0,) * len(levels)), groups), 1.0, 1.0)
    return local_product(Asked((product,), sizes, machine), product, places).flops


def size_of(given: Given, dim: str) -> int:
    if given.has("all_sizes"):
        return whole(given, "all_sizes")
    return int(given["sizes"][dim]) if given.has("sizes") and dim in given["sizes"] else whole(given, dim)


@answers("flops", "flops", "forward", "total_flops")
def product_flops_of_arrays(given: Given) -> Value:
    """Of all devices together, copies included."""
    if given.has("mesh"):
        return local_flops(given, mesh_of(given)) * prod(mesh_of(given).values())
    return local_flops(given, {})


@answers("flops", "flops", "forward")
def product_flops_of_letters(given: Given) -> Value:
    letters = next((found for found in MATRICES if given.has(*found)), None)
    if letters is None or set(given) - set(letters):
        raise UnansweredError("no product is given")
    return float(product_flops(*(given.number(letter) for letter in letters), *[1] * (3 - len(letters))))


@answers("flops", "training")
def training_of_arrays(given: Given) -> Value:
    return TRAIN * float(product_flops_of_arrays(given))


@answers("flops", "training")
def training_of_letters(given: Given) -> Value:
    return TRAIN * float(product_flops_of_letters(given))


@answers("flops", "per_device_flops")
def per_device_flops(given: Given) -> Value:
    return local_flops(given, mesh_of(given))
