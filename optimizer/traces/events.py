"""What a reader of traces gives: timed events of devices, and marks of where steps begin and end.

compute       matmul, attention, elementwise, optimizer, other
collectives   all_gather, reduce_scatter, all_reduce, all_to_all, send_recv, broadcast
copies        host_to_device, device_to_host
"""

from collections.abc import Callable
from dataclasses import dataclass

COMPUTE = ("matmul", "attention", "elementwise", "optimizer", "other")
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv", "broadcast")
COPIES = ("host_to_device", "device_to_host")


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of a collective as far as the trace tells them: how many, which, and what the program calls them."""

    size: int
    ranks: tuple[int, ...] = ()
    label: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """One operation on a device.

    Attributes:
        start_s: since the trace's first event. device, stream: whose timeline.
        kind: of COMPUTE, COLLECTIVES or COPIES.
        source: the framework's operator it belongs to, where that is known, such as aten::mm.
        dtype: of its operands, as chips name them.
        flops: None where the trace does not say enough. moved_bytes: in and out of memory; of a collective what one
            device sends, of a copy what crosses the host link.
        shape: (m, k, n) of a product, with the number of products in front where it is above one; of attention
            (sequences, queries, keys, heads, width of a head).
    """

    name: str
    start_s: float
    seconds: float
    device: str
    stream: str
    kind: str
    source: str = ""
    dtype: str | None = None
    flops: float | None = None
    moved_bytes: float | None = None
    shape: tuple[int, ...] = ()
    group: Group | None = None

    @property
    def end_s(self) -> float:
        return self.start_s + self.seconds

    @property
    def computes(self) -> bool:
        return self.kind in COMPUTE


@dataclass(frozen=True, slots=True)
class Mark:
    """What may be a step: an annotation of the user, or one run of a compiled program.

    `device` is None where the host's clock says it; `program` where it is a run and not an annotation.
    """

    name: str
    start_s: float
    end_s: float
    device: str | None = None
    program: bool = False


@dataclass(frozen=True)
class Trace:
    """One file, read.

    Attributes:
        maker: torch or jax. ranks: of the job, hardware: what its devices are called, where the file says it.
    """

    path: str
    maker: str
    events: tuple[Event, ...]
    marks: tuple[Mark, ...]
    ranks: int | None = None
    hardware: str = ""

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices with events, in the order of their names."""
        return tuple(sorted({event.device for event in self.events}))


Label = Callable[[Event], str]  # what an event that is no compute is called
