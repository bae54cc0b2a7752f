"""Products on one chip, or with the contraction shared: topic matmul. What is sharded otherwise is in collectives.py."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from book_answers import Given, UnansweredError, Value, answers
from book_answers.arrays import local_dims
from book_answers.roofline import chip_of, compute_rate, dtypes, memory_rate, number
from meshwright.costmodel.roofline.intensity import (
    critical_intensity,
    product_intensity,
    seconds_at,
    tiled_intensity,
)
from meshwright.costmodel.roofline.matmul import matmul
from meshwright.costmodel.roofline.operands import (
    Product,
    parse_dtype,
    parse_operand,
    parse_product,
    unsharded_columns,
)
from meshwright.costmodel.roofline.split_matmul import split_matmul
from meshwright.costmodel.working import Working
from meshwright.hardware.chip import ELEMENT_BYTES


def text_of(given: Given) -> str:
    """The product of a case: as 'op', or x and w, with w turned where it is written [out, in]."""
    if given.has("op") and "[" in str(given["op"]):
        return str(given["op"])
    x, w = parse_operand(str(given["x"])), parse_operand(str(given["w"]))
    if x.dims[-1] != w.dims[0] and w.dims[-1] == x.dims[-1]:
        return f"{x} x {w.dtype}[{','.join((w.dims[-1], *w.dims[:-1]))}]"
    return f"{x} x {w}"


def sizes_of(text: str, given: Mapping[str, Any], **more: int) -> dict[str, int]:
    """Sizes of the product's named dimensions that the case gives."""
    product: Product = parse_product(text)
    names = {d for d in (*product.x.dims, *product.w.dims) if not d.isdigit()}
    found = {name: int(given[name]) for name in names if name in given}
    return found | {name: size for name, size in more.items() if name in names}


def product_of(given: Given, **more: int) -> Working:
    """Roofline of the case's product."""
    text = text_of(given)
    rate = {"bytes_per_s": memory_rate(given)} if given.has("vmem_Bps") or given.has("pcie_Bps") else {}
    return matmul(text, chip_of(given), sizes=sizes_of(text, given, **more), **rate)


# One product on one chip.


@answers("matmul", "critical_batch")
def _critical_batch(given: Given) -> Value:
    """Exact where the width of the product is known, else of weights alone."""
    working = product_of(given)
    exact = "critical_batch_exact"
    few_rows = "<<" in str(given.get("regime", ""))
    return number(working, exact if exact in working.steps and not few_rows else "critical_batch")


@answers("matmul", "intensity")
def _product_intensity(given: Given) -> Value:
    if given.has("bm", "bn"):
        size = given.number("dtype_bytes", 2)
        return tiled_intensity(given.number("bm"), given.number("bn"), size, size)
    if given.has("B", "D", "F", "dtype_bytes"):
        sizes = (given.number(key) for key in ("B", "D", "F"))
        return product_intensity(*sizes, *[given.number("dtype_bytes")] * 3)
    text = text_of(given)
    return parse_product(text, sizes_of(text, given)).work.intensity


@answers("matmul", "critical_intensity_int8")
def _critical_int8(given: Given) -> Value:
    return critical_intensity(compute_rate(given, "int8"), memory_rate(given))


@answers("matmul", "ops_per_token")
def _per_token(given: Given) -> Value:
    text = text_of(given)
    return parse_product(text, sizes_of(text, given, B=1)).work.flops


@answers("matmul", "weight_bytes")
def _weight_bytes(given: Given) -> Value:
    text = text_of(given)
    return parse_product(text, sizes_of(text, given, B=1)).weight_bytes


def _at_batch(batch: int, step: str) -> Callable[[Given], Value]:
    return lambda given: number(product_of(given, B=batch), step)


for _batch in (64, 512):
    answers("matmul", f"t_{_batch}")(_at_batch(_batch, "t_lower"))
    answers("matmul", f"bytes_{_batch}")(_at_batch(_batch, "bytes"))


