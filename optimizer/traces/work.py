"""FLOPs and bytes of an operation from the shapes that a trace records; None where they do not say it all."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshwright.costmodel import collectives
from meshwright.costmodel.flops import attention_span, core_flops, product_bytes, product_flops
from meshwright.costmodel.model import Attention
from meshwright.costmodel.operators import BACKWARD
from meshwright.hardware.network import SwitchTier
from meshwright.optimizer.traces.events import Group
from meshwright.optimizer.traces.kinds import bytes_of, dtype_of, kind_of


class Work(NamedTuple):
    """What an operator does, as `Event` has it."""

    kind: str
    flops: float | None = None
    moved_bytes: float | None = None
    shape: tuple[int, ...] = ()
    dtype: str | None = None


class _Kernel(NamedTuple):
    """Where a torch attention operator has its query (keys and values follow), its flag causal, and its heads."""

    query: int
    causal: int
    heads: int  # dimension: [B, N, T, H] has 1, [B, T, N, H] has 2
    backward: bool = False


# Products: places of the two operands, and whether the second is stored as [n, k].
_PRODUCTS = {
    "mm": (0, 1, False), "addmm": (1, 2, False), "bmm": (0, 1, False), "baddbmm": (1, 2, False),
    "linear": (0, 1, True), "_scaled_mm": (0, 1, False),
}  # fmt: skip
_ATTENTION = {
    "_scaled_dot_product_flash_attention": _Kernel(0, 4, 1),
    "_scaled_dot_product_flash_attention_backward": _Kernel(1, 11, 1, True),
    "_scaled_dot_product_flash_attention_for_cpu": _Kernel(0, 4, 1),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _Kernel(1, 7, 1, True),
    "_scaled_dot_product_efficient_attention": _Kernel(0, 6, 1),
    "_scaled_dot_product_cudnn_attention": _Kernel(0, 6, 1),
    "_flash_attention_forward": _Kernel(0, 8, 2),
    "_flash_attention_backward": _Kernel(1, 11, 2, True),
}
# Other sizes of the same memory: nothing moves.
_VIEWS = {
    "t", "transpose", "permute", "slice", "narrow", "select", "as_strided", "expand", "view", "_unsafe_view", "reshape",
    "unsqueeze", "squeeze", "chunk", "split", "split_with_sizes", "unbind", "detach", "alias", "empty_like", "to",
}  # fmt: skip
_RANK = re.compile(r"\s*[0-9]{1,9}\s*")
_IN_PLACE = ("copy_", "fill_", "zero_")  # the output is among the operands, and only written


def torch_work(name: str, args: Mapping[str, Any]) -> Work:
    """Of a torch operator recorded with record_shapes."""
    operator, kind = name.rpartition("::")[2], kind_of(name)
    if operator in _VIEWS:
        return Work("other")
    dims, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) != len(types):
        return Work(kind)
    if operator in _PRODUCTS:
        return _product(dims, types, *_PRODUCTS[operator])
    if operator in _ATTENTION:
        return _attention(dims, types, args.get("Concrete Inputs"), _ATTENTION[operator])
    if kind == "elementwise":
        moved = _elementwise_bytes(operator, dims, types, args.get("Input Strides"))
        return Work(kind, moved_bytes=moved, dtype=dtype_of(types[0]) if types else None)
    return Work(kind)


def sent_bytes(kind: str, whole_bytes: float, members: int) -> float:
    """What one of `members` devices sends in a collective; `whole_bytes` as `collectives` takes them."""
    if members < 2:
        return 0.0
    # Over one tier of 1 byte/s without latency seconds are bytes.
    network = collectives.Network((SwitchTier("nvlink", members, 1.0, 0.0),), (1.0,))
    formula: Any = {
        "all_reduce": collectives.reduce_loads,
        "all_to_all": collectives.all_to_all_loads,
        "send_recv": collectives.send_loads,
        "broadcast": collectives.send_loads,
    }.get(kind, collectives.gather_loads)
    factors = np.array([members])
    return float(collectives.duration(formula(network, whole_bytes, factors, np.ones_like(factors))))


def torch_collective(kind: str, args: Mapping[str, Any]) -> tuple[Group | None, float | None]:
    """(ranks, bytes that one device sends) of an NCCL kernel; None where the trace does not say."""
    members = count_of(args.get("Group size"))
    if members is None:
        return None, None
    label = str(args.get("Process Group Description") or args.get("Process Group Name") or "")
    group = Group(members, _ranks(args.get("Process Group Ranks")), label)
    elements = count_of(args.get("Out msg nelems" if kind == "all_gather" else "In msg nelems"))
    size = bytes_of(args.get("dtype"))
    if elements is None or size is None:
        return group, None
    return group, sent_bytes(kind, elements * size, members)


def _ranks(text: object) -> tuple[int, ...]:
    """`[0, 1, 2]`; long lists are cut short by the profiler and tell nothing."""
    words = str(text).strip("[] ").split(",")
    return tuple(int(word) for word in words) if all(_RANK.fullmatch(word) for word in words) else ()


def count_of(value: object) -> int | None:
    """A whole number above zero, of a size that machines have; None for anything else."""
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**62
    return value if whole else None  # type: ignore[return-value]


def _product(dims: list[Any], types: list[Any], at_x: int, at_w: int, stored_nk: bool) -> Work:
    x, w = (_sizes(dims, at) for at in (at_x, at_w))
    if x is None or w is None or len(w) < 2 or not x:
        return Work("matmul")
    k, n = (w[-1], w[-2]) if stored_nk else (w[-2], w[-1])
    many = math.prod(w[:-2])
    m = math.prod(x[:-1]) // many
    dtype, size = dtype_of(types[at_x]), bytes_of(types[at_x])
    if x[-1] != k or min(m, k, n) < 1:
        return Work("matmul", dtype=dtype)
    moved = None if size is None else many * product_bytes(m, k, n, size, size, size)
    shape = (many, m, k, n) if many > 1 else (m, k, n)
    return Work("matmul", many * product_flops(m, k, n), moved, shape, dtype)


def _attention(dims: list[Any], types: list[Any], concrete: object, kernel: _Kernel) -> Work:
    query, key, value = (_sizes(dims, kernel.query + i) for i in range(3))
    flags = concrete if isinstance(concrete, list) else []
    word = flags[kernel.causal] if len(flags) > kernel.causal else None
    dtype = dtype_of(types[kernel.query]) if len(types) > kernel.query else None
    known = query is not None and key is not None and value is not None
    if (
        not known
        or len({len(x or ()) for x in (query, key, value)} | {4}) > 1
        or word not in ("True", "False")
    ):
        return Work("attention", dtype=dtype)
    assert query and key and value
    tokens, keys = query[3 - kernel.heads], key[3 - kernel.heads]
    if word == "True" and tokens != keys:  # where the mask's corner lies depends on the version
        return Work("attention", dtype=dtype)
    geometry = Attention(query[kernel.heads], key[kernel.heads], query[3], value[3])
    flops = query[0] * tokens * core_flops(geometry, attention_span(keys, None, word == "True"))
    shape = (query[0], tokens, keys, query[kernel.heads], query[3])
    return Work("attention", flops * (BACKWARD["core"] if kernel.backward else 1.0), None, shape, dtype)


def _elementwise_bytes(operator: str, dims: list[Any], types: list[Any], strides: object) -> float | None:
    """Every operand read once and an output as large as the largest written; broadcast operands at their own size."""
    sizes = []
    for at, kind in enumerate(types):
        shape = _sizes(dims, at)
        if shape is None or not shape:
            if str(kind) == "TensorList":  # of tensors whose dtype is not recorded
                return None
            continue
        if (size := bytes_of(kind)) is None:
            return None
        steps = strides[at] if isinstance(strides, list) and len(strides) > at else None
        if isinstance(steps, list) and len(steps) == len(shape):
            shape = tuple(d for d, step in zip(shape, steps, strict=True) if step != 0)
        sizes.append(size * math.prod(shape))
    if not sizes:
        return None
    return sum(sizes) + (0.0 if operator in _IN_PLACE else max(sizes))


def _sizes(dims: Sequence[Any], at: int) -> tuple[int, ...] | None:
    """The dimensions of one operand; None where it is no tensor of known size."""
    if at >= len(dims) or not isinstance(dims[at], list):
        return None
    found = dims[at]
    whole = all(count_of(d) for d in found) and count_of(math.prod(found))
    return tuple(found) if whole else None
