"""Calibrations: complete for every chip, never faster than ideal, narrow parts over wide ones."""

import pytest

from meshwright.hardware.calibration import COMM_CLASSES, load_efficiency
from meshwright.hardware.catalog import chips, efficiencies
from meshwright.hardware.chip import load_chip
from meshwright.hardware.errors import InputError, UnitError, UnknownNameError
from meshwright.hardware.profile import book_chip, with_figures

SHARES = ("matmul", "attention", "hbm", "scale_up", "scale_out", "host_link", "expert_matmul")
COSTS = (
    "matmul_m0", "matmul_n0", "elementwise", "permute", "launch_s", "moe_launch_s", "step_s", "straggler", "sum_bytes",
    "score_bytes", "misaligned", "misaligned_heads", "narrow_heads",
)  # fmt: skip


def test_shipped_names():
    assert efficiencies() == ("book", "default", "ideal")


@pytest.mark.parametrize("name", chips())
@pytest.mark.parametrize("profile", efficiencies())
def test_every_profile_is_complete_and_no_faster_than_ideal(profile, name):
    chip = load_chip(name)
    got, ideal = load_efficiency(profile, chip), load_efficiency("ideal", chip)
    assert got.name == profile
    assert got.provenance
    assert set(got.overlap) == set(COMM_CLASSES)
    assert all(getattr(got, share) <= getattr(ideal, share) == 1.0 for share in SHARES)
    assert all(getattr(got, cost) >= getattr(ideal, cost) for cost in COSTS)
    assert got.pinned_mfu is None
    hash(got)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        # Independent measurements of large bf16 products, as shares of the peaks in the chip files: training runs of
        # Transformer Engine on B200 0.49 to 0.55 and on A100 0.68 to 0.72 (MooreThreads/SimuMax), inference kernels
        # (aiconfigurator-core 0.12.0) 0.83, 0.80 and 0.67 at 4,096 tokens; v6e 0.90 and TPU7x 0.83 for cubes of 8,192 and more.
        ("a100", 0.68, 0.88),
        ("h100", 0.64, 0.80),
        ("b200", 0.49, 0.70),
        ("gb200", 0.49, 0.70),
        ("v5p", 0.65, 0.92),
        ("tpu7x", 0.55, 0.83),
    ],
)
def test_fitted_products_lie_among_independent_measurements(name, least, most):
    got = load_efficiency("default", load_chip(name))
    assert least <= got.matmul <= most
    assert got.provenance.startswith("fitted to 1066 published training runs on 13 chips")


def test_low_precision_keeps_part_of_its_gain():
    assert 0.8 < load_efficiency("default", load_chip("h100")).low_precision_kept("fp8") <= 1.0
    assert 0.5 < load_efficiency("default", load_chip("b200")).low_precision_kept("fp4") < 0.9
    assert load_efficiency("ideal", load_chip("b200")).low_precision_kept("fp4") == 1.0


def test_chips_without_runs_say_whose_values_they_use():
    wider = "no measured run on {}: its family's numbers stand for it, and its error band is wider"
    assert load_efficiency("default", load_chip("v6e")).notes == (
        "default: no entry for tpu_v6e; the prior of family tpu is used",
        wider.format("v6e"),
    )
    amd = load_efficiency("default", load_chip("mi300x")).notes
    assert "no entry for cdna3" in amd[0]
    assert "Hopper's values stand in" in amd[1]
    assert amd[2] == wider.format("mi300x")
    assert load_efficiency("default", load_chip("h100")).notes == ()


def test_bands_are_wider_where_nothing_was_measured():
    for kind in ("dense", "MoE"):
        known, other = (load_efficiency("default", load_chip(n)).bands[kind] for n in ("v5e", "v6e"))
        assert known[0] <= 1 <= known[1] and other[0] <= 1 <= other[1]
        assert other[1] / other[0] > known[1] / known[0]
    assert load_efficiency("ideal", load_chip("h100")).bands is None
    assert load_efficiency("mfu=0.4", load_chip("h100")).bands is None


