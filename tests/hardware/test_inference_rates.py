"""Rates that engines reach with one sequence: names, kinds, what is refused, and that no rate passes a peak."""

from pathlib import Path

import pytest
import yaml

from meshwright.costmodel.inference.seconds import Device
from meshwright.hardware.catalog import boards
from meshwright.hardware.chip import load_chip
from meshwright.hardware.errors import InputError, UnknownNameError
from meshwright.hardware.inference_rates import (
    FOLDER,
    inference_names,
    is_inference_rates,
    load_inference_rates,
    load_rates_file,
)

ORIN, NANO = load_chip("jetson-agx-orin-64gb"), load_chip("jetson-orin-nano-8gb")
SUPER, RTX, H100 = load_chip("jetson-orin-nano-super-8gb"), load_chip("rtx-3090"), load_chip("h100")


def refusal(error: type[Exception], *args: object, **named: object) -> str:
    with pytest.raises(error) as caught:
        load_inference_rates(*args, **named)  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_names() -> None:
    assert inference_names() == ("edge", "edge-executorch", "edge-llamacpp", "edge-mlc", "edge-vllm")
    assert all(map(is_inference_rates, (*inference_names(), " EDGE ", str(FOLDER / "edge.yaml"))))
    assert not any(map(is_inference_rates, ("ideal", "default", "mfu=0.4", "edgy", "no/such.yaml")))
    assert not is_inference_rates(str(FOLDER.parent / "calibration" / "ideal.yaml"))


def test_engine_by_kind_by_name_and_by_argument() -> None:
    assert (load_inference_rates("edge", ORIN).engine, load_inference_rates("edge", RTX).engine) == (
        "vllm",
        "llama.cpp",
    )
    assert load_inference_rates("edge-llamacpp", ORIN).engine == "llama.cpp"
    assert load_inference_rates("edge-vllm", ORIN, engine="mlc").engine == "mlc"
    assert load_inference_rates(str(FOLDER / "edge.yaml"), ORIN) == load_inference_rates("edge", ORIN)


@pytest.mark.parametrize("name", boards())
def test_every_board_is_of_a_kind_and_reaches_no_more_than_its_peaks(name: str) -> None:
    chip = load_chip(name)
    for rates in (
        load_inference_rates("edge", chip),
        load_inference_rates("edge-mlc", chip, weight_bits=4.5),
    ):
        for dtype in chip.peak:
            ideal, reached = Device.of(chip, dtype), Device.of(chip, dtype, rates)
            assert reached.memory_bytes == ideal.memory_bytes
            for peak, got in ((ideal.prefill, reached.prefill), (ideal.decode, reached.decode)):
                assert 0 < got.flop_per_s <= peak.flop_per_s and 0 < got.bytes_per_s <= peak.bytes_per_s
                assert 0 < got.attention_flop_per_s <= peak.attention_flop_per_s
                assert got.expert_share <= 1 and got.layer_s > 0


def test_what_the_numbers_depend_on() -> None:
    orin, nano = load_inference_rates("edge", ORIN), load_inference_rates("edge", NANO)
    assert nano.decode.layer_s > orin.decode.layer_s  # launches of a slower device take longer
    four = load_inference_rates("edge", ORIN, weight_bits=4.5)
    assert (
        four.prefill.flop_share < orin.prefill.flop_share and four.decode.hbm_share == orin.decode.hbm_share
    )
    wide = load_inference_rates("edge-mlc", ORIN, head_dim=256)
    assert wide.decode.hbm_share < load_inference_rates("edge-mlc", ORIN).decode.hbm_share
    assert "Gemma 2" in wide.notes[1]
    assert orin.measured and "not measured" not in " ".join(orin.notes)
    new = load_inference_rates("edge", SUPER)
    assert (
        not new.measured
        and "not measured itself: the numbers of 24 rows of its kind stand for it" in new.notes
    )


def test_the_ceiling_of_an_engine_binds_fast_chips() -> None:
    """llama.cpp on H100: 1 / (1 / 640e12 + 1 / 210e12), not 0.64 of 989e12."""
    phase = load_inference_rates("edge", H100).prefill
    assert phase.flop_per_s(989e12) == pytest.approx(
        1 / (1 / (989e12 * phase.flop_share) + 1 / phase.flop_ceiling_per_s)
    )
    assert phase.flop_per_s(989e12) < 2.1e14
    assert load_inference_rates("edge-vllm", H100).prefill.flop_per_s(989e12) == pytest.approx(
        989e12 * phase.flop_share
    )


def test_what_is_refused() -> None:
    assert "unknown efficiency 'edgy'; did you mean edge" in refusal(UnknownNameError, "edgy", ORIN)
    assert "unknown engine 'tensorrt'" in refusal(UnknownNameError, "edge-tensorrt", ORIN)
    assert "unknown engine ''" in refusal(UnknownNameError, "edge-", ORIN)
    assert refusal(InputError, "edge", load_chip("v5e")).startswith(
        "efficiency edge knows no device of architecture tpu_v5e (v5e), it has ada, ampere, "
    )
    assert "weight_bits is nan" in refusal(InputError, "edge", ORIN, weight_bits=float("nan"))
    assert "weight_bits is 0" in refusal(InputError, "edge", ORIN, weight_bits=0)
    assert "weight_bits is '4'; give bits per weight" in refusal(InputError, "edge", ORIN, weight_bits="4")
    assert "head_dim is 0" in refusal(InputError, "edge", ORIN, head_dim=0)
    assert "chip is 'orin'; give a Chip" in refusal(InputError, "edge", "orin")
    assert "efficiency is 7; give a name" in refusal(InputError, 7, ORIN)
    assert "cannot read no/such.yaml" in refusal(InputError, "no/such.yaml", ORIN)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("architectures", "orin"), "abacus", "unknown kind 'abacus'"),
        (("kinds", "integrated", "engine"), "abacus", "unknown engine 'abacus'"),
        (("kinds", "integrated", "hbm_share"), 0.8, "kinds.integrated.hbm_share is 0.8"),
        (("kinds", "integrated", "speed"), 1, "the key 'speed' is not known"),
        (("quantised_flops", "value"), -1, "quantised_flops.value is -1"),
    ],
)
def test_files_of_the_user_are_checked(
    tmp_path: Path, place: tuple[str, ...], value: object, message: str
) -> None:
    raw = yaml.safe_load((FOLDER / "edge.yaml").read_text(encoding="utf-8"))
    part = raw
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert message in refusal(InputError, str(path), ORIN)


def test_sparse_support_is_said() -> None:
    """A reader of expert_share must see on how few rows it stands."""
    engines = load_rates_file("edge").engines
    assert engines["vllm"].expert_share.note.startswith("one row, which alone asks for 0.43: Qwen3-30B-A3B")
    assert engines["llama.cpp"].expert_share.note.startswith("two rows that disagree")
    for engine in engines.values():
        share = engine.expert_share
        assert share.low is not None and share.high is not None and share.low < share.value < share.high
