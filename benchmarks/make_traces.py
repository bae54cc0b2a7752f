"""Makes the small real traces under tests/golden/traces: two steps of a tiny transformer block on the CPU.

    python benchmarks/make_traces.py torch tests/golden/traces   # needs torch (made with 2.13.0+cpu)
    python benchmarks/make_traces.py jax tests/golden/traces     # needs jax (made with 0.10.2), as two CPU devices

Events are dropped by one rule each, so that a file stays small. torch: kept are names of processes and threads, annotations,
and operators of at least 2 us, of which only the sizes, types, strides and constants of operands. JAX: kept are names of
processes and threads, annotated steps, and the operations of programs (those with an hlo_op). Nothing else is changed.
"""

import gzip
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

WIDTH, HEADS, TOKENS, SEQUENCES, STEPS = 256, 4, 128, 2, 2
_SHORTEST_US = 2.0
_TORCH_ARGS = ("External id", "Input Dims", "Input type", "Input Strides", "Concrete Inputs")


def torch_trace(path: Path) -> None:
    """One block with AdamW in bf16, data as torch.profiler with record_shapes writes it."""
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, schedule

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            b, t, d = x.shape
            parts = self.qkv(self.norm1(x)).chunk(3, -1)
            q, k, v = (part.view(b, t, HEADS, -1).transpose(1, 2) for part in parts)
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(b, t, d))
            return x + self.down(F.silu(self.up(self.norm2(x))))

    torch.manual_seed(0)
    block = Block().to(torch.bfloat16)
    update = torch.optim.AdamW(block.parameters())
    x = torch.randn(SEQUENCES, TOKENS, WIDTH, dtype=torch.bfloat16)
    plan = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True) as made:
        for _ in range(1 + STEPS):
            update.zero_grad()
            (block(x) ** 2).mean().backward()
            update.step()
            made.step()
    with tempfile.TemporaryDirectory() as folder:
        made.export_chrome_trace(f"{folder}/trace.json")
        data = json.loads(Path(folder, "trace.json").read_text())
    data["traceEvents"] = [_torch_event(event) for event in data["traceEvents"] if _torch_keeps(event)]
    data.pop("trace_id", None)
    data["host_name"], data["traceName"] = "host", path.name
    _write(path, data)


def _torch_keeps(event: dict[str, Any]) -> bool:
    long = event.get("dur", 0.0) >= _SHORTEST_US
    return (
        event["ph"] == "M" or event.get("cat") == "user_annotation" or (event.get("cat") == "cpu_op" and long)
    )


def _torch_event(event: dict[str, Any]) -> dict[str, Any]:
    if event.get("cat") != "cpu_op":
        return event
    return event | {"args": {key: event["args"][key] for key in _TORCH_ARGS if key in event["args"]}}


def jax_trace(path: Path) -> None:
    """The same block without norms, data parallel over two CPU devices, gradients reduced."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((2,), ("data",))
    sizes = {"qkv": (WIDTH, 3 * WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    keys = jax.random.split(jax.random.key(0), 4)
    weights = {
        name: jax.random.normal(key, size) for key, (name, size) in zip(keys, sizes.items(), strict=False)
    }
    weights = jax.device_put(weights, NamedSharding(mesh, PartitionSpec()))
    x = jax.random.normal(keys[3], (SEQUENCES, TOKENS, WIDTH))
    x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))

    def loss(w: Any) -> Any:
        q, k, v = jnp.split(x @ w["qkv"], 3, -1)
        attended = jax.nn.softmax(q @ k.transpose(0, 2, 1) / 16.0, -1) @ v
        return ((jax.nn.silu(attended @ w["up"]) @ w["down"]) ** 2).mean()

    @jax.jit
    def step(w: Any) -> Any:
        return jax.tree.map(lambda a, b: a - 0.1 * b, w, jax.grad(loss)(w))

    weights = jax.block_until_ready(step(weights))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for number in range(STEPS):
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    weights = jax.block_until_ready(step(weights))
        (found,) = Path(folder).rglob("*.trace.json.gz")
        with gzip.open(found, "rt") as file:
            data = json.load(file)
    data["traceEvents"] = [event for event in data["traceEvents"] if _jax_keeps(event)]
    _write(path, data)


def _jax_keeps(event: dict[str, Any]) -> bool:
    args = event.get("args", {})
    return event.get("ph") == "M" or "hlo_op" in args or "step_num" in args


def _write(path: Path, data: dict[str, Any]) -> None:
    """Gzip without a time, so that the same events are the same bytes."""
    path.write_bytes(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0))
    print(f"{path}: {path.stat().st_size:,} bytes, {len(data['traceEvents'])} events")


if __name__ == "__main__":
    which, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    {"torch": torch_trace, "jax": jax_trace}[which](folder / f"{which}_cpu.trace.json.gz")
