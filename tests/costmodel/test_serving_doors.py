"""The door of the functions on serving: names are taken, the rest is refused in one typed line."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import inf, nan
from typing import Any

import pytest

from meshwright.costmodel.readers import load_model
from meshwright.costmodel.serving.decode import decode, decode_model
from meshwright.costmodel.serving.layout_answer import sharding
from meshwright.costmodel.serving.prefill import prefill, prefill_model
from meshwright.costmodel.serving.server import Served, Server
from meshwright.costmodel.serving.service import Service
from meshwright.costmodel.serving.tables import slices, sweep
from meshwright.hardware.cluster import parse_cluster
from meshwright.hardware.errors import MeshwrightError

SERVICE = Service("llama-3-8b", "v5e:2x2", 1024)
SERVED, SERVER = Served(8e9, 8e9, 2.0, 1e6), Server(4, 2e14, 8e11, 16e9)
BAD = [0, -1, nan, inf, -inf, "x", None, [], {}, 1.5, True, 10**400, 1e-320, b"", object()]

CALLS: dict[str, Callable[[Any], object]] = {
    "model": lambda v: Service(v, "v5e:2x2", 1024),
    "cluster": lambda v: Service("llama-3-8b", v, 1024),
    "context": lambda v: Service("llama-3-8b", "v5e:2x2", v),
    "weights": lambda v: Service("llama-3-8b", "v5e:2x2", 1024, v),
    "kv": lambda v: Service("llama-3-8b", "v5e:2x2", 1024, kv=v),
    "compute": lambda v: Service("llama-3-8b", "v5e:2x2", 1024, compute=v).server,
    "decode batch": lambda v: decode(SERVED, SERVER, v),
    "decode served": lambda v: decode(v, SERVER, 1),
    "decode server": lambda v: decode(SERVED, v, 1),
    "decode_model service": lambda v: decode_model(v, 1),
    "decode_model batch": lambda v: decode_model(SERVICE, v),
    "prompt tokens alone": lambda v: decode_model(SERVICE, 1, decode_tokens=1, prompt_tokens=v or 0),
    "prefill served": lambda v: prefill(v, SERVER, 8),
    "prefill tokens": lambda v: prefill(SERVED, SERVER, v),
    "mfu": lambda v: prefill(SERVED, SERVER, 8, mfu=2 if v is True else v),
    "prefill_model service": lambda v: prefill_model(v),
    "prefill_model mfu": lambda v: prefill_model(SERVICE, mfu=2 if v is True else v),
    "prefill_model batch": lambda v: prefill_model(SERVICE, batch=v, decode_tokens=4),
    "prefill_model decode_tokens": lambda v: prefill_model(SERVICE, batch=4, decode_tokens=v),
    "sweep service": lambda v: sweep(v, 1),
    "sweep batch": lambda v: sweep(SERVICE, v),
    "slices service": lambda v: slices(v),
    "sharding service": lambda v: sharding(v, 1),
    "sharding batch": lambda v: sharding(SERVICE, v),
}
# Numbers that may be left out, or have a part after the point.
LOOSE: dict[str, Callable[[Any], object]] = {
    "generate": lambda v: prefill_model(SERVICE, batch=4, decode_tokens=4, generate=v),
    "decode_tokens": lambda v: decode_model(SERVICE, 1, decode_tokens=v),
    "slices decode_tokens": lambda v: slices(SERVICE, v),
    "sweep limit": lambda v: sweep(SERVICE, 1, v),
    "slices limit": lambda v: slices(SERVICE, None, v),
    "cached": lambda v: prefill_model(SERVICE, cached=v),
    "chip": lambda v: decode(SERVED, SERVER, 1, chip=v),
    **{
        f"Served.{name}": lambda v, name=name: decode(replace(SERVED, **{name: v}), SERVER, 1)
        for name in ("params", "active_params", "weight_bytes", "kv_bytes")
    },
    **{
        f"Server.{name}": lambda v, name=name: prefill(SERVED, replace(SERVER, **{name: v}), 8)
        for name in ("devices", "flop_per_s", "hbm_bytes_per_s", "memory_bytes", "usd_per_chip_hour")
    },
}


@pytest.mark.parametrize(
    ("name", "value"), list(product(CALLS, BAD)), ids=lambda v: v if isinstance(v, str) else repr(v)[:8]
)
def test_what_makes_no_sense_is_refused_in_one_line(name: str, value: object) -> None:
    with pytest.raises(MeshwrightError) as told:
        CALLS[name](value)
    assert "\n" not in str(told.value) and len(str(told.value)) < 300


@pytest.mark.parametrize(
    ("name", "value"), list(product(LOOSE, BAD)), ids=lambda v: v if isinstance(v, str) else repr(v)[:8]
)
def test_nothing_ends_in_a_raw_exception(name: str, value: object) -> None:
    try:
        LOOSE[name](value)
    except MeshwrightError as told:
        assert "\n" not in str(told)
    else:
        assert value is None or value in (0, 1.5)


def test_names_stand_for_models_and_clusters() -> None:
    assert Service("llama-3-8b", "v5e:2x2", 1024) == Service(
        load_model("llama-3-8b"), parse_cluster("v5e:2x2"), 1024
    )
    assert replace(SERVICE, cluster="v5e:4x4").cluster.chips == 16  # type: ignore[arg-type]
    with pytest.raises(MeshwrightError, match="model is 3; give a built-in name"):
        Service(3, "v5e:2x2", 1024)  # type: ignore[arg-type]
    with pytest.raises(MeshwrightError, match="params is nan; give a finite number"):
        decode(replace(SERVED, params=nan), SERVER, 1)
    with pytest.raises(MeshwrightError, match="a generate server needs both batch and decode_tokens"):
        prefill_model(SERVICE, batch=4)