def test_a_program_wins_over_its_machine_and_extends_another(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nprovenance: test\nextends: ideal\nchips:\n  h100: {matmul: 0.7}\nsoftware:\n"
        "  one: {common: {matmul: 0.6, step_s: 0.1}, chips: {h100: {attention: 0.5}}}\n"
        "  two: {extends: one, common: {matmul: 0.5}}\n"
    )
    h100 = load_chip("h100")
    assert load_efficiency(str(path), h100).matmul == 0.7
    assert load_efficiency(str(path), h100, "none that it knows").matmul == 0.7
    got = load_efficiency(str(path), h100, "two")
    assert (got.matmul, got.step_s, got.attention) == (0.5, 0.1, 0.5)
    path.write_text(path.read_text().replace("extends: one", "extends: two"))
    with pytest.raises(InputError, match="software two extends two, which extends it in turn"):
        load_efficiency(str(path), h100, "two")


def test_book_uses_its_link_rate():
    # 90 of 100 GB/s per ICI link; its v4 rate is already the achievable one
    assert load_efficiency("book", load_chip("v5p")).scale_up == 0.9
    assert load_efficiency("book", load_chip("v4")).scale_up == 1.0
    assert load_efficiency("book", load_chip("v5p")).matmul == 1.0
    assert load_efficiency("book", load_chip("h100")).scale_up == 1.0


def test_pinned_mfu_is_ideal_with_one_number():
    got = load_efficiency("mfu=0.4", load_chip("h100"))
    assert (got.pinned_mfu, got.name, got.matmul, got.scale_out) == (0.4, "mfu=0.4", 1.0, 1.0)


@pytest.mark.parametrize("text", ["mfu=0", "mfu=1.2", "mfu=nan", "mfu=", "mfu=40%", "mfu=inf", "mfu=-1"])
def test_bad_mfu(text):
    with pytest.raises(UnitError) as caught:
        load_efficiency(text, load_chip("h100"))
    assert str(caught.value) == (
        f"{text!r} is not a share of peak; write a number above 0 and at most 1, like 'mfu=0.4'"
    )


def test_the_book_takes_its_share_of_a_link_once():
    """Its profile has links at the achievable rate, its calibration takes that share of the vendors' links."""
    told = (
        "efficiency book takes 90% of the links that vendors list, and the links of profile book (90 GB/s of v5p) are "
        "at that rate already; use --efficiency ideal with it"
    )
    with pytest.raises(InputError) as caught:
        load_efficiency("book", book_chip("v5p"))
    assert str(caught.value) == told
    for name in ("v4", "h100", "mi300x"):  # no share is taken of their links
        assert load_efficiency("book", book_chip(name)).scale_up == 1.0
    assert load_efficiency("ideal", book_chip("v5p")).scale_up == 1.0
    assert load_efficiency("book", with_figures(book_chip("v5p"), link_bytes_per_s=1e11)).scale_up == 0.9


def test_a_file_from_the_book_takes_its_share_once_too(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nprovenance: me\nextends: book\n")
    with pytest.raises(InputError, match="efficiency mine takes 90% of the links"):
        load_efficiency(str(path), book_chip("v5p"))


def test_unknown_profile():
    with pytest.raises(
        UnknownNameError,
        match=r"unknown efficiency 'defualt'; did you mean default or ideal\? Known: book, default, ideal",
    ):
        load_efficiency("defualt", load_chip("h100"))


def test_a_user_file_may_start_from_a_shipped_one(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nprovenance: five runs\nextends: default\narchitectures:\n  hopper: {matmul: 0.7, overlap: {tp: 0.5}}\n"
    )
    got = load_efficiency(str(path), load_chip("h100"))
    base = load_efficiency("default", load_chip("h100"))
    assert (got.name, got.matmul, got.overlap["tp"]) == ("mine", 0.7, 0.5)
    assert (got.attention, got.overlap["dp"], got.low_precision) == (
        base.attention,
        base.overlap["dp"],
        base.low_precision,
    )
    assert (
        load_efficiency(str(path), load_chip("v5p")).matmul
        == load_efficiency("default", load_chip("v5p")).matmul
    )
    assert load_efficiency(str(path), load_chip("v5p")).notes == ()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("common: {matmul: 1.5}", "common.matmul"),
        ("common: {matmul: .nan}", "common.matmul"),
        ("common: {matmull: 0.5}", "common: the key 'matmull' is not known; allowed: matmul, attention, "),
        ("common: {overlap: {tensor: 0.5}}", "overlap"),
        ("common: {matmul: 0.5}", "gives no attention, hbm, .* for h100; add it under common"),
        ("extends: nothing", "unknown efficiency 'nothing'"),
    ],
)
def test_a_broken_user_file_names_the_field(tmp_path, body, words):
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\nprovenance: test\n{body}\n")
    with pytest.raises(InputError, match=words):
        load_efficiency(str(path), load_chip("h100"))
