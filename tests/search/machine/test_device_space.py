"""Device spaces as files: levels, prices and rules by hand, and what a wrong file is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from meshwright.hardware.errors import InputError, UnknownNameError
from meshwright.search.machine.points import points_of
from meshwright.search.machine.space import DeviceSpace, load_space, space_names

RIGHT: dict[str, Any] = {
    "name": "two", "source": "this test", "compute": {"from": "10 TFLOP/s", "to": "25 TFLOP/s", "step": "10 TFLOP/s"},
    "bandwidth": ["200 GB/s", "100 GB/s"], "memory": [{"of": "16 GB", "price": 70}, "8 GB"],
    "price": {"unit": "EUR", "source": "this test", "fixed": 1, "terms": [
        {"of": "compute", "each": "1 TFLOP/s", "price": 2}, {"of": "bandwidth", "each": "50 GB/s", "price": 0.5}]},
    "rules": [{"of": "bandwidth", "per": "memory", "each": "1 GB", "most": "20 GB/s"}],
}  # fmt: skip


def test_levels_prices_and_rules() -> None:
    points = points_of(DeviceSpace.model_validate(RIGHT))
    compute, bandwidth, memory = points.values
    assert (list(compute), list(bandwidth), list(memory)) == ([1e13, 2e13], [1e11, 2e11], [8e9, 16e9])
    # fixed 1, 2 a TFLOP/s, 0.5 for 50 GB/s, 70 for 16 GB; 200 GB/s needs 10 GB.
    assert points.price.tolist() == [[[22, 92], [np.inf, 93]], [[42, 112], [np.inf, 113]]]
    assert (points.removed, len(points)) == ({"bandwidth_per_memory": 2}, 6)
    assert [float(points.price[points.place(i)]) for i in range(6)] == [22, 42, 92, 93, 112, 113]


def test_shares_of_peaks_are_the_machine_s() -> None:
    space = DeviceSpace.model_validate(
        RIGHT | {"decode": {"bandwidth": 0.6, "experts": 0.5, "layer": "50 us"}}
    )
    device = space.device(1e13, 1e11, 8e9)
    assert (device.prefill.bytes_per_s, device.decode.bytes_per_s) == (1e11, 6e10)
    assert (device.decode.expert_share, device.decode.layer_s, device.decode.flop_per_s) == (0.5, 5e-5, 1e13)


def test_shipped() -> None:
    assert space_names() == ("example",)
    assert load_space("example").price.example  # no price of anything is stated as a fact


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"compute": [10]}, "10 has no unit"),
        ({"compute": ["10"]}, "'10' has no unit"),
        ({"compute": ["10 GB/s"]}, "unknown unit 'GB/s' in '10 GB/s'"),
        ({"compute": []}, "compute is []"),
        ({"compute": "10 TFLOP/s"}, "expected a list"),
        ({"memory": ["8 GB", {"of": "8GB", "price": 1}]}, "memory names a level twice"),
        ({"memory": [{"of": "8 GB", "price": -1}]}, "greater than or equal to 0"),
        ({"memory": [{"of": "8 GB", "price": float("nan")}]}, "a finite number"),
        ({"bandwidth": {"from": "9 GB/s", "to": "1 GB/s", "step": "1 GB/s"}}, "down to 1 GB/s"),
        ({"bandwidth": {"from": "1 B/s", "to": "9 GB/s", "step": "1 B/s"}}, "9,000,000,000 levels"),
        ({"bandwidth": {"from": "1 GB/s", "to": "9 GB/s"}}, "a span has from, to and step, not from, to"),
        ({"price": {"unit": "EUR", "source": "", "terms": [{"of": "watts", "each": "1 W", "price": 1}]}}, "'compute'"),
        ({"rules": [{"of": "memory", "per": "memory", "each": "1 GB"}]}, "name two axes"),
        ({"rules": [{"of": "bandwidth", "per": "memory", "each": "1 GB"}]}, "neither least nor most"),
        ({"rules": [{"of": "bandwidth", "per": "memory", "each": "1 GB", "most": "1 GB/s", "least": "2 GB/s"}]}, "above"),
        ({"rules": 2 * RIGHT["rules"]}, "two rules of the same pair"),
        ({"decode": {"bandwidth": 1.2}}, "less than or equal to 1"),
        ({"speed": 1}, "'speed'"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(RIGHT | change))
    with pytest.raises(InputError) as raised:
        load_space(path)
    assert said in str(raised.value) and "\n" not in str(raised.value), raised.value


def test_no_device_is_left() -> None:
    rule = {"of": "bandwidth", "per": "memory", "each": "1 GB", "most": "1 GB/s"}
    with pytest.raises(InputError, match="leave no device: bandwidth_per_memory forbids 8 of 8"):
        points_of(DeviceSpace.model_validate(RIGHT | {"rules": [rule]}))


@pytest.mark.parametrize("name", [3, None, ["example"]])
def test_a_name_that_is_none(name: Any) -> None:
    with pytest.raises(InputError, match="device space is"):
        load_space(name)
    with pytest.raises(UnknownNameError, match="did you mean example"):
        load_space("exampel")