def _square(given: Given, size: int) -> Working:
    """A square product at that width, with the dtypes that the case names."""
    weights, compute = dtypes(given)
    x, w = (ELEMENT_BYTES[parse_dtype(dtype)] for dtype in (compute, weights))
    counted = " + ".join(
        f"{size:g}{dims}".removeprefix("1") for size, dims in ((x, "BD"), (w, "DF"), (x, "BF"))
    )
    if given.get("bytes", counted) != counted:
        raise UnansweredError(f"bytes are counted as {given['bytes']}, not {counted}")
    return matmul(f"{compute}[B,D] x {weights}[D,F]", chip_of(given), sizes={"D": size, "F": size})


for _size in (1024, 4096):
    answers("matmul", f"crit_batch_{_size}")(
        lambda given, size=_size: number(_square(given, size), "critical_batch_exact")
    )
answers("matmul", "ratio_1024_to_asymptote_120")(
    lambda given: number(_square(given, 1024), "exact_over_asymptote")
)


@answers("matmul", "t")
def _time(given: Given) -> Value:
    """On cores of which only the compute rate is given: compute alone; on one chip its roofline."""
    if given.has("flops_per_s_per_core", "cores"):
        text = text_of(given)
        rate = given.number("flops_per_s_per_core") * given.number("cores")
        return seconds_at(parse_product(text, sizes_of(text, given)).work.flops, rate)
    if any(given.has(key) for key in ("mesh", "slice", "chips", "cores", "layout")):
        raise UnansweredError("of a product over several chips")
    return number(product_of(given), "t_lower")


@answers("matmul", "critical_D")
def _critical_contraction(given: Given) -> Value:
    return number(_shared(given), "critical_k")


@answers("matmul", "network_intensity")
def _network_intensity(given: Given) -> Value:
    """Of the product where its contraction has a size, else what the network needs."""
    working = _shared(given)
    return number(working, "intensity" if "intensity" in working.steps else "critical_intensity")


def _shared(given: Given) -> Working:
    """The contraction shared among chips on one link."""
    text = text_of(given) if given.has("x", "w") else "bf16[B,D] x bf16[D,F]"
    product = parse_product(text)
    if given.has("split_dim") and given["split_dim"] not in product.contracted:
        raise UnansweredError(f"{given['split_dim']} is not contracted")
    return split_matmul(
        text, chip_of(given), int(given.number("chips")), sizes=sizes_of(text, given),
        link_bytes_per_s=given.number("link_Bps_one_way"),
        out_bytes=given.number("output_bytes_per_elem") if given.has("output_bytes_per_elem") else None,
    )  # fmt: skip


# What a profile shows of one shard.


@answers("matmul", "model_parallel")
def _ways(given: Given) -> Value:
    return int(given.number("replica_group_size"))


@answers("matmul", "global_rows")
def _rows_of_all(given: Given) -> Value:
    return unsharded_columns(parse_product(str(given["per_shard"])), int(given.number("replica_group_size")))


def _shard_of_input(given: Given) -> tuple[int, ...]:
    """One device's part of In, or of x whose first dimension is split over the mesh axis of the data."""
    for key in ("In", "x"):
        if given.has(key) and " P(" in str(given[key]):
            return local_dims(given, key)
    dims = tuple(int(d) for d in parse_operand(str(given["x"])).dims)
    mesh = given["mesh"]
    ways = next((int(n) for axis, n in mesh.items() if str(axis).lower() in ("data", "dp", "batch")), None)
    if ways is None or dims[0] % ways:
        raise UnansweredError("no mesh axis of the data splits x")
    return (dims[0] // ways, *dims[1:])


@answers("matmul", "local_batch")
def _local_rows(given: Given) -> Value:
    return _shard_of_input(given)[0]


@answers("matmul", "local_batch_tokens")
def _local_tokens(given: Given) -> Value:
    return prod(_shard_of_input(given)[:-1])


@answers("matmul", "local_contract")
def _local_contraction(given: Given) -> Value:
    """Only where the sharding of the contracted dimension is written."""
    for key in ("In", "x"):
        if given.has(key) and " P(" in str(given[key]):
            return local_dims(given, key)[-1]
    raise UnansweredError("the sharding of the contracted dimension is not written")
