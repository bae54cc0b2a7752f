"""What shapes cost on a device: seconds of both phases and memory, by the full model or by PLAS' aggregated forms."""

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from meshwright.costmodel.inference import seconds
from meshwright.costmodel.inference.request import Request
from meshwright.costmodel.inference.seconds import Device
from meshwright.hardware.errors import UnknownNameError
from meshwright.search import plas
from meshwright.search.architecture import Ends, stack_of
from meshwright.search.shape import Floats, Shapes

Latency = Literal["full", "plas"]


@dataclass(frozen=True)
class Costs:
    """Columns over R shapes.

    Attributes:
        prefill_s: to the first token. token_s: of a decode step, averaged over the output. total_s: both phases.
    """

    prefill_s: Floats
    token_s: Floats
    total_s: Floats
    memory_bytes: Floats


@dataclass
class Pricer:
    """Prices shapes for one device and request, and counts how many.

    Attributes:
        latency: 'full', the cost model operator by operator, or 'plas', the paper's aggregated forms.
        priced: shapes priced so far.
    """

    ends: Ends
    device: Device
    request: Request
    latency: Latency = "full"
    priced: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.latency not in get_args(Latency):
            raise UnknownNameError("latency", self.latency, get_args(Latency))

    def costs(self, shapes: Shapes) -> Costs:
        """Errors: WorkloadError or InputError where PLAS' forms do not hold (batch above 1, heads beside the width)."""
        self.priced += len(shapes)
        request, device = self.request, self.device
        if self.latency == "plas":
            prefill = plas.prefill_s(shapes, device, request)
            token = plas.decode_s(shapes, device, request) / request.output
            memory = plas.memory_bytes(shapes, request)
        else:
            stack = stack_of(shapes, self.ends)
            prefill = np.asarray(seconds.prefill_s(stack, device, request))
            token = np.asarray(seconds.token_s(stack, device, request))
            memory = np.asarray(sum(seconds.memory_bytes(stack, request).values()))
        return Costs(prefill, token, prefill + request.output * token, memory)
