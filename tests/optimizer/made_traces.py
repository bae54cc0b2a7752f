"""Traces written by hand: a GPU's as torch.profiler writes it, a TPU's as jax.profiler does, with times in us."""

import json
from pathlib import Path
from typing import Any

Raw = dict[str, Any]


def event(name: str, start: float, length: float, **more: Any) -> Raw:
    return {"ph": "X", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": length, **more}


def kernel(name: str, start: float, length: float, stream: int = 7, device: int = 0, **args: Any) -> Raw:
    args |= {"device": device, "stream": stream}
    return event(name, start, length, cat="kernel", pid=device, tid=stream, args=args)


def operator(
    number: int, name: str, dims: list[Any], dtype: str = "c10::BFloat16", constants: tuple[str, ...] = ()
) -> Raw:
    """What a kernel with this External id computes."""
    args = {
        "External id": number, "Input Dims": dims, "Input type": [dtype] * len(dims),
        "Concrete Inputs": list(constants) or [""] * len(dims),
    }  # fmt: skip
    return event(name, 0.0, 1.0, cat="cpu_op", pid=99, tid=99, args=args)


def step(number: int, start: float, length: float, device: int | None = None) -> Raw:
    """A step's annotation, of the host or on a GPU."""
    name = f"ProfilerStep#{number}"
    if device is None:
        return event(name, start, length, cat="user_annotation", pid=99, tid=99)
    return event(name, start, length, cat="gpu_user_annotation", pid=device, tid=7, args={"External id": 5})


def collective(
    name: str, start: float, length: float, elements: int, ranks: list[int], group: str = "", called: str = ""
) -> Raw:
    """An NCCL kernel in bf16; `elements` of the larger of its two arrays, `called` what the program called."""
    gather = "AllGather" in name
    scatter = "ReduceScatter" in name
    return kernel(
        f"ncclDevKernel_{name}_RING_LL(ncclDevComm*)", start, length, stream=20,
        **{
            "Collective name": called or name, "dtype": "BFloat16", "Group size": len(ranks), "Process Group Ranks": str(ranks),
            "In msg nelems": elements // (len(ranks) if gather else 1),
            "Out msg nelems": elements // (len(ranks) if scatter else 1),
            "Process Group Description": group,
        },
    )  # fmt: skip


def names(pid: int, process: str, threads: dict[int, str]) -> list[Raw]:
    """What JAX calls a process and its threads."""
    found = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process}}]
    return found + [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        for tid, name in threads.items()
    ]


def write(path: Path, events: list[Raw], **header: Any) -> Path:
    path.write_text(json.dumps({**header, "traceEvents": events}))
    return path
