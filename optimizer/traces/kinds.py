"""What an operation is, by its name; what a process group carries, by how programs call it."""

import re
from functools import lru_cache

# The first that matches wins. Names of kernels (CUDA, ROCm, Triton), of torch operators and of HLO instructions.
_NAMES = (
    ("all_gather", r"all[-_]?gather"),
    ("reduce_scatter", r"reduce[-_]?scatter"),
    ("all_reduce", r"all[-_]?reduce|cross_device_reduce"),
    ("all_to_all", r"all[-_]?to[-_]?all|deep_?ep.*(dispatch|combine)"),
    ("send_recv", r"send[-_]?recv|collective[-_]permute|^(nccl|rccl).*(send|recv)|^(send|recv)([-.]|$)"),
    ("broadcast", r"^(nccl|rccl|c10d).*broadcast|collective[-_]broadcast"),
    ("host_to_device", r"memcpy\s?h(ost)?(to|2)d"),
    ("device_to_host", r"memcpy\s?d(evice)?(to|2)h"),
    ("optimizer", r"multi_tensor_apply|_fused_adam|_foreach_|fusedadam|fused_adam|^optimizer\.step"),
    ("attention", r"flash|fmha|attention|attn|sdpa|splash"),
    (
        "matmul",
        (
            r"gemm|gemv|matmul|cutlass|cublas|nvjet|xmma|wgmma|cijk_|convolution|_mm_|(^|::)linear$|^dot(_general)?([.\d]|$)"
            r"|(^|::)(add|b|baddb|_scaled_|_grouped_)?mm$"
        ),
    ),
    (
        "elementwise",
        (
            r"elementwise|vectorized|reduce|norm|softmax|triton_(poi|red|per)|copy|memcpy\s?d|memset|cast|convert|fill|index"
            r"|gather|scatter|embedding|concat|(^|::)cat$|transpose|broadcast|slice|select|iota|pad|silu|gelu|relu|sigmoid|tanh"
            r"|(^|::)(add|sub|mul|div|pow|sum|mean|sqrt|rsqrt|exp|addcmul|addcdiv|lerp|zero|clamp|where)_?$|exponential"
            r"|^(add|multiply|subtract|divide|maximum|loop|input|wrapped)_?.*fusion|formatting|^reverse|^compare|^bitcast"
        ),
    ),
)
_KINDS = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _NAMES]

# hlo_category of XLA on TPU, where the instruction's name says nothing.
_CATEGORIES = {
    "convolution fusion": "matmul", "convolution": "matmul", "dot": "matmul",
    "loop fusion": "elementwise", "input fusion": "elementwise", "non-fusion elementwise": "elementwise",
    "data formatting": "elementwise", "copy": "elementwise", "broadcast": "elementwise",
    "dynamic-update-slice": "elementwise", "dynamic-slice": "elementwise", "reduce": "elementwise",
}  # fmt: skip

_GROUPS = [
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("ep", r"expert_model|(^|_)ep(_|$)"),
        ("tp", r"tensor_model|(^|_)tp(_|$)"),
        ("pp", r"pipeline|(^|_)pp(_|$)"),
        ("data", r"data_parallel|(^|_)(dp|fsdp)(_|$)|dp_shard|dp_replicate"),
        ("cp", r"context_parallel|(^|_)cp(_|$)"),
    )
]

_DTYPES = {
    "c10::bfloat16": "bf16", "bfloat16": "bf16", "bf16": "bf16",
    "c10::half": "fp16", "half": "fp16", "float16": "fp16", "f16": "fp16",
    "float": "fp32", "float32": "fp32", "f32": "fp32",
    "c10::float8_e4m3fn": "fp8", "c10::float8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
    "f8e4m3fn": "fp8", "f8e5m2": "fp8",
    "signed char": "int8", "char": "int8", "s8": "int8",
}  # fmt: skip
_OTHER_BYTES = {
    "double": 8, "f64": 8, "long int": 8, "long": 8, "s64": 8, "u64": 8, "int": 4, "s32": 4, "u32": 4, "bool": 1, "pred": 1,
    "unsigned char": 1, "byte": 1, "u8": 1, "s16": 2, "u16": 2,
}  # fmt: skip


@lru_cache(maxsize=2**16)
def kind_of(*names: str) -> str:
    """Kind of an operation; of several names, such as a kernel's and its operator's, the first that says something."""
    for name in names:
        for kind, pattern in _KINDS:
            if pattern.search(name):
                return kind
    return "other"


def kind_of_hlo(name: str, category: str, where: str) -> str:
    """The same of an HLO instruction: `category` is XLA's, `where` the operation of the program it comes from.

    Only a custom call is told by where it comes from: the plain products of a layer called attention are products.
    """
    if category in _CATEGORIES:
        return _CATEGORIES[category]
    if category.startswith("custom"):
        return kind_of(name, where)
    return kind_of(category, name)


def carries(label: str) -> str | None:
    """What a process group is for: tp, cp, ep, pp or data; None where its name does not tell."""
    return next((name for name, pattern in _GROUPS if pattern.search(label)), None)


def dtype_of(text: object) -> str | None:
    """A dtype as chips name it; None where it is none of theirs."""
    return _DTYPES.get(str(text).lower())


def bytes_of(text: object) -> float | None:
    """Bytes of an element of a dtype; None where it is not known."""
    from meshwright.hardware.chip import ELEMENT_BYTES

    dtype = dtype_of(text)
    return ELEMENT_BYTES[dtype] if dtype else _OTHER_BYTES.get(str(text).lower())
