"""A model on a cluster, served: the question that the answers on decode and prefill share."""

from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any

from meshwright.costmodel.collectives import Network
from meshwright.costmodel.doors import ClusterSource, ModelSource, check_text, cluster_of, model_of
from meshwright.costmodel.limits.run_time import usd_per_million_tokens
from meshwright.costmodel.model import LayerKind, ModelSpec
from meshwright.costmodel.roofline.operands import parse_dtype
from meshwright.costmodel.serving.server import Served, Server, step_by_operator_s
from meshwright.costmodel.setting import ideal_network
from meshwright.costmodel.working import Step
from meshwright.hardware.chip import ELEMENT_BYTES
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.errors import InputError, WorkloadError, check_type, shown

_MOST = 1 << 40
_LARGEST = 1e30  # of anything that is put in; what follows from it is finite


@dataclass(frozen=True, init=False)
class Service:
    """A model on a cluster that decodes sequences of `context` tokens in the cache.

    Names are taken where a model or a cluster is meant: Service("llama-3-70b", "v5e:4x4", 8192).

    Attributes:
        weights, kv, compute: dtypes of what is held, of what is cached, and of the products.

    Raises:
        WorkloadError: a context out of range. InputError: a model, cluster or dtype that is none.
        MissingFigureError, when asked: the chip has no peak for the compute dtype.
    """

    model: ModelSpec
    cluster: Cluster
    context: int
    weights: str
    kv: str
    compute: str

    def __init__(
        self,
        model: ModelSource,
        cluster: ClusterSource,
        context: int,
        weights: str = "bf16",
        kv: str = "bf16",
        compute: str = "bf16",
    ) -> None:
        check_whole("context", context)
        for name, value in (
            ("model", model_of(model)),
            ("cluster", cluster_of(cluster)),
            ("context", int(context)),
        ):
            object.__setattr__(self, name, value)
        for name, dtype in (("weights", weights), ("kv", kv), ("compute", compute)):
            check_text(name, dtype, "bf16")
            object.__setattr__(self, name, parse_dtype(dtype))

    @cached_property
    def served(self) -> Served:
        return Served.of(self.model, self.context, ELEMENT_BYTES[self.weights], ELEMENT_BYTES[self.kv])

    @cached_property
    def server(self) -> Server:
        return Server.of(self.cluster, self.compute)

    @cached_property
    def network(self) -> Network:
        """At peak rates."""
        return ideal_network(self.cluster)

    def exact_s(self, batch: int) -> float:
        """Seconds of a decode step by product, without the network."""
        sizes = ELEMENT_BYTES[self.weights], ELEMENT_BYTES[self.kv]
        return float(step_by_operator_s(self.model, self.server, batch, self.context, *sizes))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know whatever is asked."""
        longest = self.model.max_seq_len
        beyond: tuple[str, ...] = ()
        if longest is not None and self.context > longest:
            beyond = (f"{self.model.name} is made for {longest:,} positions; {self.context:,} are asked for",)
        return (*beyond, *self.cluster.warnings)

    @property
    def title(self) -> str:
        return f"{self.model.name} in {self.weights} (cache {self.kv}, products {self.compute}) on {self.cluster.name}"


def main_kind(model: ModelSpec) -> LayerKind:
    """The kind that most layers are."""
    return model.kinds[model.layers_by_kind.index(max(model.layers_by_kind))]


def money(server: Server, tokens_per_s: float) -> dict[str, Step]:
    """The price of a million tokens; nothing where nobody states what a chip costs."""
    price = server.usd_per_chip_hour
    if price is None:
        return {}
    usd = usd_per_million_tokens(tokens_per_s, price * server.chips)
    return {"usd_per_million_tokens": Step(usd, "USD", note=f"at {price:g} USD per chip-hour")}


def check_queries(context: int, decode_tokens: int | None, prompt_tokens: int | None) -> None:
    """Raises WorkloadError unless what is said of queries fits the sequences in the cache."""
    if decode_tokens is not None:
        check_whole("decode tokens", decode_tokens)
    if prompt_tokens is None:
        return
    check_whole("prompt tokens", prompt_tokens)
    if decode_tokens is None:
        raise WorkloadError("prompt tokens say what ended queries leave behind; give decode tokens too")
    check_holds_prompt(context, prompt_tokens)


def check_holds_prompt(context: int, prompt_tokens: int) -> None:
    """Raises WorkloadError where a sequence in the cache is shorter than the prompt that it begins with."""
    if context < prompt_tokens:
        raise WorkloadError(
            f"a context of {context:,} tokens does not hold a prompt of {prompt_tokens:,}; give at least {prompt_tokens:,}"
        )


def check_service(service: Service) -> None:
    """Raises InputError where a Service is meant and something else came in."""
    check_type("service", service, Service, "a Service(model, cluster, context)")


def check_numbers(served: Served, server: Server) -> None:
    """Raises InputError unless a model and a server of numbers alone can be divided by."""
    check_type("served", served, Served, "a Served(params, active_params, weight_bytes)")
    check_type("server", server, Server, "a Server(devices, flop_per_s, hbm_bytes_per_s, memory_bytes)")
    check_whole("devices", server.devices)
    check_whole("devices_per_chip", server.devices_per_chip)
    check_finite(**{name: getattr(served, name) for name in ("params", "active_params", "weight_bytes")})
    check_finite(
        **{name: getattr(server, name) for name in ("flop_per_s", "hbm_bytes_per_s", "memory_bytes")}
    )
    if served.kv_bytes != 0:
        check_finite(kv_bytes=served.kv_bytes)
    if server.usd_per_chip_hour not in (None, 0):
        check_finite(usd_per_chip_hour=server.usd_per_chip_hour)


def check_finite(**values: Any) -> None:
    """Raises InputError for the first value that is no number above zero, or out of what can be computed with."""
    for what, value in values.items():
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not 1 / _LARGEST <= value <= _LARGEST:
            raise InputError(f"{what} is {shown(value)}; give a number above zero")


def check_whole(what: str, value: int, least: int = 1) -> None:
    """Raises WorkloadError unless `value` is a whole number in range."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= value <= _MOST:
        raise WorkloadError(f"{what} is {shown(value)}; give a whole number from {least} to {_MOST}")
