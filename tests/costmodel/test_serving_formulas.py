"""Every formula on a page of decode and prefill gives the value beside it from the other values on the page."""

import pytest
from formula_reader import evaluated

from meshwright.costmodel.readers import load_model
from meshwright.costmodel.serving.decode import decode_model
from meshwright.costmodel.serving.layout_answer import sharding
from meshwright.costmodel.serving.prefill import prefill_model
from meshwright.costmodel.serving.service import Service
from meshwright.costmodel.serving.tables import slices, sweep
from meshwright.hardware.cluster import parse_cluster

# Dense and mixture, latent attention, rings and lines, switches, and a chip of two devices.
SERVICES = [
    ("llama-3-70b", "v5e:4x8", "int8"),
    ("llama-3-70b", "v5e:2x2", "bf16"),  # does not fit
    ("llama-3-70b", "v5p:4x4x4", "bf16"),
    ("llama-3-70b", "tpu7x:4x4x4", "bf16"),
    ("mixtral-8x7b", "h100:8x1", "bf16"),
    ("mixtral-8x7b", "tpu7x:4x4x4", "fp8"),
    ("deepseek-v3", "h200:8x2", "fp8"),
    ("llama-3-8b", "v5e:1x1", "int4"),
]


@pytest.mark.parametrize(("model", "cluster", "weights"), SERVICES, ids=lambda v: str(v))
def test_printed_formulas_give_the_printed_values(model: str, cluster: str, weights: str) -> None:
    service = Service(load_model(model), parse_cluster(cluster), 4096, weights, weights)
    answers = [
        decode_model(service, 48, decode_tokens=512, prompt_tokens=2048),
        sweep(service, 48, 0.02),
        slices(service),
        prefill_model(service, mfu=0.4, cached=1024, batch=32, decode_tokens=512),
    ]
    if service.server.devices > 1:
        answers.append(sharding(service, 48))
    checked = 0
    for answer in answers:
        for name, (printed, computed) in evaluated(answer).items():
            assert computed == pytest.approx(printed, rel=1e-9), f"{name} of {answer.question}"
            checked += 1
    assert checked > 35


def test_a_mixture_names_the_width_that_is_read() -> None:
    found = sharding(Service(load_model("mixtral-8x7b"), parse_cluster("h100:8x1"), 8192), 64)
    assert (found["F"], found["F_read"]) == (28672, 114688)
    assert "F_read" in found.steps["ways_latency"].formula
    assert found.binds.startswith(
        "FLOPs hide crossings up to 13 ways, at this batch weight reads up to 241: 8 ways are within both; "
    )
