"""How a framework holds memory during a step, as data named by launcher.

These are habits of programs, not of models or machines. The figures of `jax` follow what the XLA:TPU compiler
reports for a plain JAX train step (buffer reports of 26 ahead-of-time compilations, jax 0.10.2); those of
`megatron` follow its documented buffers. A later calibration replaces single numbers here, nothing else.
"""

from dataclasses import dataclass

from meshwright.costmodel.tensors import TENSORS
from meshwright.hardware.errors import UnknownNameError
from meshwright.hardware.numbers import check_fields


@dataclass(frozen=True)
class Framework:
    """Memory and communication habits of one launcher.

    Attributes:
        software: under which name a calibration knows its programs.
        grad_bytes: bytes per parameter of a micro-batch's gradient.
        accum_bytes: further bytes per parameter of the buffer that sums gradients over micro-batches;
            needed only with more than one micro-batch.
        reduce_bytes: bytes per parameter of gradients on the wire.
        shards_vectors: ZeRO also cuts norms and biases (flat buffers do, arrays sharded by name keep them whole).
        embedding_gathers, head_gathers: times that ZeRO-3 gathers the token table and the head per micro-batch.
        gather_depth: layers whose gathered weights are alive at once under ZeRO-3.
        logits_bytes: bytes per logit alive in the loss, and with tensor parallelism on top of it `logits_tp_bytes`.
        loss_width_bytes: bytes per token and unit of model width alive in the loss.
        unfused_factor: saved bytes under policy `none` over those of a fully fused layer.
        recomputes_last_product: full recompute also repeats the product whose output no gradient needs.
        chooses: tensors that it saves or repeats by name, apart from the named recompute policies.
        offloads: tensors that it keeps on the host by name, apart from keeping there all that is saved.
        dispatches_once: tokens go to a scale-up domain once, however many of their experts are there (DeepEP, HybridEP).
        gathers_ahead: under ZeRO-1 and 2 updated weights are gathered behind the next forward pass, not in the step's end.
        uneven_chunks: chunks of an interleaved stage may hold different numbers of layers (`legal.chunk_periods`).
        reserve_bytes: fixed bytes of context and communication buffers.
        reserve_share: share of the device's memory lost to the allocator.
    """

    name: str
    software: str
    grad_bytes: int
    accum_bytes: int
    reduce_bytes: int
    shards_vectors: bool
    embedding_gathers: int
    head_gathers: int
    gather_depth: int
    logits_bytes: int
    logits_tp_bytes: int
    loss_width_bytes: int
    unfused_factor: float
    recomputes_last_product: bool
    chooses: frozenset[str]
    offloads: frozenset[str]
    dispatches_once: bool
    gathers_ahead: bool
    uneven_chunks: bool
    reserve_bytes: int
    reserve_share: float

    def __post_init__(self) -> None:
        check_fields(self)

    def capacity_bytes(self, memory_bytes: int) -> int:
        """Bytes of a device that tensors may fill."""
        return int(memory_bytes * (1 - self.reserve_share)) - self.reserve_bytes


FRAMEWORKS: dict[str, Framework] = {
    "jax": Framework(
        name="jax",
        software="jax",
        grad_bytes=2,
        accum_bytes=4,
        reduce_bytes=2,
        embedding_gathers=0,
        head_gathers=1,
        shards_vectors=False,
        gather_depth=3,
        logits_bytes=4,
        logits_tp_bytes=2,
        loss_width_bytes=4,
        unfused_factor=2.1,
        recomputes_last_product=False,
        # jax.checkpoint saves what a policy names; to the host go the layer's input and products, as MaxText names them.
        chooses=frozenset(TENSORS) - {"input"},
        offloads=frozenset({"input", "latent", "qkv", "core", "out", "up", "expert_up", "expert_down"}),
        dispatches_once=False,
        gathers_ahead=False,
        uneven_chunks=False,
        reserve_bytes=2**28,
        reserve_share=0.02,
    ),
    "megatron": Framework(
        name="megatron",
        software="megatron-core",
        grad_bytes=4,
        accum_bytes=0,
        reduce_bytes=4,
        embedding_gathers=1,
        head_gathers=1,
        shards_vectors=True,
        gather_depth=2,
        logits_bytes=8,
        logits_tp_bytes=0,
        loss_width_bytes=2,
        unfused_factor=1.0,
        recomputes_last_product=True,
        chooses=frozenset(),  # recomputes by module, not by tensor
        offloads=frozenset(),
        dispatches_once=False,
        gathers_ahead=True,  # --overlap-param-gather
        uneven_chunks=True,  # --pipeline-model-parallel-layout names the layers of every chunk
        reserve_bytes=2**30,
        reserve_share=0.06,
    ),
}


def load_framework(name: str) -> Framework:
    """The named framework.

    Raises:
        UnknownNameError: no such framework.
    """
    if name not in FRAMEWORKS:
        raise UnknownNameError("framework", name, FRAMEWORKS)
    return FRAMEWORKS[name]
